"""Cutting a checkpoint once, without the model's code: read in parts, written in parts, whole or not at all."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.safetensors import DTYPES, masks_file
from palmette.checkpoints.open import WEIGHT_READERS, Checkpoint, open_checkpoint
from palmette.checkpoints.read_errors import readable
from palmette.compression.packing import save
from palmette.errors import NotWritten, reason_of
from palmette.measures.pq import PowerSums, power_sums
from palmette.measures.rows import Rows
from palmette.pruning.budgets import Budget, Sap
from palmette.pruning.masks import MASKS_FORMAT
from palmette.pruning.methods import Scope
from palmette.pruning.sources.file import CHUNK, FilePart, StoredWeight
from palmette.pruning.sources.file_cut import FileCut, check_streamable, decide

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WEIGHT_FILES = (*WEIGHT_READERS, ".h5", ".msgpack")


@dataclass(frozen=True)
class LayerCut:
    """What a cut left of one weight, or of all: entries, how many counted before, and how many do now.

    Of those that went, `zeros` were zero already: pruned before, where no mask says so.
    """

    name: str
    entries: int
    before: int
    after: int
    zeros: int = 0

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
    """What `prune_checkpoint` did.

    Args:
        layers: weight by weight.
        index_before, index_after: PQ Index of the kept weights, at the budget's p and q; NaN where there is none.
        weights_file, masks: what was written.
        bytes_before: what all tensors took where they came from.
        coding: the integer formats that weights were unpacked from, such as "Q4_1"; empty where there was none.
    """

    layers: tuple[LayerCut, ...]
    index_before: float
    index_after: float
    weights_file: Path
    masks: Path | None
    bytes_before: int
    coding: str = ""

    @property
    def whole(self) -> LayerCut:
        """All weights."""
        counts = ("entries", "before", "after", "zeros")
        return LayerCut("all", *(sum(getattr(x, key) for x in self.layers) for key in counts))


def prune_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    scope: Scope = "neuron",
    budget: Budget | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    pack: bool = False,
) -> CheckpointCut:
    """Cut the checkpoint `source` once and write `out`: what `Pruner(model).step()` does, but for a file.

    The file is read two or three times and never held in memory as a whole, unless `pack` is asked for or the file
    is packed itself.

    Args:
        source: a file or folder that `palmette.how_compressible` reads, but not ONNX, which has a graph that
            cannot be written, nor plain numbers (.npy, .npz, .csv).
        out: a .safetensors file; its masks are written beside it as ``….masks.safetensors``. For a folder a new
            folder, with all that `source` has besides weights.
        scope, budget: as for `Pruner`; a budget that needs sums alone, `Sap` or `FixedRatio`.
        include, exclude: patterns of names.
        pack: write one file in the small form that `palmette.load` reads, in place of dense tensors and masks.

    >>> import tempfile, palmette
    >>> source = Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cut = prune_checkpoint(source, f"{folder}/cut.safetensors", budget=palmette.FixedRatio(0.75))
    >>> cut.whole.entries, cut.whole.after
    (43520, 10880)
    """
    source, out = Path(source), Path(out)
    budget = Sap() if budget is None else budget
    check_streamable(scope, budget)
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
    record = _Record(budget)
    folder = source.is_dir() and not pack
    with place_for(source, out, folder=folder) as file, readable(source):
        cut = decide(checkpoint.weights, scope=scope, budget=budget, chunk=CHUNK)
        if pack:
            state = {name: _whole(parts) for name, parts in _written(checkpoint, cut, record.add)}
            save(file, state | {alias: state[name] for alias, name in checkpoint.aliases.items()})
        else:
            _write(file, checkpoint, cut, record)
    written = out / "model.safetensors" if folder else out
    everything = sum(t.nbytes for t in checkpoint.tensors)
    coding = ", ".join(sorted({w.coding for w in checkpoint.weights} - {""}))
    return record.outcome(written, None if pack else masks_file(written), everything, coding)


def _check_writable(checkpoint: Checkpoint) -> None:
    names = set()
    for stored in checkpoint.tensors:
        if stored.name in names:
            raise ValueError(f"{str(checkpoint.path)!r} has two tensors named {stored.name!r}; a file needs one")
        names.add(stored.name)
        if stored.dtype not in _DTYPE_NAMES:
            raise ValueError(
                f"{str(checkpoint.path)!r} has {stored.name!r} in {stored.dtype}, which palmette does not write"
            )


@contextmanager
def place_for(source: Path, out: Path, *, folder: bool) -> Iterator[Path]:
    """Where to write the weights: nothing is at `out` before all of it is there."""
    own = {source.resolve(), masks_file(source.absolute()).resolve()}
    if source.is_dir() or source.name.endswith(".index.json"):  # its shards too
        own |= {file.resolve() for file in (source if source.is_dir() else source.parent).iterdir()}
    if out.resolve() in own or (folder and source.resolve() in out.resolve().parents):
        raise ValueError(
            f"the cut checkpoint needs a place of its own, got {str(out)!r}, which is part of the one to cut"
        )
    if folder:
        if out.suffix == ".safetensors":
            raise ValueError(f"{str(source)!r} is a folder, and a cut one is another; name that, not {str(out)!r}")
        if out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(Path.cwd())):
            raise ValueError(f"{str(out)!r} is there already; for a folder name a new one")
        partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
        try:
            with _explained(out):
                shutil.copytree(source, partial, ignore=functools.partial(_left_behind, source))
                yield partial / "model.safetensors"
                if out.is_dir():
                    out.rmdir()
                partial.replace(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return
    if out.suffix != ".safetensors":
        raise ValueError(f"a cut checkpoint is written as .safetensors, got {str(out)!r}")
    if out.is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; name a file")
    partial = out.with_name(f"{out.stem}.{os.getpid()}.partial.safetensors")
    try:
        with _explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            if masks_file(partial).exists():
                masks_file(partial).replace(masks_file(out))
            else:
                masks_file(out).unlink(missing_ok=True)  # of what was there before
            partial.replace(out)
    finally:
        with suppress(OSError):  # the place may be none that a file can have; that was said above
            partial.unlink(missing_ok=True)
            masks_file(partial).unlink(missing_ok=True)


def _left_behind(source: Path, folder: str, names: list[str]) -> list[str]:
    """What is not copied: the weights that are cut, in any form, and checkpoints of the training that made them.

    Folders inside may be other parts of the model, as those of sentence-transformers, and stay whole.
    """
    if Path(folder) != source:
        return []
    return [n for n in names if n.endswith(_WEIGHT_FILES) or n.startswith("checkpoint-")]


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.__cause__ if isinstance(error, NotWritten) else None  # it has named what is only partial
        raise NotWritten(
            f"{str(out)!r} could not be written: {reason_of(why or error)}; what was there before is untouched"
        ) from error


def _write(file: Path, checkpoint: Checkpoint, cut: FileCut, record: _Record) -> None:
    """Dense weights and bit-packed masks, part by part."""
    chosen = {w.name for w in checkpoint.weights}
    shapes = {t.name: list(t.shape) for t in checkpoint.tensors if t.name in chosen}
    bits = {name: (torch.uint8, ((math.prod(shape) + 7) // 8,)) for name, shape in shapes.items()}
    heads = {t.name: (t.dtype, t.shape) for t in checkpoint.tensors}
    with (
        Writer(file, heads, {"format": "pt"}) as weights,
        Writer(masks_file(file), bits, {"format": MASKS_FORMAT, "shapes": json.dumps(shapes)}) as masks,
    ):

        def note(part: FilePart, mask: Tensor) -> None:
            record.add(part, mask)
            masks.add(torch.from_numpy(np.packbits(mask.reshape(-1).numpy(), bitorder="little")))

        for _, parts in _written(checkpoint, cut, note):
            for part in parts:
                weights.add(part)


def _written(
    checkpoint: Checkpoint, cut: FileCut, note: Callable[[FilePart, Tensor], None]
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """Every tensor of the new checkpoint by name; `note` is told of each part of a weight and its mask."""
    weights = {w.name: w for w in checkpoint.weights}
    for stored in checkpoint.tensors:
        if stored.name in weights:
            yield stored.name, _pruned(cut, stored, note)
        elif (same := checkpoint.aliases.get(stored.name)) in weights:
            yield stored.name, _pruned(cut, weights[same], lambda part, mask: None)
        else:
            yield stored.name, stored.raw_parts(CHUNK)


def _whole(parts: Iterator[Tensor]) -> Tensor:
    found = list(parts)
    return found[0] if len(found) == 1 else torch.cat(found)


def _pruned(cut: FileCut, stored: StoredWeight, note: Callable[[FilePart, Tensor], None]) -> Iterator[Tensor]:
    for part, mask in cut.masks(stored, CHUNK):
        note(part, mask)
        raw = part.raw.detach().cpu().clone(memory_format=torch.contiguous_format)
        if raw.element_size() == 1:
            raw.view(torch.uint8).masked_fill_(~mask, 0)
        else:
            raw.masked_fill_(~mask, 0)
        yield raw


class _Record:
    """What a cut did, gathered part by part."""

    def __init__(self, budget: Budget) -> None:
        self.p, self.q = float(budget.p), float(budget.q)
        self.layers: dict[str, LayerCut] = {}
        self.before: PowerSums | None = None
        self.after: PowerSums | None = None

    def add(self, part: FilePart, mask: Tensor) -> None:
        entries = part.values.numel()
        before = entries if part.kept is None else int(part.kept.sum())
        gone = ~mask if part.kept is None else part.kept & ~mask
        zeros = int((gone & (part.values == 0)).sum())
        so_far = self.layers.get(part.of.name, LayerCut(part.of.name, 0, 0, 0))
        self.layers[part.of.name] = LayerCut(
            so_far.name,
            so_far.entries + entries,
            so_far.before + before,
            so_far.after + int(mask.sum()),
            so_far.zeros + zeros,
        )
        self.before = self._sums(part.values, part.kept, self.before)
        self.after = self._sums(part.values, mask, self.after)

    def _sums(self, values: Tensor, kept: Tensor | None, so_far: PowerSums | None) -> PowerSums:
        rows = Rows.of(values.reshape(1, -1), None if kept is None else kept.reshape(1, -1))
        sums = power_sums(rows, p=self.p, q=self.q)
        return sums if so_far is None else so_far + sums

    def outcome(self, file: Path, masks: Path | None, bytes_before: int, coding: str) -> CheckpointCut:
        assert self.before is not None
        assert self.after is not None
        before, after = float(self.before.index()), float(self.after.index())
        return CheckpointCut(tuple(self.layers.values()), before, after, file, masks, bytes_before, coding)


class Writer:
    """A safetensors file that is written part by part: the header says at once what will follow."""

    def __init__(
        self, file: Path, heads: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]
    ) -> None:
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        end = 0
        for name, (dtype, shape) in heads.items():
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._file = file
        with _explained(file):
            self._handle: BinaryIO = file.open("wb")
            self._handle.write(len(text).to_bytes(8, "little") + text)

    def add(self, values: Tensor) -> None:
        """Append the bytes of `values`."""
        flat = values.detach().cpu().contiguous().reshape(-1)
        with _explained(self._file):
            self._handle.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _explained(self._file):
            if error is None:
                self._handle.flush()
                os.fsync(self._handle.fileno())
            self._handle.close()
