"""Fused batch preparation, loss, bias and SGD of many members on a CUDA device, with Triton."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palmette.training.recipe import Recipe

_BLOCK = 2048


def prepare(
    images: Tensor,
    labels: Tensor,
    order: Tensor,
    bits: Tensor | None,
    place: Tensor,
    table: Tensor,
    *,
    batch: int,
    padding: int,
    channels_last: bool,
) -> tuple[Tensor, Tensor]:
    """Next `batch` images of each member, M×B×C×H×W, flipped, cropped and normalised, and their labels.

    `table`, C×256, holds what `Preparation` returns for each of the 256 values of a pixel.
    """
    from palmette.training.gpu import step_kernels as kernels

    members, count = order.shape
    channels, height, width = images.shape[1:]
    out = torch.empty(
        (members * batch, channels, height, width),
        dtype=table.dtype,
        device=images.device,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )
    answers = torch.empty(members, batch, dtype=labels.dtype, device=labels.device)
    size = channels * height * width
    block = min(1024, 1 << (size - 1).bit_length())
    with torch.cuda.device(images.device):
        kernels.prepare[(members * batch, -(-size // block))](
            images,
            labels,
            order,
            order if bits is None else bits,
            place,
            table,
            out,
            answers,
            count,
            batch,
            CHANNELS=channels,
            HEIGHT=height,
            WIDTH=width,
            PADDING=padding,
            AUGMENT=bits is not None,
            CHANNELS_LAST=channels_last,
            BLOCK=block,
        )
    return out.unflatten(0, (members, batch)), answers


def add_losses(scores: Tensor, answers: Tensor, totals: Tensor, *, smoothing: float) -> Tensor:
    """Add each member's cross entropy and number of right answers to `totals`; return the gradient of its mean."""
    from palmette.training.gpu import step_kernels as kernels

    gradients = torch.empty_like(scores)
    if gradients.stride() != scores.stride():  # `scores` has gaps or overlaps
        scores = scores.contiguous()
        gradients = torch.empty_like(scores)
    members, batch, classes = scores.shape
    columns = max(16, 1 << (classes - 1).bit_length())
    with torch.cuda.device(scores.device):
        kernels.losses[(members,)](
            scores,
            answers,
            gradients,
            totals,
            smoothing,
            batch,
            members,
            classes,
            *scores.stride(),
            ROWS=max(1, 4096 // columns),
            COLUMNS=columns,
            num_warps=8,
        )
    return gradients


def add_bias_(out: Tensor, bias: Tensor | None, *, relu: bool) -> None:
    """Add each member's bias, M×columns, to its rows, M×rows×columns, and apply ReLU if `relu`."""
    from palmette.training.gpu import step_kernels as kernels

    if bias is None and not relu:
        return
    bias = None if bias is None else bias.contiguous()
    with torch.cuda.device(out.device):
        kernels.add_bias[(-(-out.numel() // 1024),)](
            out,
            out if bias is None else bias,
            out.numel(),
            *out.shape[1:],
            BIAS=bias is not None,
            RELU=relu,
            BLOCK=1024,
        )


FEW_ROWS = 2048
"""Number of rows up to which `bias_gradients` is faster than several kernels of torch."""


def bias_gradients(gradients: Tensor, out: Tensor | None, *, needed: bool) -> tuple[Tensor, Tensor | None]:
    """Gradients before the ReLU that gave `out`, if there was one, and their sums over rows, if `needed`."""
    from palmette.training.gpu import step_kernels as kernels

    if out is None and not needed:
        return gradients, None
    gradients = gradients.contiguous()
    members, rows, columns = gradients.shape
    masked = gradients if out is None else torch.empty_like(gradients)
    of_bias = gradients.new_empty(members, columns)
    with torch.cuda.device(gradients.device):
        kernels.bias_gradients[(members, -(-columns // 32))](
            gradients,
            gradients if out is None else out,
            masked,
            of_bias,
            rows,
            columns,
            RELU=out is not None,
            ROWS=64,
            COLUMNS=32,
        )
    return masked, of_bias if needed else None


_TENSORS = 8  # per launch; the kernel is unrolled over them


class FusedSGD:
    """Mask, clip and SGD of stacked parameters, in two passes over the gradients.

    Parameters are float32 and contiguous, masks are uint8; `copies` of parameters in another dtype are updated as
    well.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
        momenta: Mapping[str, Sequence[Tensor]],
        masks: Mapping[str, Tensor],
        recipe: Recipe,
    ) -> None:
        self._parameters, self._copies, self._momenta, self._masks = parameters, copies, momenta, masks
        self._recipe = recipe
        first = next(iter(parameters.values()))
        self._members, self._device = len(first), first.device
        # A tensor, because Triton would compile a kernel for each new value of an argument.
        self._numbers = torch.tensor(
            [recipe.weight_decay, recipe.momentum, recipe.clip or 0.0], device=self._device
        )
        blocks = sum(-(-p[0].numel() // _BLOCK) for p in parameters.values())
        self._sums = torch.zeros(self._members, blocks, device=self._device)
        self._scale = torch.ones(self._members, device=self._device)

    def __call__(self, gradients: Mapping[str, Tensor], rate: Tensor) -> None:
        """Take a step with `rate`, a scalar on the device; gradients have the strides of the parameters."""
        from palmette.training.gpu import step_kernels as kernels

        names = list(gradients)
        parts = [names[start : start + _TENSORS] for start in range(0, len(names), _TENSORS)]
        with torch.cuda.device(self._device):
            if self._recipe.clip is not None:
                done, left_out = 0, self._masks if self._recipe.clip_over == "kept" else ()
                for part in parts:
                    tensors, blocks = self._tensors(part, gradients)
                    kernels.squares[(self._members, blocks)](
                        tensors["gradients"],
                        tensors["masks"],
                        tensors["firsts"],
                        tensors["sizes"],
                        self._sums[:, done:],
                        self._sums.shape[1],
                        MASKED=_bits(part, left_out),
                        BLOCK=_BLOCK,
                        num_warps=8,
                    )
                    done += blocks
                kernels.clipping[(self._members,)](
                    self._sums, self._scale, self._numbers[2:], self._sums.shape[1], BLOCK=256
                )
            for part in parts:
                tensors, blocks = self._tensors(part, gradients)
                kernels.sgd[(self._members, blocks)](
                    **tensors,
                    scale_ptr=self._scale,
                    rate_ptr=rate,
                    numbers_ptr=self._numbers,
                    MASKED=_bits(part, self._masks),
                    COPIED=_bits(part, self._copies),
                    CLIPPED=self._recipe.clip is not None,
                    MOMENTUM=bool(self._momenta[part[0]]),
                    NESTEROV=self._recipe.nesterov,
                    BLOCK=_BLOCK,
                    num_warps=8,
                )

    def _tensors(self, names: Sequence[str], gradients: Mapping[str, Tensor]) -> tuple[dict[str, Any], int]:
        """Kernel arguments for the parameters with these `names`, and their total number of blocks."""
        sizes = [self._parameters[name][0].numel() for name in names]
        ends = list(itertools.accumulate(-(-size // _BLOCK) for size in sizes))
        own = [self._parameters[name] for name in names]
        return {
            "gradients": tuple(gradients[name] for name in names),
            "parameters": tuple(own),
            "momenta": tuple((*self._momenta[name], p)[0] for name, p in zip(names, own, strict=True)),
            "masks": tuple(self._masks.get(name, p) for name, p in zip(names, own, strict=True)),
            "copies": tuple(self._copies.get(name, p) for name, p in zip(names, own, strict=True)),
            "firsts": (0, *ends[:-1]),
            "sizes": tuple(sizes),
        }, ends[-1]


def _bits(names: Sequence[str], among: Collection[str]) -> int:
    """Bit i is set if the i-th of `names` is in `among`."""
    return sum((name in among) << i for i, name in enumerate(names))
