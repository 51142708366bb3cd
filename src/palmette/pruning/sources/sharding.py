"""Sharded tensors (DTensor, as made by `fully_shard`): local entries and sums over processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.errors import MaskMismatch
from palmette.measures.exact import carried, padded
from palmette.pruning.choosing.values import check_kind, check_values, not_finite

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def is_sharded(values: object) -> bool:
    """Whether `values` is a DTensor; does not import the module of DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(values, module.DTensor)


def check_whole(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise, naming the tensor, if one of them is sharded over processes."""
    if spread := [name for name, tensor in tensors.items() if is_sharded(tensor)]:
        raise TypeError(
            f"{what} takes an unsharded model, but {spread[0]!r} is sharded over processes; save a "
            "checkpoint with torch.distributed.checkpoint and read it in one process"
        )


def local(values: Tensor) -> Tensor:
    """Local entries of `values`, without a copy: writing to them writes to `values`."""
    if not is_sharded(values):
        return values
    known: Any = values
    with torch.no_grad():
        part: Tensor = known.to_local().detach()
    return part


def placed_like(mask: Tensor, weight: Tensor, name: str) -> Tensor:
    """Copy of the mask on the weight's device, sharded like the weight."""
    if not is_sharded(weight):
        if is_sharded(mask):
            raise MaskMismatch(f"the mask of {name!r} is sharded over processes, the weight is not")
        return mask.to(weight.device, copy=True)
    part = local(mask)
    if is_sharded(mask):
        theirs, ours = Spread.of(mask), Spread.of(weight)
        if theirs != ours:
            raise MaskMismatch(
                f"the mask of {name!r} is sharded as {theirs.placements}, the weight as "
                f"{ours.placements}; load it into the state_dict of a Pruner of this model"
            )
    else:
        for dimension, chosen in enumerate(indices_of(weight)):
            part = part.index_select(dimension, chosen.to(part.device))
    fitted = mask_of(weight)
    local(fitted).copy_(part)
    return fitted


def mask_of(weight: Tensor) -> Tensor:
    """Empty mask on the weight's device, sharded like the weight."""
    # Not by DTensor.from_local, which moves tensors that are offloaded to the CPU to the GPU.
    return torch.empty_like(weight.detach(), dtype=torch.bool)


@dataclass(frozen=True)
class Spread:
    """Mesh and placements of a sharded tensor; empty for a tensor that every process holds as a whole."""

    mesh: DeviceMesh | None = None
    placements: tuple[Any, ...] = ()

    @staticmethod
    def of(values: Any) -> Spread:
        """Spread of a tensor."""
        return Spread(values.device_mesh, tuple(values.placements)) if is_sharded(values) else Spread()

    def dimensions(self) -> list[int]:
        """Dimensions of the mesh along which processes have different parts."""
        return [i for i, placement in enumerate(self.placements) if not placement.is_replicate()]

    def add(self, counts: Tensor) -> Tensor:
        """Sum of whole numbers over the processes, known to all."""
        return self._reduced(counts, torch.distributed.ReduceOp.SUM, self.dimensions())

    def add_digits(self, digits: Tensor) -> Tensor:
        """Sum over the processes of whole numbers in digits, see `digits_of`."""
        many = int(self.largest(torch.tensor(len(digits))))
        return carried(self.add(padded(digits, many)))

    def largest(self, values: Tensor) -> Tensor:
        """Largest numbers over the processes, replicas included, known to all."""
        return self._reduced(values, torch.distributed.ReduceOp.MAX, range(len(self.placements)))

    def _reduced(self, values: Tensor, how: Any, dimensions: Sequence[int]) -> Tensor:
        if not dimensions or self.mesh is None:
            return values
        there = values.to(self.mesh.device_type, copy=True)  # NCCL needs it on the device of the mesh
        for i in dimensions:
            torch.distributed.all_reduce(there, how, group=self.mesh.get_group(i))
        return there.to(values.device)


def added(counts: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Sum over processes of the counts of each tensor."""
    spreads: dict[Spread, list[str]] = {}
    for name, tensor in tensors.items():
        spreads.setdefault(Spread.of(tensor), []).append(name)
    found: dict[str, int] = {}
    for spread, names in spreads.items():
        sums = spread.add(torch.tensor([int(counts[name]) for name in names]))
        found |= zip(names, sums.tolist(), strict=True)
    return {name: found[name] for name in tensors}


def indices_of(values: Any) -> list[Tensor]:
    """Local indices of the whole tensor, for each dimension."""
    indices = [torch.arange(size) for size in values.shape]
    for i, placement in enumerate(Spread.of(values).placements):
        if placement.is_replicate():
            continue
        dimension, many = getattr(placement, "dim", None), values.device_mesh.size(i)
        if dimension is None:
            raise TypeError(f"a weight has the placement {placement}, which is not supported")
        here, own = values.device_mesh.get_local_rank(i), indices[dimension]
        blocks = int(getattr(placement, "split_factor", 1))
        if blocks > 1 and len(own) % (blocks * many):
            raise TypeError(
                f"a weight of shape {tuple(values.shape)} is cut twice along one dimension, into parts of "
                f"different sizes ({placement}); its parts cannot be determined"
            )
        # Tensor parallelism has split this dimension into blocks before; take the local part of each block.
        indices[dimension] = torch.cat([_chunk(block, many, here) for block in own.chunk(blocks)])
    found, there = tuple(len(index) for index in indices), tuple(local(values).shape)
    if found != there:
        raise TypeError(f"a weight is sharded in an unknown way: expected a local shape of {found}, got {there}")
    return indices


def _chunk(values: Tensor, many: int, which: int) -> Tensor:
    """Chunk `which` of `many`, split as by torch: the last ones may be smaller, or empty."""
    size = -(-len(values) // many)
    return values[which * size : (which + 1) * size]


def check_finite(values: Mapping[str, Tensor], kept: Mapping[str, Tensor], what: str) -> None:
    """Raise, naming the tensor, unless all `values` are floats without NaN or infinity among the kept entries.

    Every process raises if one of them finds such a number; otherwise the others would wait forever.
    """
    if not any(map(is_sharded, values.values())):
        for name, tensor in values.items():
            check_values(name, tensor.where(kept[name], 0) if name in kept else tensor, what)
        return
    found = {}
    for name, tensor in values.items():
        check_kind(name, tensor, what)
        bad = ~torch.isfinite(local(tensor.detach()))
        found[name] = (bad & local(kept[name]) if name in kept else bad).sum()
    counts = torch.tensor([*added(found, values).values()])
    for spread in dict.fromkeys(map(Spread.of, values.values())):
        counts = spread.largest(counts)  # including weights that every process holds as a whole
    for count, (name, tensor) in zip(counts.tolist(), values.items(), strict=True):
        if count:
            raise not_finite(name, tensor, what, count)
