"""The PQ Index over a grid of p and q, from one power sum per exponent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from palmette.measures.pq import check_pq
from palmette.measures.rows import Rows, as_rows

P_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
Q_GRID = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0)


def pq_map(w: Any, *, p: Sequence[float] = P_GRID, q: Sequence[float] = Q_GRID, kept: Any = None) -> Tensor:
    r"""PQ Index of all entries of `w` for every pair of `p` and `q`: the p–q map of the paper's appendix.

    .. math:: I_{p,q}(w) = 1 - M_p / M_q, \qquad M_s = \Big(\tfrac1d \sum_i |w_i|^s\Big)^{1/s}

    Twenty sums give the paper's 110 values. Where p = q there is none, and NaN stands for it.

    Returns:
        A float64 tensor on the CPU, `len(p)` by `len(q)`.

    >>> pq_map([3.0, 4.0, 0.0, 0.0], p=[0.5, 1.0], q=[1.0, 2.0]).round(decimals=4)
    tensor([[0.5026, 0.6518],
            [   nan, 0.3000]], dtype=torch.float64)

    Diao et al. 2023, Appendix C.1.
    """
    rows, _ = as_rows(w, kept=kept)
    return map_of_rows(rows, p=p, q=q)[0]


def map_of_rows(rows: Rows, *, p: Sequence[float] = P_GRID, q: Sequence[float] = Q_GRID) -> Tensor:
    """The same for each row: a float64 tensor of rows by `len(p)` by `len(q)`."""
    for one in p:
        for other in q:
            if one != other:
                check_pq(one, other)
    exponents = sorted({*map(float, p), *map(float, q)})
    largest = rows.largest()
    scale = torch.where(largest.isfinite() & (largest > 0), largest, 1.0)
    sums = torch.zeros(len(exponents), rows.n, dtype=torch.float64)
    for chosen, tile in rows.tiles():
        tile /= scale[chosen].to(tile.device)[:, None]
        for i, exponent in enumerate(exponents):
            sums[i, chosen] += tile.pow(exponent).sum(1).cpu()
    roots = 1 / torch.tensor(exponents, dtype=torch.float64)
    # Row by row: of a matrix, the last digit of a power depends on how many rows there are.
    means = torch.stack([mean**roots for mean in (sums / rows.counts()).T.contiguous()], 1)
    small = means[[exponents.index(float(x)) for x in p]].T[:, :, None]
    large = means[[exponents.index(float(x)) for x in q]].T[:, None, :]
    index = ((large - small) / large).clamp_min(0.0) + 0.0
    same = torch.tensor([[float(x) == float(y) for y in q] for x in p])
    return index.masked_fill(same, float("nan"))
