"""A small Transformer that classifies images from their patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.training.models.building import Shape, check_images, initialise_

GRID = 8  # maximum of patches along a side
WIDTH, DEPTH, HEADS, EXPANSION = 96, 4, 4, 2


class EncoderBlock(nn.Module):
    """Pre-norm encoder block: self-attention and a two-layer GELU perceptron, both residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, EXPANSION * WIDTH)
        self.narrow = nn.Linear(EXPANSION * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of sequences to a batch of sequences."""
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        # Not a fused kernel: this is deterministic on a GPU and can be stacked; for 64 tokens it costs nothing.
        attention = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).softmax(3)
        x = x + self.output((attention @ v).transpose(1, 2).flatten(2))
        added: Tensor = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return added


class ImageTransformer(nn.Module):
    """Linear patch embedding with learned positions, encoder blocks, mean over tokens, Linear classifier.

    An image is divided into at most 8×8 patches; zeros pad its right and lower edges to whole patches.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.patch = (math.ceil(height / GRID), math.ceil(width / GRID))
        rows, columns = math.ceil(height / self.patch[0]), math.ceil(width / self.patch[1])
        self.fill = (0, columns * self.patch[1] - width, 0, rows * self.patch[0] - height)
        self.embed = nn.Linear(channels * self.patch[0] * self.patch[1], WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(rows * columns, WIDTH))
        self.blocks = nn.Sequential(*(EncoderBlock() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to one score per class."""
        x = F.pad(x, self.fill)
        patches = x.unflatten(3, (-1, self.patch[1])).unflatten(2, (-1, self.patch[0])).permute(0, 2, 4, 1, 3, 5)
        tokens = self.embed(patches.flatten(3).flatten(1, 2)) + self.place
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores


def transformer(*, shape: Shape, classes: int) -> nn.Module:
    """Four encoder blocks of width 96 with four heads, over at most 64 patches of the image; some 300 K weights.

    >>> sum(p.numel() for p in transformer(shape=(1, 28, 28), classes=10).parameters())
    306634

    After Dosovitskiy et al. 2021 (patches, pre-norm), sized for small images; not a model of the paper.
    """
    check_images("transformer", shape, classes)
    return initialise_(ImageTransformer(shape, classes))
