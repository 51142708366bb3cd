"""Mask holding: a pruned weight is exactly zero after every optimizer step.

Two hooks do this, none in the forward pass. After a gradient is accumulated, its pruned entries are zeroed,
so that they count neither in clipping nor in an optimizer's statistics. After an optimizer steps, the pruned
weights are set to zero, whatever momentum or decay did to them. A backward pass that follows another change of the
weights looks whether pruned ones came back, and warns. Bit patterns are multiplied by the mask as
integers: this also removes a NaN or an infinity, and on a CPU takes a twentieth of the time of `masked_fill_`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn

from palmette.errors import ParameterGone
from palmette.measures.rows import INTEGER
from palmette.pruning.choosing.coverage import shown
from palmette.pruning.sources.sharding import local

_CHECKS: weakref.WeakSet[ZeroCheck] = weakref.WeakSet()
_ADVICE = (
    "something that is not held changed them. Call pruner.hold(optimizer), or make a TopK with it, for each "
    "optimizer whose step() is called, also for each new one, and pruner.masks.apply_(pruner.weights) after other "
    "updates, such as loading or averaging weights, or an optimizer without step()"
)


def in_words(back: Mapping[str, int]) -> str:
    """Sentence about the number of pruned weights that came back, and what to do; empty if none did."""
    names = [name for name, count in back.items() if count]
    if not names:
        return ""
    return f"{sum(back.values()):,} pruned weights ({shown(names, 4)}) are no longer zero: {_ADVICE}"


def came_back(model: nn.Module) -> str:
    """Sentence about masks that are not held in `model`; empty if all are."""
    there = {id(p) for p in model.parameters()}
    ours = [holder for holder in _CHECKS if any(id(p) in there for p in holder._parameters.values())]
    return " ".join(filter(None, (in_words({n: int(c) for n, c in h.back().items()}) for h in ours)))


class ZeroCheck:
    """Masks of parameters, and whether their pruned entries are zero."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self._kept: dict[str, Tensor] = {}
        _CHECKS.add(self)

    def expect(self, masks: Mapping[str, Tensor]) -> None:
        """Look at these masks from now on."""
        self._kept = {n: local(m) for n, m in masks.items()}

    @torch.no_grad()
    def back(self) -> dict[str, Tensor]:
        """Number of pruned weights of this process that are not zero, by name."""
        weights = {name: local(self._parameters[name]) for name in self._kept}
        return {n: ((w != 0) & ~self._mask_near(n, w)).sum() for n, w in weights.items()}

    def _mask_near(self, name: str, values: Tensor) -> Tensor:
        if self._kept[name].device != values.device:  # the model has moved
            self._kept[name] = self._kept[name].to(values.device)
        return self._kept[name]


