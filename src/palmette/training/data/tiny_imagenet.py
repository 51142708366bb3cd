"""TinyImageNet: the official folder, decoded once into a cached file of tensors."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from palmette.training.data.images import Images, check_labels
from palmette.training.data.pictures import read_pictures
from palmette.training.data.places import cache_folder, find

_SHAPE = (3, 64, 64)
_Listed = list[tuple[Path, int]]


def tiny_imagenet(folder: Path | None = None) -> Images:
    """TinyImageNet, 100,000 and 10,000 photographs of 64×64 in 200 classes. Stanford CS231n, Le and Yang 2015.

    The test part here is the official validation part, since the labels of the official one are not published.
    Classes are numbered in the order of their WordNet names. Mean and sd are those of the authors of the PQ Index.
    """
    root = find("TinyImageNet", folder)
    names = tuple(sorted((root / "wnids.txt").read_text().split()))
    if not names:
        raise ValueError(f"{str(root / 'wnids.txt')!r} must list the classes, one per line, it is empty")
    train, test = _training(root, names), _validation(root, names)
    cached = cache_folder() / f"tiny-imagenet-{_fingerprint(root, train + test)}.safetensors"
    pixels = _from_cache(cached) or _decoded(train, test, cached)
    labels = [torch.tensor([label for _, label in part]) for part in (train, test)]
    return Images(
        pixels["train"],
        labels[0],
        pixels["test"],
        labels[1],
        classes=len(names),
        name="TinyImageNet",
        mean=(0.485, 0.456, 0.406),
        sd=(0.229, 0.224, 0.225),
        augment=True,
        class_names=names,
        source=str(root),
    )


def _training(root: Path, names: tuple[str, ...]) -> _Listed:
    listed: _Listed = []
    for label, name in enumerate(names):
        files = sorted((root / "train" / name / "images").glob("*.JPEG"))
        if not files:
            raise FileNotFoundError(f"no .JPEG files of class {name} in {str(root / 'train' / name / 'images')!r}")
        listed += [(path, label) for path in files]
    return listed


def _validation(root: Path, names: tuple[str, ...]) -> _Listed:
    path = root / "val" / "val_annotations.txt"
    if not path.is_file():
        raise FileNotFoundError(f"TinyImageNet needs the labels of its validation part, no {str(path)!r}")
    number = {name: label for label, name in enumerate(names)}
    listed: _Listed = []
    for line, text in enumerate(path.read_text().splitlines(), 1):
        words = text.split()
        if len(words) < 2 or words[1] not in number:
            rule = "must be a file name and a class of wnids.txt"
            raise ValueError(f"line {line} of {str(path)!r} {rule}, got {text[:60]!r}")
        listed.append((root / "val" / "images" / words[0], number[words[1]]))
    check_labels(torch.tensor([n for _, n in listed]), len(listed), len(names), f"the images of {str(path)!r}")
    return listed


def _fingerprint(root: Path, listed: _Listed) -> str:
    """Another name for other files: of the path, size, time and label of each."""
    digest = hashlib.sha256()
    for path, label in listed:
        stat = path.stat()
        digest.update(f"{path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns} {label}\n".encode())
    return digest.hexdigest()[:16]


def _from_cache(cached: Path) -> dict[str, Tensor] | None:
    if not cached.is_file():
        return None
    try:
        with safe_open(cached, "pt") as file:
            return {part: file.get_tensor(part) for part in ("train", "test")}
    except (SafetensorError, OSError):  # damaged: decode again
        return None


def _decoded(train: _Listed, test: _Listed, cached: Path) -> dict[str, Tensor]:
    pixels = {
        "train": read_pictures([path for path, _ in train], shape=_SHAPE),
        "test": read_pictures([path for path, _ in test], shape=_SHAPE),
    }
    partial = cached.with_name(cached.name + ".partial")
    with suppress(OSError, SafetensorError):  # a cache that cannot be written costs time, nothing else
        cached.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(pixels, partial)
            partial.replace(cached)
        finally:
            partial.unlink(missing_ok=True)
    return pixels
