"""Models by name, each for images of any shape and any number of classes, and a user's own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType

import torch
from torch import Tensor, nn

from palmette.errors import in_full, place_of
from palmette.pruning.weights import evaluating
from palmette.training.models.building import Builder, Shape, check_images
from palmette.training.models.cifar_resnet import resnet20, resnet56
from palmette.training.models.cnn import cnn
from palmette.training.models.image_flops import flops_per_image
from palmette.training.models.perceptrons import linear, mlp
from palmette.training.models.resnet import resnet18, resnet50
from palmette.training.models.transformer import transformer
from palmette.training.models.wide_resnet import wresnet28x8

__all__ = ["MODELS", "Builder", "Shape", "build", "flops_per_image"]

MODELS: Mapping[str, Builder] = MappingProxyType(
    {
        "linear": linear,
        "mlp": mlp,
        "cnn": cnn,
        "resnet18": resnet18,
        "resnet50": resnet50,
        "wresnet28x8": wresnet28x8,
        "resnet20": resnet20,
        "resnet56": resnet56,
        "transformer": transformer,
    }
)
"""Name -> builder. The first six are those of the paper."""


def build(name: str, *, shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """The model called `name`, on the CPU, with the initial weights that belong to `seed`.

    The same seed gives the same weights, bit for bit, whatever was drawn before; the generators of the caller
    are left as they were.

    Args:
        name: one of `MODELS`, or ``"module:function"`` for a model of one's own: the function is imported and
            called with `shape` and `classes`, and returns an `nn.Module` that turns a batch of images into one
            score per class. Its initial weights are its own; those it draws from torch belong to `seed`.
        shape: of an image: channels, height, width.
        classes: how many classes there are.
        seed: for torch's generator on the CPU, while the model is made.

    >>> build("linear", shape=(1, 2, 2), classes=3, seed=1).head
    Linear(in_features=4, out_features=3, bias=True)
    """
    check_images(name, shape, classes)
    own = ":" in name
    if not own and name not in MODELS:
        raise ValueError(
            f"there is no model {name!r}; there are {', '.join(MODELS)}, and your own as 'module:function'"
        )
    # Not torch.manual_seed, which would seed the GPUs of the caller as well.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if not own:
            return MODELS[name](shape=shape, classes=classes)
        builder = _imported(name)
        try:
            model = builder(shape=shape, classes=classes)
        except Exception as error:  # whatever a function of a user's may raise
            called = f"{name.partition(':')[2]}(shape={shape}, classes={classes})"
            raise ValueError(f"model {name!r}: {called} fails{place_of(error)}: {in_full(error)}") from error
        _check_own(name, model, shape, classes)
    return model


def _imported(name: str) -> Builder:
    """The function that ``"module:function"`` names, if it can be called with `shape` and `classes`."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"a model of your own is given as 'module:function', got {name!r}")
    try:
        function = attrgetter(path)(importlib.import_module(module))
    except AttributeError as error:
        raise ValueError(f"model {name!r}: module {module!r} was imported, but has no {path!r}") from error
    except Exception as error:  # whatever a module may raise when it is imported
        raise ValueError(
            f"model {name!r}: module {module!r} cannot be imported ({in_full(error)}); "
            "a file of yours must lie in a folder that is on PYTHONPATH"
        ) from error
    try:
        inspect.signature(function).bind(shape=(1, 1, 1), classes=2)
    except (TypeError, ValueError) as error:  # the latter of what is written in C
        raise ValueError(
            f"model {name!r}: {path} must be a function that can be called as "
            f"{path}(shape=(channels, height, width), classes=number): {error}"
        ) from error
    builder: Builder = function
    return builder


def _check_own(name: str, model: object, shape: Shape, classes: int) -> None:
    """Raise unless `model` turns two images into two rows of `classes` scores."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name!r} must return a torch.nn.Module, got {type(model).__name__}")
    try:
        with evaluating(model), torch.no_grad():
            scores = model(torch.zeros(2, *shape))
    except Exception as error:  # whatever a model may raise
        where = f"on two images of shape {shape}{place_of(error)}"
        raise ValueError(f"model {name!r} fails {where}: {in_full(error)}") from error
    if not isinstance(scores, Tensor) or scores.shape != (2, classes):
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"model {name!r} must give one score per class: for two images of shape {shape} a tensor of "
            f"shape {(2, classes)}, got {got}"
        )
