"""Decode picture files into one tensor, once for a named data set. Needs Pillow."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from palmette.files import write_safetensors
from palmette.training.data.data_set import cache_folder

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM")  # not TIFF, whose library prints to the terminal
_GREY = ("1", "L", "LA")
_DEEP = ("I", "F")  # also I;16 and the like; Pillow would clip values above 255
_AT_ONCE = 64
_PIXELS, _RATIO = 1 << 22, 1 << 10  # pixels that any file may have, or each of its bytes


def read_pictures(paths: Sequence[Path], *, shape: tuple[int, int, int] | None = None) -> Tensor:
    """Decode all pictures, on all cores, into one uint8 tensor N×C×H×W.

    C is 1 if every picture is grey, else 3; transparency is dropped. All pictures must have one size, 8 bits per
    channel, and `shape` (C, H, W) if given.
    """
    pillow = _pillow()
    if not paths:
        raise ValueError("there must be at least one picture, got none")
    # Decoding releases the GIL.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        first = _decoded(paths[0], pillow)
        size = shape[1:] if shape else first.shape[1:]
        try:
            whole = np.empty((len(paths), 3, *size), np.uint8)
        except MemoryError as error:
            raise ValueError(f"{len(paths):,} pictures as {str(paths[0])!r} do not fit into memory") from error
        starts = range(0, len(paths), _AT_ONCE)
        # A list: `any` alone would stop at the first picture in colour and skip errors in later ones.
        colour = any(list(threads.map(lambda start: _fill(whole, start, paths, pillow), starts)))
    channels = shape[0] if shape else 3 if colour else 1
    if colour and channels == 1:
        raise ValueError(
            f"the pictures next to {str(paths[0])!r} must be grey like the training part, got colours"
        )
    return torch.from_numpy(whole if channels == 3 else whole[:, :1].copy())


def read_cached(
    name: str, root: Path, train: Sequence[Path], test: Sequence[Path], *, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Read the pictures of both parts as `read_pictures` does, from the cache file of `name` if it is valid.

    The cache is valid while the paths below `root`, sizes and times of all files stay the same. Each name has one
    cache file, which other pictures replace.
    """
    cached = cache_folder() / f"{name}.safetensors"
    fingerprint = _fingerprint(root, [*train, *test])
    if (found := _from_cache(cached, fingerprint)) is not None:
        return found
    pixels = {"train": read_pictures(train, shape=shape), "test": read_pictures(test, shape=shape)}
    with suppress(OSError, SafetensorError):  # without a cache, loading is only slower
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(cached, pixels, {"fingerprint": fingerprint})
    return pixels["train"], pixels["test"]


def by_class(folder: Path, class_names: Sequence[str] | None = None) -> tuple[list[Path], Tensor, tuple[str, ...]]:
    """List the files of `folder`/CLASS/…, their labels and the classes, all sorted by name.

    `class_names` fixes the classes and their order; a folder of another name is then an error.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {str(folder)!r}; it should have a folder of pictures for each class")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = tuple(found if class_names is None else class_names)
    unknown = [name for name in found if name not in names]
    if unknown or not found:
        rule = f"one of {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else "of a class"
        raise ValueError(f"each folder in {str(folder)!r} must be {rule}, got {unknown[0] if unknown else 'none'}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        # Not `is_file()`: a broken link must raise an error.
        files = sorted(p for p in (folder / name).rglob("*") if not (p.is_dir() or p.name.startswith(".")))
        if not files and class_names is None:
            raise ValueError(f"each class must have training pictures, got none in {str(folder / name)!r}")
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise ValueError(f"the classes in {str(folder)!r} must have pictures, got none at all")
    return paths, torch.tensor(labels), names


def _fill(whole: np.ndarray[Any, Any], start: int, paths: Sequence[Path], pillow: Any) -> bool:
    """Decode a few pictures into `whole`; return whether one of them has colours."""
    colour = False
    for index in range(start, min(start + _AT_ONCE, len(paths))):
        picture = _decoded(paths[index], pillow)
        if picture.shape[1:] != whole.shape[2:]:
            rule = f"height and width {whole.shape[2:]} as the others"
            raise ValueError(f"every picture must have {rule}, {str(paths[index])!r} has {picture.shape[1:]}")
        whole[index] = picture
        colour |= len(picture) == 3
    return colour


def _decoded(path: Path, pillow: Any) -> np.ndarray[Any, Any]:
    try:
        with pillow.open(path, formats=_FORMATS) as picture:
            if math.prod(picture.size) > max(_PIXELS, _RATIO * path.stat().st_size):
                raise ValueError(f"{math.prod(picture.size):,} pixels do not fit into its bytes")
            return to_array(picture)
    except (FileNotFoundError, PermissionError):
        raise
    except pillow.UnidentifiedImageError as error:
        raise ValueError(
            f"{str(path)!r} is not a picture that can be read: it must be one of {', '.join(_FORMATS)}"
        ) from error
    except Exception as error:  # a damaged picture can raise nearly anything
        raise ValueError(f"{str(path)!r} is not a picture that can be read: {error}") from error


def to_array(picture: Any) -> np.ndarray[Any, Any]:
    """Pixels of a picture of Pillow, uint8 C×H×W with one channel for grey and three for colour."""
    if picture.mode.startswith(_DEEP):
        raise ValueError(f"it has more than 8 bits per channel (mode {picture.mode})")
    grey = picture.mode in _GREY
    pixels = np.asarray(picture.convert("L" if grey else "RGB"))
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError(
            "PNG and JPEG files are read with Pillow: `pip install pillow`, or the extra `palmette[report]`"
        ) from error
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # the errors here say what matters
    return Image


def _fingerprint(root: Path, paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _from_cache(cached: Path, fingerprint: str) -> tuple[Tensor, Tensor] | None:
    with suppress(SafetensorError, OSError), safe_open(cached, "pt") as file:  # damaged or absent: decode again
        if (file.metadata() or {}).get("fingerprint") == fingerprint:
            return file.get_tensor("train"), file.get_tensor("test")
    return None
