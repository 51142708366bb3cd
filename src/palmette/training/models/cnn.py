"""The convolutional network of the paper."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from palmette.training.models.building import Shape, check_images, initialise_

WIDTHS = (64, 128, 256, 512)


def cnn(*, shape: Shape, classes: int) -> nn.Module:
    """Four times 3×3 convolution, batch norm, ReLU, to 64, 128, 256 and 512 channels; the mean; a Linear.

    A max-pool of 2 follows each ReLU but the last, as in the authors' code; the paper's table has one there too,
    with the same number of weights and FLOPs. Images are at least 8×8, so that a pixel is left after three pools.

    >>> sum(p.numel() for p in cnn(shape=(1, 28, 28), classes=10).parameters())
    1556874

    Diao et al. 2023, appendix ("The model architecture of Convolutional Neural Networks").
    """
    check_images("cnn", shape, classes, smallest=2 ** (len(WIDTHS) - 1))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = shape[0]
    for number, width in enumerate(WIDTHS, start=1):
        if number > 1:
            layers[f"pool{number - 1}"] = nn.MaxPool2d(2)
        layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, stride=1, padding=1)
        layers[f"norm{number}"] = nn.BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU()
        channels = width
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels, classes)
    return initialise_(nn.Sequential(layers))
