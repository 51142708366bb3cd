"""Residual networks of He et al. for CIFAR, in which Renda et al. compare ways to rewind."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from palmette.training.models.building import Shape, check_images, initialise_


class CifarBlock(nn.Module):
    """`relu(x + f(x))` with f of two 3×3 convolutions, each with batch norm; shortcut option A.

    Option A has no weights: where the block halves the image, the shortcut takes every second pixel of `x` and
    pads channels with zeros, half of them on either side.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.stride = 1 if width_in == width_out else 2
        self.side = (width_out - width_in) // 2
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of feature maps to a batch of feature maps."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.side, self.side))
        return F.relu(out + shortcut)


class CifarResNet(nn.Module):
    """A 3×3 stem to 16 channels, three stages of `blocks` blocks with 16, 32 and 64, a mean, a Linear.

    Parameter names match a widely used public reimplementation (Idelbayev, `resnet20-12fca82f.th` and others), so
    that its checkpoints load once their prefix ``module.`` is removed.
    """

    def __init__(self, channels: int, classes: int, *, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, 64, blocks)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to one score per class."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def _stage(width_in: int, width_out: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(*(CifarBlock(width_out if i else width_in, width_out) for i in range(blocks)))


def resnet20(*, shape: Shape, classes: int) -> nn.Module:
    """ResNet20 for CIFAR: 3 blocks per stage.

    >>> sum(p.numel() for p in resnet20(shape=(3, 32, 32), classes=10).parameters())
    269722

    He et al. 2016a, Section 4.2 and Table 6 (0.27 M).
    """
    check_images("resnet20", shape, classes)
    return initialise_(CifarResNet(shape[0], classes, blocks=3))


def resnet56(*, shape: Shape, classes: int) -> nn.Module:
    """ResNet56 for CIFAR: 9 blocks per stage.

    He et al. 2016a, Section 4.2 and Table 6 (0.85 M).
    """
    check_images("resnet56", shape, classes)
    return initialise_(CifarResNet(shape[0], classes, blocks=9))
