"""Augment and normalise batches of uint8 images on their device."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.training.data.images import Images, normalised

PADDING = 4


def drawn_from(bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Map a random integer below 2^63 per image to a flip with probability ½ and a uniform corner (top, left)."""
    side = 2 * PADDING + 1
    return (bits & 1).bool(), (bits >> 1 & 2**31 - 1) % side, (bits >> 32) % side


def shifted(images: Tensor, flip: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Flip images B×C×H×W left to right where drawn, then reflect-pad and crop them to their size.

    Corners range from 0 to twice the `PADDING`; `PADDING` itself does not move the image. Reflection does not
    repeat the edge: 2 1 precede columns 0 1 2.
    """
    height, width = images.shape[2:]
    if min(height, width) <= PADDING:
        raise ValueError(f"reflect padding of {PADDING} needs larger images, got {height}×{width}")
    rows = _reflected(top - PADDING, height)
    columns = _reflected(left - PADDING, width)
    columns = torch.where(flip[:, None], width - 1 - columns, columns)
    source = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    pixels = images.flatten(2)
    return pixels.gather(2, source[:, None].expand_as(pixels)).view_as(images)


def _reflected(start: Tensor, size: int) -> Tensor:
    """`size` positions from each `start`, reflected into 0 … size - 1."""
    position = (start[:, None] + torch.arange(size, device=start.device)).abs()
    return (size - 1) - ((size - 1) - position).abs()


class Preparation:
    """Convert uint8 images B×C×H×W to float32: optional flips and crops, then (pixel / 255 - mean) / sd."""

    def __init__(self, images: Images, *, device: torch.device | str = "cpu") -> None:
        self.mean = torch.tensor(images.mean, device=device).view(-1, 1, 1)
        self.sd = torch.tensor(images.sd, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor, bits: Tensor | None = None) -> Tensor:
        """Augment the batch by random `bits`, if given, and normalise it."""
        if bits is not None:
            images = shifted(images, *drawn_from(bits))
        return normalised(images, self.mean, self.sd)
