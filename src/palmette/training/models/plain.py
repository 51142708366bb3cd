"""The plain models of the paper: linear classifier, multi-layer perceptron and convolutional network."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from palmette.training.models.building import Shape, check_images, initialise_

HIDDEN = (128, 256)  # of the perceptron
WIDTHS = (64, 128, 256, 512)  # of the convolutional network


def linear(*, shape: Shape, classes: int) -> nn.Module:
    """One Linear layer from the pixels to the classes.

    >>> sum(p.numel() for p in linear(shape=(1, 28, 28), classes=10).parameters())
    7850

    Diao et al. 2023, Table 3.
    """
    check_images("linear", shape, classes)
    return initialise_(_perceptron(math.prod(shape), (), classes))


def mlp(*, shape: Shape, classes: int) -> nn.Module:
    """Linear layers to 128, to 256 and to the classes, a ReLU after each but the last.

    >>> sum(p.numel() for p in mlp(shape=(1, 28, 28), classes=10).parameters())
    136074

    Diao et al. 2023, appendix ("The model architecture of Multi-Layer Perceptron").
    """
    check_images("mlp", shape, classes)
    return initialise_(_perceptron(math.prod(shape), HIDDEN, classes))


def _perceptron(inputs: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, outputs in enumerate(hidden, start=1):
        layers[f"layer{number}"] = nn.Linear(inputs, outputs)
        layers[f"relu{number}"] = nn.ReLU()
        inputs = outputs
    layers["head"] = nn.Linear(inputs, classes)
    return nn.Sequential(layers)


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
