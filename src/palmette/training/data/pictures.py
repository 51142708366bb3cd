"""PNG, JPEG and other picture files to one tensor. Needs Pillow; no other reader does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GREY = ("1", "L", "LA")
_DEEP = ("I", "F")  # also I;16 and its kin; Pillow would cut all that is above 255
_AT_ONCE = 64


def read_pictures(paths: Sequence[Path], *, shape: tuple[int, int, int] | None = None) -> Tensor:
    """All pictures as one uint8 tensor N×C×H×W, decoded on all cores.

    C is 1 when every picture is grey, else 3; transparency is dropped. All must have one size, 8 bits a channel,
    and the given `shape` (C, H, W) where there is one.
    """
    pillow = _pillow()
    if not paths:
        raise ValueError("there must be at least one picture, got none")
    # Decoding is C code that lets other threads run.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        first = _decoded(paths[0], pillow)
        size = shape[1:] if shape else first.shape[1:]
        whole = np.empty((len(paths), 3, *size), np.uint8)
        starts = range(0, len(paths), _AT_ONCE)
        # A list: `any` of the results alone would stop at the first picture in colour, and the rest with it.
        colour = any(list(threads.map(lambda start: _fill(whole, start, paths, pillow), starts)))
    channels = shape[0] if shape else 3 if colour else 1
    if colour and channels == 1:
        raise ValueError(f"the pictures beside {str(paths[0])!r} must be grey as those for training, got colours")
    return torch.from_numpy(whole if channels == 3 else whole[:, :1].copy())


def by_class(folder: Path, class_names: Sequence[str] | None = None) -> tuple[list[Path], Tensor, tuple[str, ...]]:
    """The files of `folder`/CLASS/…, their labels and the classes, all in the order of their names.

    With `class_names` these are the classes, in this order, and another folder is an error.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {str(folder)!r}, in which each class would have a folder of pictures")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = tuple(found if class_names is None else class_names)
    unknown = [name for name in found if name not in names]
    if unknown or not found:
        rule = f"one of {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else "of a class"
        raise ValueError(f"each folder in {str(folder)!r} must be {rule}, got {unknown[0] if unknown else 'none'}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        # What is no folder, rather than what is a file: a link that leads nowhere must not go unnoticed.
        files = sorted(p for p in (folder / name).rglob("*") if not (p.is_dir() or p.name.startswith(".")))
        if not files and class_names is None:
            raise ValueError(f"each class must have pictures for training, got none in {str(folder / name)!r}")
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise ValueError(f"the classes in {str(folder)!r} must have pictures, got none at all")
    return paths, torch.tensor(labels), names


def _fill(whole: np.ndarray[Any, Any], start: int, paths: Sequence[Path], pillow: Any) -> bool:
    """Decode a few pictures into their places; whether one of them has colours."""
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
        with pillow.open(path) as picture:
            if picture.mode.startswith(_DEEP):
                raise ValueError(f"it has more than 8 bits a pixel (mode {picture.mode})")
            grey = picture.mode in _GREY
            pixels = np.asarray(picture.convert("L" if grey else "RGB"))
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged picture can raise nearly anything
        raise ValueError(f"{str(path)!r} is not a picture that can be read: {error}") from error
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError(
            "PNG and JPEG files are read with Pillow: `pip install pillow`, or the extra `palmette[report]`, "
            "which brings it along"
        ) from error
    return Image
