"""Exact count of the smallest entries whose total mass is at most a given share of the rest.

A float without its sign bit, read as an integer, is a key that sorts like its magnitude. The key of the first
entry that must stay is found eight bits at a time: count the entries with each of the 256 continuations of the key
so far, add up their masses exactly, and choose the first continuation at which the tail weighs too much. Counts
and masses add up over tiles, files and processes, so every source of weights is counted in the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

import torch
from torch import Tensor

from palmette.measures.exact import bits_above, carried, digit_unit, digits_of, padded, powers, value_of, whole
from palmette.measures.rows import INTEGER, Summable, Tiles

STEP = 8
WAYS = 1 << STEP


def shifts(bits: int) -> range:
    """Number of bits by which a key is shifted at each step of a search, the most significant ones first."""
    return range(-(-bits // STEP) * STEP - STEP, -1, -STEP)


def tail_count(rows: Summable, *, p: float, eta: float) -> Tensor:
    r"""Number of smallest entries of each row whose mass is at most `eta` times that of the rest.

    Mass is :math:`\sum |w_i|^p`. The share of the tail is the quotient of two exact sums, rounded once. A row
    of zeros loses all its entries, and so does a row with a NaN or an infinity.
    """
    d, largest = rows.counts(), rows.largest()
    scale = mass_scale(largest).where(largest.isfinite(), torch.inf)
    unit = digit_unit(bits_above(powers(largest / scale, p)))
    prefix, gone = (torch.zeros(rows.n, dtype=torch.int64) for _ in range(2))
    below, total = torch.zeros(1, rows.n, dtype=torch.int64), torch.zeros(1, rows.n, dtype=torch.int64)
    for i, shift in enumerate(shifts(8 * rows.dtype.itemsize - 1)):
        count = partial(_continuations, rows.dtype, prefix if i else None, shift, scale, unit, p)
        (counts,), masses = rows.totals(count)
        many = max(map(len, (below, total, masses)))
        below, total, masses = padded(below, many), padded(total, many), padded(masses, many)
        tails = carried(below[..., None] + masses.cumsum(2))
        if not i:
            total = tails[..., -1]
        way = _exceeds(tails, total, eta).to(torch.int64).argmax(1)[:, None]
        equal = counts.gather(1, way)[:, 0]
        gone += counts.cumsum(1).gather(1, way)[:, 0] - equal
        tail = tails.gather(2, way.expand(many, -1, 1))[..., 0]
        below = carried(tail - masses.gather(2, way.expand(many, -1, 1))[..., 0])
        prefix = prefix * WAYS + way[:, 0]
    for j in (equal > 1).nonzero()[:, 0].tolist():
        sure, every, many = whole(below[:, j]), whole(total[:, j]), int(equal[j])
        each = (whole(tail[:, j]) - sure) // many
        over = partial(_over_with_ties, sure, each, every, eta)
        gone[j] += bisect_left(range(1, many + 1), True, key=over)
    # Entries that do not count were counted as zeros, which always go.
    return torch.where((total == 0).all(0), d, gone - (rows.width - d))


def mass_scale(largest: Tensor) -> Tensor:
    """Divisor of magnitudes up to `largest` that keeps sums of their powers from overflowing.

    A power of two: at p = 1 the masses of whole numbers stay exact, and so does a tie between them.
    """
    return torch.ldexp(torch.ones_like(largest), (torch.frexp(largest).exponent - 900).clamp_min(0))


def share(tail: int, total: int) -> float:
    """Mass of the tail as a share of the rest, rounded once; infinite where nothing is left of it."""
    if tail == 0:
        return 0.0
    return tail / (total - tail) if total > tail else float("inf")


def _over_with_ties(sure: int, each: int, total: int, eta: float, ties: int) -> bool:
    return _over(sure + ties * each, total, eta)


def _over(tail: int, total: int, eta: float) -> bool:
    return share(tail, total) > eta if eta else tail > 0  # a share may be too small for a float


def _exceeds(tails: Tensor, total: Tensor, eta: float) -> Tensor:
    """Whether each tail weighs more than `eta` times the rest of its row."""
    heads = carried(total[..., None] - tails)
    approximate = value_of(tails) / value_of(heads)
    exceeds, positive = approximate > eta, (tails != 0).any(0)
    # Divide exactly where rounding or the range of float64 leaves the answer open.
    unsure = positive & ~((approximate - eta).abs() > 1e-12 * eta + 1e-290)
    for i, way in unsure.nonzero().tolist():
        exceeds[i, way] = _over(whole(tails[:, i, way]), whole(total[:, i]), eta)
    return exceeds & positive


def _continuations(
    dtype: torch.dtype, prefix: Tensor | None, shift: int, scale: Tensor, unit: Tensor, p: float, tiles: Tiles
) -> list[Tensor]:
    """Entries whose keys continue `prefix` in each of 256 ways: how many of each row, and their exact masses."""
    n, broken = len(scale), bool(scale.isinf().any())
    counts, masses = (torch.zeros(1, n, WAYS, dtype=torch.int64) for _ in range(2))
    for chosen, tile in tiles:
        here = torch.arange(n)[chosen]
        keys = tile.to(dtype).view(INTEGER[dtype.itemsize]).to(torch.int64) >> shift
        ways = (keys & (WAYS - 1)) + torch.arange(len(tile), device=tile.device)[:, None] * WAYS
        if prefix is None:
            terms, ways = tile.reshape(-1), ways.reshape(-1)
        else:
            inside = (keys >> STEP) == prefix[here].to(tile.device)[:, None]
            terms, ways = tile[inside], ways[inside]
        row = here.to(tile.device)[ways >> STEP]
        terms = powers(terms / scale.to(tile.device)[row], p)
        if broken:
            terms.nan_to_num_(0.0, 0.0)
        counts[0, here] += torch.bincount(ways, minlength=len(tile) * WAYS).view(-1, WAYS).cpu()
        for k, digit in enumerate(digits_of(terms, unit.to(tile.device)[row])):
            masses = padded(masses, k + 1)
            bins = torch.zeros(len(tile) * WAYS, dtype=torch.int64, device=tile.device)
            masses[k, here] += bins.index_add_(0, ways, digit).view(-1, WAYS).cpu()
        carried(masses)
    return [counts, masses]
