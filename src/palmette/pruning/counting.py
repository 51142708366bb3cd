"""How budgets count: rows and their power sums go in, exact counts come out. See `budgets` for what each means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from palmette.measures.bound import droppable, ordered_mass
from palmette.measures.exact import exact_power_sums, powers
from palmette.measures.pq import PowerSums, index_from_sums, power_sums
from palmette.measures.rows import TILE, Rows

if TYPE_CHECKING:
    from palmette.pruning.budgets import Budget, FixedRatio, Sap, TailMass


@dataclass(frozen=True)
class CutPlan:
    """What a budget found out about each row.

    Args:
        sums: the power sums of the weights, with `d`, the entries still kept.
        index: PQ Index, NaN where a row has none.
        retained: how many the budget wants to keep, not rounded: Algorithm 1's :math:`r_t` for SAP.
        cut: how many go, int64.
    """

    sums: PowerSums
    index: Tensor
    retained: Tensor
    cut: Tensor

    @staticmethod
    def of(sums: PowerSums, index: Tensor, retained: Tensor, cut: Tensor) -> CutPlan:
        """A plan by which a row without an index loses nothing."""
        return CutPlan(sums, index, retained, torch.where(index.isnan(), 0, cut))


def plan_of_rows(budget: Budget, rows: Rows) -> CutPlan:
    """What `budget` decides about each row, and the measurements it rests on."""
    sums = power_sums(rows, p=float(budget.p), q=float(budget.q))
    return CutPlan.of(sums, index_from_sums(rows, sums), *budget._count(rows, sums))


def plan_of_sums(budget: Budget, sums: PowerSums) -> CutPlan:
    """The same from power sums alone, for a budget that needs no more."""
    return CutPlan.of(sums, sums.index(), *budget._count(Rows((), ()), sums))


def count_sap(budget: Sap, rows: Rows, sums: PowerSums) -> tuple[Tensor, Tensor]:
    """Algorithm 1, (r, c) of each row."""
    size, retained, power = sums.d.to(torch.float64), _retained(budget, sums), _power(budget)
    # Sums round, in another way in each order. Where that could move a count, they are summed exactly.
    noise = 2 * power * (_roundings(rows) + 8) * torch.finfo(torch.float64).eps
    limit = share(sums.d, budget.beta)
    least, most = (_sap_cut(budget, retained * (1 + sign * noise), size, limit)[1] for sign in (1, -1))
    in_doubt = (least != most) & (sums.p_sum > 0)
    if rows.segments and bool(in_doubt.any()):
        retained[in_doubt] = _retained(budget, exact_power_sums(rows.take(in_doubt), p=sums.p, q=sums.q))
    return _sap_cut(budget, retained, size, limit)


def count_fixed_ratio(budget: FixedRatio, sums: PowerSums) -> tuple[Tensor, Tensor]:
    """The same share of each row."""
    cut = share(sums.d, budget.ratio)
    return (sums.d - cut).to(torch.float64), cut


def count_tail_mass(budget: TailMass, rows: Rows, sums: PowerSums) -> tuple[Tensor, Tensor]:
    """Sort each row and count the tail, one row at a time."""
    cut = torch.zeros_like(sums.d)
    for i in range(rows.n):
        row = rows.part(slice(i, i + 1))
        kept = [s[0] if k is None else s[0][k[0]] for s, k in zip(row.segments, row.kept, strict=True)]
        mass = ordered_mass(torch.cat([k.to(rows.device, torch.float64).abs() for k in kept]), float(budget.p))
        cut[i] = droppable(mass.cumsum(0), mass, float(budget.eta))
    return (sums.d - cut).to(torch.float64), cut


def _power(budget: Sap) -> float:
    return float(budget.q) / (float(budget.q) - float(budget.p))


def _retained(budget: Sap, sums: PowerSums) -> Tensor:
    """The r of the formula, powers of d cancelled: at a small p, 1 - I has few digits left."""
    p, q, eta = (float(x) for x in (budget.p, budget.q, budget.eta))
    return sums.p_sum * powers(sums.p_sum / sums.q_sum, p / (q - p)) * math.pow(1 + eta, -_power(budget))


def _sap_cut(budget: Sap, retained: Tensor, size: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    retained = torch.minimum(_whole_if_near(retained, size * _power(budget)), size)
    gamma = float(budget.gamma)
    wanted = _whole_if_near(gamma * (size - retained), gamma * size)
    return retained, torch.where(wanted < limit, wanted.floor(), limit).to(torch.int64)


def share(d: Tensor, share: float) -> Tensor:
    """floor(d * share), exactly, with `share` as the fraction or decimal that a person wrote."""
    share = float(share)
    exact = Fraction(share).limit_denominator(1_000_000)
    if float(exact) != share:
        exact = Fraction(str(share))
    sizes, where = torch.unique(d, return_inverse=True)
    counts = [size * exact.numerator // exact.denominator for size in sizes.tolist()]
    return torch.tensor(counts, dtype=torch.int64, device=d.device)[where]


def _whole_if_near(x: Tensor, size: Tensor) -> Tensor:
    """`x`, or the whole number that it is but for the rounding of numbers of the given size.

    A one-hot row of 49 entries at p=.5, q=1 loses 48: in float64, 49 * (1 - 1/49) may come out as 47.99….
    """
    whole = x.round()
    return torch.where((x - whole).abs() <= 16 * torch.finfo(torch.float64).eps * size, whole, x)


def _roundings(rows: Rows) -> float:
    """How many roundings in their last digit the sums of rows may be off by, at most."""
    if any(s.is_cuda for s in rows.segments):
        return 1e-11 / torch.finfo(torch.float64).eps  # see `pq_index`
    # torch adds up a tile in a few hundred parallel chains, and the tiles one after another.
    width = sum(s.shape[1] for s in rows.segments)
    return min(width, 512) + width / TILE + len(rows.segments)
