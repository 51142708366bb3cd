"""Batch normalization over the batches of all workers.

PyTorch's SyncBatchNorm works on GPUs only and replaces modules; this works on any device, for the duration of a
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

Add = Callable[[Tensor], Tensor]
"""Sums a tensor over all workers, in place."""


@contextmanager
def synced(add: Add) -> Iterator[None]:
    """Make training batch norms use mean and variance over all workers within this context."""
    kind: Any = _BatchNorm
    alone = kind.forward

    def forward(module: Any, x: Tensor) -> Any:
        return _forward(module, add, x) if module.training else alone(module, x)

    # Patch the class, not the modules, so that subclasses keep what they add.
    kind.forward = forward
    try:
        yield
    finally:
        kind.forward = alone


def _forward(module: Any, add: Add, x: Tensor) -> Tensor:
    module._check_input_dim(x)
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    others = [d for d in range(x.dim()) if d != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    here = x.numel() // x.shape[1]
    count = add(torch.full((), float(here), dtype=torch.float64, device=x.device))
    if here <= 1 and float(count) <= 1:  # PyTorch's rule; `float` waits for the GPU only here
        raise ValueError("batch normalization needs more than one value per channel, got a batch of one")
    total: Callable[..., Tensor] = _Sum.apply
    mean = total(wide.sum(others), add) / count
    centred = wide - mean.view(shape)
    # Not from the sum of squares, whose difference loses digits.
    variance = total(centred.square().sum(others), add) / count
    if module.track_running_stats:
        with torch.no_grad():
            module.num_batches_tracked += 1
            share = module.momentum if module.momentum is not None else 1 / float(module.num_batches_tracked)
            module.running_mean.lerp_(mean.detach(), share)
            module.running_var.lerp_(variance.detach() * (count / (count - 1)), share)
    scaled = centred * torch.rsqrt(variance + module.eps).view(shape)
    if module.affine:
        scaled = scaled * module.weight.view(shape) + module.bias.view(shape)
    return scaled.to(x.dtype)


class _Sum(torch.autograd.Function):
    """Sum over all workers; the gradient is summed likewise."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, add: Add) -> Tensor:
        ctx.add = add
        return add(values.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.add(gradient.clone()), None
