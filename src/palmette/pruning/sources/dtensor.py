"""Weights that are spread over processes (DTensor, as `fully_shard` makes them): the part that is here.

A part is whatever entries this process has. Along each dimension it knows which, by their index in the whole
weight; so it does not matter how a weight was cut into parts: by rows, by columns, both, unevenly, or with nothing
left here. Numbers about the whole are whole numbers, added up over the processes: they are the same for every
process, and for any number of them. No weight leaves its process.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.errors import MaskMismatch
from palmette.measures.rows import cut_into_tiles
from palmette.pruning.weights import Weight

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def is_sharded(values: object) -> bool:
    """Whether it is a DTensor; the module of these is not imported for that."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(values, module.DTensor)


def check_whole(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise, naming it, if one of the tensors is spread over processes."""
    if spread := [name for name, tensor in tensors.items() if is_sharded(tensor)]:
        raise TypeError(
            f"{what} takes a model that this process has as a whole, but {spread[0]!r} is spread over several; a "
            "checkpoint of torch.distributed.checkpoint can be read by one"
        )


def local(values: Tensor) -> Tensor:
    """The entries that this process has, without a copy: what is written to them is written to `values`."""
    if not is_sharded(values):
        return values
    known: Any = values
    with torch.no_grad():
        part: Tensor = known.to_local().detach()
    return part


def beside(mask: Tensor, weight: Tensor, name: str) -> Tensor:
    """A copy of the mask where the weight is, and spread as it is; a whole mask is cut into parts here."""
    if not is_sharded(weight):
        if is_sharded(mask):
            raise MaskMismatch(f"the mask of {name!r} is spread over processes, the weight is not")
        return mask.to(weight.device, copy=True)
    part = local(mask)
    if is_sharded(mask):
        theirs, ours = Spread.of(mask), Spread.of(weight)
        if theirs != ours:
            raise MaskMismatch(
                f"the mask of {name!r} is spread over processes as {theirs.placements}, the weight as "
                f"{ours.placements}; load it into the state_dict of a Pruner of this model"
            )
    else:
        for dimension, chosen in enumerate(indices_of(weight)):
            part = part.index_select(dimension, chosen.to(part.device))
    fitted = mask_of(weight)
    local(fitted).copy_(part)
    return fitted


def mask_of(weight: Tensor) -> Tensor:
    """A mask that is where the weight is, and spread as it is, still to be written."""
    # Not by DTensor.from_local, which takes what is offloaded to the CPU to the GPU.
    return torch.empty_like(weight.detach(), dtype=torch.bool)


@dataclass(frozen=True)
class Spread:
    """Over which processes a tensor is spread; for one that each has as a whole, over none.

    Args:
        mesh: the processes.
        placements: what each dimension of the mesh does to the tensor.
    """

    mesh: DeviceMesh | None = None
    placements: tuple[Any, ...] = ()

    @staticmethod
    def of(values: Any) -> Spread:
        """Of a tensor."""
        return Spread(values.device_mesh, tuple(values.placements)) if is_sharded(values) else Spread()

    def dimensions(self) -> list[int]:
        """Those of the mesh along which processes have different parts."""
        return [i for i, placement in enumerate(self.placements) if not placement.is_replicate()]

    def add(self, counts: Tensor) -> Tensor:
        """The sum of whole numbers over the processes, for all of them."""
        return self._reduced(counts, torch.distributed.ReduceOp.SUM, self.dimensions())

    def largest(self, values: Tensor) -> Tensor:
        """The largest of numbers over the processes, those with equal parts too, for all of them."""
        return self._reduced(values, torch.distributed.ReduceOp.MAX, range(len(self.placements)))

    def _reduced(self, values: Tensor, how: Any, dimensions: Sequence[int]) -> Tensor:
        if not dimensions or self.mesh is None:
            return values
        there = values.to(self.mesh.device_type, copy=True)  # where NCCL wants it, wherever the weights are
        for i in dimensions:
            torch.distributed.all_reduce(there, how, group=self.mesh.get_group(i))
        return there.to(values.device)


def added(counts: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """For each tensor the sum of what each process has counted in its part of it."""
    spreads: dict[Spread, list[str]] = {}
    for name, tensor in tensors.items():
        spreads.setdefault(Spread.of(tensor), []).append(name)
    found: dict[str, int] = {}
    for spread, names in spreads.items():
        sums = spread.add(torch.tensor([int(counts[name]) for name in names]))
        found |= zip(names, sums.tolist(), strict=True)
    return {name: found[name] for name in tensors}


def indices_of(values: Any) -> list[Tensor]:
    """For each dimension, which indices of the whole tensor this process has."""
    indices = [torch.arange(size) for size in values.shape]
    for i, placement in enumerate(Spread.of(values).placements):
        if placement.is_replicate():
            continue
        dimension, many = getattr(placement, "dim", None), values.device_mesh.size(i)
        if dimension is None:
            raise TypeError(f"a weight is spread over processes as {placement}, which is not known here")
        here, own = values.device_mesh.get_local_rank(i), indices[dimension]
        blocks = int(getattr(placement, "split_factor", 1))
        if blocks > 1 and len(own) % (blocks * many):
            raise TypeError(
                f"a weight of shape {tuple(values.shape)} is cut twice along one dimension, into parts of "
                f"different sizes ({placement}); its parts cannot be told"
            )
        # Tensor parallelism has cut this dimension into blocks before: of each, the part that is here.
        indices[dimension] = torch.cat([_chunk(block, many, here) for block in own.chunk(blocks)])
    found, there = tuple(len(index) for index in indices), tuple(local(values).shape)
    if found != there:
        raise TypeError(f"a weight is spread over processes in a way that is not known: {found} and not {there}")
    return indices


def _chunk(values: Tensor, many: int, which: int) -> Tensor:
    """One of the equal chunks into which torch cuts; the last ones may be smaller, or empty."""
    size = -(-len(values) // many)
    return values[which * size : (which + 1) * size]


@dataclass(frozen=True)
class Piece:
    """Entries of some units that this process has.

    Args:
        matrix: one row for each unit that has entries here.
        kept: which of them count.
        units: which unit each row is, int64, each once.
        positions: takes columns, and gives the places of their entries in the unit, int64.
        spread: over which processes the units' entries are spread.
    """

    matrix: Tensor
    kept: Tensor
    units: Tensor
    positions: Callable[[slice], Tensor]
    spread: Spread

    def tiles(self) -> Iterator[tuple[Tensor, slice, Tensor, Tensor]]:
        """(units, columns, values, which count), in parts of bounded size."""
        for rows, columns in cut_into_tiles(self.matrix):
            columns = slice(columns.start, min(columns.stop, self.matrix.shape[1]))
            yield self.units[rows], columns, self.matrix[rows, columns], self.kept[rows, columns]


@dataclass(frozen=True)
class ShardPart:
    """The part of a weight that this process has, as pieces of its units.

    Args:
        weight: the whole, wherever it is.
        per_neuron: whether its units are neurons, or it is (part of) one unit.
        offset: where it begins in the unit, if it is part of one.
    """

    weight: Weight
    per_neuron: bool
    offset: int = 0

    @property
    def units(self) -> int:
        """How many units there are in the whole weight."""
        shape = self.weight.shape
        if not self.per_neuron:
            return 1
        return self.weight.groups * shape[1] if self.weight.transposed else shape[0]

    @property
    def is_whole(self) -> bool:
        """Whether every unit that has entries here has all of them here."""
        cut = {
            placement.dim for placement in Spread.of(self.weight.tensor).placements if not placement.is_replicate()
        }
        if not self.per_neuron:
            return not cut
        if self.weight.groups > 1:  # which come as a piece for each
            return False
        return cut <= {1 if self.weight.transposed else 0}

    def pieces(self, values: Tensor, kept: Tensor) -> list[Piece]:
        """`values` and which of them count, both spread as the weight is, as pieces."""
        part, mask, spread = local(values.detach()), local(kept), Spread.of(self.weight.tensor)
        return [
            Piece(self._rows(part[chosen]), self._rows(mask[chosen]), units, positions, spread)
            for chosen, units, positions in self._cuts(indices_of(self.weight.tensor))
        ]

    def from_pieces(self, matrices: Sequence[Tensor]) -> Tensor:
        """Masks in the shape of the pieces as a mask that is spread as the weight is."""
        whole = mask_of(self.weight.tensor)
        mask = local(whole)
        for (chosen, _, _), matrix in zip(self._cuts(indices_of(self.weight.tensor)), matrices, strict=True):
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

    def _cuts(self, indices: list[Tensor]) -> Iterator[tuple[slice | Tensor, Tensor, Callable[[slice], Tensor]]]:
        """(which indices along the first dimension, their units, positions in these)."""
        shape = self.weight.shape
        if not self.per_neuron:
            yield slice(None), torch.zeros(1, dtype=torch.int64), _positions(indices, shape, self.offset)
        elif not self.weight.transposed:
            yield slice(None), indices[0], _positions(indices[1:], shape[1:])
        else:
            each = shape[0] // self.weight.groups
            for group in (indices[0] // each).unique().tolist():
                chosen = (indices[0] // each == group).nonzero()[:, 0]
                inner = [indices[0][chosen] % each, *indices[2:]]
                yield chosen, group * shape[1] + indices[1], _positions(inner, (each, *shape[2:]))


def _positions(indices: Sequence[Tensor], shape: Sequence[int], offset: int = 0) -> Callable[[slice], Tensor]:
    """Takes a range of the entries that are here, in order, and gives their places in a tensor of `shape`."""

    def positions(columns: slice) -> Tensor:
        left = torch.arange(columns.start, columns.stop)
        place, stride = torch.full_like(left, offset), 1
        for index, size in zip(reversed(indices), reversed(shape), strict=True):
            place += index[left % len(index)] * stride
            left //= len(index)
            stride *= size
        return place

    return positions
