"""Saliencies from gradients of a loss: Taylor, Fisher, SNIP, GraSP, SynFlow and movement."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from palmette.pruning.holding import steppers_of
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.weights import Weight, prunable, tensors_of, uncompiled

Loss = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> mean loss of the batch, a single number."""


@dataclass(frozen=True)
class Gradients:
    r"""Gradients of a loss with respect to the weights of a model, by name, and saliencies computed from them.

    Each method is a saliency for `Pruner`. Scores use the weights at which the gradients were computed; batches
    :math:`b = 1 … B` are weighted equally.

    Args:
        weights: :math:`w`, copied.
        mean: :math:`g = \frac{1}{B} \sum_b g_b`.
        squares: :math:`\frac{1}{B} \sum_b g_b^2`.
        flow: :math:`H g`, the Hessian times the gradient; empty without ``hessian=True``.
    """

    weights: Mapping[str, Tensor]
    mean: Mapping[str, Tensor]
    squares: Mapping[str, Tensor]
    flow: Mapping[str, Tensor]

    def taylor(self, name: str, weight: Tensor) -> Tensor:
        r"""Change of the loss without the weight, to first order: :math:`|w_i g_i|`.

        Molchanov et al. 2019, who square it. For trained networks.
        """
        return _named(name, self.weights) * self.mean[name]

    def fisher(self, name: str, weight: Tensor) -> Tensor:
        r"""Change of the loss at a minimum, to second order: :math:`\frac{1}{2B} \sum_b w_i^2 g_{bi}^2`.

        With batches of one example, the empirical Fisher information replaces the Hessian's diagonal.

        LeCun et al. 1990; Theis et al. 2018. For trained networks.
        """
        return _named(name, self.weights).square() * self.squares[name] / 2

    def magnitude(self, name: str, weight: Tensor) -> Tensor:
        r"""Magnitude of the gradient, also for pruned weights: :math:`|g_i|`; for `Pruner.regrow`.

        Evci et al. 2020.
        """
        return _named(name, self.mean)

    def snip(self, name: str, weight: Tensor) -> Tensor:
        r"""Connection sensitivity: :math:`|w_i g_i| / \sum_j |w_j g_j|`, summed over all weights.

        Lee et al. 2019. For networks at initialization, in training mode.
        """
        return self.taylor(name, weight) / self._sensitivity

    def grasp(self, name: str, weight: Tensor) -> Tensor:
        r"""Loss of gradient flow without the weight: :math:`w_i (H g)_i`, ranked with its sign.

        Wang et al. 2020 prune the largest scores, with the opposite sign. Their code also divides the outputs by a
        temperature of 200. For networks at initialization, in training mode.
        """
        if not self.flow:
            raise ValueError("grasp needs gradients(…, hessian=True), which also computes the Hessian's product")
        return in_order(_named(name, self.weights) * self.flow[name])

    @cached_property
    def _sensitivity(self) -> Tensor:
        return torch.stack([(w * self.mean[n]).abs().double().sum().cpu() for n, w in self.weights.items()]).sum()


def gradients(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    hessian: bool = False,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
) -> Gradients:
    """Gradients of `loss` with respect to the prunable weights of `model`, for saliencies.

    The mode of the model does not change: call ``model.eval()`` for a trained one, but use training mode at
    initialization, when batch norm has no statistics yet. Buffers and `grad` are not modified.

    Args:
        model: any module that is not sharded.
        loss: function of the model and a batch that returns the mean loss of the batch.
        batches: batches for `loss`.
        hessian: also compute the Hessian times the gradient, for `grasp`; takes three times as long.
        include, exclude: patterns of parameter names, as for `Pruner`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[2.0, -1.0]]))
    >>> found = gradients(model, lambda model, x: model(x).mean(), [torch.tensor([[1.0, 3.0]])])
    >>> found.taylor("weight", model.weight)
    tensor([[ 2., -3.]])
    """
    weights = _whole(prunable(model, include=include, exclude=exclude), "gradients")
    inner = uncompiled(model)
    mean, squares, flow = _zeros(weights), _zeros(weights), _zeros(weights if hessian else {})
    given, count = list(batches) if hessian else batches, 0
    with _differentiable(inner, weights):
        for batch in given:
            count += 1
            for name, gradient in _by(weights, _value(loss(inner, batch))).items():
                mean[name] += gradient
                squares[name] += gradient.float().square()
        if not count:
            raise ValueError("gradients needs at least one batch, got none")
        for name in weights:
            mean[name] /= count
            squares[name] /= count
        for batch in given if hessian else ():
            first = _by(weights, _value(loss(inner, batch)), create_graph=True)
            along = torch.stack([(g * mean[n]).sum() for n, g in first.items()]).sum()
            for name, product in _by(weights, along).items():
                flow[name] += product / count
    copies = {n: w.detach().float().clone() for n, w in weights.items()}
    return Gradients(copies, mean, squares, flow)


