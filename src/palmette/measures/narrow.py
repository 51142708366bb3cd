"""Power sums of 16-bit rows on a CPU, fast enough to keep up with a disk where two or three cores are free.

A root in float64 takes longer than all the rest together. In float32 it takes a tenth of that, and is off by no
more than a known share; whoever needs to know more looks again at the few rows where that matters.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from palmette.measures.pq import PowerSums
from palmette.measures.rows import Rows, cut_into_tiles

_ROOT_ERROR = 2.0**-23  # of a float32 root, rounded, relative; twice of what it can be
_WIDEST = 1 << 16  # of longer rows, too many would be looked at again


def narrow_power_sums(matrix: Tensor, *, p: float, q: float) -> tuple[PowerSums, float]:
    r"""The power sums of each row of bfloat16 or float16, and by what share `p_sum` may be off at most.

    Args:
        matrix: finite numbers.
        p, q: the powers, ``q <= 2``.

    >>> sums, share = narrow_power_sums(torch.tensor([[4.0, -9.0]], dtype=torch.bfloat16), p=0.5, q=1)
    >>> sums.p_sum, sums.q_sum
    (tensor([5.], dtype=torch.float64), tensor([13.], dtype=torch.float64))
    """
    n, width = matrix.shape
    quick = p == 0.5 and width <= _WIDEST
    p_sum, q_sum = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for rows, columns in cut_into_tiles(matrix):
        tile = matrix[rows, columns]
        q_sum[rows] += _summed(tile, q)
        p_sum[rows] += tile.float().abs_().sqrt_().double().sum(1) if quick else _summed(tile, p)
    ones = torch.ones(n, dtype=torch.float64)
    d = torch.full((n,), width, dtype=torch.int64)
    return PowerSums(d, ones, p_sum, q_sum, p, q), _ROOT_ERROR if quick else 0.0


def _summed(tile: Tensor, power: float) -> Tensor:
    if power == 1:
        return tile.double().abs_().sum(1)
    keys = (tile.contiguous().view(torch.int16) & 0x7FFF).reshape(-1).to(torch.int32)
    return _powers(tile.dtype, power).index_select(0, keys).reshape(tile.shape).sum(1)


@functools.lru_cache(maxsize=8)
def _powers(dtype: torch.dtype, power: float) -> Tensor:
    """Every magnitude to this power."""
    return torch.arange(1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).double().pow(power)


def exact_where(unsure: Tensor, matrix: Tensor, sums: PowerSums) -> PowerSums:
    """The same sums, with those of the rows that are `unsure` taken in float64."""
    from palmette.measures.pq import power_sums

    again = power_sums(Rows.of(matrix[unsure]), p=sums.p, q=sums.q)
    p_sum, q_sum = sums.p_sum.clone(), sums.q_sum.clone()
    p_sum[unsure], q_sum[unsure] = again.p_sum, again.q_sum
    return PowerSums(sums.d, sums.scale, p_sum, q_sum, sums.p, sums.q)
