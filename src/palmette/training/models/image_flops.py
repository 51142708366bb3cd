"""What one image costs: the floating point operations of a forward pass."""

from __future__ import annotations

import torch
from torch import nn

from palmette.compression.flops import flops_of
from palmette.pruning.weights import evaluating, uncompiled
from palmette.training.models.building import Shape


def flops_per_image(model: nn.Module, *, shape: Shape) -> int:
    """FLOPs of `model` for one image of `shape`, forward: two for each multiplication with an addition.

    Counted while an image of zeros goes through the model in evaluation mode: convolutions, matrix products and
    attention; no biases, norms, activations or pools. Pruned weights count like all others. Nothing of the
    model is changed.

    Table 3 of the paper gives them for a batch of 250 images, and for ResNet18 one per multiplication.

    >>> flops_per_image(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), shape=(1, 28, 28))
    15680
    """
    model = uncompiled(model)
    example = next(model.parameters(), torch.empty(0))
    image = torch.zeros(1, *shape, device=example.device, dtype=example.dtype)
    with evaluating(model), torch.no_grad():
        return flops_of(lambda: model(image))
