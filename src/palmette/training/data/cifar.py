"""CIFAR10 and CIFAR100: the binary releases, the python releases, or a folder of pictures by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palmette.training.data.data_set import DataSet, Download
from palmette.training.data.images import Images, check_labels
from palmette.training.data.pictures import by_class, read_cached
from palmette.training.data.plain_pickle import load_plain

_PIXELS = 3 * 32 * 32
_TEN = "airplane automobile bird cat deer dog frog horse ship truck"
_HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class _Release:
    """Layout of CIFAR10 or CIFAR100: files with their number of images, position of the label, mean and sd."""

    name: str
    class_names: tuple[str, ...]
    train: tuple[tuple[str, int], ...]
    test: tuple[str, int]
    label_bytes: int  # before the pixels; the last is the label
    label_key: str
    mean: tuple[float, float, float]
    sd: tuple[float, float, float]


TEN = _Release(
    name="CIFAR10",
    class_names=tuple(_TEN.split()),
    train=tuple((f"data_batch_{i}", 10_000) for i in range(1, 6)),
    test=("test_batch", 10_000),
    label_bytes=1,
    label_key="labels",
    mean=(0.4914, 0.4822, 0.4465),
    sd=(0.2023, 0.1994, 0.2010),  # mean over images; over all pixels .2470, .2435, .2616
)
HUNDRED = _Release(
    name="CIFAR100",
    class_names=tuple(_HUNDRED.split()),
    train=(("train", 50_000),),
    test=("test", 10_000),
    label_bytes=2,  # the coarse label, then the fine one
    label_key="fine_labels",
    mean=(0.5071, 0.4865, 0.4409),
    sd=(0.2673, 0.2564, 0.2762),
)


def read_release(release: _Release, folder: Path) -> Images:
    """Read the binary release, the pictures or the python release, whichever is in `folder`."""
    if (folder / f"{release.train[0][0]}.bin").is_file():
        parts = [_binary(folder / f"{file}.bin", count, release) for file, count in (*release.train, release.test)]
    elif (folder / "train").is_dir():
        parts = _pictures(folder, release)
    else:
        parts = [_python(folder / file, count, release) for file, count in (*release.train, release.test)]
    *train, test = parts
    images, labels = (torch.cat(tensors) for tensors in zip(*train, strict=True))
    return Images(
        *(images, labels, *test),
        classes=len(release.class_names),
        name=release.name,
        mean=release.mean,
        sd=release.sd,
        augment=True,
        source=str(folder),
    )


def _pictures(folder: Path, release: _Release) -> list[tuple[Tensor, Tensor]]:
    paths, labels = [], []
    for part, count in (("train", sum(count for _, count in release.train)), ("test", release.test[1])):
        found, numbers, _ = by_class(folder / part, release.class_names)
        if len(found) != count:
            rule = f"the {part} part of {release.name} has {count:,} pictures"
            raise ValueError(f"{rule}, {str(folder / part)!r} has {len(found):,}")
        paths.append(found)
        labels.append(numbers)
    images = read_cached(release.name.lower(), folder, *paths, shape=(3, 32, 32))
    return list(zip(images, labels, strict=True))


def _binary(path: Path, count: int, release: _Release) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"the binary release of {release.name} needs {path.name} in {str(path.parent)!r}")
    row = release.label_bytes + _PIXELS
    if (size := path.stat().st_size) != count * row:
        rule = f"{count:,} images of {row:,} bytes are {count * row:,}"
        raise ValueError(f"{str(path)!r} is not whole: {rule}, it has {size:,}")
    rows = torch.from_numpy(np.fromfile(path, np.uint8)).view(count, row)
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
    return _checked(torch.tensor(pixels), torch.tensor(labels), path, release)


def _checked(pixels: Tensor, labels: Tensor, path: Path, release: _Release) -> tuple[Tensor, Tensor]:
    check_labels(labels, len(pixels), len(release.class_names), f"the images in {str(path)!r}")
    return pixels.reshape(-1, 3, 32, 32), labels


_TORONTO = "https://www.cs.toronto.edu/~kriz"
# 50,000 and 10,000 photographs of 32×32, in 10 and 100 classes (fine labels). Krizhevsky 2009; mean and sd of Diao
# et al. 2023.
CIFAR10 = DataSet(
    "CIFAR10",
    lambda folder: read_release(TEN, folder),
    sha256="cb4f9c8a05f08f14b1b9b43b8c6c4b877c55ba9236381e93701e6b47c10942c3",
    folders=("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "CIFAR10", "CIFAR-10"),
    markers=("data_batch_1.bin", "data_batch_1", "train/airplane"),
    downloads=(Download(f"{_TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
)
CIFAR100 = DataSet(
    "CIFAR100",
    lambda folder: read_release(HUNDRED, folder),
    # Of the PNG files: the authors' archive was not at hand.
    sha256="cb8e83a53fdb301ed75a357bc37a99a55d7cf0ce1c872500b951af4af0c2e999",
    folders=("cifar-100-binary", "cifar-100-python", "cifar100", "CIFAR100", "CIFAR-100", "CIFAR-100-dataset"),
    markers=("train.bin", "meta", "train/apple"),
    downloads=(Download(f"{_TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
)
