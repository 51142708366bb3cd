"""The wide residual network of the paper."""

from __future__ import annotations

from torch import nn

from palmette.training.models.building import Shape, check_images, initialise_
from palmette.training.models.resnet import PreActivationResNet

DEPTH = 28
FACTOR = 8


def wresnet28x8(*, shape: Shape, classes: int) -> nn.Module:
    """WRN-28-8: stages of 128, 256 and 512 channels after a stem of 16, four blocks each; no dropout; 23.4 M.

    28 convolutions counts the stem, (28 - 4) / 3 / 2 = 4 blocks of two in each of three stages, and three
    projections, as Zagoruyko & Komodakis do.

    The authors' code gives images of 64 pixels a fourth stage and shorter ones; ours has three for all images,
    as published. On CIFAR100, where Diao et al. 2023 train it, the two are the same.

    Zagoruyko & Komodakis 2016, Table 1.
    """
    check_images("wresnet28x8", shape, classes)
    depths = ((DEPTH - 4) // 6,) * 3
    widths = (16 * FACTOR, 32 * FACTOR, 64 * FACTOR)
    return initialise_(PreActivationResNet(shape[0], classes, stem=16, widths=widths, depths=depths))
