"""What is trained in one pass: one network by itself, or many of one architecture stacked into one tensor.

Both kinds are used alike: `scores` of a batch for each member, `learn` from their losses, and the tensors that are
`changing` while they do.
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
from palmette.training.gpu.convolution import make_convolutions_fast
from palmette.training.linear import make_linear_fast
from palmette.training.recipe import Recipe, set_learning_rate
from palmette.training.update import Update, laid_out_like


@dataclass(frozen=True)
class Member:
    """One network in training.

    Args:
        model: on the device where it is to be trained.
        optimizer: of its parameters, from the recipe.
        seed: of the data order.
        round: of pruning, :math:`t`; each has an order of its own.
        masks: by the name of the weight, True where it is kept; what is pruned is zero, and stays so.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int
    round: int = 0
    masks: Mapping[str, Tensor] = field(default_factory=dict)


class Alone:
    """One network. Its gradients are masked, clipped and given to its own optimizer."""

    def __init__(self, member: Member, recipe: Recipe) -> None:
        self.models, self.optimizer, self.recipe = (member.model,), member.optimizer, recipe
        named: dict[str, Tensor] = {name: p for name, p in member.model.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError("there is nothing to train: all parameters of the model are frozen")
        self.device = next(iter(named.values())).device
        if self.device.type == "cuda":
            # Convolutions are twice as fast.
            member.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for group in self.optimizer.param_groups:  # a recorded step reads it there; one that was saved is not
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
        for parameter, known in self.optimizer.state.items():
            for key, value in known.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    known[key] = laid_out_like(parameter, value)
        self.notes: list[str] = []
        self.add_gradients: Callable[[list[Tensor]], None] | None = None  # over the processes that train along
        self._forward: Callable[[Tensor], Tensor] = member.model
        self._fast: nn.Module | None = None
        on_gpu = self.device.type == "cuda" and triton_is_there()
        if recipe.compile:
            self._forward = compiled(member.model, self.notes)
        elif on_gpu:
            fast = copy.deepcopy(member.model).to("meta")
            self._fast = fast if make_convolutions_fast(fast) else None
        self._parameters = named
        self._masks = {
            name: laid_out_like(p, member.masks[name].to(p.device, p.dtype))
            for name, p in named.items()
            if name in member.masks and not bool(member.masks[name].all())
        }
        self._used = named  # by the forward pass
        self._update: Update | None = None
        if on_gpu and recipe.optimizer == "sgd" and all(_lies_in_one_piece(p) for p in named.values()):
            rounded = _rounded(member.model) if self._fast is not None else ()
            stacked = {name: p.detach()[None].requires_grad_() for name, p in named.items()}
            self._update = Update(stacked, [member], recipe, rounded=rounded)
            copies = {name: p for name, p in self._update.used.items() if p is not stacked[name]}
            self._used = {**named, **{name: p[0].detach().requires_grad_() for name, p in copies.items()}}

    def set_learning_rate(self, rate: float) -> None:
        """Of the steps to come."""
        set_learning_rate(self.optimizer, rate)
        if self._update is not None:
            self._update.set_learning_rate(rate)

    def scores(self, x: Tensor) -> Tensor:
        """1×B×classes from 1×B×C×H×W."""
        (model,) = self.models
        if self._update is not None and not model.training:
            self._update.refresh()  # the weights may have been cut since the last step
        if self._fast is None or not model.training or self.add_gradients is not None:
            return self._forward(x[0])[None]
        state = {**dict(model.named_parameters()), **dict(model.named_buffers()), **self._used}
        scores: Tensor = functional_call(self._fast, state, (x[0],))
        return scores[None]

    def learn(self, scores: Tensor, slopes: Tensor) -> None:
        """One step downhill; `slopes` is the gradient of the loss with respect to the `scores`."""
        if self._update is not None and self.add_gradients is None:
            found = torch.autograd.grad(scores, list(self._used.values()), slopes, allow_unused=True)
            self._update([None if gradient is None else gradient[None] for gradient in found])
            return
        parameters = list(self._parameters.values())
        gradients = torch.autograd.grad(scores, parameters, slopes, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else laid_out_like(parameter, gradient)
        masked = [
            (g, mask) for name, mask in self._masks.items() if (g := self._parameters[name].grad) is not None
        ]
        if masked:  # as floats and all at once, which takes a tenth of the time of booleans one by one
            torch._foreach_mul_([gradient for gradient, _ in masked], [mask for _, mask in masked])
        if self.add_gradients is not None:
            self.add_gradients([p.grad for p in parameters if p.grad is not None])
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        self.optimizer.step()

    def changing(self) -> Iterator[Tensor]:
        """Every tensor that a step writes."""
        (model,) = self.models
        yield from model.buffers()
        if self._update is not None:
            yield from self._update.changing()
            return
        yield from model.parameters()
        for known in self.optimizer.state.values():
            yield from (value for value in known.values() if isinstance(value, Tensor))


class Stacked:
    """Networks of one architecture, stacked along a first dimension, each as if it were alone.

    From here on the parameters and buffers of the members, and the tensors of their optimizers, are slices of the
    stack: whatever is done to either is done to both.
    """

    def __init__(self, members: Sequence[Member], recipe: Recipe) -> None:
        self.models = tuple(member.model for member in members)
        self._skeleton = copy.deepcopy(self.models[0]).to("meta")
        if not recipe.compile:
            make_linear_fast(self._skeleton)
        self._parameters = {
            name: _stack_([model.get_parameter(name) for model in self.models]).requires_grad_(p.requires_grad)
            for name, p in self.models[0].named_parameters()
        }
        self._buffers = {
            name: _stack_([model.get_buffer(name) for model in self.models])
            for name, _ in self.models[0].named_buffers()
        }
        self.device = next(iter(self._parameters.values())).device
        self._update = Update(self._parameters, members, recipe, rounded=_rounded(self.models[0]))
        self.notes: list[str] = []
        self._all = torch.vmap(self._one)
        if recipe.compile:
            self._all = compiled(self._all, self.notes)

    def _one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        scores: Tensor = functional_call(self._skeleton, (parameters, buffers), (x,))
        return scores

    def set_learning_rate(self, rate: float) -> None:
        """Of the steps to come."""
        self._update.set_learning_rate(rate)

    def scores(self, x: Tensor) -> Tensor:
        """M×B×classes from M×B×C×H×W."""
        self._skeleton.train(self.models[0].training)
        if not self._skeleton.training:
            self._update.refresh()  # the weights may have been cut since the last step
        return self._all(self._update.used, self._buffers, x)

    def learn(self, scores: Tensor, slopes: Tensor) -> None:
        """One step downhill of each member, as that of `Alone`."""
        used = [p for p in self._update.used.values() if p.requires_grad]
        self._update(torch.autograd.grad(scores, used, slopes, allow_unused=True))

    def changing(self) -> Iterator[Tensor]:
        """Every tensor that a step writes."""
        yield from self._buffers.values()
        yield from self._update.changing()


Network: TypeAlias = Alone | Stacked


def stackable(models: Sequence[nn.Module]) -> bool:
    """Whether such models can train in one pass, each as if it were alone.

    Convolutions of many models at once are slow, and a model that draws numbers itself would draw others. Tied
    weights come apart in a stack, and what is no tensor must be the same for all.
    """
    kinds = (nn.modules.conv._ConvNd, nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
    first = models[0]
    if any(isinstance(module, kinds) for module in first.modules()):
        return False
    if len(list(first.parameters())) != len(list(first.named_parameters(remove_duplicate=False))):
        return False
    return all(_plain_attributes(model) == _plain_attributes(first) for model in models[1:])


def _rounded(model: nn.Module) -> set[str]:
    """Names of what autocast would round in each step, and is kept rounded instead."""
    return {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        for own, _ in module.named_parameters(recurse=False)
    }


def _lies_in_one_piece(parameter: Tensor) -> bool:
    """Whether it is what the kernels of `palmette.training.gpu.steps` take: float32, each place of memory once."""
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
    """`function` compiled; or as it is, with a note, where that fails."""
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
                notes.append(f"the model cannot be compiled here, and trains as it is: {first_line(error)}")
        return function(*inputs)

    return call


@torch.no_grad()
def _stack_(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor of all; each of them becomes a slice of it."""
    stacked = torch.stack([t.detach() for t in tensors])
    for tensor, part in zip(tensors, stacked, strict=True):
        tensor.data = part
    return stacked
