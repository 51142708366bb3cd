"""The PQ Index over a grid of p and q, from one power sum per exponent."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.measures.rows import Rows

P_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
Q_GRID = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0)


def map_of_rows(rows: Rows) -> Tensor:
    r"""PQ Index of each row for every pair of p and q: the p–q map of the paper's appendix.

    .. math:: I_{p,q}(w) = 1 - M_p / M_q, \qquad M_s = \Big(\tfrac1d \sum_i |w_i|^s\Big)^{1/s}

    Twenty sums give the paper's 110 values. The index is undefined for p = q and NaN there.

    Returns:
        A float64 tensor on the CPU of shape rows × `P_GRID` × `Q_GRID`.

    >>> map_of_rows(Rows.of(torch.tensor([[3.0, 4.0, 0.0, 0.0]])))[0, -1, -1]  # p = 1, q = 2
    tensor(0.3000, dtype=torch.float64)

    Diao et al. 2023, Appendix C.1.
    """
    exponents = sorted({*P_GRID, *Q_GRID})
    largest = rows.largest()
    scale = torch.where(largest.isfinite() & (largest > 0), largest, 1.0)
    sums = torch.zeros(len(exponents), rows.n, dtype=torch.float64)
    for chosen, tile in rows.tiles():
        tile /= scale[chosen].to(tile.device)[:, None]
        for i, exponent in enumerate(exponents):
            sums[i, chosen] += tile.pow(exponent).sum(1).cpu()
    roots = 1 / torch.tensor(exponents, dtype=torch.float64)
    # Row by row: the last digit of a power of a matrix depends on the number of rows.
    means = torch.stack([mean**roots for mean in (sums / rows.counts()).T.contiguous()], 1)
    small = means[: len(P_GRID)].T[:, :, None]
    large = means[-len(Q_GRID) :].T[:, None, :]
    index = ((large - small) / large).clamp_min(0.0) + 0.0
    index[:, -1, 0] = float("nan")  # p = q = 1
    return index
