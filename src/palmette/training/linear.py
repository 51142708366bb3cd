"""Linear layers of stacked networks, fused with a following ReLU."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from palmette.measures.cuda_sums import triton_is_there
from palmette.training.gpu import steps as fused


def use_batched_linear(skeleton: nn.Module) -> None:
    """Make each Linear of `skeleton` compute all members at once, with the ReLU that may follow it.

    Afterwards, `skeleton` works only under `torch.vmap`.
    """
    for module in skeleton.modules():
        if type(module) is nn.Linear:
            module.forward = functools.partial(_linear, module, relu=False)  # type: ignore[method-assign]
    for module in skeleton.modules():
        if type(module) is nn.Sequential:
            for one, after in itertools.pairwise(module):
                if type(one) is nn.Linear and type(after) is nn.ReLU and is_used_once(skeleton, one, after):
                    one.forward = functools.partial(_linear, one, relu=True)  # type: ignore[method-assign]
                    after.forward = identity  # type: ignore[method-assign, assignment]


def identity(x: Tensor) -> Tensor:
    """Forward of a module whose work an earlier module does."""
    return x


def is_used_once(skeleton: nn.Module, *modules: nn.Module) -> bool:
    """Whether `skeleton` uses each of the modules at one place only, and no hook sees their results."""
    places = [module for _, module in skeleton.named_modules(remove_duplicate=False)]
    hooks = any(m._forward_hooks or m._forward_pre_hooks for m in modules)
    return not hooks and all(sum(m is module for m in places) == 1 for module in modules)


def _linear(module: nn.Linear, x: Tensor, *, relu: bool) -> Tensor:
    weight: Tensor = module.weight
    bias: Tensor | None = module.bias
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    out: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias, relu)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    r""":math:`y = x w^\top + b`, or its positive part, of members stacked along a first dimension.

    Each matrix product is row-major with rows as wide as a layer: GPUs are fast if that width is a multiple of
    eight, which layers usually are and a batch of 250 is not.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        out = _product(x, weight.mT)
        if out.is_cuda and triton_is_there():
            fused.add_bias_(out, bias, relu=relu)
            return out
        if bias is not None:
            out += bias[:, None]
        return out.relu_() if relu else out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.relu = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight, output if ctx.relu else None)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        if gradients.is_cuda and triton_is_there() and gradients.shape[1] <= fused.FEW_ROWS:
            gradients, of_bias = fused.bias_gradients(gradients, out, needed=ctx.has_bias)
        else:
            gradients = gradients if out is None else torch.ops.aten.threshold_backward(gradients, out, 0)
            of_bias = gradients.sum(1) if ctx.has_bias else None
        of_x = _product(gradients, weight) if ctx.needs_input_grad[0] else None
        of_weight = torch.bmm(gradients.mT, x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, of_bias, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        def stacked(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

        return _Linear.apply(*map(stacked, inputs, in_dims)), 0  # type: ignore[no-untyped-call]


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Product, row-major on a GPU and column-major on a CPU, where the next product is then faster."""
    return torch.bmm(one, other) if one.is_cuda else torch.bmm(other.mT, one.mT).mT
