"""A validation part, split off the training images, because nothing is chosen by test data."""

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


def validation_split(images: Images, *, seed: int, count: int) -> tuple[Images, Tensor, Tensor]:
    """Split `images` into the set without its validation part, and the images and labels of that part.

    `seed` draws `count` images, the same on every machine. Both parts keep the order of the file; the test part
    does not change.
    """
    import torch

    total = len(images.train_images)
    if not 0 < count < total:
        raise ValueError(f"a validation part must have 1 to {total - 1} of {total} training images, got {count}")
    chosen = torch.zeros(total, dtype=torch.bool)
    chosen[torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count]] = True
    chosen = chosen.to(images.train_images.device)
    rest = replace(images, train_images=images.train_images[~chosen], train_labels=images.train_labels[~chosen])
    return rest, images.train_images[chosen], images.train_labels[chosen]
