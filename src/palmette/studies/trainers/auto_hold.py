"""Detection of optimizers created inside a user's training function, at their first step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from palmette.pruning.pruner import Pruner
from palmette.pruning.weights import parameters_by_name


class AutoHold:
    """Holds the masks of a `Pruner` under every optimizer that steps during a round.

    Gradient hooks zero pruned entries before the first step of an optimizer; from its first step on, the optimizer
    is held. Optimizers of other models are left alone.

    >>> import torch
    >>> model = torch.nn.Linear(4, 2)
    >>> pruner = Pruner(model)
    >>> _ = pruner.step()
    >>> with AutoHold(pruner).round():
    ...     optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    ...     model(torch.ones(1, 4)).sum().backward()
    ...     optimizer.step()
    >>> bool(model.weight[~pruner.masks["weight"]].any())
    False
    """

    def __init__(self, pruner: Pruner) -> None:
        self._pruner = pruner
        self._earlier: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._last: dict[str, Any] = {}

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of the last recorded step, by the name of the first parameter of each group."""
        return {name: float(rate) for name, rate in self._last.items()}

    @contextmanager
    def round(self, rates: Mapping[str, float] | None = None, *, note: bool = False) -> Iterator[None]:
        """Hold every optimizer that steps inside.

        Args:
            rates: learning rates that replace the optimizers' own, in the form of the property `rates`.
            note: whether to record the learning rates of each step.
        """
        parameters = parameters_by_name(self._pruner.model)
        names = {id(p): name for name, p in parameters.items()}
        pruned = {id(parameters[name]) for name in self._pruner.masks if name in parameters}
        ours: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        others: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        set_aside: list[tuple[dict[str, Any], Any]] = []

        def before(optimizer: Optimizer, *_: Any) -> None:
            if optimizer not in ours and optimizer not in others:
                updated = [names[id(p)] for g in optimizer.param_groups for p in g["params"] if id(p) in names]
                (ours if updated else others).add(optimizer)
                if updated and optimizer in self._earlier:
                    raise ValueError(
                        f"this {type(optimizer).__name__} has trained in an earlier round: its momentum, its step "
                        "count and its learning rate would continue, and cannot be restored from a folder. "
                        "Create the optimizer and its schedule inside train"
                    )
            if optimizer in ours and (rates or note):
                for group, name in _groups(optimizer, names):
                    rate = group["lr"]
                    if rates and name in rates:
                        set_aside.append((group, rate))
                        group["lr"] = _like(rate, rates[name])
                    if note:
                        # A copy: a schedule may change it in place. Kept as a tensor: float() would wait for the
                        # GPU.
                        self._last[name] = rate.detach().clone() if isinstance(rate, Tensor) else rate

        def after(optimizer: Optimizer, *_: Any) -> None:
            while set_aside:  # a schedule may compute the next rate from the old one
                group, rate = set_aside.pop()
                group["lr"] = rate
            if optimizer in ours and optimizer not in self._earlier:
                self._earlier.add(optimizer)
                if any(id(p) in pruned for g in optimizer.param_groups for p in g["params"]):
                    self._pruner.hold(optimizer)

        hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _groups(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[tuple[dict[str, Any], str]]:
    for group in optimizer.param_groups:
        name = next((names[id(p)] for p in group["params"] if id(p) in names), None)
        if name is not None and "lr" in group:
            yield group, name


def _like(old: Any, rate: float) -> Any:
    return old.new_full(old.shape, rate) if isinstance(old, Tensor) else rate
