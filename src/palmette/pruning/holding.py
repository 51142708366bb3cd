"""Holding masks: after any optimizer step a pruned weight is exactly zero.

Two hooks do it, and the forward pass has none. When a gradient has been accumulated, its pruned entries are
set to zero, so that they count neither in clipping nor in an optimizer's statistics. When an optimizer has
stepped, the pruned weights are set to zero, whatever momentum or decay did to them. Values are multiplied by
the mask as integers, bit pattern times 0 or 1: a NaN or an infinity at a pruned place goes away too, and on a
CPU it takes a twentieth of the time of `masked_fill_`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TypeGuard

import torch
from torch import Tensor, nn

from palmette.errors import ParameterGone
from palmette.measures.rows import INTEGER
from palmette.pruning.sources.sharding import local


class Holder:
    """Keeps the pruned entries of some parameters at zero, for as long as a held optimizer lives."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self._kept: dict[str, Tensor] = {}
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        for name, parameter in self._parameters.items():
            _after_accumulation(parameter, weakref.WeakMethod(self._zero_gradient), name)

    @torch.no_grad()
    def set_masks_(self, masks: Mapping[str, Tensor]) -> None:
        """Hold these from now on: weights, gradients and optimizer state at pruned places become zero.

        All that can fail is done before anything is changed.
        """
        kept = {n: local(m) for n, m in masks.items() if not bool(local(m).all())}
        pairs = [pair for name, mask in kept.items() for pair in self._places_of(name, mask)]
        forgetful = [o for o in self._optimizers if isinstance(o, torch.optim.LBFGS)]
        self._kept = kept
        for values, mask in pairs:
            values.mul_(mask)
        for optimizer in forgetful:
            # It remembers steps of all parameters in one vector, the pruned among them: it starts afresh.
            optimizer.state.clear()

    def _places_of(self, name: str, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The weight, its gradient and what optimizers know of it, as integers, each with the mask beside it."""
        parameter = self._parameters[name]
        if not _is_plain(local(parameter)):
            raise TypeError(f"the weight {name!r} must be a plain tensor with a place for each entry to be pruned")
        weight = local(parameter)
        yield _integers(weight), mask.to(weight.device)
        known = [v for o in self._optimizers for v in o.state.get(parameter, {}).values()]
        for held in (parameter.grad, *known):
            values = local(held) if isinstance(held, Tensor) else None
            # What an optimizer has packed in a way of its own is left to it.
            if _is_plain(values) and values.shape == weight.shape:
                yield _integers(values), mask.to(values.device)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the pruned weights after each step of `optimizer`; a second call does nothing more."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"hold needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
        while not hasattr(optimizer, "_optimizer_step_post_hooks"):  # Accelerate's wraps one that has them
            optimizer = optimizer.optimizer  # type: ignore[attr-defined]
        if not (names := self._updated_by(optimizer)):
            raise ParameterGone(
                f"this {type(optimizer).__name__} updates none of the pruned parameters "
                f"({', '.join(list(self._parameters)[:4])}, …); was it made from another model, or before "
                "the model's parameters were replaced?"
            )
        self._zero_weights(names)
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            # The optimizer keeps this object alive: masks hold even if whoever made them lets go. It may get more
            # parameters later, or copies of greater precision in their place.
            optimizer.register_step_post_hook(lambda o, *_: self._zero_weights(names | self._updated_by(o)))

    def _updated_by(self, optimizer: torch.optim.Optimizer) -> set[str]:
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {name for name, p in self._parameters.items() if id(p) in updated}

    @torch.no_grad()
    def _zero_weights(self, names: set[str]) -> None:
        # No others: a backward pass may still need them as they are, as that of a generator when its critic steps.
        if kept := [name for name in names if name in self._kept]:
            weights = [_integers(local(self._parameters[name])) for name in kept]
            torch._foreach_mul_(weights, [self._beside(n, w) for n, w in zip(kept, weights, strict=True)])

    @torch.no_grad()
    def _zero_gradient(self, name: str) -> None:
        gradient = self._parameters[name].grad
        if name in self._kept and gradient is not None:
            part = local(gradient)
            if _is_plain(part) and part.shape == self._kept[name].shape:
                _integers(part).mul_(self._beside(name, part))

    def _beside(self, name: str, values: Tensor) -> Tensor:
        if self._kept[name].device != values.device:  # the model has moved
            self._kept[name] = self._kept[name].to(values.device)
        return self._kept[name]


def _integers(values: Tensor) -> Tensor:
    return values.view(INTEGER[values.element_size()])


def _is_plain(values: object) -> TypeGuard[Tensor]:
    """Whether it is a dense float tensor, none of whose entries share a place."""
    if not isinstance(values, Tensor) or type(values) not in (Tensor, nn.Parameter):
        return False
    if values.layout != torch.strided or not values.is_floating_point():
        return False
    return all(stride or size <= 1 for stride, size in zip(values.stride(), values.shape, strict=True))


def _after_accumulation(parameter: Tensor, zero: weakref.WeakMethod[Callable[[str], None]], name: str) -> None:
    """Call `zero` with `name` whenever a gradient was accumulated; weakly, or the two keep each other alive."""

    def hook(_: Tensor) -> None:
        if (call := zero()) is not None:
            call(name)

    trained = parameter.requires_grad
    parameter.requires_grad_(True)  # a frozen one, that may be trained later, takes no hook
    parameter.register_post_accumulate_grad_hook(hook)
    parameter.requires_grad_(trained)
