"""Shared by all model builders: types, checks of arguments, initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import nn

from palmette.measures.parameters import is_number

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of an image."""


Builder: TypeAlias = Callable[..., nn.Module]
"""Builds a model for images of `shape` and a number of `classes`, with weights drawn from torch's generator."""


def check_images(model: str, shape: Shape, classes: int, *, smallest: int = 1) -> None:
    """Raise, naming `model`, unless it can classify images of `shape` into so many classes."""
    if len(shape) != 3 or not all(is_number(size, whole=True) and size >= 1 for size in shape):
        raise ValueError(f"{model} needs shape=(channels, height, width), three numbers from 1, got {shape!r}")
    if min(shape[1:]) < smallest:
        raise ValueError(
            f"{model} needs images of at least {smallest}x{smallest} pixels, "
            f"got {shape[1]}x{shape[2]} (shape={shape!r})"
        )
    if not is_number(classes, whole=True) or classes < 2:
        raise ValueError(f"{model} needs two or more classes, a whole number, got classes={classes!r}")


def initialise_(model: nn.Module) -> nn.Module:
    r"""Draw the paper's initial weights for `model` from torch's generator, and return it.

    Convolution weights are normal with variance :math:`2 / \mathrm{fan\_out}` (Kaiming, ReLU), Linear weights
    keep PyTorch's, uniform within :math:`\pm 1/\sqrt{\mathrm{fan\_in}}`; all their biases are 0. Norms keep
    scale 1 and shift 0.

    From the code of Diao et al. 2023, since the paper does not say. He et al. 2015 for the convolutions.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
