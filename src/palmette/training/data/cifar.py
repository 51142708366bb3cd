"""CIFAR10 and CIFAR100: the binary releases, the python releases, or a folder of pictures by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palmette.training.data.images import Images, check_labels
from palmette.training.data.pictures import by_class, read_pictures
from palmette.training.data.places import find
from palmette.training.data.plain_pickle import load_plain

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Release:
    """How one of the two is laid out: files with their number of images, and where the label stands."""

    name: str
    classes: int
    train: tuple[tuple[str, int], ...]
    test: tuple[str, int]
    label_bytes: int  # the last of them is the label
    label_key: str
    mean: tuple[float, float, float]
    sd: tuple[float, float, float]


TEN = _Release(
    name="CIFAR10",
    classes=10,
    train=tuple((f"data_batch_{i}", 10_000) for i in range(1, 6)),
    test=("test_batch", 10_000),
    label_bytes=1,
    label_key="labels",
    mean=(0.4914, 0.4822, 0.4465),
    sd=(0.2023, 0.1994, 0.2010),  # within an image, on average; of all pixels it is .2470, .2435, .2616
)
HUNDRED = _Release(
    name="CIFAR100",
    classes=100,
    train=(("train", 50_000),),
    test=("test", 10_000),
    label_bytes=2,  # the coarse label, then the fine one
    label_key="fine_labels",
    mean=(0.5071, 0.4865, 0.4409),
    sd=(0.2673, 0.2564, 0.2762),
)


def cifar10(folder: Path | None = None) -> Images:
    """CIFAR10, 50,000 and 10,000 photographs of 32×32 in 10 classes. Krizhevsky 2009.

    Mean and sd, here and for CIFAR100, are those of the authors of the PQ Index.
    """
    return read_release(TEN, find("CIFAR10", folder))


def cifar100(folder: Path | None = None) -> Images:
    """CIFAR100, 50,000 and 10,000 photographs of 32×32 in 100 classes (the fine labels). Krizhevsky 2009."""
    return read_release(HUNDRED, find("CIFAR100", folder))


def read_release(release: _Release, folder: Path) -> Images:
    """Read whichever layout is in `folder`."""
    names: tuple[str, ...] = ()
    if (folder / f"{release.train[0][0]}.bin").is_file():
        train = [_binary(folder / f"{file}.bin", count, release) for file, count in release.train]
        test = _binary(folder / f"{release.test[0]}.bin", release.test[1], release)
    elif (folder / release.train[0][0]).is_file():
        train = [_python(folder / file, count, release) for file, count in release.train]
        test = _python(folder / release.test[0], release.test[1], release)
    else:
        paths, labels, names = by_class(folder / "train")
        if len(names) != release.classes:
            raise ValueError(
                f"{release.name} has {release.classes} classes, {str(folder / 'train')!r} {len(names)}"
            )
        train = [(read_pictures(paths, shape=(3, 32, 32)), labels)]
        paths, labels, _ = by_class(folder / "test", names)
        test = (read_pictures(paths, shape=(3, 32, 32)), labels)
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    return Images(
        images,
        labels,
        *test,
        classes=release.classes,
        name=release.name,
        mean=release.mean,
        sd=release.sd,
        augment=True,
        class_names=names,
        source=str(folder),
    )


def _binary(path: Path, count: int, release: _Release) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"the binary release of {release.name} needs {path.name} in {str(path.parent)!r}")
    row = release.label_bytes + _PIXELS
    raw = np.fromfile(path, np.uint8)
    if raw.size != count * row:
        rule = f"{count:,} images of {row:,} bytes are {count * row:,}"
        raise ValueError(f"{str(path)!r} is not whole: {rule}, it has {raw.size:,}")
    rows = torch.from_numpy(raw).view(count, row)
    return _checked(rows[:, release.label_bytes :], rows[:, release.label_bytes - 1].long(), path, release)


def _python(path: Path, count: int, release: _Release) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"the python release of {release.name} needs {path.name} in {str(path.parent)!r}")
    found = load_plain(path)
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r} must hold a dict, got a {type(found).__name__}")
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in found.items()}
    pixels, labels = batch.get("data"), batch.get(release.label_key)
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape == (count, _PIXELS)):
        got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ValueError(f"'data' in {str(path)!r} must be uint8 ({count}, {_PIXELS}), got {got}")
    if not (isinstance(labels, list) and labels and all(type(label) is int for label in labels)):
        raise ValueError(f"{release.label_key!r} in {str(path)!r} must be a list of whole numbers")
    return _checked(torch.from_numpy(pixels), torch.tensor(labels), path, release)


def _checked(pixels: Tensor, labels: Tensor, path: Path, release: _Release) -> tuple[Tensor, Tensor]:
    check_labels(labels, len(pixels), release.classes, f"the images in {str(path)!r}")
    return pixels.reshape(-1, 3, 32, 32), labels
