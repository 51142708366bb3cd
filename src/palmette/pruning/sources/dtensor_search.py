"""Sums, counts and thresholds of units whose entries are spread over processes.

Magnitudes are compared as bit patterns, and a threshold is found eight bits at a time: each process counts, for
each unit, how many of its entries have each of the 256 continuations; the counts are added up over the processes,
and all of them see which continuation the threshold has. The place of the last of several equal entries to go is
found in the same way. So what travels does not depend on how many weights there are, and every process finds the
same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add

import torch
from torch import Tensor

from palmette.measures.exact import ExactPowerSums, bits_above, carried, digits_of, padded, powers, whole
from palmette.measures.pq import PowerSums
from palmette.pruning.sources.dtensor import Piece, Spread
from palmette.pruning.weights import INTEGER

_STEP = 8
_WAYS = 1 << _STEP


@dataclass(frozen=True)
class Units:
    """Units that are measured together, as far as their entries are here.

    Args:
        count: how many units there are, on all processes.
        width: how many entries each has, on all processes.
        pieces: the entries that are here.
        spreads: over which processes there are pieces, each once.
        dtype: holds the values of all pieces, on all processes.
    """

    count: int
    width: int
    pieces: Sequence[Piece]
    spreads: Sequence[Spread]
    dtype: torch.dtype

    def by_spread(self) -> Iterator[tuple[Spread, list[Piece]]]:
        """Pieces that are spread over the same processes, perhaps none here, in the same order everywhere."""
        for spread in self.spreads:
            yield spread, [piece for piece in self.pieces if piece.spread == spread]

    def added(self, of: Callable[[list[Piece]], Tensor]) -> Tensor:
        """Whole numbers that `of` finds in the pieces, added up over all processes."""
        return reduce(add, (spread.add(of(pieces)) for spread, pieces in self.by_spread()))

    def counts(self) -> Tensor:
        """Entries of each unit that count, int64."""

        def count(pieces: list[Piece]) -> Tensor:
            d = torch.zeros(self.count, dtype=torch.int64)
            for piece in pieces:
                for units, _, _, kept in piece.tiles():
                    d[units] += kept.sum(1).cpu()
            return d

        return self.added(count)

    def largest(self) -> Tensor:
        """The largest magnitude of each unit, float64; 0 for an empty one."""
        largest = torch.zeros(self.count, dtype=torch.float64)
        for spread, pieces in self.by_spread():
            found = torch.zeros_like(largest)
            for units, tile in _magnitudes(pieces):
                found[units] = torch.maximum(found[units], tile.amax(1).cpu())
            largest = torch.maximum(largest, spread.largest(found))
        return largest

    def power_sums(self, *, p: float, q: float) -> PowerSums:
        """Power sums of each unit, without rounding."""
        largest, wide = self.largest(), self.dtype == torch.float64
        total = ExactPowerSums(largest, p=p, q=q, wide=wide)
        for spread, pieces in self.by_spread():
            found = ExactPowerSums(largest, p=p, q=q, wide=wide)
            for units, tile in _magnitudes(pieces):
                found.add(units, tile)
            for into, sums in ((total.p_sums, found.p_sums), (total.q_sums, found.q_sums)):
                into.digits = _sum(into.digits, _added(spread, sums.digits))
        return total.value(self.counts())


def _magnitudes(pieces: Sequence[Piece]) -> Iterator[tuple[Tensor, Tensor]]:
    """(units, their magnitudes in float64, 0 where an entry does not count); a tile may be written to."""
    for piece in pieces:
        for units, _, values, kept in piece.tiles():
            yield units, values.to(torch.float64, copy=True).abs_().masked_fill_(~kept, 0.0)


def _added(spread: Spread, digits: Tensor) -> Tensor:
    """The digits of sums, added up over the processes."""
    many = int(spread.largest(torch.tensor(len(digits))))
    return carried(spread.add(padded(digits, many)))


def _sum(one: Tensor, other: Tensor) -> Tensor:
    many = max(len(one), len(other))
    return carried(padded(one, many) + padded(other, many))


# Where to cut.


@dataclass(frozen=True)
class Found:
    """For each unit the `key` of an entry of given rank, how many are `below` it, and how many are `equal`."""

    key: Tensor
    below: Tensor
    equal: Tensor


Keys = Callable[[Piece], Iterator[tuple[Tensor, Tensor, Tensor]]]
"""Gives, tile by tile: units, keys (int64, not negative), and which of them count."""


def find(units: Units, keys: Keys, bits: int, rank: Tensor) -> Found:
    """The `rank`-th smallest key of each unit, counted from 1; any key for rank 0."""
    prefix, below, equal = (torch.zeros(units.count, dtype=torch.int64) for _ in range(3))
    for shift in _shifts(bits):

        def count(pieces: list[Piece], shift: int = shift, prefix: Tensor = prefix) -> Tensor:
            found = torch.zeros(units.count, _WAYS, dtype=torch.int64)
            for piece in pieces:
                for which, tile, counts in keys(piece):
                    ways, chosen = _continued(tile, counts, prefix[which], shift)
                    bins = torch.bincount(ways[chosen], minlength=len(which) * _WAYS)
                    found[which] += bins.view(-1, _WAYS).cpu()
            return found

        counts = units.added(count)
        upto = counts.cumsum(1)
        way = (upto < (rank - below)[:, None]).sum(1).clamp_max(_WAYS - 1)[:, None]
        equal = counts.gather(1, way)[:, 0]
        below = below + upto.gather(1, way)[:, 0] - equal
        prefix = prefix * _WAYS + way[:, 0]
    return Found(prefix, below, equal)


def _shifts(bits: int) -> range:
    return range(-(-bits // _STEP) * _STEP - _STEP, -1, -_STEP)


def _continued(keys: Tensor, counts: Tensor, prefix: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """How each key that begins with its unit's `prefix` goes on, 256 numbers for each unit; and which do."""
    rest = keys >> shift
    chosen = counts & ((rest >> _STEP) == prefix.to(keys.device)[:, None])
    ways = (rest & (_WAYS - 1)) + torch.arange(len(keys), device=keys.device)[:, None] * _WAYS
    return ways, chosen


