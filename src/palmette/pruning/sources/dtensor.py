"""Weights sharded over processes (DTensor): every process makes the same decision, and cuts its own entries.

Along each dimension a process knows which indices of the whole weight it has, so a weight may be sharded by rows,
by columns, by both, unevenly, or with nothing left here. Where a process has all entries of a unit, such as a
neuron of a weight that `fully_shard` has sharded by rows, it measures and cuts the unit as one process does, and
shares the numbers. Otherwise whole numbers are added up over the processes: they are the same for every process,
and for any number of processes. No weight leaves its process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from palmette.measures.exact import carried, padded
from palmette.measures.pq import PowerSums
from palmette.measures.rows import Tiles, cut_into_tiles
from palmette.measures.tail import WAYS
from palmette.pruning.counting import CutPlan
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.selection import continuations, find_keys, keys_of
from palmette.pruning.sources.sharding import Spread, indices_of, local, mask_of
from palmette.pruning.sources.source import ExactSource, Selectable
from palmette.pruning.weights import Weight


@dataclass(frozen=True)
class ShardRows:
    """Local entries of some units.

    Args:
        matrix: one row for each unit that has entries here.
        kept: mask of the entries that count.
        units: index of the unit of each row, int64, without duplicates.
        positions: maps columns to the positions of their entries in the unit, int64.
        spread: processes that hold entries of the units.
    """

    matrix: Tensor
    kept: Tensor
    units: Tensor
    positions: Callable[[slice], Tensor]
    spread: Spread

    def tiles(self) -> Iterator[tuple[Tensor, slice, Tensor, Tensor]]:
        """(units, columns, values, mask of entries that count), in parts of bounded size."""
        for rows, columns in cut_into_tiles(self.matrix):
            columns = slice(columns.start, min(columns.stop, self.matrix.shape[1]))
            yield self.units[rows], columns, self.matrix[rows, columns], self.kept[rows, columns]


@dataclass(frozen=True)
class ShardPart:
    """Local part of a weight, as pieces of its units.

    Args:
        weight: the whole weight.
        per_neuron: whether each neuron is a unit; otherwise the weight is a unit or part of one.
        offset: start of the weight in its unit.
    """

    weight: Weight
    per_neuron: bool
    offset: int = 0

    @property
    def units(self) -> int:
        """Number of units of the whole weight."""
        shape, groups = self.weight.folded
        if not self.per_neuron:
            return 1
        return groups * shape[1] if self.weight.transposed else shape[0]

    @property
    def is_whole(self) -> bool:
        """Whether each unit has all of its entries on one process."""
        cut = {
            placement.dim for placement in Spread.of(self.weight.tensor).placements if not placement.is_replicate()
        }
        if not self.per_neuron:
            return not cut
        if self.weight.folded[1] > 1:  # one piece for each group
            return False
        if self.weight.stacked:
            return cut <= {0, 1}
        return cut <= {1 if self.weight.transposed else 0}

    def pieces(self, values: Tensor, kept: Tensor) -> list[ShardRows]:
        """Pieces of `values` and their mask, which are sharded like the weight."""
        part, mask = (self._folded(local(x)) for x in (values.detach(), kept))
        spread = Spread.of(self.weight.tensor)
        return [
            ShardRows(self._rows(part[chosen]), self._rows(mask[chosen]), units, positions, spread)
            for chosen, units, positions in self._cuts()
        ]

    def from_pieces(self, matrices: Iterator[Tensor]) -> Tensor:
        """Mask sharded like the weight, from the next `matrices`, one in the shape of each piece."""
        whole = mask_of(self.weight.tensor)
        mask = self._folded(local(whole))
        for chosen, _, _ in self._cuts():
            matrix = next(matrices)
            if self.per_neuron and self.weight.transposed:
                block = mask[chosen].transpose(0, 1)
                mask[chosen] = matrix.reshape(block.shape).transpose(0, 1)
            else:
                mask[chosen] = matrix.reshape(mask[chosen].shape)
        return whole

    def _rows(self, values: Tensor) -> Tensor:
        if not self.per_neuron:
            return values.reshape(1, -1)
        if self.weight.transposed:
            values = values.transpose(0, 1)
        return values.reshape(len(values), math.prod(values.shape[1:]))

    def _folded(self, values: Tensor) -> Tensor:
        """View of local entries with the experts of a stack one below another."""
        return values.view(-1, *values.shape[2:]) if self.weight.stacked and self.per_neuron else values

    def _cuts(self) -> Iterator[tuple[slice | Tensor, Tensor, Callable[[slice], Tensor]]]:
        """(indices along the first dimension, their units, positions within the units)."""
        indices = indices_of(self.weight.tensor)
        shape, groups = self.weight.folded
        if self.weight.stacked and self.per_neuron:
            first, second, *rest = indices
            indices = [(first[:, None] * self.weight.shape[1] + second).flatten(), *rest]
        if not self.per_neuron:
            positions = _positions(indices, self.weight.shape, self.offset)
            yield slice(None), torch.zeros(1, dtype=torch.int64), positions
        elif not self.weight.transposed:
            yield slice(None), indices[0], _positions(indices[1:], shape[1:])
        else:
            each = shape[0] // groups
            for group in (indices[0] // each).unique().tolist():
                chosen = (indices[0] // each == group).nonzero()[:, 0]
                inner = [indices[0][chosen] % each, *indices[2:]]
                yield chosen, group * shape[1] + indices[1], _positions(inner, (each, *shape[2:]))


def _positions(indices: Sequence[Tensor], shape: Sequence[int], offset: int = 0) -> Callable[[slice], Tensor]:
    """Function from a range of local entries to their positions in a whole tensor of `shape`."""

    def positions(columns: slice) -> Tensor:
        left = torch.arange(columns.start, columns.stop)
        place, stride = torch.full_like(left, offset), 1
        for index, size in zip(reversed(indices), reversed(shape), strict=True):
            place += index[left % len(index)] * stride
            left //= len(index)
            stride *= size
        return place

    return positions


_KeyTiles = Callable[[ShardRows], Iterator[tuple[Tensor, Tensor, Tensor]]]
"""Units, keys (int64, not negative) and which of them count, tile by tile."""


@dataclass(frozen=True)
class Sharded(ExactSource):
    """Units whose entries are spread over processes; see `Source`.

    Args:
        n: number of units on all processes.
        width: entries of a unit on all processes.
        pieces: local entries.
        spreads: processes with pieces, each once, in the same order everywhere.
        dtype: a dtype that holds the values of all pieces on all processes.
    """

    n: int
    width: int
    pieces: Sequence[ShardRows]
    spreads: Sequence[Spread]
    dtype: torch.dtype

    def _added(self, of: Callable[[list[ShardRows]], list[Tensor]]) -> list[Tensor]:
        """Whole numbers in digits that `of` finds in the pieces, added up over all processes."""
        totals: list[Tensor] = []
        for spread in self.spreads:
            found = map(spread.add_digits, of([piece for piece in self.pieces if piece.spread == spread]))
            totals = [_sum(*pair) for pair in zip(totals, found, strict=True)] if totals else list(found)
        return totals

    def totals(self, of: Callable[[Tiles], list[Tensor]]) -> list[Tensor]:
        """Whole numbers that `of` finds in the tiles of all processes."""
        return self._added(lambda pieces: of(_magnitudes(pieces)))

    def counts(self) -> Tensor:
        """Entries of each unit that count, int64."""

        def count(pieces: list[ShardRows]) -> list[Tensor]:
            d = torch.zeros(1, self.n, dtype=torch.int64)
            for piece in pieces:
                for units, _, _, kept in piece.tiles():
                    d[0, units] += kept.sum(1).cpu()
            return [d]

        return self._added(count)[0][0]

    def largest(self) -> Tensor:
        """Largest magnitude of each unit, float64; 0 for an empty one."""
        largest = torch.zeros(self.n, dtype=torch.float64)
        for units, tile in _magnitudes(self.pieces):
            largest[units] = torch.maximum(largest[units], tile.amax(1).cpu())
        return reduce(lambda found, spread: spread.largest(found), self.spreads, largest)

    def select(self, cut: Tensor) -> list[Tensor]:
        """Masks of each piece after pruning the `cut` smallest entries of each unit; ties by position."""
        key, below, equal = find_keys(partial(self._histogram, self._keys), self.dtype.itemsize * 8 - 1, cut)
        ties = cut - below
        undecided = (ties > 0) & (ties < equal)
        last = torch.where(ties > 0, self.width, -1)  # prune equal entries up to this position

        def places(piece: ShardRows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for (units, keys, counted), (_, columns, _, _) in zip(self._keys(piece), piece.tiles(), strict=True):
                place = piece.positions(columns).to(keys.device).expand_as(keys)
                tied = (keys == _column(key, units, keys)) & _column(undecided, units, keys)
                yield units, place, counted & tied

        if bool(undecided.any()):
            bits, rank = max(1, self.width.bit_length()), torch.where(undecided, ties, 0)
            last = torch.where(undecided, find_keys(partial(self._histogram, places), bits, rank)[0], last)
        remaining = []
        for piece in self.pieces:
            mask = torch.empty(piece.matrix.shape, dtype=torch.bool, device=piece.matrix.device)
            row = 0
            for (units, keys, counted), (_, columns, _, _) in zip(self._keys(piece), piece.tiles(), strict=True):
                place: Tensor | int = 0
                if bool(undecided[units].any()):
                    place = piece.positions(columns).to(keys.device)[None]
                at, end = _column(key, units, keys), _column(last, units, keys)
                gone = (keys < at) | ((keys == at) & (end >= place))
                gone &= _column(cut > 0, units, keys)
                mask[row : row + len(units), columns] = counted & ~gone
                row += len(units) if columns.stop == piece.matrix.shape[1] else 0
            remaining.append(mask)
        return remaining

    def _keys(self, piece: ShardRows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for units, _, values, kept in piece.tiles():
            yield units, keys_of(values, None, self.dtype).to(torch.int64), kept

    def _histogram(self, tiles: _KeyTiles, prefix: Tensor, shift: int) -> Tensor:
        def count(pieces: list[ShardRows]) -> list[Tensor]:
            found = torch.zeros(1, self.n, WAYS, dtype=torch.int64)
            for piece in pieces:
                for units, keys, counted in tiles(piece):
                    found[0, units] += continuations(keys, counted, prefix[units], shift)
            return [found]

        return self._added(count)[0][0]


def _magnitudes(pieces: Sequence[ShardRows]) -> Tiles:
    for piece in pieces:
        for units, _, values, kept in piece.tiles():
            yield units, values.to(torch.float64, copy=True).abs_().masked_fill_(~kept, 0.0)


def _sum(one: Tensor, other: Tensor) -> Tensor:
    many = max(len(one), len(other))
    return carried(padded(one, many) + padded(other, many))


def _column(values: Tensor, units: Tensor, keys: Tensor) -> Tensor:
    return values[units].to(keys.device)[:, None]


@dataclass(frozen=True)
class ShardGroup:
    """Weights that are cut together, some of them sharded.

    Args:
        parts: local parts by name.
        weights, scores: units to measure and to rank.
        units: local units, if each process cuts its own; None if all processes cut all units together.
    """

    parts: Mapping[str, ShardPart]
    weights: Selectable
    scores: Selectable
    units: Tensor | None

    @staticmethod
    def of(
        weights: Mapping[str, Weight],
        scores: Mapping[str, Tensor],
        kept: Mapping[str, Tensor],
        *,
        per_neuron: bool,
    ) -> ShardGroup:
        """Group of all `weights`; scores and masks are sharded like the weights."""
        parts, offset = {}, 0
        for name, weight in weights.items():
            parts[name] = ShardPart(weight, per_neuron, offset)
            offset += weight.tensor.numel()
        pieces = [
            [piece for name, part in parts.items() for piece in part.pieces(values[name], kept[name])]
            for values in ({name: weight.tensor for name, weight in weights.items()}, scores)
        ]
        if all(part.is_whole for part in parts.values()):
            here, ranked = (Memory(tuple(p.matrix for p in own), tuple(p.kept for p in own)) for own in pieces)
            return ShardGroup(parts, here, ranked, pieces[0][0].units)
        n = next(iter(parts.values())).units
        spreads = list(dict.fromkeys(Spread.of(weight.tensor) for weight in weights.values()))
        kinds = [w.tensor.dtype for w in weights.values()], [scores[name].dtype for name in weights]
        measured, ordered = (
            Sharded(n, offset // n, own, spreads, reduce(torch.promote_types, dtypes))
            for own, dtypes in zip(pieces, kinds, strict=True)
        )
        return ShardGroup(parts, measured, ordered, None)

    def masks(self, matrices: Sequence[Tensor]) -> dict[str, Tensor]:
        """Masks by name, sharded like the weights, from masks in the shape of the pieces."""
        left = iter(matrices)
        return {name: part.from_pieces(left) for name, part in self.parts.items()}

    def everywhere(self, plan: CutPlan) -> CutPlan:
        """Plan of all units, gathered from the plan of each process for its units."""
        part = next(iter(self.parts.values()))
        spread, sums = Spread.of(part.weight.tensor), plan.sums
        if self.units is None or not spread.dimensions():
            return plan
        # Bit patterns add without rounding, since all other processes have zeros.
        reals = (sums.scale, sums.p_sum, sums.q_sum, plan.index, plan.retained)
        numbers = [sums.d, plan.cut, *(x.view(torch.int64) for x in reals)]
        table = torch.zeros(len(numbers), part.units, dtype=torch.int64)
        table[:, self.units] = torch.stack(numbers)
        d, cut, *bits = (x.clone() for x in spread.add(table))
        scale, p_sum, q_sum, index, retained = (x.view(torch.float64) for x in bits)
        return CutPlan(PowerSums(d, scale, p_sum, q_sum, sums.p, sums.q), index, retained, cut)
