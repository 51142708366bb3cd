"""Convolutions on a GPU, with batch norm, ReLU and max-pool fused into as few passes as possible.

A pass over a feature map takes as long as a convolution. Between two convolutions, compiled torch makes eight
passes forward and backward; here there are four, and the map is stored once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from palmette.training.linear import identity, is_used_once

_FEW_CHANNELS = 4  # of images; libraries are slow for so few
_TILE, _COLUMNS = 64, 64  # block of a feature map that a program reads
_PARTS, _FEW = 512, 8  # partial sums, and channels, that a program adds up


def fuse_convolutions(skeleton: nn.Module) -> bool:
    """Fuse convolutions of `skeleton` with the layers that follow them; return whether there are any.

    Afterwards, `skeleton` works only in training mode on a CUDA device with Triton.
    """
    found = False
    for module in skeleton.modules():
        if type(module) is nn.Conv2d and _is_plain(module) and module.in_channels <= _FEW_CHANNELS:
            module.forward = functools.partial(_convolve, module, with_bias=True)  # type: ignore[method-assign]
            found = True
    for module in skeleton.modules():
        children = [*module, None] if type(module) is nn.Sequential else []
        for conv, norm, relu, pool in zip(children, children[1:], children[2:], children[3:], strict=False):
            if not (type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and type(relu) is nn.ReLU):
                continue
            if not (norm.affine and norm.track_running_stats and norm.momentum is not None):
                continue
            pooled = type(pool) is nn.MaxPool2d and _halves(pool)
            if not is_used_once(skeleton, conv, norm, relu, *([pool] if pooled else [])):
                continue
            conv.forward = functools.partial(_convolve, conv, with_bias=False)  # type: ignore[method-assign]
            norm.forward = functools.partial(_normalise, conv, norm, 2 if pooled else 1)  # type: ignore[method-assign]
            for passed in (relu, pool) if pooled else (relu,):
                passed.forward = identity  # type: ignore[method-assign]
            found = True
    return found


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether `conv` is 3×3 with stride 1 and zero padding of 1."""
    usual = conv.kernel_size == (3, 3) and conv.stride == conv.dilation == (1, 1) and conv.groups == 1
    return usual and conv.padding in ((1, 1), "same") and conv.padding_mode == "zeros"


def _halves(pool: nn.MaxPool2d) -> bool:
    rules = ((pool.kernel_size, 2), (pool.stride, 2), (pool.padding, 0), (pool.dilation, 1))
    usual = all(value in (number, (number, number)) for value, number in rules)
    return usual and not pool.ceil_mode and not pool.return_indices


def _convolve(conv: nn.Conv2d, x: Tensor, *, with_bias: bool) -> Tensor:
    bias = conv.bias if with_bias else None
    if not (_is_plain(conv) and x.shape[1] <= _FEW_CHANNELS and not x.requires_grad):
        usual: Tensor = conv._conv_forward(x, conv.weight, bias)
        return usual
    weight = conv.weight
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    out: Tensor = _ImageConvolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias.to(out.dtype)[:, None, None]


def _normalise(conv: nn.Conv2d, norm: nn.BatchNorm2d, pool: int, z: Tensor) -> Tensor:
    z = z.contiguous(memory_format=torch.channels_last)
    state = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    out: Tensor = _NormReluPool.apply(  # type: ignore[no-untyped-call]
        z, norm.weight, norm.bias, conv.bias, *state, norm.momentum, norm.eps, pool
    )
    return out


