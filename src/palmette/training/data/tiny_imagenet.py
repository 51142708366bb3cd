"""TinyImageNet: the official folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from palmette.training.data.decoded import read_once
from palmette.training.data.images import Images
from palmette.training.data.places import find

_TRAIN, _TEST = 100_000, 10_000


def tiny_imagenet(folder: Path | None = None) -> Images:
    """TinyImageNet, 100,000 and 10,000 photographs of 64×64 in 200 classes. Stanford CS231n, Le and Yang 2015.

    The test part here is the official validation part, since the labels of the official one are not published.
    Classes are numbered in the order of their WordNet names. Mean and sd are those of the authors of the PQ Index.
    The pictures are decoded the first time; what they give, 1.35 GB, stays in the cache folder.
    """
    root = find("TinyImageNet", folder)
    names = tuple(sorted((root / "wnids.txt").read_text().split()))
    train, train_labels = _training(root, names)
    test, test_labels = _validation(root, names)
    if (len(train), len(test)) != (_TRAIN, _TEST):
        rule = f"has {_TRAIN:,} training and {_TEST:,} validation pictures"
        raise ValueError(f"TinyImageNet {rule}, {str(root)!r} has {len(train):,} and {len(test):,}")
    train_images, test_images = read_once("tiny-imagenet", root, train, test, shape=(3, 64, 64))
    return Images(
        train_images,
        train_labels,
        test_images,
        test_labels,
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
    for line, text in enumerate(notes.read_text().splitlines(), 1):
        words = text.split()
        if len(words) < 2 or words[1] not in number:
            rule = "must be a file name and a class of wnids.txt"
            raise ValueError(f"line {line} of {str(notes)!r} {rule}, got {text[:60]!r}")
        paths.append(root / "val" / "images" / words[0])
        labels.append(number[words[1]])
    return paths, torch.tensor(labels)
