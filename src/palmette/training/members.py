"""Networks that train in one pass: a single one, or many of one architecture stacked into one tensor.

`Single` and `Stacked` share an interface: `scores` of a batch for each member, `learn` to take a step, and
`state_tensors`, which a step changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palmette.errors import first_line
from palmette.measures.cuda_sums import triton_is_there
from palmette.training.gpu.convolution import fuse_convolutions
from palmette.training.linear import use_batched_linear
from palmette.training.recipe import Recipe, set_learning_rate
from palmette.training.stacked_optimizer import StackedOptimizer, with_layout_of


@dataclass(frozen=True)
class Member:
    """One network in training, on its device."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int  # of the data order
    round: int = 0  # of pruning; the data order differs between rounds
    masks: Mapping[str, Tensor] = field(default_factory=dict)  # True where a weight is kept; others stay zero


class Single:
    """One network, whose gradients are masked, clipped and passed to its optimizer."""

    def __init__(self, member: Member, recipe: Recipe) -> None:
        self.models, self.optimizer, self.recipe = (member.model,), member.optimizer, recipe
        named: dict[str, Tensor] = {name: p for name, p in member.model.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError("there is nothing to train: all parameters of the model are frozen")
        self.device = next(iter(named.values())).device
        if self.device.type == "cuda":
            # Doubles the speed of convolutions.
            member.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for group in self.optimizer.param_groups:  # a CUDA graph reads it on the device
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[key] = with_layout_of(parameter, value)
        self.notes: list[str] = []
        self.add_gradients: Callable[[list[Tensor]], None] | None = None  # over all workers
        self._forward: Callable[[Tensor], Tensor] = member.model
        self._fast: nn.Module | None = None
        on_gpu = self.device.type == "cuda" and triton_is_there()
        if recipe.compile:
            self._forward = compiled(member.model, self.notes)
        elif on_gpu:
            fast = copy.deepcopy(member.model).to("meta")
            self._fast = fast if fuse_convolutions(fast) else None
        self._parameters = named
        self._masks = {
            name: with_layout_of(p, member.masks[name].to(p.device, p.dtype))
            for name, p in named.items()
            if name in member.masks and not bool(member.masks[name].all())
        }
        self._used = named  # in the forward pass
        self._fused_optimizer: StackedOptimizer | None = None
        if on_gpu and recipe.optimizer == "sgd" and all(_has_fused_layout(p) for p in named.values()):
            autocast = _autocast_names(member.model) if self._fast is not None else ()
            stacked = {name: p.detach()[None].requires_grad_() for name, p in named.items()}
            self._fused_optimizer = StackedOptimizer(stacked, [member], recipe, autocast=autocast)
            copies = {name: p for name, p in self._fused_optimizer.used.items() if p is not stacked[name]}
            self._used = {**named, **{name: p[0].detach().requires_grad_() for name, p in copies.items()}}

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        set_learning_rate(self.optimizer, rate)
        if self._fused_optimizer is not None:
            self._fused_optimizer.set_learning_rate(rate)

    def scores(self, x: Tensor) -> Tensor:
        """1×B×classes from 1×B×C×H×W."""
        (model,) = self.models
        if self._fused_optimizer is not None and not model.training:
            self._fused_optimizer.refresh()  # weights may have been pruned since the last step
        if self._fast is None or not model.training or self.add_gradients is not None:
            return self._forward(x[0])[None]
        state = {**dict(model.named_parameters()), **dict(model.named_buffers()), **self._used}
        scores: Tensor = functional_call(self._fast, state, (x[0],))
        return scores[None]

    def learn(self, scores: Tensor, score_gradients: Tensor) -> None:
        """Take one optimizer step; `score_gradients` is the gradient of the loss with respect to `scores`."""
        if self._fused_optimizer is not None and self.add_gradients is None:
            found = torch.autograd.grad(scores, list(self._used.values()), score_gradients, allow_unused=True)
            self._fused_optimizer([None if gradient is None else gradient[None] for gradient in found])
            return
        parameters = list(self._parameters.values())
        gradients = torch.autograd.grad(scores, parameters, score_gradients, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else with_layout_of(parameter, gradient)
        if self.recipe.clip_over == "kept":
            self._mask_gradients()
        if self.add_gradients is not None:
            self.add_gradients([p.grad for p in parameters if p.grad is not None])
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        if self.recipe.clip_over == "all":
            self._mask_gradients()
        self.optimizer.step()

    def _mask_gradients(self) -> None:
        masked = [
            (g, mask) for name, mask in self._masks.items() if (g := self._parameters[name].grad) is not None
        ]
        if masked:  # one call with float masks takes a tenth of the time of boolean masks one by one
            torch._foreach_mul_([gradient for gradient, _ in masked], [mask for _, mask in masked])

    def state_tensors(self) -> Iterator[Tensor]:
        """Tensors that a step changes."""
        (model,) = self.models
        yield from model.buffers()
        if self._fused_optimizer is not None:
            yield from self._fused_optimizer.state_tensors()
            return
        yield from model.parameters()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


class Stacked:
    """Networks of one architecture, stacked along a first dimension, each trained as if it were alone.

    Parameters and buffers of the members, and the tensors of their optimizers, become slices of the stack, so that
    a change of either changes both.
    """

    def __init__(self, members: Sequence[Member], recipe: Recipe) -> None:
        self.models = tuple(member.model for member in members)
        self._skeleton = copy.deepcopy(self.models[0]).to("meta")
        if not recipe.compile:
            use_batched_linear(self._skeleton)
        self._parameters = {
            name: _stack_([model.get_parameter(name) for model in self.models]).requires_grad_(p.requires_grad)
            for name, p in self.models[0].named_parameters()
        }
        self._buffers = {
            name: _stack_([model.get_buffer(name) for model in self.models])
            for name, _ in self.models[0].named_buffers()
        }
        self.device = next(iter(self._parameters.values())).device
        self._optimizer = StackedOptimizer(
            self._parameters, members, recipe, autocast=_autocast_names(self.models[0])
        )
        self.notes: list[str] = []
        self._all = torch.vmap(self._one)
        if recipe.compile:
            self._all = compiled(self._all, self.notes)

    def _one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        scores: Tensor = functional_call(self._skeleton, (parameters, buffers), (x,))
        return scores

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        self._optimizer.set_learning_rate(rate)

    def scores(self, x: Tensor) -> Tensor:
        """M×B×classes from M×B×C×H×W."""
        self._skeleton.train(self.models[0].training)
        if not self._skeleton.training:
            self._optimizer.refresh()  # weights may have been pruned since the last step
        return self._all(self._optimizer.used, self._buffers, x)

    def learn(self, scores: Tensor, score_gradients: Tensor) -> None:
        """Take one optimizer step of each member, as `Single` does."""
        used = [p for p in self._optimizer.used.values() if p.requires_grad]
        self._optimizer(torch.autograd.grad(scores, used, score_gradients, allow_unused=True))

    def state_tensors(self) -> Iterator[Tensor]:
        """Tensors that a step changes."""
        yield from self._buffers.values()
        yield from self._optimizer.state_tensors()


Network: TypeAlias = Single | Stacked


def stackable(models: Sequence[nn.Module]) -> bool:
    """Whether the models can train in one pass, each as if it were alone.

    Stacked convolutions are slow, and dropout would draw other numbers. Tied weights would be separated, and
    attributes that are no tensors must be equal in all models.
    """
    kinds = (nn.modules.conv._ConvNd, nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
    first = models[0]
    if any(isinstance(module, kinds) for module in first.modules()):
        return False
    if len(list(first.parameters())) != len(list(first.named_parameters(remove_duplicate=False))):
        return False
    return all(_plain_attributes(model) == _plain_attributes(first) for model in models[1:])


def _autocast_names(model: nn.Module) -> set[str]:
    """Names of parameters that autocast would convert in each step; a converted copy is kept instead."""
    return {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        for own, _ in module.named_parameters(recurse=False)
    }


def _has_fused_layout(parameter: Tensor) -> bool:
    """Whether `palmette.training.gpu.steps` can update `parameter`: float32, in memory without gaps or overlap."""
    size = 1
    for stride, length in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return parameter.dtype == torch.float32


def _plain_attributes(model: nn.Module) -> list[dict[str, object]]:
    plain = (bool, int, float, str, tuple, type(None))
    return [{k: v for k, v in vars(m).items() if isinstance(v, plain)} for m in model.modules()]


def compiled(function: Callable[..., Tensor], notes: list[str]) -> Callable[..., Tensor]:
    """Compile `function`; if that fails, keep it as it is and add a note."""
    fast: Any = torch.compile(function, dynamic=False)
    works: list[bool] = []

    def call(*inputs: Any) -> Tensor:
        if works != [False]:
            try:
                result: Tensor = fast(*inputs)
                works[:] = [True]
                return result
            except Exception as error:
                if works or isinstance(error, torch.OutOfMemoryError):
                    raise
                works[:] = [False]
                notes.append(f"the model cannot be compiled here and trains without: {first_line(error)}")
        return function(*inputs)

    return call


@torch.no_grad()
def _stack_(tensors: Sequence[Tensor]) -> Tensor:
    """Stack `tensors`; each becomes a slice of the result."""
    stacked = torch.stack([t.detach() for t in tensors])
    for tensor, part in zip(tensors, stacked, strict=True):
        tensor.data = part
    return stacked
