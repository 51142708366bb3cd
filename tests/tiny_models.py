"""Models of ten weights, for answers that can be checked by hand."""

import torch
from torch import nn


def ten_weights(*, shape, classes):
    """Ten fixed weights: the first two pixels count, the others are looked at with 0."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 10, bias=False))
    model[2].weight.data = torch.tensor([[9.0, 1.0, 1.0, 1.0, 4.0, 4.0, 0.0, 0.0, 1.0, 4.0]]).T.contiguous()
    return model
