"""How many weights each unit may lose. A budget is a plain value; `counting` computes what it asks for.

This module imports no torch: specs, flags and help are made of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from palmette.measures.parameters import as_number, check_eta, check_mass_power, check_pq, setting

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.measures.pq import PowerSums
    from palmette.pruning.counting import CutPlan
    from palmette.pruning.sources.source import Source


class Budget(ABC):
    """How many weights of each row go. The index it reports is measured with `p` and `q`."""

    p: float
    q: float

    @classmethod
    def parameters(cls) -> list[Field[Any]]:
        """The fields that a user may set, in order; a budget of your own need not be a dataclass."""
        return [f for f in fields(cls) if f.init] if is_dataclass(cls) else []

    def __call__(self, rows: Any, kept: Any = None) -> Tensor:
        """Exact counts, int64, one per row: how many of its kept entries go.

        Args:
            rows: a tensor, array or list of numbers: one row per unit, or the entries of a single unit.
            kept: boolean, of the same shape: which entries are still there (all by default).
        """
        from palmette.measures.rows import as_rows, as_tensor
        from palmette.pruning.sources.memory import Memory

        values = as_tensor(rows, "rows")
        if values.dim() not in (1, 2):
            raise ValueError(f"rows must be a matrix or a vector, got shape {tuple(values.shape)}")
        matrix = as_rows(values, name="rows", dim=-1, kept=kept)[0]
        return self.plan(Memory(matrix.segments, matrix.kept)).cut

    def plan(self, source: Source) -> CutPlan:
        """The counts, and the measurements they rest on."""
        from palmette.pruning.counting import plan_of_source

        return plan_of_source(self, source)

    def plan_of_sums(self, sums: PowerSums) -> CutPlan:
        """The same from power sums alone, for a budget that needs no more."""
        from palmette.pruning.counting import plan_of_sums

        return plan_of_sums(self, sums)

    @abstractmethod
    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
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

    >>> Sap(p=1, q=2)([3.0, 4.0, 0.0, 0.0])
    tensor([2])

    Diao et al. 2023, Algorithm 1.
    """

    p: float = setting(
        0.5, "The smaller norm of the PQ Index that guides SAP, 0 < p <= 1.", short="p", in_label=True
    )
    q: float = setting(1.0, "The larger norm, q >= 1.", short="q", in_label=True)
    eta: float = setting(0.0, "Slack of the bound that SAP cuts by, at least 0: larger cuts more.")
    gamma: float = setting(1.0, "Factor on what SAP cuts.")
    beta: float = setting(0.9, "The largest fraction that SAP cuts in a round.")

    def __post_init__(self) -> None:
        check_pq(self.p, self.q)
        check_eta(self.eta)
        if not 0 < as_number(self.gamma) < float("inf"):
            raise ValueError(f"gamma must be above 0 and finite, got gamma={self.gamma!r}")
        if not 0 < as_number(self.beta) <= 1:
            raise ValueError(f"beta must be above 0 and at most 1, got beta={self.beta!r}")

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        from palmette.pruning.counting import count_sap

        return count_sap(self, source, sums)


OF_SAP = tuple(setting.name for setting in fields(Sap))
"""The settings of SAP, as flags and files name them."""


@dataclass(frozen=True)
class FixedRatio(Budget):
    r"""The same fraction in every round: Lottery Ticket and One Shot.

    .. math:: c = \lfloor d \cdot P \rfloor

    Args:
        ratio: :math:`0 \le P \le 1`, taken as the number that was written: 0.29 of 100 is 29, 1/3 of 300 is 100.

    >>> FixedRatio(0.29)([1.0] * 100)
    tensor([29])

    Frankle and Carbin 2019; Diao et al. 2023, Section 4.1 with :math:`P = 0.2`.
    """

    ratio: float = setting(0.2, "The fraction that Lottery Ticket and One Shot cut in each round.", short="r")
    p: float = field(default=0.5, init=False, repr=False)
    q: float = field(default=1.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.ratio) <= 1:
            raise ValueError(f"ratio must be between 0 and 1, got ratio={self.ratio!r}")

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        from palmette.pruning.counting import count_fixed_ratio

        return count_fixed_ratio(self, sums)


@dataclass(frozen=True)
class TailMass(Budget):
    r"""Everything that together weighs at most `eta` times the rest, counted and not bounded.

    .. math:: d - c = \min \Big\{ r : \sum_{i \notin M_r} |w_i|^p \le \eta \sum_{i \in M_r} |w_i|^p \Big\}

    with :math:`M_r` the `r` largest magnitudes: the number that Theorem 2, and so `Sap`, bounds from below.

    Args:
        p: the power that is the mass of a weight, ``0 < p <= 1``; the index is reported at the same `p`.
        eta: how much the tail may weigh, at least 0.

    >>> TailMass(p=1, eta=0.5)([4.0, 1.0, 1.0, 0.0])
    tensor([3])

    Diao et al. 2023, Theorem 2 and Appendix A.
    """

    p: float = setting(0.5, "The power that is the mass of a weight.", short="p", in_label=True)
    eta: float = setting(0.1, "How much the tail may weigh.", short="eta", in_label=True)

    def __post_init__(self) -> None:
        check_mass_power(self.p)
        check_eta(self.eta)

    @property
    def q(self) -> float:  # type: ignore[override]
        """The larger norm of the index that is reported: 1, or 2 when p is 1."""
        return 2.0 if self.p == 1 else 1.0

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        from palmette.pruning.counting import count_tail_mass

        return count_tail_mass(self, source, sums)


def check_budget(budget: Budget) -> None:
    """Raise unless `budget` is one."""
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be one such as Sap() or FixedRatio(0.2), got {budget!r}")
