"""Counts of weights that are covered, and of those left out, by reason. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

VECTOR = "a vector: bias, norm or statistics"
FROZEN = "frozen"
UNKNOWN = "not the weight of a layer"
GAIN = "the gain of weight norm"
BUFFER = "a buffer: statistics, indices or a mask"
CONSTANT = "a constant"
NO_FLOATS = "no dense floating-point numbers"
"""Reason to leave out complex, sparse and integer tensors, such as quantized weights."""
_SAME = "the same as "


@dataclass(frozen=True)
class LeftOut:
    """A tensor that is not pruned, and the reason."""

    name: str
    shape: tuple[int, ...]
    why: str
    bytes: int = 0

    @property
    def entries(self) -> int:
        """Number of values; 0 for a second name of another tensor, and for a buffer, which is no parameter."""
        return 0 if self.why.startswith(_SAME) or self.why == BUFFER else math.prod(self.shape)


def coverage(covered: int, left_out: Sequence[LeftOut]) -> str:
    """Sentences with the share of all numbers that is covered, and the reasons for leaving out the rest.

    >>> coverage(90, [LeftOut("a", (4,), VECTOR), LeftOut("b", (2, 3), "embedding")])
    'Covers 90 of 100 parameters (90.0%). Left out: 6 (embedding), 4 (a vector: bias, norm or statistics).'
    """
    reasons: dict[str, int] = {}
    for one in left_out:
        reasons[one.why] = reasons.get(one.why, 0) + one.entries
    counted = sorted(((n, why) for why, n in reasons.items() if n), reverse=True)
    total = covered + sum(reasons.values())
    rest = ", ".join(f"{n:,} ({why})" for n, why in counted)
    return f"Covers {covered:,} of {total:,} parameters ({covered / total:.1%})." + (
        f" Left out: {rest}." if rest else ""
    )


def surprises(covered: int, left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Sentences about tensors that are left out although a user may expect them to be pruned."""
    total = covered + sum(one.entries for one in left_out)
    include = "name them in include to prune them"
    for why, least, advice in (
        (FROZEN, 0.0, include),
        (UNKNOWN, 0.01, include),
        (NO_FLOATS, 0.01, "prune the model before it is quantized or converted"),
    ):
        names = [one.name for one in left_out if one.why == why]
        count = sum(one.entries for one in left_out if one.why == why)
        if count > least * total:
            yield (
                f"{count:,} of {total:,} parameters are {why} and left out ({shown(names)}); {advice}, or name "
                "them in exclude to silence this"
            )


def shown(names: Sequence[str], most: int = 3) -> str:
    """The first names, and an ellipsis for more.

    >>> shown(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
