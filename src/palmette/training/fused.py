"""Batches and steps of many members on a CUDA device, each in one pass over its data, with Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """The next `batch` images of each member, M×B×C×H×W, flipped, cropped and looked up; and their labels.

    `table` is what `Preparation` makes of each of the 256 values of a pixel, C×256.
    """
    from palmette.training import kernels

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
    """Add the cross entropy and the number of right answers of each member to `totals`; the slope of its mean."""
    from palmette.training import kernels

    slopes = torch.empty_like(scores)
    if slopes.stride() != scores.stride():  # it has gaps, or shares places
        scores = scores.contiguous()
        slopes = torch.empty_like(scores)
    members, batch, classes = scores.shape
    columns = max(16, 1 << (classes - 1).bit_length())
    with torch.cuda.device(scores.device):
        kernels.losses[(members,)](
            scores,
            answers,
            slopes,
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
    return slopes


class Step:
    """Mask, clip and SGD of stacked parameters, in two passes over the gradients.

    Args:
        parameters: by name, float32, stacked along the first dimension, without gaps.
        copies: of some of them in another dtype, written along.
        momenta: of each, or none.
        masks: uint8, of those that have pruned weights.
        recipe: the numbers of SGD.
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
        # Numbers go to the kernels in a tensor; as arguments each new value would be compiled anew.
        self._numbers = torch.tensor(
            [recipe.weight_decay, recipe.momentum, recipe.clip or 0.0], device=self._device
        )
        self._first, blocks = {}, 0
        for name in parameters:
            self._first[name] = blocks
            blocks += self._grid(name)[1]
        self._sums = torch.zeros(self._members, blocks, device=self._device)
        self._scale = torch.ones(self._members, device=self._device)

    def __call__(self, gradients: Mapping[str, Tensor], rate: Tensor) -> None:
        """Step with `rate`, a number on the device; gradients may be in another dtype."""
        from palmette.training import kernels

        gradients = {name: gradient.contiguous() for name, gradient in gradients.items()}
        with torch.cuda.device(self._device):
            if self._recipe.clip is not None:
                for name, gradient in gradients.items():
                    kernels.squares[self._grid(name)](
                        gradient,
                        self._masks.get(name, gradient),
                        self._sums,
                        gradient[0].numel(),
                        self._first[name],
                        self._sums.shape[1],
                        MASKED=name in self._masks,
                        BLOCK=_BLOCK,
                        num_warps=8,
                    )
                kernels.clipping[(self._members,)](
                    self._sums, self._scale, self._numbers[2:], self._sums.shape[1], BLOCK=256
                )
            for name, gradient in gradients.items():
                parameter, momentum = self._parameters[name], self._momenta[name]
                kernels.sgd[self._grid(name)](
                    gradient,
                    self._masks.get(name, gradient),
                    self._scale,
                    rate,
                    parameter,
                    momentum[0] if momentum else parameter,
                    self._copies.get(name, parameter),
                    self._numbers,
                    gradient[0].numel(),
                    MASKED=name in self._masks,
                    CLIPPED=self._recipe.clip is not None,
                    MOMENTUM=bool(momentum),
                    NESTEROV=self._recipe.nesterov,
                    COPY=name in self._copies,
                    BLOCK=_BLOCK,
                    num_warps=8,
                )

    def _grid(self, name: str) -> tuple[int, int]:
        return self._members, -(-self._parameters[name][0].numel() // _BLOCK)
