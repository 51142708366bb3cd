"""Optimizer of stacked members: mask, clip, then SGD or Adam, each member separately."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from palmette.measures.cuda_sums import triton_is_there
from palmette.training.gpu import steps as fused
from palmette.training.recipe import Recipe

if TYPE_CHECKING:
    from palmette.training.members import Member


class StackedOptimizer:
    """Masks and clips gradients, then takes the step of `torch.optim` for each member.

    `parameters` are stacked along the first dimension, contiguous. State of the members' optimizers, such as
    momentum, becomes slices of the tensors stacked here. In bfloat16 the forward pass reads a copy of the weights
    named in `autocast`, which the step updates.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        members: Sequence[Member],
        recipe: Recipe,
        *,
        autocast: Collection[str],
    ) -> None:
        self.recipe = recipe
        self._parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        first = next(iter(self._parameters.values()))
        self._rate = torch.tensor(recipe.learning_rate, device=first.device)
        keys = ["exp_avg", "exp_avg_sq"]
        if recipe.optimizer == "sgd":
            keys = ["momentum_buffer"] if recipe.momentum else []
        self._state = {
            name: [_stack_state(name, members, key, p) for key in keys] for name, p in self._parameters.items()
        }
        zeros = torch.zeros(len(members), device=first.device)
        stepped = [] if recipe.optimizer == "sgd" else self._parameters
        self._steps = {name: _stack_state(name, members, "step", zeros) for name in stepped}
        self._masks = {}
        for name, p in self._parameters.items():
            masks = [member.masks.get(name) for member in members]
            if any(mask is not None and not bool(mask.all()) for mask in masks):
                kept = torch.ones_like(p, dtype=torch.uint8 if p.is_cuda else p.dtype, requires_grad=False)
                for part, mask in zip(kept, masks, strict=True):
                    if mask is not None:
                        part.copy_(mask)
                self._masks[name] = kept
        self._copies: dict[str, Tensor] = {}
        self._fused: fused.FusedSGD | None = None
        if first.is_cuda and recipe.optimizer == "sgd" and triton_is_there():
            if recipe.precision == "bfloat16":
                copied = {name: p for name, p in self._parameters.items() if name in autocast}
                self._copies = {name: p.detach().bfloat16().requires_grad_() for name, p in copied.items()}
            self._fused = fused.FusedSGD(self._parameters, self._copies, self._state, self._masks, recipe)
        self.used = {**parameters, **self._copies}

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate in place, where a CUDA graph reads it."""
        self._rate.fill_(rate)

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the bfloat16 copies from the weights."""
        for name, copy in self._copies.items():
            copy.copy_(self._parameters[name])

    def state_tensors(self) -> Iterator[Tensor]:
        """Tensors that a step changes."""
        yield from self._parameters.values()
        yield from self._copies.values()
        for tensors in self._state.values():
            yield from tensors
        yield from self._steps.values()

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step; `gradients` are of the trained parameters in `used`, in their order."""
        found = {n: g for n, g in zip(self._parameters, gradients, strict=True) if g is not None}
        if self._fused is not None:
            self._fused({n: with_layout_of(self._parameters[n], g) for n, g in found.items()}, self._rate)
            return
        found = {name: g.to(self._parameters[name].dtype) for name, g in found.items()}
        kept = {name: g * self._masks[name] if name in self._masks else g for name, g in found.items()}
        if self.recipe.clip is not None:
            counted = kept if self.recipe.clip_over == "kept" else found
            norms = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in counted.values()])
            scale = (self.recipe.clip / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
            kept = {name: g * _per_member(scale, g) for name, g in kept.items()}
        for name, gradient in kept.items():
            if self.recipe.optimizer == "sgd":
                self._sgd(name, gradient)
            else:
                self._adam(name, gradient)

    def _sgd(self, name: str, gradient: Tensor) -> None:
        recipe, parameter = self.recipe, self._parameters[name]
        gradient = gradient.add(parameter, alpha=recipe.weight_decay)
        for momentum in self._state[name]:
            momentum.mul_(recipe.momentum).add_(gradient)
            gradient = gradient.add_(momentum, alpha=recipe.momentum) if recipe.nesterov else momentum
        parameter.sub_(gradient * self._rate)

    def _adam(self, name: str, gradient: Tensor) -> None:
        recipe, parameter, betas = self.recipe, self._parameters[name], (0.9, 0.999)
        first, second = self._state[name]
        step = self._steps[name].add_(1)
        if recipe.optimizer == "adamw":
            parameter.mul_(1 - self._rate * recipe.weight_decay)
        else:
            gradient = gradient.add(parameter, alpha=recipe.weight_decay)
        first.lerp_(gradient, 1 - betas[0])
        second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        scale = _per_member(self._rate / (1 - betas[0] ** step), gradient)
        root = second.sqrt() / _per_member((1 - betas[1] ** step).sqrt(), gradient)
        parameter.sub_(scale * first / root.add_(1e-8))


def with_layout_of(parameter: Tensor, values: Tensor) -> Tensor:
    """`values` with the strides of `parameter`, as the fused kernel needs them."""
    if values.stride() == parameter.stride():
        return values
    # Not `empty_like`, whose strides differ where a dimension has size 1.
    copy = torch.empty_strided(parameter.shape, parameter.stride(), dtype=values.dtype, device=values.device)
    return copy.copy_(values)


def _per_member(per_member: Tensor, values: Tensor) -> Tensor:
    return per_member.view(-1, *(1,) * (values.dim() - 1))


def _stack_state(name: str, members: Sequence[Member], key: str, like: Tensor) -> Tensor:
    """Stack the members' optimizer state `key` of a parameter; zeros where there is none."""
    stacked = torch.zeros_like(like, requires_grad=False)
    for part, member in zip(stacked, members, strict=True):
        state = member.optimizer.state[member.model.get_parameter(name)]
        if state.get(key) is not None:
            part.copy_(state[key])
        state[key] = part
    return stacked
