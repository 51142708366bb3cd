"""Cut a checkpoint once, without the model's code: read and written in parts, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.safetensors import masks_file
from palmette.checkpoints.hub import on_disk
from palmette.checkpoints.open import Checkpoint, open_checkpoint
from palmette.checkpoints.read_errors import readable
from palmette.checkpoints.writing import DTYPE_NAMES, SafetensorsWriter, output_file
from palmette.compression.packing import save
from palmette.measures.pq import PowerSums, power_sums
from palmette.measures.rows import Rows
from palmette.pruning.budgets import Budget, check_budget
from palmette.pruning.choosing.zeros import as_zeros, zeros_as_pruned
from palmette.pruning.masks import SEALED_FORMAT, WEIGHTS_SEAL, seal_of
from palmette.pruning.methods import Method, Scope, Zeros, check_fits, check_scope, usual_budget
from palmette.pruning.saliency import Saliency, combined, magnitude, ranking
from palmette.pruning.scopes import check_widths
from palmette.pruning.sources.file import FileCut, decide
from palmette.pruning.sources.stored import CHUNK, FilePart, StoredWeight
from palmette.pruning.weights import alive


@dataclass(frozen=True)
class LayerCut:
    """Result of a cut for one weight, or for all: entries, and how many were kept before and after.

    `zeros` counts the entries cut that were zero before, pruned earlier without a mask.
    """

    name: str
    entries: int
    before: int
    after: int
    zeros: int = 0

    def __add__(self, other: LayerCut) -> LayerCut:
        """Both together, under the first name."""
        counts = ((getattr(self, key), getattr(other, key)) for key in ("entries", "before", "after", "zeros"))
        return LayerCut(self.name, *map(sum, counts))

    @property
    def density_before(self) -> float:
        """Fraction that was kept before."""
        return self.before / self.entries

    @property
    def density_after(self) -> float:
        """Fraction that is kept now."""
        return self.after / self.entries


@dataclass(frozen=True)
class CheckpointCut:
    """Result of `prune_checkpoint`.

    Args:
        layers: weight by weight.
        index_before, index_after: PQ Index of the kept weights, at the budget's p and q; NaN where there is none.
        weights_file, masks: the files written.
        bytes_before: size of all tensors in the source.
        coding: the integer formats that weights were unpacked from, such as "Q4_1"; empty where there was none.
        repaired: names of the weights whose values a repair changed.
    """

    layers: tuple[LayerCut, ...]
    index_before: float
    index_after: float
    weights_file: Path
    masks: Path | None
    bytes_before: int
    coding: str = ""
    repaired: tuple[str, ...] = ()

    @property
    def whole(self) -> LayerCut:
        """All weights."""
        return replace(reduce(add, self.layers), name="all")


Repair = Callable[[Sequence[StoredWeight], FileCut], FileCut]
"""(weights, cut) -> the cut with new values and masks."""
_Note = Callable[[FilePart, FilePart, Tensor], None]


def prune_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    scope: Scope = "neuron",
    method: Method | str | None = None,
    budget: Budget | None = None,
    saliency: Saliency | str = magnitude,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    zeros: Zeros = "pruned",
    pack: bool = False,
    repair: Repair | None = None,
) -> CheckpointCut:
    """Cut the checkpoint `source` once and write `out`, as `Pruner(model).step()` does for a model.

    The file is read two or three times, more often for `TailMass`, and never held in memory as a whole, unless
    `pack` is set or the file is packed itself.

    Args:
        source: a file or folder that `palmette.how_compressible` reads, but not ONNX, which has a graph that
            cannot be written, nor plain numbers (.npy, .npz).
        out: a .safetensors file; its masks are written next to it as ``….masks.safetensors``. For a folder a new
            folder, with all files of `source` but the weights.
        scope, method, budget: as for `Pruner`.
        saliency: as for `Pruner`; scores are computed from the weights in the file, one weight at a time.
        include, exclude: patterns of names.
        zeros: as for `Pruner`, where a weight has no mask.
        pack: write one file in the small form that `palmette.load` reads, in place of dense tensors and masks.
        repair: changes the weights that remain, before they are written; `prune_calibrated` has some by name.

    >>> import tempfile, palmette
    >>> source = Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cut = prune_checkpoint(source, f"{folder}/cut.safetensors", budget=palmette.FixedRatio(0.75))
    >>> cut.whole.entries, cut.whole.after
    (43520, 10880)
    """
    source, out = on_disk(source, "pruning"), Path(out)
    budget, saliency = combined(method, budget, saliency)
    budget, ranked = usual_budget(scope) if budget is None else budget, ranking(saliency)
    check_scope(scope, also=("n:m",))
    check_budget(budget)
    check_fits(budget, scope)
    checkpoint = open_checkpoint(source, include=include, exclude=exclude)
    if checkpoint.vectors:
        raise ValueError(
            f"{str(source)!r} holds plain numbers, not the weights of a model; there is nothing to cut"
        )
    if source.suffix == ".onnx":
        raise ValueError(
            f"{str(source)!r} has a graph, and a file of tensors cannot hold one; prune in PyTorch, then export"
        )
    _check_writable(checkpoint)
    check_widths({w.name: w.layout for w in checkpoint.weights}, scope)
    if as_zeros(zeros) == "pruned":
        with readable(source):
            checkpoint = replace(checkpoint, weights=zeros_as_pruned(checkpoint.weights))
    tally = _Tally(budget)
    folder = source.is_dir() and not pack
    with output_file(source, out, folder=folder) as file:
        with readable(source):
            cut = decide(checkpoint.weights, scope=scope, budget=budget, saliency=ranked)
        if repair is not None:
            cut = repair(checkpoint.weights, cut)
        with readable(source):
            if pack:
                state = {name: _whole(parts) for name, parts in _written(checkpoint, cut, tally.add)}
                save(file, state | {alias: state[name] for alias, name in checkpoint.aliases.items()})
            else:
                _write(file, checkpoint, cut, tally)
        tally.check()
    written = out / "model.safetensors" if folder else out
    everything = sum(t.nbytes for t in checkpoint.tensors)
    coding = ", ".join(sorted({w.coding for w in checkpoint.weights} - {""}))
    outcome = tally.outcome(written, None if pack else masks_file(written), everything, coding)
    return replace(outcome, repaired=tuple(cut.repaired))


def _check_writable(checkpoint: Checkpoint) -> None:
    names = set()
    for stored in checkpoint.tensors:
        if stored.name in names:
            raise ValueError(f"{str(checkpoint.path)!r} has two tensors named {stored.name!r}; a file needs one")
        names.add(stored.name)
        if stored.dtype not in DTYPE_NAMES:
            raise ValueError(
                f"{str(checkpoint.path)!r} has {stored.name!r} in {stored.dtype}, which palmette does not write"
            )


def _write(file: Path, checkpoint: Checkpoint, cut: FileCut, tally: _Tally) -> None:
    """Dense weights and bit-packed masks, part by part; each file has the seal of the weights."""
    chosen = {w.name for w in checkpoint.weights}
    shapes = {t.name: list(t.shape) for t in checkpoint.tensors if t.name in chosen}
    bits = {name: (torch.uint8, ((math.prod(shape) + 7) // 8,)) for name, shape in shapes.items()}
    heads = {t.name: (t.dtype, t.shape) for t in checkpoint.tensors}
    text, later = json.dumps(shapes), "-" * 64
    of_masks = {"format": SEALED_FORMAT, "shapes": text, "sha256": later, "weights": later}
    with (
        SafetensorsWriter(file, heads, {"format": "pt", WEIGHTS_SEAL: later}) as weights,
        SafetensorsWriter(masks_file(file), bits, of_masks, seal_of(text, ())) as masks,
    ):

        def note(before: FilePart, after: FilePart, mask: Tensor) -> None:
            tally.add(before, after, mask)
            masks.add(torch.from_numpy(np.packbits(mask.reshape(-1).numpy(), bitorder="little")))

        for _, parts in _written(checkpoint, cut, note):
            for part in parts:
                weights.add(part)
        seal = weights.sealed.hexdigest()
        weights.note(**{WEIGHTS_SEAL: seal})
        masks.note(sha256=masks.sealed.hexdigest(), weights=seal)


def _written(checkpoint: Checkpoint, cut: FileCut, note: _Note) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """Every tensor of the new checkpoint by name; `note` receives each part of a weight and its mask."""
    weights = {w.name: w for w in checkpoint.weights}
    directions = {w.gain.name: w for w in checkpoint.weights if w.gain is not None}
    for stored in checkpoint.tensors:
        if stored.name in weights:
            yield stored.name, _pruned(cut, stored, note)
        elif (same := checkpoint.aliases.get(stored.name)) in weights:
            yield stored.name, _pruned(cut, weights[same], lambda before, after, mask: None)
        elif stored.name in directions:
            yield stored.name, iter([stored.whole() * _alive(cut, directions[stored.name], stored)])
        else:
            yield stored.name, stored.raw_parts(CHUNK)


def _alive(cut: FileCut, direction: StoredWeight, gain: StoredWeight) -> Tensor:
    """Mask of gains of weight norm that have a kept weight; others become zero in place of their direction."""
    mask = torch.cat([mask for _, mask in cut.masks(direction, CHUNK)])
    return alive(mask, gain.whole())


def _whole(parts: Iterator[Tensor]) -> Tensor:
    found = list(parts)
    return found[0] if len(found) == 1 else torch.cat(found)


def _pruned(cut: FileCut, stored: StoredWeight, note: _Note) -> Iterator[Tensor]:
    some = None if stored.gain is None else _alive(cut, stored, stored.gain).expand(stored.shape)
    first = 0
    for before, part, mask in cut.changes(stored, CHUNK):
        note(before, part, mask)
        if some is not None:
            first, mask = first + len(mask), mask | ~some[first : first + len(mask)]
        raw = part.raw.detach().cpu().clone(memory_format=torch.contiguous_format)
        if raw.element_size() == 1:
            raw.view(torch.uint8).masked_fill_(~mask, 0)
        else:
            raw.masked_fill_(~mask, 0)
        yield raw


class _Tally:
    """Counts and power sums of a cut, gathered part by part."""

    def __init__(self, budget: Budget) -> None:
        self.p, self.q = float(budget.p), float(budget.q)
        self.layers: dict[str, LayerCut] = {}
        self.before: list[PowerSums] = []
        self.after: list[PowerSums] = []

    def add(self, part: FilePart, changed: FilePart, mask: Tensor) -> None:
        name, after = part.of.name, int(mask.sum())
        gone = ~mask if part.kept is None else part.kept & ~mask
        zeros = int((gone & (part.values == 0)).sum())
        here = LayerCut(name, mask.numel(), after + int(gone.sum()), after, zeros)
        self.layers[name] = self.layers[name] + here if name in self.layers else here
        self.before.append(self._sums(part.values, part.kept))
        self.after.append(self._sums(changed.values, mask))

    def _sums(self, values: Tensor, kept: Tensor | None) -> PowerSums:
        rows = Rows.of(values.reshape(1, -1), None if kept is None else kept.reshape(1, -1))
        return power_sums(rows, p=self.p, q=self.q)

    def check(self) -> None:
        """Raise if no weight is left."""
        if not any(layer.after for layer in self.layers.values()):
            raise ValueError("this cut would leave no weight at all; cut less, such as by a density above 0")

    def outcome(self, file: Path, masks: Path | None, bytes_before: int, coding: str) -> CheckpointCut:
        before, after = (float(reduce(add, sums).index()) for sums in (self.before, self.after))
        return CheckpointCut(tuple(self.layers.values()), before, after, file, masks, bytes_before, coding)
