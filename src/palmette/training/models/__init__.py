"""Models by name, each for images of any shape and any number of classes, and a user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from palmette.errors import in_full, place_of
from palmette.pruning.methods import imported
from palmette.training.lazy_table import LazyTable
from palmette.words import did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from palmette.training.models.building import Builder, Shape

MODELS: Mapping[str, Builder] = LazyTable(
    __name__,
    {
        "linear": "plain:linear",
        "mlp": "plain:mlp",
        "cnn": "plain:cnn",
        "resnet18": "resnet:resnet18",
        "resnet50": "resnet:resnet50",
        "wresnet28x8": "resnet:wresnet28x8",
        "resnet20": "cifar_resnet:resnet20",
        "resnet56": "cifar_resnet:resnet56",
        "transformer": "transformer:transformer",
    },
)
"""Name -> builder, imported on first use. The first six are the models of the paper."""


def build(name: str, *, shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """Build the model called `name` on the CPU, with initial weights drawn by `seed`.

    The same seed gives the same weights, bit for bit. The caller's random generators do not change. `name` is one
    of `MODELS`, or ``"module:function"`` for a user's model: the function is imported and called with `shape` and
    `classes`, and returns an `nn.Module` that maps a batch of images to one score per class.

    >>> build("linear", shape=(1, 2, 2), classes=3, seed=1).head
    Linear(in_features=4, out_features=3, bias=True)
    """
    import torch

    from palmette.training.models.building import check_images

    check_images(name, shape, classes)
    own = ":" in name
    if not own and name not in MODELS:
        raise ValueError(
            f"there is no model {name!r}; there are {', '.join(MODELS)}, and your own as 'module:function'"
            f"{did_you_mean(name, MODELS)}"
        )
    # Not torch.manual_seed, which would also seed the caller's GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if not own:
            return MODELS[name](shape=shape, classes=classes)
        builder = _imported(name)
        try:
            model = builder(shape=shape, classes=classes)
        except Exception as error:  # user code may raise anything
            called = f"{name.partition(':')[2]}(shape={shape}, classes={classes})"
            raise ValueError(f"model {name!r}: {called} fails{place_of(error)}: {in_full(error)}") from error
        _check_scores(name, model, shape, classes)
    return model


def _imported(name: str) -> Builder:
    """Import the function that ``"module:function"`` names, and check that it takes `shape` and `classes`."""
    function: Builder = imported(name, "model")
    path = name.partition(":")[2]
    try:
        inspect.signature(function).bind(shape=(1, 1, 1), classes=2)
    except (TypeError, ValueError) as error:  # ValueError: builtins without a signature
        raise ValueError(
            f"model {name!r}: {path} must be a function that can be called as "
            f"{path}(shape=(channels, height, width), classes=number): {error}"
        ) from error
    return function


def _check_scores(name: str, model: object, shape: Shape, classes: int) -> None:
    """Raise unless `model` maps two images to two rows of `classes` scores."""
    import torch

    from palmette.pruning.weights import evaluating

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model {name!r} must return a torch.nn.Module, got {type(model).__name__}")
    try:
        with evaluating(model), torch.no_grad():
            scores = model(torch.zeros(2, *shape))
    except Exception as error:  # user code may raise anything
        where = f"on two images of shape {shape}{place_of(error)}"
        raise ValueError(f"model {name!r} fails {where}: {in_full(error)}") from error
    if not isinstance(scores, torch.Tensor) or scores.shape != (2, classes):
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ValueError(
            f"model {name!r} must give one score per class: for two images of shape {shape} a tensor of "
            f"shape {(2, classes)}, got {got}"
        )
