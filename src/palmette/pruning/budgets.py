"""How many weights each unit may lose. A budget is a value: rows and what is kept go in, exact counts come out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from palmette.measures.bound import check_eta, check_mass_power, droppable, ordered_mass
from palmette.measures.exact import exact_power_sums, powers
from palmette.measures.pq import PowerSums, check_pq, index_from_sums, power_sums
from palmette.measures.rows import TILE, Rows, as_number, as_rows, as_tensor


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


class Budget(ABC):
    """How many weights of each row go. The index it reports is measured with `p` and `q`."""

    p: float
    q: float

    def __call__(self, rows: Any, kept: Any = None) -> Tensor:
        """Exact counts, int64, one per row: how many of its kept entries go.

        Args:
            rows: a tensor, array or list of numbers: one row per unit, or the entries of a single one.
            kept: boolean, of the same shape: which entries are still there (all by default).
        """
        values = as_tensor(rows, "rows")
        if values.dim() not in (1, 2):
            raise ValueError(f"rows must be a matrix or a vector, got shape {tuple(values.shape)}")
        return self.plan(as_rows(values, name="rows", dim=-1, kept=kept)[0]).cut

    def plan(self, rows: Rows) -> CutPlan:
        """The counts, and the measurements they rest on."""
        sums = power_sums(rows, p=float(self.p), q=float(self.q))
        return CutPlan.of(sums, index_from_sums(rows, sums), *self._count(rows, sums))

    def plan_of_sums(self, sums: PowerSums) -> CutPlan:
        """The same of weights that are not at hand as a whole, for a budget that asks for no more than sums."""
        return CutPlan.of(sums, sums.index(), *self._count(Rows((), ()), sums))

    @abstractmethod
    def _count(self, rows: Rows, sums: PowerSums) -> tuple[Tensor, Tensor]:
        """(how many to keep, how many go) for each row."""


@dataclass(frozen=True)
class Sap(Budget):
    r"""Sparsity-informed Adaptive Pruning: the index itself says how many weights may go.

    .. math:: c = \lfloor d \cdot \min(\gamma (1 - r/d), \beta) \rfloor, \qquad
              r = d\,(1+\eta_r)^{-q/(q-p)}\,[1 - I_{p,q}(w)]^{qp/(q-p)}

    At ``p=0.5, q=1, eta=0, gamma=1`` the fraction pruned is the PQ Index itself.

    Args:
        p, q: the norms of the index, ``0 < p <= 1 <= q`` and ``p != q``.
        eta: :math:`\eta_r \ge 0`; larger prunes more.
        gamma: :math:`\gamma > 0`; above 1 prunes more than the bound says, below 1 less.
        beta: :math:`0 < \beta \le 1`, the largest fraction that may go at once.

    >>> Sap(p=1, q=2)(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    tensor([2])

    Diao et al. 2023, Algorithm 1.
    """

    p: float = 0.5
    q: float = 1.0
    eta: float = 0.0
    gamma: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_pq(self.p, self.q)
        check_eta(self.eta)
        if not 0 < as_number(self.gamma) < float("inf"):
            raise ValueError(f"gamma must be above 0 and finite, got gamma={self.gamma!r}")
        if not 0 < as_number(self.beta) <= 1:
            raise ValueError(f"beta must be above 0 and at most 1, got beta={self.beta!r}")

    def _count(self, rows: Rows, sums: PowerSums) -> tuple[Tensor, Tensor]:
        size, retained = sums.d.to(torch.float64), self._retained(sums)
        # Sums round, in another way in each order. Where that could move a count, they are summed exactly.
        noise = 2 * self._power * (_roundings(rows) + 8) * torch.finfo(torch.float64).eps
        limit = _share(sums.d, self.beta)
        least, most = (self._cut(retained * (1 + sign * noise), size, limit)[1] for sign in (1, -1))
        in_doubt = (least != most) & (sums.p_sum > 0)
        if rows.segments and bool(in_doubt.any()):
            retained[in_doubt] = self._retained(exact_power_sums(rows.take(in_doubt), p=sums.p, q=sums.q))
        return self._cut(retained, size, limit)

    @property
    def _power(self) -> float:
        return float(self.q) / (float(self.q) - float(self.p))

    def _retained(self, sums: PowerSums) -> Tensor:
        """The r of the formula, powers of d cancelled: at a small p, 1 - I has few digits left."""
        p, q, eta = (float(x) for x in (self.p, self.q, self.eta))
        return sums.p_sum * powers(sums.p_sum / sums.q_sum, p / (q - p)) * math.pow(1 + eta, -self._power)

    def _cut(self, retained: Tensor, size: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        retained = torch.minimum(_whole_if_near(retained, size * self._power), size)
        wanted = _whole_if_near(float(self.gamma) * (size - retained), float(self.gamma) * size)
        return retained, torch.where(wanted < limit, wanted.floor(), limit).to(torch.int64)


OF_SAP = tuple(setting.name for setting in fields(Sap))
"""The settings of SAP, as flags and files name them."""


@dataclass(frozen=True)
class FixedRatio(Budget):
    r"""The same fraction in every round: Lottery Ticket and One Shot.

    .. math:: c = \lfloor d \cdot P \rfloor

    Args:
        ratio: :math:`0 \le P \le 1`, taken as the number that was written: 0.29 of 100 is 29, 1/3 of 300 is 100.

    >>> FixedRatio(0.29)(torch.ones(100))
    tensor([29])

    Frankle and Carbin 2019; Diao et al. 2023, Section 4.1 with :math:`P = 0.2`.
    """

    ratio: float = 0.2
    p: float = field(default=0.5, init=False, repr=False)
    q: float = field(default=1.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.ratio) <= 1:
            raise ValueError(f"ratio must be between 0 and 1, got ratio={self.ratio!r}")

    def _count(self, rows: Rows, sums: PowerSums) -> tuple[Tensor, Tensor]:
        cut = _share(sums.d, self.ratio)
        return (sums.d - cut).to(torch.float64), cut


@dataclass(frozen=True)
class TailMass(Budget):
    r"""Everything that together weighs at most `eta` times the rest, counted and not bounded.

    .. math:: d - c = \min \Big\{ r : \sum_{i \notin M_r} |w_i|^p \le \eta \sum_{i \in M_r} |w_i|^p \Big\}

    with :math:`M_r` the `r` largest magnitudes: the number that Theorem 2, and so `Sap`, bounds from below.
    The rows are sorted, one at a time.

    Args:
        p: the power that is the mass of a weight, ``0 < p <= 1``; the index is reported at the same `p`.
        eta: how much the tail may weigh, at least 0.

    >>> TailMass(p=1, eta=0.5)(torch.tensor([4.0, 1.0, 1.0, 0.0]))
    tensor([3])

    Diao et al. 2023, Theorem 2 and Appendix A.
    """

    p: float = 0.5
    eta: float = 0.1

    def __post_init__(self) -> None:
        check_mass_power(self.p)
        check_eta(self.eta)

    @property
    def q(self) -> float:  # type: ignore[override]
        """The larger norm of the index that is reported: 1, or 2 when p is 1."""
        return 2.0 if self.p == 1 else 1.0

    def _count(self, rows: Rows, sums: PowerSums) -> tuple[Tensor, Tensor]:
        cut = torch.zeros_like(sums.d)
        for i in range(rows.n):
            row = rows.part(slice(i, i + 1))
            kept = [s[0] if k is None else s[0][k[0]] for s, k in zip(row.segments, row.kept, strict=True)]
            mass = ordered_mass(torch.cat([k.to(rows.device, torch.float64).abs() for k in kept]), float(self.p))
            cut[i] = droppable(mass.cumsum(0), mass, float(self.eta))
        return (sums.d - cut).to(torch.float64), cut


def check_budget(budget: Budget) -> None:
    """Raise unless `budget` is one."""
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be one such as Sap() or FixedRatio(0.2), got {budget!r}")


def _share(d: Tensor, share: float) -> Tensor:
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