class _ImageConvolution(torch.autograd.Function):
    """3×3 convolution of images with few channels as one matrix product; images need no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        from palmette.training.gpu import convolution_kernels as kernels

        x = x.contiguous(memory_format=torch.channels_last)
        count, channels, height, width = x.shape
        rows, wide = count * height * width, 1 << (9 * channels - 1).bit_length()
        columns = x.new_empty(rows, wide)
        with torch.cuda.device(x.device):
            kernels.columns[(-(-rows // _TILE),)](
                x, columns, rows, height, width, CHANNELS=channels, WIDTH=wide, ROWS=_TILE
            )
        flat = functional.pad(weight.permute(0, 2, 3, 1).reshape(len(weight), -1), (0, wide - 9 * channels))
        ctx.save_for_backward(columns)
        ctx.shape = weight.shape
        return (columns @ flat.T).view(count, height, width, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[None, Tensor]:
        (columns,) = ctx.saved_tensors
        out, channels = ctx.shape[:2]
        rows = gradients.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).reshape(-1, out)
        found = (rows.T @ columns)[:, : 9 * channels]
        return None, found.reshape(out, 3, 3, channels).permute(0, 3, 1, 2)


class _NormReluPool(torch.autograd.Function):
    """Batch norm, ReLU and max-pool of 2×2 or 1×1 windows.

    The bias of the preceding convolution is not added, since the norm subtracts the mean: it changes the running
    mean only, and its gradient is zero.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        weight: Tensor,
        shift: Tensor,
        bias: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        tracked: Tensor,
        momentum: float,
        eps: float,
        pool: int,
    ) -> Tensor:
        from palmette.training.gpu import convolution_kernels as kernels

        count, channels, height, width = z.shape
        pixels, down, across = count * height * width, height // pool, width // pool
        blocks = -(-channels // _COLUMNS)
        chunk, parts = _chunks(pixels, blocks)
        means, squares = z.new_empty(2, parts, channels, dtype=torch.float32)
        found = z.new_empty(4, channels, dtype=torch.float32)
        out = torch.empty(
            (count, channels, down, across), dtype=z.dtype, device=z.device, memory_format=torch.channels_last
        )
        with torch.cuda.device(z.device):
            kernels.statistics[(parts, blocks)](
                z, means, squares, pixels, channels, chunk, ROWS=_TILE, COLUMNS=_COLUMNS
            )
            kernels.normalisation[(-(-channels // _FEW),)](
                means,
                squares,
                weight,
                shift,
                weight if bias is None else bias,
                running_mean,
                running_var,
                tracked,
                found,
                pixels,
                channels,
                chunk,
                parts,
                momentum,
                eps,
                BIAS=bias is not None,
                PARTS=_PARTS,
                COLUMNS=_FEW,
                num_warps=8,
            )
            rows, tile = count * down * across, _TILE // pool
            tops = torch.empty_like(out) if pool > 1 else z
            kernels.rectified[(-(-rows // tile), blocks)](
                z,
                found,
                out,
                tops,
                rows,
                channels,
                down,
                across,
                height,
                width,
                POOL=pool,
                ROWS=tile,
                COLUMNS=_COLUMNS,
            )
        ctx.save_for_backward(z, tops, found)
        ctx.pool, ctx.bias = pool, None if bias is None else torch.zeros_like(bias)
        return out

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        from palmette.training.gpu import convolution_kernels as kernels

        z, tops, found = ctx.saved_tensors
        pool = ctx.pool
        gradients = gradients.contiguous(memory_format=torch.channels_last)
        count, channels, height, width = z.shape
        down, across = gradients.shape[2:]
        blocks, rows, tile = -(-channels // _COLUMNS), count * down * across, _TILE // pool
        chunk, parts = _chunks(rows, blocks)
        sums, products = z.new_empty(2, parts, channels, dtype=torch.float32)
        both = z.new_empty(2, channels, dtype=torch.float32)
        of_z = torch.empty_like(z, memory_format=torch.channels_last)
        with torch.cuda.device(z.device):
            kernels.gradient_sums[(parts, blocks)](
                tops, gradients, found, sums, products, rows, channels, chunk, ROWS=_TILE, COLUMNS=_COLUMNS
            )
            kernels.sums_of_parts[(-(-channels // _FEW),)](
                sums, products, both, channels, parts, PARTS=_PARTS, COLUMNS=_FEW, num_warps=8
            )
            all_down, all_across = -(-height // pool), -(-width // pool)
            windows = count * all_down * all_across
            kernels.input_gradients[(-(-windows // tile), blocks)](
                z,
                gradients,
                found,
                both,
                of_z,
                count * height * width,
                windows,
                channels,
                all_down,
                all_across,
                down,
                across,
                height,
                width,
                POOL=pool,
                ROWS=tile,
                COLUMNS=_COLUMNS,
            )
        return of_z, both[1], both[0], ctx.bias, *(None,) * 6


def _chunks(rows: int, blocks: int) -> tuple[int, int]:
    """Rows per program, and the number of programs: enough to keep the device busy."""
    chunk = _TILE * max(1, -(-rows * blocks // (_PARTS * _TILE)))
    return chunk, -(-rows // chunk)
