"""Patterns of parameter names: `include` and `exclude`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from palmette.errors import NothingToPrune


def as_patterns(include: Iterable[str] | None, exclude: Iterable[str]) -> tuple[list[str] | None, list[str]]:
    """`include` and `exclude` as lists; raise, naming the argument, unless both hold strings."""
    return None if include is None else _as_list("include", include), _as_list("exclude", exclude)


def _as_list(argument: str, given: Iterable[str]) -> list[str]:
    found = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if isinstance(given, str) or not all(isinstance(pattern, str) for pattern in found):
        raise TypeError(f"{argument} must be a list of patterns such as ['*.weight'], got {given!r}")
    return found


def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of the names of a weight matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def check_patterns(
    include: list[str] | None, exclude: list[str], *, weights: Sequence[str], names: Sequence[str], what: str
) -> None:
    """Raise, with the nearest names, if a pattern matches nothing, such as one with a typo.

    Args:
        include: patterns that must each match one of `weights`.
        exclude: patterns that must each match one of `names`.
        weights: names of prunable weights; if empty, no pattern raises.
        names: names of all tensors, prunable or not.
        what: the owner of the names, for the error message.
    """
    asked = [("include", pattern, weights) for pattern in include or ()]
    asked += [("exclude", pattern, names) for pattern in exclude]
    for argument, pattern, known in asked:
        if weights and not matches(known, [pattern]):
            near = difflib.get_close_matches(pattern, weights, n=4, cutoff=0)
            shown = (
                f"names are {', '.join(weights)}" if len(weights) <= 8 else f"nearest names are {', '.join(near)}"
            )
            raise NothingToPrune(
                f"{argument} has the pattern {pattern!r}, which matches no weight of {what}; a pattern must match "
                f"the whole name, with * for any part of it; the {shown}"
            )
