"""Holding masks: after any optimizer step a pruned weight is exactly zero.

Two hooks do it, and the forward pass has none. When a gradient has been accumulated, its pruned entries are
set to zero, so that they count neither in clipping nor in an optimizer's statistics. When an optimizer has
stepped, the pruned weights are set to zero, whatever momentum or decay did to them. Values are multiplied by
the mask as integers, bit pattern times 0 or 1: a NaN or an infinity at a pruned place goes away too, and on a
CPU it takes a twentieth of the time of `masked_fill_`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from palmette.errors import ParameterGone

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
        """Hold these from now on: weights, gradients and optimizer state at pruned places become zero."""
        self._kept = {n: m for n, m in masks.items() if not bool(m.all())}
        self._zero_weights()
        for optimizer in self._optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                # It remembers steps of all parameters in one vector, the pruned among them: it starts afresh.
                optimizer.state.clear()
        for name in self._kept:
            parameter = self._parameters[name]
            self._zero_gradient(name)
            for optimizer in self._optimizers:
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        self._zero(name, value)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the pruned weights after each step of `optimizer`; a second call does nothing more."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"hold needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in updated for p in self._parameters.values()):
            raise ParameterGone(
                f"this {type(optimizer).__name__} updates none of the pruned parameters "
                f"({', '.join(list(self._parameters)[:4])}, …); was it made from another model, or before "
                "the model's parameters were replaced?"
            )
        self._zero_weights()
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            # The optimizer keeps this object alive: masks hold even if whoever made them lets go.
            optimizer.register_step_post_hook(lambda *_: self._zero_weights())

    @torch.no_grad()
    def _zero_weights(self) -> None:
        if self._kept:
            weights = [self._integers(name, self._parameters[name]) for name in self._kept]
            torch._foreach_mul_(weights, list(self._kept.values()))

    @torch.no_grad()
    def _zero_gradient(self, name: str) -> None:
        gradient = self._parameters[name].grad
        if name in self._kept and gradient is not None and gradient.layout == torch.strided:
            self._zero(name, gradient)

    def _zero(self, name: str, values: Tensor) -> None:
        if values.is_floating_point():  # what an optimizer has packed into integers is its own
            self._integers(name, values).mul_(self._kept[name])

    def _integers(self, name: str, values: Tensor) -> Tensor:
        if self._kept[name].device != values.device:  # the model has moved
            self._kept[name] = self._kept[name].to(values.device)
        return values.view(_INTEGER[values.element_size()])


def _after_accumulation(parameter: Tensor, zero: weakref.WeakMethod[Callable[[str], None]], name: str) -> None:
    """Call `zero` with `name` whenever a gradient was accumulated; weakly, or the two keep each other alive."""

    def hook(_: Tensor) -> None:
        if (call := zero()) is not None:
            call(name)

    trained = parameter.requires_grad
    parameter.requires_grad_(True)  # a frozen one, that may be trained later, takes no hook
    parameter.register_post_accumulate_grad_hook(hook)
    parameter.requires_grad_(trained)
