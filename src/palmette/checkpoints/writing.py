"""Write a cut checkpoint, in parts and atomically: nothing is at its path before all of it is there."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from palmette.checkpoints.formats.safetensors import DTYPES, masks_file
from palmette.checkpoints.open import WEIGHT_READERS
from palmette.errors import NotWritten, reason_of
from palmette.files import replaced

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WEIGHT_FILES = (*WEIGHT_READERS, ".h5", ".msgpack")


@contextmanager
def output_file(source: Path, out: Path, *, folder: bool) -> Iterator[Path]:
    """Temporary file for the weights of `out`, the cut copy of `source`; on success, it becomes `out`.

    Masks, if any, go to the `masks_file` of the temporary file. A `folder` also gets the other files of `source`.
    """
    _check_output(source, out, folder)
    with _explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replaced(out) as partial:
            masks = masks_file(partial)
            try:
                if folder:
                    shutil.copytree(source, partial, ignore=functools.partial(_not_copied, source))
                    yield partial / "model.safetensors"
                    if out.is_dir():
                        out.rmdir()
                else:
                    yield partial
                    if masks.exists():
                        masks.replace(masks_file(out))
                    else:
                        masks_file(out).unlink(missing_ok=True)  # masks of a previous file
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                with suppress(OSError):
                    masks.unlink()
                raise


def _check_output(source: Path, out: Path, folder: bool) -> None:
    own = {source.resolve(), masks_file(source.absolute()).resolve()}
    if source.is_dir() or source.name.endswith(".index.json"):  # its shards too
        own |= {file.resolve() for file in (source if source.is_dir() else source.parent).iterdir()}
    if out.resolve() in own or (folder and source.resolve() in out.resolve().parents):
        raise ValueError(
            f"the cut checkpoint needs a place of its own, got {str(out)!r}, which is part of the one to cut"
        )
    if folder and out.suffix == ".safetensors":
        raise ValueError(f"{str(source)!r} is a folder, and a cut one is another; name that, not {str(out)!r}")
    if folder and out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(Path.cwd())):
        raise ValueError(f"{str(out)!r} is there already; for a folder name a new one")
    if not folder and out.suffix != ".safetensors":
        raise ValueError(f"a cut checkpoint is written as .safetensors, got {str(out)!r}")
    if not folder and out.is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; name a file")


def _not_copied(source: Path, folder: str, names: list[str]) -> list[str]:
    """Weights in any format, and checkpoints of the training.

    Subfolders are copied whole: they may be other parts of the model, as in sentence-transformers.
    """
    if Path(folder) != source:
        return []
    return [n for n in names if n.endswith(_WEIGHT_FILES) or n.startswith("checkpoint-")]


@contextmanager
def safetensors_writer(
    file: Path, heads: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]
) -> Iterator[Callable[[Tensor], None]]:
    """Function that appends a tensor to a safetensors file; `heads` has dtype and shape of all, in that order."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape) in heads.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with _explained(file):
        handle = file.open("wb")

    def write(data: bytes | memoryview) -> None:
        with _explained(file):
            handle.write(data)

    def add(values: Tensor) -> None:
        flat = values.detach().cpu().contiguous().reshape(-1)
        write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")

    try:
        write(len(text).to_bytes(8, "little") + text)
        yield add
        with _explained(file):
            handle.flush()
            os.fsync(handle.fileno())
    finally:
        with _explained(file):
            handle.close()


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error, NotWritten) else None  # `error` names the temporary file
        raise NotWritten(
            f"{str(out)!r} could not be written: {reason_of(cause or error)}; what was there before is untouched"
        ) from error
