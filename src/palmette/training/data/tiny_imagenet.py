"""TinyImageNet, in the folder layout of the official release."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from palmette.training.data.data_set import DataSet, Download
from palmette.training.data.images import Images
from palmette.training.data.pictures import read_cached

_TRAIN, _TEST = 100_000, 10_000


def read_tiny_imagenet(root: Path) -> Images:
    """Read 100,000 training and 10,000 test photographs of 64×64 in 200 classes.

    The test part is the official validation part, because the labels of the official test part are not published.
    Classes are numbered in the order of their WordNet names. Mean and sd are those of Diao et al. 2023. Pictures
    are decoded once and then read from the cache folder (1.35 GB).

    Stanford CS231n, Le and Yang 2015.
    """
    names = tuple(sorted((root / "wnids.txt").read_text(errors="replace").split()))
    train, train_labels = _training(root, names)
    test, test_labels = _validation(root, names)
    if (len(train), len(test)) != (_TRAIN, _TEST):
        rule = f"has {_TRAIN:,} training and {_TEST:,} validation pictures"
        raise ValueError(f"TinyImageNet {rule}, {str(root)!r} has {len(train):,} and {len(test):,}")
    train_images, test_images = read_cached("tiny-imagenet", root, train, test, shape=(3, 64, 64))
    return Images(
        *(train_images, train_labels, test_images, test_labels),
        classes=len(names),
        name="TinyImageNet",
        mean=(0.485, 0.456, 0.406),
        sd=(0.229, 0.224, 0.225),
        augment=True,
        source=str(root),
    )


def _training(root: Path, names: tuple[str, ...]) -> tuple[list[Path], Tensor]:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        files = sorted((root / "train" / name / "images").glob("*.JPEG"))
        if not files:
            raise FileNotFoundError(f"no .JPEG files of class {name} in {str(root / 'train' / name / 'images')!r}")
        paths += files
        labels += [label] * len(files)
    return paths, torch.tensor(labels)


def _validation(root: Path, names: tuple[str, ...]) -> tuple[list[Path], Tensor]:
    notes = root / "val" / "val_annotations.txt"
    if not notes.is_file():
        raise FileNotFoundError(f"TinyImageNet needs the labels of its validation part, no {str(notes)!r}")
    number = {name: label for label, name in enumerate(names)}
    paths: list[Path] = []
    labels: list[int] = []
    for line, text in enumerate(notes.read_text(errors="replace").splitlines(), 1):
        words = text.split()
        if len(words) < 2 or words[1] not in number:
            rule = "must be a file name and a class of wnids.txt"
            raise ValueError(f"line {line} of {str(notes)!r} {rule}, got {text[:60]!r}")
        paths.append(root / "val" / "images" / words[0])
        labels.append(number[words[1]])
    return paths, torch.tensor(labels)


TINY_IMAGENET = DataSet(
    "TinyImageNet",
    read_tiny_imagenet,
    sha256="5c64fd42c34a36fc5fcea8f4ab9bc611136e03e4422b19a5a7335a0e229f9254",  # JPEG files decoded by Pillow 13
    folders=("tiny-imagenet-200", "TinyImageNet"),
    markers=("wnids.txt",),
    downloads=(Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
)
