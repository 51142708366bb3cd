"""Saliency: scores in the shape of a weight; entries with the smallest magnitudes are pruned first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from palmette.pruning.budgets import Budget
from palmette.pruning.gradients import Gradients, gradients, synflow
from palmette.pruning.methods import SALIENCIES, Method, check_saliency, check_used, imported, method_named
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
"""(name, weight) -> scores of the weight's shape. Their magnitudes are compared; signs are ignored."""
Batch = Tensor | Mapping[str, Tensor]
"""An input of a model, or its keyword arguments."""


def magnitude(name: str, weight: Tensor) -> Tensor:
    """Current magnitude of the weight, as in Lottery Ticket and SAP.

    >>> import palmette as pm
    >>> pm.magnitude("w", torch.tensor([3.0, -1.0]))
    tensor([ 3., -1.])
    """
    return weight


def magnitude_of(weights: Mapping[str, Tensor | Weight]) -> Saliency:
    """Magnitude of each weight in `weights`; One Shot passes the trained dense weights.

    The values are copied, so that further training does not change them. `magnitude_of(prunable(model))` copies
    the current weights of a model.

    >>> import palmette as pm
    >>> model = nn.Linear(64, 10)
    >>> one_shot = pm.magnitude_of(pm.prunable(model))
    >>> pruner = pm.Pruner(model, saliency=one_shot)
    """
    return partial(_look_up, copies(weights))


def copies(weights: Mapping[str, Tensor | Weight]) -> dict[str, Tensor]:
    """Copies of the current weights, by name."""
    given = {n: weights[n] for n in tensors_of(weights)}
    return {n: (w.values if isinstance(w, Weight) else w).detach().clone() for n, w in given.items()}


def _look_up(frozen: Mapping[str, Tensor], name: str, weight: Tensor) -> Tensor:
    if name not in frozen:
        raise ValueError(f"magnitude_of has no weight named {name!r}; it has {', '.join(frozen)}")
    return frozen[name]


def lamp(name: str, weight: Tensor) -> Tensor:
    r"""Magnitude relative to all weights of the layer at least as large (LAMP); for scope "global".

    .. math:: \sqrt{w_u^2 \Big/ \textstyle\sum_{|w_v| \ge |w_u|} w_v^2}

    The square root does not change the order. The largest weight of each layer scores 1, so no layer is emptied
    before the others. Of equal weights, the first scores least.

    >>> lamp("w", torch.tensor([3.0, -4.0, 0.0]))
    tensor([0.6000, 1.0000, 0.0000], dtype=torch.float64)

    Lee et al. 2021, Equation 5.
    """
    magnitudes = weight.detach().double().abs().flatten()
    order = magnitudes.argsort(stable=True)
    sizes = magnitudes[order]
    sizes = sizes / sizes[-1:].clamp_min(torch.finfo(torch.float64).tiny)  # so that their squares do not overflow
    sums = sizes.square().flip(0).cumsum(0).flip(0)
    scores = torch.empty_like(magnitudes)
    scores[order] = torch.where(sizes > 0, sizes / sums.sqrt(), 0.0)
    return scores.view(weight.shape)


def input_norms(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Tensor]:
    r"""Norm of every input of each Linear, convolution and Conv1D of `model`, by the name of its weight.

    .. math:: \|X_j\|_2 = \sqrt{\textstyle\sum_t x_{tj}^2}

    over all tokens (of a convolution: over all pixels) of all `batches`, each an input of the model or its keyword
    arguments. Layers that no batch reaches are left out.

    >>> input_norms(nn.Linear(2, 1), [{"input": torch.tensor([[3.0, 0.0], [4.0, 1.0]])}])
    {'weight': tensor([5., 1.], dtype=torch.float64)}

    Sun et al. 2024, Section 3.
    """
    squares: dict[str, Tensor] = {}

    def add(name: str, inputs: Tensor) -> None:
        total = inputs.double().square().sum(0)
        squares[name] = squares[name] + total if name in squares else total

    model = uncompiled(model)
    layers = {name: layer for name, layer, _ in layers_of(model)}
    with watching(layers, add), evaluating(model), torch.no_grad():
        for batch in batches:
            run(model, batch)
    return {name: total.sqrt() for name, total in squares.items()}