def magnitude_keys(dtype: torch.dtype) -> Keys:
    """Integers that sort like magnitudes, of the kept entries."""
    integer = INTEGER[dtype.itemsize]

    def keys(piece: Piece) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for units, _, values, kept in piece.tiles():
            bits = values.to(dtype).contiguous().view(integer) & torch.iinfo(integer).max
            yield units, bits.to(torch.int64), kept

    return keys


def select(units: Units, cut: Tensor) -> list[Tensor]:
    """Which entries of each piece remain when each unit loses its `cut` smallest, ties by place in the unit."""
    bits, keys = units.dtype.itemsize * 8 - 1, magnitude_keys(units.dtype)
    at = find(units, keys, bits, cut)
    ties = cut - at.below
    open_ = (ties > 0) & (ties < at.equal)
    last = torch.where(ties > 0, units.width, -1)  # of the equal ones, those up to this place go

    def places(piece: Piece) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for (which, tile, counts), (_, columns, _, _) in zip(keys(piece), piece.tiles(), strict=True):
            place = piece.positions(columns).to(tile.device).expand_as(tile)
            is_equal = tile == at.key[which].to(tile.device)[:, None]
            yield which, place, counts & is_equal & open_[which].to(tile.device)[:, None]

    if bool(open_.any()):
        found = find(units, places, max(1, units.width.bit_length()), torch.where(open_, ties, 0))
        last = torch.where(open_, found.key, last)
    remaining = []
    for piece in units.pieces:
        mask = torch.empty(piece.matrix.shape, dtype=torch.bool, device=piece.matrix.device)
        row = 0
        for (which, tile, counts), (_, columns, _, _) in zip(keys(piece), piece.tiles(), strict=True):
            key, end = (values[which].to(tile.device)[:, None] for values in (at.key, last))
            place: Tensor | int = 0
            if bool(open_[which].any()):
                place = piece.positions(columns).to(tile.device)[None]
            gone = (tile < key) | ((tile == key) & (end >= place))
            gone &= (cut[which] > 0).to(tile.device)[:, None]
            mask[row : row + len(which), columns] = counts & ~gone
            row += len(which) if columns.stop == piece.matrix.shape[1] else 0
        remaining.append(mask)
    return remaining


