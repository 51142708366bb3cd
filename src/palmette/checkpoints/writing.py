"""Write a cut checkpoint, in parts and atomically: nothing is at its path before all of it is there."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from palmette.checkpoints.formats.safetensors import DTYPES, masks_file, seal_of_header
from palmette.checkpoints.open import WEIGHT_READERS
from palmette.errors import NotWritten, reason_of
from palmette.files import replaced, sync
from palmette.pruning.masks import MASKS_SUFFIX

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WEIGHT_FILES = (*WEIGHT_READERS, ".h5", ".msgpack")


@contextmanager
def output_file(source: Path, out: Path, *, folder: bool) -> Iterator[Path]:
    """Temporary file for the weights of `out`, the cut copy of `source`; on success, it becomes `out`.

    Masks, if any, go to the `masks_file` of the temporary file. A `folder` also gets the other files of `source`.
    """
    check_output(source, out, folder=folder)
    with _explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replaced(out) as partial:
                masks = masks_file(partial)
                if folder:
                    shutil.copytree(source, partial, ignore=functools.partial(_not_copied, source))
                    yield partial / "model.safetensors"
                    if out.is_dir():
                        out.rmdir()
                else:
                    yield partial
                    # Masks alone, or weights alone, do no harm if the process is killed here.
                    if not masks.exists():
                        masks_file(out).unlink(missing_ok=True)
                    elif not out.exists():
                        masks.replace(masks_file(out))
            # Over an existing file, weights first: they name their masks, so that those of the last file are
            # noticed if the process is killed here.
            sync(out.parent)
            if masks.exists():
                masks.replace(masks_file(out))
            sync(out.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            with suppress(OSError):
                masks.unlink()
            raise


def check_output(source: Path, out: Path, *, folder: bool) -> None:
    """Raise if `out` cannot be the cut copy of `source`; a `folder` must be new."""
    own = {source.resolve(), masks_file(source.absolute()).resolve()}
    if source.is_dir() or source.name.endswith(".index.json"):  # its shards too
        own |= {file.resolve() for file in (source if source.is_dir() else source.parent).iterdir()}
    if out.resolve() in own or (folder and source.resolve() in out.resolve().parents):
        raise ValueError(f"the cut checkpoint must not overwrite the one to cut, and {str(out)!r} is part of that")
    if folder and out.suffix == ".safetensors":
        raise ValueError(f"{str(source)!r} is a folder, so its cut needs a new folder, got {str(out)!r}")
    if folder and out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(Path.cwd())):
        raise ValueError(f"{str(out)!r} exists; choose a new folder")
    if not folder and out.suffix != ".safetensors":
        raise ValueError(f"a cut checkpoint is written as .safetensors, got {str(out)!r}")
    if not folder and out.name.endswith(MASKS_SUFFIX):
        raise ValueError(f"a name ending in {MASKS_SUFFIX} is for masks, got {str(out)!r}")
    if not folder and out.is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; name a file")


def _not_copied(source: Path, folder: str, names: list[str]) -> list[str]:
    """Weights in any format, and checkpoints of the training.

    Subfolders are copied whole: they may be other parts of the model, as in sentence-transformers.
    """
    if Path(folder) != source:
        return []
    return [n for n in names if n.endswith(_WEIGHT_FILES) or n.startswith("checkpoint-")]


class SafetensorsWriter:
    """A safetensors file that is written tensor by tensor.

    Args:
        heads: dtype and shape of all tensors, in the order in which they are added.
        metadata: texts for the header; `note` replaces one by another of the same length.
        sealed: hash that is updated with all tensors; by default it begins with their names, dtypes and shapes.
    """

    def __init__(
        self,
        file: Path,
        heads: Mapping[str, tuple[torch.dtype, Sequence[int]]],
        metadata: Mapping[str, str],
        sealed: hashlib._Hash | None = None,
    ) -> None:
        self._file, self._metadata = file, dict(metadata)
        self._tensors: dict[str, object] = {}
        end = 0
        for name, (dtype, shape) in heads.items():
            start, end = end, end + math.prod(shape) * dtype.itemsize
            entry = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
            self._tensors[name] = entry
        self.sealed = sealed or seal_of_header(self._tensors)

    def __enter__(self) -> SafetensorsWriter:
        with _explained(self._file):
            self._handle = self._file.open("wb")
        try:
            self._write(self._header())
        except BaseException:
            self._handle.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _explained(self._file), self._handle:
            if kind is None:
                self._handle.seek(0)
                self._handle.write(self._header())
                self._handle.flush()
                os.fsync(self._handle.fileno())

    def add(self, values: Tensor) -> None:
        """Append a tensor, or a part of it."""
        flat = values.detach().cpu().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().data if flat.numel() else b""
        self.sealed.update(content)
        self._write(content)

    def note(self, **metadata: str) -> None:
        """Set texts that were not known when the file was begun."""
        self._metadata |= metadata

    def _header(self) -> bytes:
        text = json.dumps({"__metadata__": self._metadata, **self._tensors}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def _write(self, data: bytes | memoryview) -> None:
        with _explained(self._file):
            self._handle.write(data)


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error, NotWritten) else None  # `error` names the temporary file
        raise NotWritten(
            f"{str(out)!r} could not be written: {reason_of(cause or error)}; what was there before is untouched"
        ) from error
