"""Count the floating-point operations of a forward pass while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from palmette.pruning.channels.tracing import no_fast_path
from palmette.pruning.weights import evaluating, uncompiled


def flops_of(run: Callable[[], object]) -> int:
    """FLOPs of `run()`: two for each multiply-add.

    Convolutions, matrix products, recurrent layers and attention count; biases, norms, activations and pools do
    not.

    >>> flops_of(lambda: torch.zeros(5, 4) @ torch.zeros(4, 3))
    120
    """
    counter = FlopCounterMode(display=False, custom_mapping=_RECURRENT)
    # SDPBackend.MATH: the counter does not know fused attention kernels. force_eager: functions compiled while the
    # counter is active, as by `torch.cond`, would fail, now or in later calls.
    with no_fast_path(), sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"), counter:
        run()
    return int(counter.get_total_flops())


def flops_per_image(model: nn.Module, *, shape: tuple[int, int, int]) -> int:
    """FLOPs of a forward pass of `model` for one image of `shape`, as `flops_of` counts them.

    The model runs in evaluation mode on an image of zeros and does not change. Pruned weights count like all
    others.

    Table 3 of Diao et al. 2023 gives FLOPs of a batch of 250 images, and for ResNet18 one per multiplication.

    >>> flops_per_image(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), shape=(1, 28, 28))
    15680
    """
    model = uncompiled(model)
    example = next(model.parameters(), torch.empty(0))
    image = torch.zeros(1, *shape, device=example.device, dtype=example.dtype)
    with evaluating(model), torch.no_grad():
        return flops_of(lambda: model(image))


def _recurrent(steps: Sequence[int], weights: Sequence[Sequence[int]]) -> int:
    """FLOPs of a recurrent layer, from shapes: each step of each sequence takes every matrix once."""
    return 2 * math.prod(steps[:-1]) * sum(math.prod(shape) for shape in weights if len(shape) > 1)


# Fused kernels that the counter does not know; their arguments are shapes.
_RECURRENT: dict[Any, Any] = {
    torch.ops.aten.mkldnn_rnn_layer: lambda steps, *rest, **_: _recurrent(steps, rest[:2]),
    torch.ops.aten._cudnn_rnn: lambda steps, weights, *_, **__: _recurrent(steps, weights),
}