class Holder(ZeroCheck):
    """Keeps pruned entries of parameters at zero during the lifetime of a held optimizer."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._seen: dict[str, int] = {}  # versions of the weights after the last step that was held
        self._told = False
        for name, parameter in self._parameters.items():
            _after_accumulation(parameter, weakref.WeakMethod(self._zero_gradient), name)

    @torch.no_grad()
    def set_masks_(self, masks: Mapping[str, Tensor]) -> None:
        """Hold these masks from now on: pruned weights, gradients and optimizer state become zero.

        Everything that can fail runs before anything changes.
        """
        kept = {n: local(m) for n, m in masks.items() if not bool(local(m).all())}
        pairs = [pair for name, mask in kept.items() for pair in self._places_of(name, mask)]
        forgetful = [o for o in self._optimizers if isinstance(o, torch.optim.LBFGS)]
        self._kept, self._seen, self._told = kept, {}, False
        for values, mask in pairs:
            values.mul_(mask)
        for optimizer in forgetful:
            # LBFGS stores steps of all parameters, the pruned ones too, in one vector: clear them.
            optimizer.state.clear()

    def _places_of(self, name: str, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The weight, its gradient and its optimizer state as integers, each with the mask on its device."""
        parameter = self._parameters[name]
        if not _is_plain(local(parameter)):
            raise TypeError(f"the weight {name!r} must be a dense tensor without shared entries to be pruned")
        weight = local(parameter)
        yield _integers(weight), mask.to(weight.device)
        known = [v for o in self._optimizers for v in o.state.get(parameter, {}).values()]
        for held in (parameter.grad, *known):
            values = local(held) if isinstance(held, Tensor) else None
            # Optimizer state in another layout is left alone.
            if _is_plain(values) and values.shape == weight.shape:
                yield _integers(values), mask.to(values.device)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the pruned weights after each step of `optimizer`; a second call has no effect.

        Other holders of the same parameters let go: optimizers keep that of an earlier Pruner alive.
        """
        steppers = steppers_of(optimizer, self._parameters)
        names = set[str]().union(*(updated_by(one, self._parameters) for one in steppers))
        ours = {id(parameter) for parameter in self._parameters.values()}
        for other in _CHECKS:
            if other is not self:
                other._kept = {n: m for n, m in other._kept.items() if id(other._parameters[n]) not in ours}
        self._zero_weights(names)
        for one in steppers:
            if one not in self._optimizers:
                self._optimizers.add(one)
                one.register_step_post_hook(partial(self._after_step, updated_by(one, self._parameters)))

    def _after_step(self, names: set[str], optimizer: torch.optim.Optimizer, *_: object) -> None:
        # The hook keeps this object alive, so masks hold after the Pruner is gone. The optimizer may have more
        # parameters now, or copies of higher precision.
        self._zero_weights(names | updated_by(optimizer, self._parameters))

    @torch.no_grad()
    def _zero_weights(self, names: set[str]) -> None:
        # Only these: a pending backward pass may need the others unchanged (a generator while its critic steps).
        if kept := [name for name in names if name in self._kept]:
            weights = [_integers(local(self._parameters[name])) for name in kept]
            torch._foreach_mul_(weights, [self._mask_near(n, w) for n, w in zip(kept, weights, strict=True)])
            self._seen |= {name: weight._version for name, weight in zip(kept, weights, strict=True)}

    def _notice(self, name: str) -> None:
        """Warn, once after each cut, if weights that something else has changed are no longer zero."""
        weight = local(self._parameters[name])
        if self._told or self._seen.get(name) == weight._version or torch.compiler.is_compiling():
            return
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if bool(((weight != 0) & ~self._mask_near(name, weight)).any()):
            self._told = True
            warnings.warn(in_words({n: int(c) for n, c in self.back().items()}), stacklevel=2)

    @torch.no_grad()
    def _zero_gradient(self, name: str) -> None:
        gradient = self._parameters[name].grad
        if name in self._kept and gradient is not None:
            self._notice(name)
            part = local(gradient)
            if _is_plain(part) and part.shape == self._kept[name].shape:
                _integers(part).mul_(self._mask_near(name, part))


def steppers_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> list[torch.optim.Optimizer]:
    """Optimizers that call hooks in a step of `optimizer`; raise unless they update one of `parameters`."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"hold needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
    found = list(_inside(optimizer))
    if not found:
        raise TypeError(
            f"this {type(optimizer).__name__} does not run step hooks: its __init__ never called "
            "torch.optim.Optimizer.__init__; hold the optimizers that it steps"
        )
    # Frozen ones stay zero under an optimizer of other parameters, such as adapters that heal a pruned base.
    trained = any(parameter.requires_grad for parameter in parameters.values())
    if trained and not any(updated_by(one, parameters) for one in found):
        raise ParameterGone(
            f"this {type(optimizer).__name__} updates none of the pruned parameters "
            f"({shown(list(parameters), 4)}); was it made from another model, or before "
            "the model's parameters were replaced?"
        )
    return found


def _inside(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """`optimizer` and those in it that call hooks, as in SAM and in wrappers."""
    if hasattr(optimizer, "_optimizer_step_post_hooks"):
        yield optimizer
    for value in vars(optimizer).values():
        for inner in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inner, torch.optim.Optimizer):
                yield from _inside(inner)


def updated_by(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> set[str]:
    """Names of the `parameters` that an optimizer updates."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name for name, p in parameters.items() if id(p) in updated}


def _integers(values: Tensor) -> Tensor:
    return values.view(INTEGER[values.element_size()])


def _is_plain(values: object) -> TypeGuard[Tensor]:
    """Whether `values` is a dense float tensor whose entries do not share memory."""
    if not isinstance(values, Tensor) or type(values) not in (Tensor, nn.Parameter):
        return False
    if values.layout != torch.strided or not values.is_floating_point():
        return False
    return all(stride or size <= 1 for stride, size in zip(values.stride(), values.shape, strict=True))


def _after_accumulation(parameter: Tensor, zero: weakref.WeakMethod[Callable[[str], None]], name: str) -> None:
    """Call `zero` with `name` after each gradient accumulation; a weak reference, to avoid a cycle."""

    def hook(_: Tensor) -> None:
        if (call := zero()) is not None:
            call(name)

    trained = parameter.requires_grad
    parameter.requires_grad_(True)  # a frozen parameter takes no hook, and may be trained later
    parameter.register_post_accumulate_grad_hook(hook)
    parameter.requires_grad_(trained)
