"""Pre-activation residual networks of the paper: ResNet18, ResNet50 and the wide WRN-28-8."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from palmette.training.models.building import Shape, check_images, initialise_


class Block(nn.Module):
    """`x + f(x)` where `f` is a chain of BN–ReLU–conv; `x` is projected where `f` changes its shape.

    The projection is a 1×1 convolution of the first ReLU's output, as in He et al. 2016b, Fig. 4(e). `widths` are
    the channels before the first convolution and after each; the first 3×3 convolution has the `stride`.
    """

    def __init__(self, widths: Sequence[int], kernels: Sequence[int], stride: int) -> None:
        super().__init__()
        strided = list(kernels).index(3)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, k, stride=stride if i == strided else 1, padding=k // 2, bias=False)
            for i, ((a, b), k) in enumerate(zip(pairwise(widths), kernels, strict=True))
        )
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or widths[0] != widths[-1]:
            self.shortcut = nn.Conv2d(widths[0], widths[-1], 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of feature maps to a batch of feature maps."""
        out = F.relu(self.norms[0](x))
        residual = x if self.shortcut is None else self.shortcut(out)
        out = self.convs[0](out)
        for norm, conv in zip(list(self.norms)[1:], list(self.convs)[1:], strict=True):
            out = conv(F.relu(norm(out)))
        added: Tensor = out + residual
        return added


class PreActivationResNet(nn.Module):
    """3×3 stem without a pool, stages of blocks (all but the first halve the image), mean, Linear.

    `widths` are the channels inside the blocks of each stage. With `bottleneck`, blocks are 1×1, 3×3, 1×1 to four
    times the width, in place of 3×3, 3×3 to the width.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        stem: int,
        widths: Sequence[int],
        depths: Sequence[int],
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, stem, 3, padding=1, bias=False)
        self.stages = nn.ModuleList()
        width = stem
        for number, (inner, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = []
            for index in range(depth):
                inside = (inner, inner, 4 * inner) if bottleneck else (inner, inner)
                kernels = (1, 3, 1) if bottleneck else (3, 3)
                stride = 2 if number and not index else 1
                blocks.append(Block((width, *inside), kernels, stride))
                width = inside[-1]
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to one score per class."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        x = F.adaptive_avg_pool2d(F.relu(self.norm(x)), 1).flatten(1)
        scores: Tensor = self.head(x)
        return scores


def resnet18(*, shape: Shape, classes: int) -> nn.Module:
    """Pre-activation ResNet18: 64, 128, 256 and 512 channels, two blocks of two 3×3 convolutions each; 11.2 M.

    He et al. 2016b (identity mappings), with the 3×3 stem and without the max-pool, as in the code of Diao et al.
    2023.
    """
    check_images("resnet18", shape, classes)
    return initialise_(
        PreActivationResNet(shape[0], classes, stem=64, widths=(64, 128, 256, 512), depths=(2, 2, 2, 2))
    )


def resnet50(*, shape: Shape, classes: int) -> nn.Module:
    """Pre-activation ResNet50: as `resnet18`, with 3, 4, 6 and 3 bottlenecks of 1×1, 3×3 and 1×1; 23.9 M.

    He et al. 2016b; the stem as in the code of Diao et al. 2023, who train it on TinyImageNet.
    """
    check_images("resnet50", shape, classes)
    return initialise_(
        PreActivationResNet(
            shape[0], classes, stem=64, widths=(64, 128, 256, 512), depths=(3, 4, 6, 3), bottleneck=True
        )
    )


def wresnet28x8(*, shape: Shape, classes: int) -> nn.Module:
    """WRN-28-8: stages of 128, 256 and 512 channels after a stem of 16, four blocks each; no dropout; 23.4 M.

    As Zagoruyko & Komodakis count, 28 convolutions are the stem, (28 - 4) / 3 / 2 = 4 blocks of two in each of
    three stages, and three projections.

    The authors' code gives images of 64 pixels a fourth stage and shorter ones; here all images have three stages,
    as published. On CIFAR100, where Diao et al. 2023 train it, the two are equal.

    Zagoruyko & Komodakis 2016, Table 1.
    """
    check_images("wresnet28x8", shape, classes)
    return initialise_(PreActivationResNet(shape[0], classes, stem=16, widths=(128, 256, 512), depths=(4, 4, 4)))
