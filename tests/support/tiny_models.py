"""Models of ten weights, for answers that can be checked by hand."""

import itertools

import torch
from torch import nn


def ten_weights(*, shape, classes):
    """One weight for each of ten classes, multiplied with the mean of the image: nine, fours, ones and zeros."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 10, bias=False))
    model[2].weight.data = torch.tensor([[9.0, 1.0, 1.0, 1.0, 4.0, 4.0, 0.0, 0.0, 1.0, 4.0]]).T.contiguous()
    return model


def five_layers(*, shape, classes):
    """Five Linear layers, none of them large."""
    sizes = [shape[0] * shape[1] * shape[2], 32, 32, 32, 32, classes]
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])