# TailMass: the same search, with exact masses beside the counts.


def tail_mass_cut(units: Units, *, p: float, eta: float) -> Tensor:
    """How many entries of each unit weigh together at most `eta` times the rest; see `TailMass`."""
    largest = units.largest()
    excess = (torch.frexp(largest).exponent - 900).clamp_min(0)  # as in `ordered_mass`
    scale = torch.ldexp(torch.ones_like(largest), excess)
    top = bits_above(powers(largest / scale, p))
    prefix, cut = (torch.zeros(units.count, dtype=torch.int64) for _ in range(2))
    below = torch.zeros(1, units.count, dtype=torch.int64)  # the mass of what goes for sure, in digits
    totals, digits = [0] * units.count, 0
    for shift in _shifts(units.dtype.itemsize * 8 - 1):
        counts, masses = _continuations(units, prefix, shift, scale, top, p)
        many = max(len(masses), len(below), digits)
        below = padded(below, many)
        upto = carried(below[:, :, None] + padded(masses, many).cumsum(2))
        if not digits:
            totals = [whole(upto[:, i, -1]) for i in range(units.count)]
        else:
            totals = [total << 31 * (many - digits) for total in totals]
        digits = many
        for i, total in enumerate(totals):
            if total == 0:  # nothing but zeros, or nothing at all
                cut[i] = max(cut[i], counts[i].sum())
                continue
            way = _first(_WAYS, lambda w, i=i, t=total, m=upto: _share(whole(m[:, i, w]), t) > eta)  # type: ignore[misc]
            cut[i] += counts[i, :way].sum()
            if way:
                below[:, i] = upto[:, i, way - 1]
            prefix[i] = prefix[i] * _WAYS + way
            if shift == 0:
                sure, equal = whole(below[:, i]), int(counts[i, way])
                each = (whole(upto[:, i, way]) - sure) // equal
                cut[i] += _first(equal, lambda j, s=sure, e=each, t=total: _share(s + (j + 1) * e, t) > eta)  # type: ignore[misc]
    return cut


def _continuations(
    units: Units, prefix: Tensor, shift: int, scale: Tensor, top: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Of the entries that begin with their unit's `prefix`: how many go on in each of 256 ways, and their mass."""
    keys = magnitude_keys(units.dtype)
    counts = torch.zeros(units.count, _WAYS, dtype=torch.int64)
    masses = torch.zeros(1, units.count, _WAYS, dtype=torch.int64)
    for spread, pieces in units.by_spread():
        found, mass = torch.zeros_like(counts), torch.zeros_like(masses[:1])
        for piece in pieces:
            for (which, tile, marks), (_, x) in zip(keys(piece), _magnitudes([piece]), strict=True):
                ways, chosen = _continued(tile, marks, prefix[which], shift)
                ways = ways[chosen]
                found[which] += torch.bincount(ways, minlength=len(which) * _WAYS).view(-1, _WAYS).cpu()
                terms = powers(x.div_(scale[which].to(x.device)[:, None]), p).masked_fill_(~chosen, 0.0)
                for k, digit in enumerate(digits_of(terms, top[which])):
                    bins = torch.zeros(len(which) * _WAYS, dtype=torch.int64, device=digit.device)
                    mass = padded(mass, k + 1)
                    mass[k, which] += bins.index_add_(0, ways, digit[chosen]).view(-1, _WAYS).cpu()
                carried(mass)
        counts = counts + spread.add(found)
        masses = _sum(masses, _added(spread, mass))
    return counts, masses


def _first(many: int, holds: Callable[[int], bool]) -> int:
    """The first of so many numbers from 0 for which it holds, and then for all that follow; or `many`."""
    return bisect_left(range(many), True, key=holds)


def _share(tail: int, total: int) -> float:
    """What the tail weighs as a share of the rest: one rounding, at the very end."""
    if tail == 0:
        return 0.0
    return float(Fraction(tail, total - tail)) if total > tail else float("inf")
