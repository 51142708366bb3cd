"""From uint8 images to what a network takes, a batch at once and where the batch lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.training.data.images import Images, normalised

PADDING = 4


@dataclass(frozen=True)
class Shifts:
    """What was drawn for a batch: which images are flipped, and the corner of each crop in the padded image.

    All three have one entry per image. `top` and `left` go from 0 to twice the `PADDING`, which itself leaves an
    image where it is.
    """

    flip: Tensor
    top: Tensor
    left: Tensor

    @staticmethod
    def drawn_from(bits: Tensor) -> Shifts:
        """From a random integer below 2^63 for each image: flips with probability ½, crops uniformly."""
        side = 2 * PADDING + 1
        return Shifts((bits & 1).bool(), (bits >> 1 & 2**31 - 1) % side, (bits >> 32) % side)


def shifted(images: Tensor, shifts: Shifts) -> Tensor:
    """Each image B×C×H×W flipped left to right where drawn, then reflect-padded and cropped to its size.

    Reflection does not repeat the edge: left of columns 0 1 2 stand 2 1. Nothing is padded in memory; each
    pixel is fetched from where it comes from.
    """
    height, width = images.shape[2:]
    if min(height, width) <= PADDING:
        raise ValueError(f"reflect padding of {PADDING} needs images that are larger, got {height}×{width}")
    device = images.device
    rows = _reflected(shifts.top.to(device) - PADDING, height)
    columns = _reflected(shifts.left.to(device) - PADDING, width)
    columns = torch.where(shifts.flip.to(device)[:, None], width - 1 - columns, columns)
    source = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    pixels = images.flatten(2)
    return pixels.gather(2, source[:, None].expand_as(pixels)).view_as(images)


def _reflected(start: Tensor, size: int) -> Tensor:
    """`size` positions from each `start` on, those outside of 0 … size - 1 reflected back."""
    position = (start[:, None] + torch.arange(size, device=start.device)).abs()
    return (size - 1) - ((size - 1) - position).abs()


class Preparation:
    """uint8 images B×C×H×W to float32: (pixel / 255 - mean) / sd, before it the flips and crops that are given.

    Mean and sd are brought to the device once, so that a batch costs no transfer.

    Args:
        images: the data set, for its mean and sd.
        device: where the batches lie.
    """

    def __init__(self, images: Images, *, device: torch.device | str = "cpu") -> None:
        self.mean = torch.tensor(images.mean, device=device).view(-1, 1, 1)
        self.sd = torch.tensor(images.sd, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor, shifts: Shifts | None = None) -> Tensor:
        """The batch as floats, after `shifts` if there are any."""
        if shifts is not None:
            images = shifted(images, shifts)
        return normalised(images, self.mean, self.sd)