def synflow(
    model: nn.Module,
    inputs: Tensor,
    *,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
) -> Callable[[str, Tensor], Tensor]:
    r"""Saliency of the flow through each weight, without data: :math:`|w_i| \, \partial R / \partial |w_i|`.

    :math:`R` is the sum of the outputs for an input of ones, with all parameters replaced by their magnitudes.

    A single large cut empties layers. The authors make 100 cuts, as ``Densities("geometric:0.1:100")`` does, with
    new scores before each: ``pruner.saliency = synflow(model, inputs)``.

    Args:
        model: the model, which must return a tensor; it is not changed.
        inputs: a batch of inputs; only its shape is used.
        include, exclude: patterns of parameter names, as for `Pruner`.

    >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
    >>> _ = model[0].weight.data.copy_(torch.tensor([[2.0], [-1.0]]))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[3.0, 1.0]]))
    >>> synflow(model, torch.zeros(1, 1))("0.weight", model[0].weight)  # R = 2 · 3 + 1 · 1
    tensor([[6.],
            [1.]], dtype=torch.float64)

    Tanaka et al. 2020, Algorithm 1.
    """
    _whole(prunable(model, include=include, exclude=exclude), "synflow")
    twin = copy.deepcopy(uncompiled(model)).double().eval()  # float64: R multiplies the sums of all layers
    with torch.no_grad():
        for values in (*twin.parameters(), *twin.buffers()):
            if values.is_floating_point():
                values.abs_()
    weights = tensors_of(prunable(twin, include=include, exclude=exclude))
    with _differentiable(twin, weights):
        flow = twin(torch.ones_like(inputs[:1], dtype=torch.float64)).sum()
        scores = {n: g * weights[n].detach() for n, g in _by(weights, _value(flow)).items()}
    return lambda name, weight: _named(name, scores)


class Movement:
    r"""Saliency of weights that move away from zero in fine-tuning: :math:`-\sum_t w_i^{(t)} g_i^{(t)}`.

    The sum is over all later steps of `optimizer`; scores are ranked with their sign.

    Args:
        model: the model; its gradients must not be sharded when the optimizer steps.
        optimizer: the optimizer that trains it.
        include, exclude: patterns of parameter names, as for `Pruner`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[2.0, -1.0]]))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> movement = Movement(model, optimizer)
    >>> model(torch.tensor([[1.0, 1.0]])).mean().backward()
    >>> optimizer.step()
    >>> movement.sums["weight"]  # the first weight shrinks, the second grows
    tensor([[-2.,  1.]])

    Sanh et al. 2020, without the constant learning rate.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
    ) -> None:
        self._weights = _whole(prunable(model, include=include, exclude=exclude), "Movement")
        self.sums = _zeros(self._weights)
        steppers_of(optimizer, self._weights)[0].register_step_pre_hook(lambda *_: self._add())

    @torch.no_grad()
    def _add(self) -> None:
        for name, weight in self._weights.items():
            if weight.grad is not None:
                self.sums[name] = self.sums[name].to(weight.device) - weight.float() * weight.grad

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """Scores of a weight; raise before the first step."""
        if not any(bool(sums.any()) for sums in self.sums.values()):
            raise ValueError(
                "Movement has seen no step with gradients; train first, and give it the optimizer whose step() is "
                "called"
            )
        return in_order(_named(name, self.sums))


def in_order(signed: Tensor) -> Tensor:
    """Magnitudes in the order of `signed` numbers, for scores whose sign matters: the ranks of all floats.

    >>> in_order(torch.tensor([-2.0, -1.0, 0.0, 1e-30, 1.0])).argsort()
    tensor([0, 1, 2, 3, 4])
    """
    # A shift by the minimum would make numbers equal that differ by less than the rounding of their sum.
    bits = signed.float().contiguous().view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits).double() + 2.0**31


def _whole(weights: Mapping[str, Weight], what: str) -> dict[str, Tensor]:
    """Tensors of weights that have gradients of their own."""
    check_whole(tensors_of(weights), what)
    for name, weight in weights.items():
        if weight.gain is not None:
            raise ValueError(
                f"{what} needs gradients of weights, but weight norm trains a direction and a gain in place of "
                f"{name!r}; remove the weight norm, or leave the weight out with exclude"
            )
    return tensors_of(weights)


def _zeros(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: torch.zeros_like(w, dtype=torch.float32) for n, w in weights.items()}


def _named(name: str, known: Mapping[str, Tensor]) -> Tensor:
    if name not in known:
        raise ValueError(
            f"there are no gradients of {name!r}, only of {', '.join(known)}; pass the same include and exclude "
            "to both"
        )
    return known[name]


def _by(weights: Mapping[str, Tensor], value: Tensor, *, create_graph: bool = False) -> dict[str, Tensor]:
    found = torch.autograd.grad(
        value, list(weights.values()), create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return dict(zip(weights, found, strict=True))


def _value(loss: object) -> Tensor:
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss must return a single number with a gradient, as a tensor, got {got}")
    return loss.reshape(())


@contextmanager
def _differentiable(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Gradients of all `weights`, frozen ones too; the buffers of `model` are restored afterwards."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    trained = [(weight, weight.requires_grad) for weight in weights.values()]
    try:
        with torch.enable_grad():
            for weight, _ in trained:
                weight.requires_grad_(True)
            yield
    finally:
        for weight, was in trained:
            weight.requires_grad_(was)
        with torch.no_grad():
            for buffer, earlier in before:
                buffer.copy_(earlier)
