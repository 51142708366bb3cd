"""MNIST and FashionMNIST: IDX files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.arrays import DEFLATE
from palmette.training.data.data_set import DataSet, Download
from palmette.training.data.images import Images

# Both sets have the same file names, so the first training labels tell them apart.
_FIRST_LABELS = {
    (5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7): "MNIST",
    (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9): "FashionMNIST",
}
_MARKERS = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")


def read_idx(path: Path) -> Tensor:
    """Read the uint8 array of an IDX file, plain or gzipped.

    The header is two zero bytes, the type (8 for bytes), the number of dimensions, then each of them as a
    big-endian 32-bit number. LeCun, "The MNIST database of handwritten digits".
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    most = path.stat().st_size * (DEFLATE if zipped else 1)
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            head = file.read(4)
            sizes = file.read(4 * head[3]) if head[:3] == b"\0\0\x08" and 1 <= head[-1] <= 4 else b""
            if len(head) < 4 or len(sizes) != 4 * head[3]:
                raise ValueError(
                    f"an IDX file of bytes begins with 00 00 08 and its shape, {str(path)!r} with {head!r}"
                )
            shape = struct.unpack(f">{head[3]}I", sizes)
            want = math.prod(shape)
            raw = file.read(min(want, most) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{str(path)!r} is not a whole gzip file: {error}") from error
    if len(raw) != want:
        rule = f"promises {want:,} bytes of shape {shape}"
        follow = f"{len(raw):,} follow" if len(raw) < want else "more follow"
        raise ValueError(f"{str(path)!r} is not whole: its header {rule}, {follow}")
    return torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(shape).copy())


def _read(name: str, mean: float, sd: float, folder: Path) -> Images:
    train_images, train_labels = _part(folder, "train")
    found = _FIRST_LABELS.get(tuple(train_labels[:16].tolist()), name)
    if found != name:
        raise ValueError(f"{str(folder)!r} holds {found}, not {name}: the files of both have the same names")
    parts = (train_images, train_labels, *_part(folder, "t10k"))
    return Images(*parts, classes=10, name=name, mean=(mean,), sd=(sd,), augment=False, source=str(folder))


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


def _downloads(url: str, *md5: str) -> tuple[Download, ...]:
    files = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return tuple(Download(f"{url}/{file}", digest) for file, digest in zip(files, md5, strict=True))


# 60,000 and 10,000 handwritten digits of 28×28. LeCun, Cortes and Burges 1998.
MNIST = DataSet(
    "MNIST",
    partial(_read, "MNIST", 0.1307, 0.3081),
    sha256="fbe7fe16df5a24bd38eda4fe87de8afdf53e6140d985c905c64c6d43960e3a67",
    folders=("mnist", "MNIST", "MNIST/raw"),
    markers=_MARKERS,
    downloads=_downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
# 60,000 and 10,000 pictures of clothes of 28×28. Xiao, Rasul and Vollgraf 2017; mean and sd of Diao et al. 2023.
FASHION_MNIST = DataSet(
    "FashionMNIST",
    partial(_read, "FashionMNIST", 0.2860, 0.3530),
    sha256="bc3e2fc8009243b94f20b9de872029872154c40451a7326ef1250968af2e8dfc",
    folders=("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
    markers=_MARKERS,
    system_folders=("/usr/share/datasets/fashion-mnist",),
    install="`apt-get install dataset-fashion-mnist` on Debian and Ubuntu",
    downloads=_downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
