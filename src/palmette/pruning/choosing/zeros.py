"""Zeros of earlier cuts: where more than 1 % of a weight is exactly zero, its zeros count as pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from palmette.pruning.choosing.coverage import shown
from palmette.pruning.methods import Zeros
from palmette.pruning.sources.sharding import added, local
from palmette.pruning.sources.stored import CHUNK, StoredWeight
from palmette.pruning.weights import Weight

SHARE = 0.01


def as_zeros(zeros: Zeros) -> Zeros:
    """The argument `zeros`; anything else is refused."""
    if zeros not in ("pruned", "count"):
        raise ValueError(f"zeros must be 'pruned' or 'count', got {zeros!r}")
    return zeros


def are_pruned(zeros: int, entries: int) -> bool:
    """Whether so many zeros come from pruning; a weight of zeros alone has not been trained yet.

    >>> are_pruned(2, 100), are_pruned(1, 100), are_pruned(100, 100)
    (True, False, False)
    """
    return SHARE * entries < zeros < entries


@torch.no_grad()
def masks_of_zeros(weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """Masks of the weights that have been pruned before, by their zeros."""
    counts = _counts(weights)
    return {n: w.values != 0 for n, w in weights.items() if are_pruned(*counts[n])}


def zeros_warning(weights: Mapping[str, Weight], pruned: Sequence[str], zeros: int) -> str:
    """Warning that `zeros` of the weights `pruned` stay; it names weights that are nothing but zeros."""
    said = f"{zeros:,} zeros ({shown(pruned)}) count as pruned before and stay; zeros='count' lets them train"
    blank = [n for n, (none, entries) in _counts(weights).items() if 0 < entries == none]
    more = f". Nothing but zeros, and free to train: {shown(blank)}; give masks to keep them"
    return said + (more if blank else "")


@torch.no_grad()
def _counts(weights: Mapping[str, Weight]) -> dict[str, tuple[int, int]]:
    """Zeros and entries of each weight."""
    values = {n: w.values for n, w in weights.items()}
    counts = added({n: (local(v) == 0).sum() for n, v in values.items()}, values)
    return {n: (counts[n], v.numel()) for n, v in values.items()}


def without_zeros(stored: StoredWeight) -> StoredWeight:
    """The weight with its zeros as pruned."""
    return replace(stored, kept=lambda first, last: stored.values(stored.read(first, last), first, last) != 0)


def zeros_as_pruned(weights: Sequence[StoredWeight], chunk: int = CHUNK) -> tuple[StoredWeight, ...]:
    """Stored weights, those without masks that have been pruned before with their zeros as pruned."""

    def zeros(stored: StoredWeight) -> int:
        return sum(int((part.values == 0).sum()) for part in stored.parts(chunk))

    return tuple(
        without_zeros(w) if w.kept is None and len(w.shape) > 1 and are_pruned(zeros(w), w.entries) else w
        for w in weights
    )
