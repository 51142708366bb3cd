"""`Images`: a data set in memory, as every reader returns it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """A data set as tensors: uint8 images N×C×H×W, int64 labels from 0 to `classes` - 1.

    `mean` and `sd`, one number per channel, are of pixels divided by 255. With `augment`, training images are
    flipped and cropped. `source` is the path that was read.

    >>> x, y = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    >>> Images(x, y, x[:2], y[:2], classes=2, name="tiny", mean=(0.0,), sd=(1.0,), augment=False)
    Images(tiny: 4 training and 2 test images of 1×2×2 in 2 classes)
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    name: str
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    augment: bool
    source: str = ""

    def __post_init__(self) -> None:
        where = f" in {self.source!r}" if self.source else ""
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            what = f"the {part} images of {self.name}{where}"
            if images.dtype != torch.uint8 or images.dim() != 4:
                raise ValueError(f"{what} must be uint8 N×C×H×W, got {images.dtype} {tuple(images.shape)}")
            if images.numel() == 0:
                raise ValueError(f"{what} must have at least one pixel, got shape {tuple(images.shape)}")
            check_labels(labels, len(images), self.classes, what)
        if self.test_images.shape[1:] != self.shape:
            got = f"{_by(self.shape)} and {_by(self.test_images.shape[1:])}"
            raise ValueError(f"training and test images of {self.name}{where} must have one shape, got {got}")
        if not len(self.mean) == len(self.sd) == self.shape[0] or min(self.sd) <= 0:
            rule = f"must be {self.shape[0]} numbers each, one per channel, and sd positive"
            raise ValueError(f"mean and sd of {self.name} {rule}, got {self.mean} and {self.sd}")

    def __repr__(self) -> str:
        counts = f"{len(self.train_images):,} training and {len(self.test_images):,} test images"
        return f"Images({self.name}: {counts} of {_by(self.shape)} in {self.classes} classes)"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @cached_property
    def train_floats(self) -> Tensor:
        """Normalised training images, not augmented; computed on first use and kept."""
        mean, sd = (torch.tensor(x, device=self.train_images.device).view(-1, 1, 1) for x in (self.mean, self.sd))
        return normalised(self.train_images, mean, sd)

    def first(self, *, train: int, test: int) -> Images:
        """The first images of each part."""
        some = replace(self, train_images=self.train_images[:train], train_labels=self.train_labels[:train])
        return replace(some, test_images=self.test_images[:test], test_labels=self.test_labels[:test])

    def sha256(self) -> str:
        """SHA-256 of the contents, independent of the order of the images and of the file format.

        Each image, after its label as 8 bytes, has a SHA-256. The sorted digests of a part have a SHA-256, and
        those of the training and the test part have the final one. CIFAR10 has the same digest as binary release,
        as python release and as a folder of PNG files.
        """
        parts = (self.train_images, self.train_labels), (self.test_images, self.test_labels)
        return hashlib.sha256(b"".join(_digest(*part) for part in parts)).hexdigest()


def normalised(pixels: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """(pixel / 255 - mean) / sd in float32."""
    return pixels.float().div_(255).sub_(mean).div_(sd)


def _digest(images: Tensor, labels: Tensor) -> bytes:
    pixels = images.cpu().flatten(1).contiguous().numpy()
    before = labels.cpu().numpy().astype("<i8")
    each = (hashlib.sha256(y.tobytes() + x.tobytes()).digest() for x, y in zip(pixels, before, strict=True))
    return hashlib.sha256(b"".join(sorted(each))).digest()


def check_labels(labels: Tensor, count: int, classes: int, what: str) -> None:
    """Raise `ValueError` unless `labels` are `count` int64 values from 0 to `classes` - 1."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise ValueError(f"the labels of {what} must be a row of int64, got {labels.dtype} {tuple(labels.shape)}")
    if len(labels) != count:
        raise ValueError(f"{what} must have one label each, got {count} images and {len(labels)} labels")
    low, high = (int(x) for x in labels.aminmax())
    if low < 0 or high >= classes:
        rule = f"must be from 0 to {classes - 1}"
        raise ValueError(f"the labels of {what} {rule}, got {low if low < 0 else high}")


def mean_and_sd(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images divided by 255, to four digits.

    Computed from the counts of the 256 values, exactly and without a float copy. A constant channel gets sd 1.

    >>> mean_and_sd(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    value = torch.arange(256, dtype=torch.float64) / 255
    means, sds = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.reshape(-1), minlength=256).double() / channel.numel()
        mean = float(share @ value)
        sd = float(share @ (value - mean) ** 2) ** 0.5
        means.append(round(mean, 4))
        sds.append(round(sd, 4) or 1.0)
    return tuple(means), tuple(sds)


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in shape)
