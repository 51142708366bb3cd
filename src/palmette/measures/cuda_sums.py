"""Power sums on a CUDA device in one read of the weights, with Triton.

Plain torch would write float64 copies of every tile to memory and read them back. Here a value is loaded once,
and both of its powers are added up in registers. Without CUDA or Triton, `power_sums` uses plain torch.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

_PROGRAMS = 132 * 16  # enough to fill any current device
_MANY = 1 << 20  # from here on 16-bit sums round at about 1e-11, in half the time
_P_KINDS = {0.5: "sqrt", 1.0: "same"}
_Q_KINDS = {1.0: "same", 2.0: "square"}


def usable(matrix: Tensor) -> bool:
    """Whether the kernel can read `matrix`: on CUDA, at most 32 bits, rows without gaps."""
    return (
        matrix.is_cuda
        and matrix.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and matrix.stride(1) == 1
        and matrix.numel() > 0
        and triton_is_there()
    )


@functools.cache
def triton_is_there() -> bool:
    """Whether kernels can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def power_sums(matrix: Tensor, kept: Tensor | None, p: float, q: float) -> Tensor:
    """Sum of |w|^p (first) and of |w|^q (second) over the kept entries of each row, float64."""
    from palmette.measures import sum_kernels as kernels

    n, width = matrix.shape
    # Fastest on an H200; `benchmarks/` has the figures.
    block, blocks, warps = 1024, 4, 8
    if width < block * blocks:
        block, blocks, warps = max(64, min(1024, 1 << (width - 1).bit_length())), 1, 4
    kinds = _P_KINDS.get(p, "power"), _Q_KINDS.get(q, "power")
    chunks = min(-(-width // (block * blocks)), max(1, _PROGRAMS // n))
    sums = torch.empty(2, n, chunks, dtype=torch.float64, device=matrix.device)
    powers = torch.tensor([p, q], dtype=torch.float64, device=matrix.device) if "power" in kinds else sums
    with torch.cuda.device(matrix.device):
        kernels.power_sums[(n * chunks,)](
            matrix,
            matrix if kept is None else kept.contiguous().view(torch.uint8),
            powers,
            sums,
            width,
            matrix.stride(0),
            chunks,
            n * chunks,
            P=kinds[0],
            Q=kinds[1],
            NARROW=matrix.element_size() == 2 and width >= _MANY,
            MASKED=kept is not None,
            BLOCK=block,
            BLOCKS=blocks,
            num_warps=warps,
        )
    return sums.sum(2)
