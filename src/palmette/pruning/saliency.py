"""How much each weight matters: scores of the shape of the weight, the smallest magnitudes go first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from palmette.pruning.weights import (
    LAYERS,
    Weight,
    evaluating,
    is_transformers_conv1d,
    prunable,
    tensors_of,
    uncompiled,
)

Saliency = Callable[[str, Tensor], Tensor]
"""(name, weight) -> scores of the weight's shape. Their magnitudes are compared, signs do not matter."""


def magnitude(name: str, weight: Tensor) -> Tensor:
    """The magnitude of the weight as it is now: Lottery Ticket, SAP.

    >>> magnitude("w", torch.tensor([3.0, -1.0]))
    tensor([ 3., -1.])
    """
    return weight


def magnitude_of(weights: Mapping[str, Tensor | Weight]) -> Saliency:
    """The magnitude that each weight has in `weights`: One Shot, with the trained dense weights.

    The values are copied, so that further training does not change them. `magnitude_of(prunable(model))` takes
    them from a model as it is now.

    >>> one_shot = magnitude_of({"w": torch.tensor([3.0, -1.0])})
    >>> one_shot("w", torch.tensor([0.0, 9.0]))
    tensor([ 3., -1.])
    """
    return partial(_look_up, {n: w.detach().clone() for n, w in tensors_of(weights).items()})


def _look_up(frozen: Mapping[str, Tensor], name: str, weight: Tensor) -> Tensor:
    if name not in frozen:
        raise ValueError(f"magnitude_of has no weight named {name!r}; it has {', '.join(frozen)}")
    return frozen[name]


def input_norms(model: nn.Module, batches: Iterable[Tensor | Mapping[str, Tensor]]) -> dict[str, Tensor]:
    r"""For each Linear, convolution and Conv1D of `model`, by the name of its weight: the norm of every input.

    .. math:: \|X_j\|_2 = \sqrt{\textstyle\sum_t x_{tj}^2}

    over all tokens (of a convolution: over all pixels) of all `batches`, each an input of the model or its keyword
    arguments. A layer that no batch reaches is not among them.

    >>> input_norms(nn.Linear(2, 1), [{"input": torch.tensor([[3.0, 0.0], [4.0, 1.0]])}])
    {'weight': tensor([5., 1.], dtype=torch.float64)}

    Sun et al. 2024, Section 3.
    """
    squares: dict[str, Tensor] = {}
    model = uncompiled(model)
    with ExitStack() as hooks, evaluating(model), torch.no_grad():
        for name, layer, _ in _layers(model):
            add = partial(_add_squares, squares, name)
            hooks.enter_context(layer.register_forward_pre_hook(add, with_kwargs=True))
        for batch in batches:
            model(batch) if isinstance(batch, Tensor) else model(**batch)
    return {name: total.sqrt() for name, total in squares.items()}


def weighted_by_inputs(norms: Mapping[str, Tensor], model: nn.Module) -> Saliency:
    r"""Scores for `Pruner(model, saliency=…)`: :math:`|W_{ij}| \cdot \|X_j\|_2` where the norm is known, else W.

    Args:
        norms: as `input_norms` gives them.
        model: the one that is pruned.

    >>> saliency = weighted_by_inputs({"weight": torch.tensor([5.0, 1.0])}, nn.Linear(2, 1))
    >>> saliency("weight", torch.tensor([[1.0, -2.0]]))
    tensor([[ 5., -2.]])
    """
    axes = {name: axis for name, _, axis in _layers(uncompiled(model))}

    def saliency(name: str, weight: Tensor) -> Tensor:
        norm, axis = norms.get(name), axes.get(name)
        if norm is None or axis is None or norm.numel() != weight.shape[axis]:
            return weight  # a layer that was not reached, or in groups, whose inputs are not all its own
        shape = [1] * weight.dim()
        shape[axis] = -1
        return weight.detach().float() * norm.reshape(shape).float()

    return saliency


def _add_squares(
    squares: dict[str, Tensor], key: str, module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> None:
    x = next(iter((*args, *kwargs.values()))).detach().double()
    # Of a Linear layer the last axis, of a convolution that before the pixels, with or without a batch in front.
    feature = x.dim() + 1 - module.weight.dim()
    total = x.square().sum([d for d in range(x.dim()) if d != feature])
    squares[key] = squares[key] + total if key in squares else total


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Each layer by the name of its weight, and the axis of that which counts the layer's inputs."""
    for name, module in model.named_modules():
        usual = isinstance(module, LAYERS)
        if usual or is_transformers_conv1d(module):
            yield f"{name}.weight" if name else "weight", module, int(usual)


@dataclass(frozen=True)
class Subject:
    """What a saliency may look at when a run is cut.

    Args:
        model: the network as trained in this round.
        dense: the weights of the trained dense network, by name; None in round 0, when they are the model's own.
        batches: batches of training inputs: tensors, or keyword arguments of the model.
    """

    model: nn.Module
    dense: Mapping[str, Tensor] | None = None
    batches: Callable[[], Iterable[Tensor | Mapping[str, Tensor]]] = tuple


BUILDERS: Mapping[str, Callable[[Subject], Saliency]] = {
    "magnitude": lambda subject: magnitude,
    "dense-magnitude": lambda subject: magnitude_of(subject.dense or prunable(subject.model)),
    "input-weighted": lambda subject: weighted_by_inputs(
        input_norms(subject.model, subject.batches()), subject.model
    ),
}
"""How each of `palmette.pruning.methods.SALIENCIES` is made for a network."""
