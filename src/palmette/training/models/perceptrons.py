"""The linear classifier and the multi-layer perceptron of the paper."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from palmette.training.models.building import Shape, check_images, initialise_

HIDDEN = (128, 256)


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
