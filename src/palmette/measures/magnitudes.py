"""Slices as one matrix of float64 magnitudes, for measures that may copy all entries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from palmette.measures.rows import as_rows


def measured(w: Any, dim: int | None, kept: Any, core: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Result of `core` for each slice, from its float64 magnitudes (0 if not kept) and which entries are kept."""
    rows, give_back = as_rows(w, dim=dim, kept=kept)
    matrix, mask = rows.segments[0], rows.kept[0]
    if mask is None:
        mask = torch.ones_like(matrix, dtype=torch.bool)
    c = matrix.to(torch.float64).abs().masked_fill(~mask, 0.0)
    if c.shape[1] == 0:
        return give_back(c.new_full((len(c),), math.nan))
    defined = mask.any(1) & c.isfinite().all(1)
    # + 0.0: the negative of an empty sum is 0, not -0.
    return give_back(core(c, mask).masked_fill(~defined, math.nan) + 0.0)


def scaled(c: Tensor) -> Tensor:
    """Each row divided by its largest magnitude, so that no power overflows; a row of zeros becomes NaN."""
    return c / c.amax(1, keepdim=True)
