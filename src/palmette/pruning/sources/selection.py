"""Selection of weights: keys that sort like magnitudes, and the threshold at which a unit is cut.

A float without its sign bit, read as an integer, sorts like its magnitude. So counts are exact for
every float dtype, and the same on every device, in a file and across processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.measures.rows import INTEGER
from palmette.measures.tail import STEP, WAYS, shifts


@dataclass(frozen=True)
class Threshold:
    """Threshold of a unit: prune every key below `key`, and the first `ties` of the `equal` keys equal to it."""

    key: int
    ties: int
    equal: int


NO_CUT = Threshold(-1, 0, 0)


def keys_of(values: Tensor, kept: Tensor | None, dtype: torch.dtype, scratch: Tensor | None = None) -> Tensor:
    """Integers that sort like the magnitudes of `values`; the largest integer where an entry is not kept.

    Args:
        dtype: a float dtype that holds all compared values.
        scratch: memory for the keys, used if it fits.
    """
    bits = values.to(dtype).contiguous().view(INTEGER[dtype.itemsize])
    most = torch.iinfo(bits.dtype).max
    fits = scratch is not None and (scratch.shape, scratch.device) == (bits.shape, bits.device)
    keys = torch.bitwise_and(bits, most, out=scratch if fits else None)
    return keys if kept is None else keys.masked_fill_(~kept, most)


def find_keys(
    histogram: Callable[[Tensor, int], Tensor], bits: int, rank: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The `rank`-th smallest key of each unit, how many are below it, and how many are equal to it.

    Searches eight bits at a time by counts alone, so communication does not grow with the number of weights.

    Args:
        histogram: (prefix, shift) -> units × 256, how many keys of each unit continue its prefix in each way.
        bits: width of a key.
        rank: counted from 1; any key is returned for rank 0.
    """
    prefix, below, equal = (torch.zeros_like(rank) for _ in range(3))
    for shift in shifts(bits):
        counts = histogram(prefix, shift)
        upto = counts.cumsum(1)
        way = (upto < (rank - below)[:, None]).sum(1).clamp_max(WAYS - 1)[:, None]
        equal = counts.gather(1, way)[:, 0]
        below = below + upto.gather(1, way)[:, 0] - equal
        prefix = prefix * WAYS + way[:, 0]
    return prefix, below, equal


def continuations(keys: Tensor, counted: Tensor, prefix: Tensor, shift: int) -> Tensor:
    """Rows × 256: how many of the `counted` keys of each row continue the row's `prefix` in each way."""
    rest = keys >> shift
    chosen = counted & ((rest >> STEP) == prefix.to(keys.device)[:, None])
    ways = (rest & (WAYS - 1)) + torch.arange(len(keys), device=keys.device)[:, None] * WAYS
    return torch.bincount(ways[chosen], minlength=len(keys) * WAYS).view(-1, WAYS).cpu()
