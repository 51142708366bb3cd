"""MNIST and FashionMNIST: IDX files, plain or gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palmette.training.data.images import Images
from palmette.training.data.places import find

# Both sets have the same file names: one that lies in the other's folder is known by its first training labels.
_FIRST_LABELS = {
    (5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7): "MNIST",
    (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9): "FashionMNIST",
}


def mnist(folder: Path | None = None) -> Images:
    """MNIST, 60,000 and 10,000 handwritten digits of 28×28. LeCun, Cortes and Burges 1998."""
    return _read("MNIST", find("MNIST", folder), (0.1307,), (0.3081,))


def fashion_mnist(folder: Path | None = None) -> Images:
    """FashionMNIST, 60,000 and 10,000 pictures of clothes of 28×28. Xiao, Rasul and Vollgraf 2017.

    Mean and sd are those of the authors of the PQ Index.
    """
    return _read("FashionMNIST", find("FashionMNIST", folder), (0.2860,), (0.3530,))


def read_idx(path: Path) -> Tensor:
    """The uint8 array of an IDX file, plain or gzipped.

    The header is two zero bytes, the type (8 for bytes), the number of dimensions, then each of them as a
    big-endian 32-bit number. LeCun, "The MNIST database of handwritten digits".
    """
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{str(path)!r} is not a whole gzip file: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 4 or len(raw) < 4 + 4 * raw[3]:
        raise ValueError(
            f"an IDX file of bytes begins with 00 00 08 and its shape, {str(path)!r} with {raw[:4]!r}"
        )
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    start = 4 + 4 * raw[3]
    want = int(np.prod(shape, dtype=object))
    if len(raw) - start != want:
        rule = f"promises {want:,} bytes of shape {shape}"
        raise ValueError(f"{str(path)!r} is not whole: its header {rule}, {len(raw) - start:,} follow")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, want, start).reshape(shape).copy())


def _read(name: str, folder: Path, mean: tuple[float, ...], sd: tuple[float, ...]) -> Images:
    train_images, train_labels = _part(folder, "train")
    held = _FIRST_LABELS.get(tuple(train_labels[:16].tolist()), name)
    if held != name:
        raise ValueError(f"{str(folder)!r} holds {held}, not {name}: the files of both have the same names")
    test_images, test_labels = _part(folder, "t10k")
    return Images(
        train_images,
        train_labels,
        test_images,
        test_labels,
        classes=10,
        name=name,
        mean=mean,
        sd=sd,
        augment=False,
        source=str(folder),
    )


def _part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    pair = []
    for what, dims in (("images", 3), ("labels", 1)):
        path = folder / f"{part}-{what}-idx{dims}-ubyte"
        if not path.exists():
            path = path.with_name(path.name + ".gz")
        if not path.exists():
            raise FileNotFoundError(f"no {part}-{what}-idx{dims}-ubyte, plain or .gz, in {str(folder)!r}")
        array = read_idx(path)
        if array.dim() != dims:
            raise ValueError(f"{what} must have {dims} dimensions, {str(path)!r} has shape {tuple(array.shape)}")
        pair.append(array)
    return pair[0].unsqueeze(1), pair[1].long()
