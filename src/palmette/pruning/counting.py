"""The result of a budget, and exact counts of shares and of SAP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from palmette.measures.exact import exact_power_sums, powers
from palmette.measures.pq import PowerSums

if TYPE_CHECKING:
    from palmette.pruning.budgets import Sap
    from palmette.pruning.sources.source import Source


@dataclass(frozen=True)
class CutPlan:
    """Measurements and counts of a budget, one entry per unit.

    Args:
        sums: power sums of the weights, including `d`, the number of kept entries.
        index: PQ Index, NaN where undefined.
        retained: number of weights to keep, not rounded: Algorithm 1's :math:`r_t` for SAP.
        cut: number of weights to prune, int64.
    """

    sums: PowerSums
    index: Tensor
    retained: Tensor
    cut: Tensor

    @staticmethod
    def of(sums: PowerSums, index: Tensor, retained: Tensor, cut: Tensor) -> CutPlan:
        """Plan that prunes nothing in a unit without an index."""
        return CutPlan(sums, index, retained, torch.where(index.isnan(), 0, cut))


def count_sap(budget: Sap, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
    """r and c of Algorithm 1 for each unit."""
    size, retained, limit = sums.d.to(torch.float64), _retained(budget, sums), share(sums.d, budget.beta)
    if source is not None:
        # Rounding depends on the order of summation; where it could change a count, sum exactly.
        noise = 2 * _power(budget) * (source.rounding + 8) * torch.finfo(torch.float64).eps
        least, most = (_sap_cut(budget, retained * (1 + sign * noise), size, limit)[1] for sign in (1, -1))
        in_doubt = (least != most) & (sums.p_sum > 0)
        if bool(in_doubt.any()) and (again := source.rounded(in_doubt)) is not None:
            retained[in_doubt] = _retained(budget, exact_power_sums(again, p=sums.p, q=sums.q))
    return _sap_cut(budget, retained, size, limit)


def _power(budget: Sap) -> float:
    return float(budget.q) / (float(budget.q) - float(budget.p))


def _retained(budget: Sap, sums: PowerSums) -> Tensor:
    """r of the formula with powers of d cancelled, since 1 - I loses digits at a small p."""
    p, q, eta = (float(x) for x in (budget.p, budget.q, budget.eta))
    return sums.p_sum * powers(sums.p_sum / sums.q_sum, p / (q - p)) * math.pow(1 + eta, -_power(budget))


def _sap_cut(budget: Sap, retained: Tensor, size: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    retained = torch.minimum(_whole_if_near(retained, size * _power(budget)), size)
    gamma = float(budget.gamma)
    wanted = _whole_if_near(gamma * (size - retained), gamma * size)
    return retained, torch.where(wanted < limit, wanted.floor(), limit).to(torch.int64)


def share(d: Tensor, share: float) -> Tensor:
    """floor(d * share), exact for `share` as a decimal or fraction as written."""
    exact = _as_written(float(share))
    sizes, where = torch.unique(d, return_inverse=True)
    counts = [size * exact.numerator // exact.denominator for size in sizes.tolist()]
    return torch.tensor(counts, dtype=torch.int64, device=d.device)[where]


@lru_cache
def _as_written(share: float) -> Fraction:
    exact = Fraction(share).limit_denominator(1_000_000)
    return exact if float(exact) == share else Fraction(str(share))


def _whole_if_near(x: Tensor, size: Tensor) -> Tensor:
    """`x`, snapped to the nearest integer if it differs only by rounding at the given size.

    A one-hot row of 49 entries at p=.5, q=1 loses 48: in float64, 49 * (1 - 1/49) may come out as 47.99….
    """
    whole = x.round()
    return torch.where((x - whole).abs() <= 16 * torch.finfo(torch.float64).eps * size, whole, x)