def run(model: nn.Module, batch: Batch) -> None:
    """Call a model with a batch."""
    model(batch) if isinstance(batch, Tensor) else model(**batch)


@contextmanager
def watching(layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `see` with the name and the inputs of a layer, one row per token or pixel, whenever the layer runs."""

    def hook(name: str, module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        x = next(iter((*args, *kwargs.values()))).detach()
        # Input axis: the last one of a Linear layer, the one before the pixels of a convolution, batched or not.
        feature = x.dim() + 1 - module.weight.dim()
        see(name, x.movedim(feature, -1).reshape(-1, x.shape[feature]))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(hook, name), with_kwargs=True))
        yield


def weighted_by_inputs(norms: Mapping[str, Tensor], model: nn.Module) -> Saliency:
    r"""Scores for `Pruner(model, saliency=…)`: :math:`|W_{ij}| \cdot \|X_j\|_2` where the norm is known, else W.

    Args:
        norms: result of `input_norms`.
        model: the model to prune.

    >>> saliency = weighted_by_inputs({"weight": torch.tensor([5.0, 1.0])}, nn.Linear(2, 1))
    >>> saliency("weight", torch.tensor([[1.0, -2.0]]))
    tensor([[ 5., -2.]])
    """
    axes = {name: axis for name, _, axis in layers_of(uncompiled(model))}

    def saliency(name: str, weight: Tensor) -> Tensor:
        norm, axis = norms.get(name), axes.get(name)
        if norm is None or axis is None or norm.numel() != weight.shape[axis]:
            return weight  # not reached, or a grouped convolution, in which a neuron sees some inputs only
        shape = [1] * weight.dim()
        shape[axis] = -1
        return weight.detach().float() * norm.reshape(shape).float()

    return saliency


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Name of the weight, layer, and axis of the weight that counts the layer's inputs."""
    for name, module in model.named_modules():
        usual = isinstance(module, LAYERS)
        if usual or is_transformers_conv1d(module):
            yield f"{name}.weight" if name else "weight", module, int(usual)


class DenseMagnitude:
    """Magnitude of each weight when `keep` was called first; its current magnitude before that."""

    dense: dict[str, Tensor] | None = None

    def keep(self, weights: Mapping[str, Tensor | Weight]) -> None:
        """Copy the weights, unless some were kept before."""
        if self.dense is None:
            self.dense = copies(weights)

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """Scores of a weight."""
        return weight if self.dense is None else _look_up(self.dense, name, weight)


@dataclass(frozen=True)
class PerCut:
    """Saliency that is recomputed for each cut, from data or gradients.

    Args:
        make: function that takes the model before the cut and returns a saliency.

    >>> x = torch.tensor([[1.0, 3.0]])
    >>> taylor = PerCut(lambda model: gradients(model, lambda model, x: model(x).mean(), [x]).taylor)
    >>> made_for(taylor, nn.Linear(2, 1))("weight", torch.zeros(1, 2)).shape
    torch.Size([1, 2])
    """

    make: Callable[[nn.Module], Saliency]

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """Raise, as only a Pruner knows the model."""
        raise TypeError("PerCut makes a saliency from a model: use it in a Pruner, or pass make(model)")


def made_for(saliency: Saliency, model: nn.Module) -> Saliency:
    """Saliency for the next cut of `model`."""
    return saliency.make(uncompiled(model)) if isinstance(saliency, PerCut) else saliency


def combined(
    method: Method | str | None, budget: Budget | None, saliency: Saliency | str
) -> tuple[Budget | None, Saliency | str]:
    """Budget and saliency of `method`; another saliency than `magnitude` replaces that of the method."""
    if method is None:
        return budget, saliency
    found = method_named(method) if isinstance(method, str) else method
    if not isinstance(found, Method):
        raise TypeError(f"method must be a Method such as METHODS['one-shot'], or its name, got {method!r}")
    check_used(found)
    if budget is not None:
        raise ValueError(f"budget is given twice, directly and by method={method!r}; leave out one of the two")
    return found.budget, found.saliency if saliency is magnitude else saliency


def ranking(saliency: Saliency | str, *, dense: Saliency = magnitude) -> Saliency:
    """Saliency from a function, from a name that needs no inputs, or from ``"module:function"``.

    Args:
        dense: saliency with the name "dense-magnitude": in a single cut, the weights are the dense ones.
    """
    found: Any = saliency
    if isinstance(saliency, str):
        check_saliency(saliency)
        named = {"magnitude": magnitude, "dense-magnitude": dense, "lamp": lamp}
        if saliency in SALIENCIES and saliency not in named:
            raise ValueError(
                f"saliency={saliency!r} needs data, which this call does not have; in Python, pass "
                f"{_INSTEAD.get(saliency, f'pm.gradients(model, loss, batches).{saliency}')}"
            )
        found = named.get(saliency) or imported(saliency, "saliency")
    if not callable(found):
        of = "" if found is saliency else f" {saliency!r}"
        raise TypeError(f"saliency{of} must be a function of a name and a weight, got {found!r}")
    result: Saliency = found
    return result


def _no_samples() -> tuple[Tensor, Tensor]:
    raise ValueError("this saliency needs training data, which only palmette run has")


@dataclass(frozen=True)
class Subject:
    """Input of a saliency builder for one cut of a run.

    Args:
        model: the network after the training of the round.
        dense: weights of the trained dense network, by name; None in round 0, where `model` is dense.
        at_start: context in which `model` has the weights that the next round starts from, before the cut.
        samples: training inputs and their classes.
    """

    model: nn.Module
    dense: Mapping[str, Tensor] | None = None
    at_start: Callable[[], AbstractContextManager[None]] = nullcontext
    samples: Callable[[], tuple[Tensor, Tensor]] = _no_samples


def _of_trained(subject: Subject, *, size: int | None = None) -> Gradients:
    """Gradients of the trained network, over batches of `size` samples, or all at once."""
    inputs, classes = subject.samples()
    size = len(inputs) if size is None else size
    with evaluating(subject.model):
        return gradients(subject.model, _loss, zip(inputs.split(size), classes.split(size), strict=True))


def _of_start(subject: Subject, *, hessian: bool = False) -> Gradients:
    """Gradients of the network as the next round starts."""
    with subject.at_start(), evaluating(subject.model):
        subject.model.train()  # batch norm has no statistics yet; `evaluating` restores the mode
        return gradients(subject.model, _loss, [subject.samples()], hessian=hessian)


def _synflow(subject: Subject) -> Saliency:
    with subject.at_start():
        return synflow(subject.model, subject.samples()[0])


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


BUILDERS: Mapping[str, Callable[[Subject], Saliency]] = {
    "magnitude": lambda subject: magnitude,
    "dense-magnitude": lambda subject: magnitude_of(subject.dense or prunable(subject.model)),
    "lamp": lambda subject: lamp,
    "input-weighted": lambda subject: weighted_by_inputs(
        input_norms(subject.model, subject.samples()[:1]), subject.model
    ),
    "taylor": lambda subject: _of_trained(subject).taylor,
    "fisher": lambda subject: _of_trained(subject, size=1).fisher,
    "snip": lambda subject: _of_start(subject).snip,
    "grasp": lambda subject: _of_start(subject, hessian=True).grasp,
    "synflow": _synflow,
}
"""Builder of each saliency in `palmette.pruning.methods.SALIENCIES`."""

_INSTEAD = {
    "input-weighted": "weighted_by_inputs(input_norms(model, batches), model) of palmette.pruning.saliency",
    "synflow": "pm.synflow(model, inputs)",
}
