"""Changes to the training images of a run: a validation part is split off, labels become noisy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.training.data.images import Images


def usual_size(total: int) -> int:
    """Default size of the validation part of `total` training images: a tenth, at least 1, at most 5,000.

    >>> usual_size(60_000), usual_size(1_500)
    (5000, 150)
    """
    return min(5_000, max(1, total // 10))


def validation_split(images: Images, *, count: int) -> tuple[Images, Tensor, Tensor]:
    """Split `images` into the set without its validation part, and the images and labels of that part.

    The same `count` images are drawn for every run and on every machine, so that seeds can be compared, and train
    in one fleet. Both parts keep the order of the file; the test part does not change.
    """
    import torch

    total = len(images.train_images)
    if not 0 < count < total:
        raise ValueError(f"a validation part must have 1 to {total - 1} of {total} training images, got {count}")
    chosen = torch.zeros(total, dtype=torch.bool)
    chosen[torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count]] = True
    chosen = chosen.to(images.train_images.device)
    rest = replace(images, train_images=images.train_images[~chosen], train_labels=images.train_labels[~chosen])
    return rest, images.train_images[chosen], images.train_labels[chosen]


def with_label_noise(images: Images, fraction: float) -> Images:
    """Replace ``floor(fraction * n)`` of the `n` training labels by another class, chosen at random.

    The same labels change in every run on these images; test labels stay.
    """
    import torch

    count = int(fraction * len(images.train_labels) + 1e-9)
    if not count or images.classes < 2:
        return images
    random, labels = torch.Generator().manual_seed(0), images.train_labels.clone()
    chosen = torch.randperm(len(labels), generator=random)[:count].to(labels.device)
    moved = torch.randint(1, images.classes, (count,), generator=random).to(labels)
    labels[chosen] = (labels[chosen] + moved) % images.classes
    return replace(images, train_labels=labels)
