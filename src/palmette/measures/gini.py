"""The Gini Index, besides the PQ Index the only common measure with all six properties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palmette.measures.rows import TILE, Rows, as_rows


def gini_index(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""Gini Index of the magnitudes of `w`: 0 when all are equal, larger when sparser.

    .. math:: G(w) = \frac{\sum_{k=1}^{d} (2k - d - 1)\, |w|_{(k)}}{d \sum_k |w|_{(k)}}

    where magnitudes are in ascending order and :math:`d` counts the entries that `kept` marks. Range
    :math:`[0, 1 - 1/d]`; a single non-zero entry reaches the maximum.

    Arguments and result are those of `pq_index`: a slice without a non-zero kept entry, or with a NaN or an
    infinity, gives NaN. No constant is added to the entries.

    >>> import palmette as pm
    >>> pm.gini_index([0, 0, 0, 5])
    0.75
    >>> pm.gini_index([1.0, 2.0, 3.0, 4.0])
    0.25

    Gini 1912; the form is that of Hurley and Rickard 2009, Table I.
    """
    rows, give_back = as_rows(w, dim=dim, kept=kept)
    return give_back(gini_of_rows(rows))


def gini_of_rows(rows: Rows) -> Tensor:
    """Gini Index of each row, float64, NaN where undefined."""
    index = torch.empty(rows.n, dtype=torch.float64)
    tall = max(1, TILE // max(1, rows.width))
    for i in range(0, rows.n, tall):
        index[i : i + tall] = _gini(rows.take(slice(i, i + tall)))
    return index


def _gini(rows: Rows) -> Tensor:
    ordered = _sorted_magnitudes(rows)
    width = ordered.shape[1]
    d = rows.counts().to(rows.device)[:, None]
    total = torch.zeros(rows.n, dtype=torch.float64, device=rows.device)
    spread = torch.zeros_like(total)
    if width == 0:
        return torch.full_like(total, float("nan")).cpu()
    # The weights 2k - d - 1 sum to 0, so any constant may be subtracted; the median avoids cancellation where
    # entries are nearly equal.
    median = ordered.gather(1, (width - (d + 1) // 2).clamp(max=width - 1)).to(torch.float64)
    largest = ordered[:, -1:].to(torch.float64)
    for j in range(0, width, TILE):
        tile = ordered[:, j : j + TILE].to(torch.float64)
        # Entries that are not kept were sorted to the front as zeros: rank <= 0.
        rank = torch.arange(j + 1, j + tile.shape[1] + 1, device=rows.device) - (width - d)
        weight = (2 * rank - d - 1).to(torch.float64).masked_fill_(rank <= 0, 0.0)
        # Subtract before dividing: divided first, entries that differ in the last digit may become equal.
        spread += ((tile - median) / largest * weight).sum(1)
        total += (tile / largest).sum(1)
    index = (spread / d[:, 0] / total).clamp(min=0.0)
    return index.masked_fill_(~(largest[:, 0].isfinite()), float("nan")).cpu()


def _sorted_magnitudes(rows: Rows) -> Tensor:
    parts = []
    for segment, kept in zip(rows.segments, rows.kept, strict=True):
        # abs of the smallest integer overflows, and some devices cannot sort narrow floats.
        narrow = segment.is_floating_point() and segment.element_size() <= 4
        part = segment.to(torch.float32 if narrow else torch.float64).abs()
        parts.append(part if kept is None else part.masked_fill_(~kept, 0))
    matrix = parts[0] if len(parts) == 1 else torch.cat([p.to(rows.device) for p in parts], 1)
    if matrix.device.type == "cpu" and rows.n == 1:
        matrix.numpy().sort(axis=1)  # in place, and without the indices of torch.sort
        return matrix
    return matrix.sort(dim=1).values
