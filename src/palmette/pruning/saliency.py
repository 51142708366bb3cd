"""How much each weight matters: scores of the shape of the weight, the smallest magnitudes go first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from palmette.pruning.weights import Weight, tensors_of

Saliency = Callable[[str, Tensor], Tensor]
"""(name, weight) -> scores of the weight's shape. Their magnitudes are compared, signs do not matter."""


def magnitude(name: str, weight: Tensor) -> Tensor:
    """The magnitude of the weight as it is now: Lottery Ticket, SAP.

    >>> import torch
    >>> magnitude("w", torch.tensor([3.0, -1.0]))
    tensor([ 3., -1.])
    """
    return weight


def magnitude_of(weights: Mapping[str, Tensor | Weight]) -> Saliency:
    """The magnitude that each weight had in `weights`: One Shot, with the trained dense weights.

    The values are copied, so that training on does not change them. `magnitude_of(prunable(model))` takes them
    from a model as it is now.

    >>> import torch
    >>> one_shot = magnitude_of({"w": torch.tensor([3.0, -1.0])})
    >>> one_shot("w", torch.tensor([0.0, 9.0]))
    tensor([ 3., -1.])
    """
    return partial(_look_up, {n: w.detach().clone() for n, w in tensors_of(weights).items()})


def _look_up(frozen: Mapping[str, Tensor], name: str, weight: Tensor) -> Tensor:
    if name not in frozen:
        raise ValueError(f"magnitude_of has no weight named {name!r}; it has {', '.join(frozen)}")
    return frozen[name]
