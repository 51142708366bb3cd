"""Budgets: how many weights to prune in each unit. A budget is a plain value.

This module imports no torch, so that specs, flags and help texts can be built from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from palmette.measures.parameters import as_number, check_eta, check_mass_power, check_pq, setting

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.measures.pq import PowerSums
    from palmette.pruning.counting import CutPlan
    from palmette.pruning.sources.source import Source


class Budget(ABC):
    """Number of weights to prune in each row. `p` and `q` are the norms of the reported index."""

    p: float = 0.5
    q: float = 1.0

    @classmethod
    def parameters(cls) -> list[Field[Any]]:
        """Fields that a user may set, in order; a custom budget need not be a dataclass."""
        return list(fields(cls)) if is_dataclass(cls) else []

    def __call__(self, rows: Any, kept: Any = None) -> Tensor:
        """Exact number of kept entries to prune in each row, int64.

        Args:
            rows: a tensor, array or list of numbers: one row per unit, or the entries of a single unit.
            kept: boolean mask of the same shape; all entries are kept by default.
        """
        from palmette.measures.rows import as_rows, as_tensor
        from palmette.pruning.sources.memory import Memory

        values = as_tensor(rows, "rows")
        if values.dim() not in (1, 2):
            raise ValueError(f"rows must be a matrix or a vector, got shape {tuple(values.shape)}")
        matrix = as_rows(values, name="rows", dim=-1, kept=kept)[0]
        return self.plan(Memory(matrix.segments, matrix.kept)).cut

    def plan(self, source: Source) -> CutPlan:
        """Counts of each unit, with the measurements behind them."""
        from palmette.pruning.counting import CutPlan

        sums = source.power_sums(p=float(self.p), q=float(self.q))
        return CutPlan.of(sums, source.index(sums), *self._count(source, sums))

    def plan_of_sums(self, sums: PowerSums) -> CutPlan:
        """Plan from power sums alone, for budgets that need nothing else."""
        from palmette.pruning.counting import CutPlan

        return CutPlan.of(sums, sums.index(), *self._count(None, sums))

    @abstractmethod
    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        """(number to keep, number to prune) for each row."""


@dataclass(frozen=True)
class Sap(Budget):
    r"""Sparsity-informed Adaptive Pruning: the PQ Index decides how many weights to prune.

    .. math:: c = \lfloor d \cdot \min(\gamma (1 - r/d), \beta) \rfloor, \qquad
              r = d\,(1+\eta_r)^{-q/(q-p)}\,[1 - I_{p,q}(w)]^{qp/(q-p)}

    At ``p=0.5, q=1, eta=0, gamma=1`` the fraction pruned is the PQ Index itself.

    Args:
        p, q: the norms of the index, ``0 < p <= 1 <= q`` and ``p != q``.
        eta: :math:`\eta_r \ge 0`; larger prunes more.
        gamma: :math:`\gamma > 0`; above 1 prunes more than the bound allows, below 1 less.
        beta: :math:`0 < \beta \le 1`, the largest fraction pruned in one round.

    >>> import palmette as pm
    >>> pm.Sap(p=1, q=2)([3.0, 4.0, 0.0, 0.0])
    tensor([2])

    Diao et al. 2023, Algorithm 1.
    """

    p: float = setting(
        0.5, "The smaller norm of the PQ Index that guides SAP, 0 < p <= 1.", short="p", in_label=True
    )
    q: float = setting(1.0, "The larger norm, q >= 1.", short="q", in_label=True)
    eta: float = setting(0.0, "Slack of the bound that SAP uses, at least 0: larger cuts more.")
    gamma: float = setting(1.0, "Factor on the fraction that SAP cuts.")
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
"""Names of SAP's settings in flags and files."""


@dataclass(frozen=True)
class FixedRatio(Budget):
    r"""The same fraction in every round, as in Lottery Ticket and One Shot.

    .. math:: c = \lfloor d \cdot P \rfloor

    Args:
        ratio: :math:`0 \le P \le 1`, read as written: 0.29 of 100 is 29, 1/3 of 300 is 100.

    >>> import palmette as pm
    >>> pm.FixedRatio(0.29)([1.0] * 100)
    tensor([29])

    Frankle and Carbin 2019; Diao et al. 2023, Section 4.1 with :math:`P = 0.2`.
    """

    ratio: float = setting(0.2, "The fraction that Lottery Ticket and One Shot cut in each round.", short="r")

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.ratio) <= 1:
            raise ValueError(f"ratio must be between 0 and 1, got ratio={self.ratio!r}")

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        from palmette.pruning.counting import share

        cut = share(sums.d, self.ratio)
        return (sums.d - cut).double(), cut


@dataclass(frozen=True)
class TailMass(Budget):
    r"""Largest tail whose mass is at most `eta` times that of the rest, counted exactly.

    .. math:: d - c = \min \Big\{ r : \sum_{i \notin M_r} |w_i|^p \le \eta \sum_{i \in M_r} |w_i|^p \Big\}

    with :math:`M_r` the `r` largest magnitudes: the number that Theorem 2, and so `Sap`, bounds from below.

    Args:
        p: exponent of the mass :math:`|w|^p`, ``0 < p <= 1``; also the `p` of the reported index.
        eta: largest mass of the tail relative to the rest, at least 0.

    >>> import palmette as pm
    >>> pm.TailMass(p=1, eta=0.5)([4.0, 1.0, 1.0, 0.0])
    tensor([3])

    Diao et al. 2023, Theorem 2 and Appendix A.
    """

    p: float = setting(0.5, "Exponent of the mass |w|^p of a weight, 0 < p <= 1.", short="p", in_label=True)
    eta: float = setting(0.1, "Largest mass of the tail relative to the rest, >= 0.", short="eta", in_label=True)

    def __post_init__(self) -> None:
        check_mass_power(self.p)
        check_eta(self.eta)

    @property
    def q(self) -> float:  # type: ignore[override]
        """Larger norm of the reported index: 1, or 2 when p is 1."""
        return 2.0 if self.p == 1 else 1.0

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        if source is None:
            raise _sums_alone(self)
        cut = source.tail_count(p=float(self.p), eta=float(self.eta))
        return (sums.d - cut).double(), cut


@dataclass(frozen=True)
class Densities(Budget):
    r"""List of densities to reach: each cut takes a unit to the first one below its own.

    .. math:: c = d - \mathrm{round}(n \rho_k), \qquad k = \min \{ i : \mathrm{round}(n \rho_i) < d \}

    for :math:`n` weights, of which :math:`d` are kept. Nothing is cut below the last density.

    Args:
        densities: :math:`\rho`, decreasing, between 0 and 1, as numbers or as text separated by commas; or a
            schedule of :math:`s` steps: "cubic:0.05:10" is :math:`\rho + (1 - \rho)(1 - k/s)^3` (Zhu and Gupta
            2017), "geometric:0.05:10" :math:`\rho^{k/s}`, equal cuts, as SAP makes while its index stays the same.

    >>> Densities("cubic:0.2:2"), Densities([0.5, 0.1])([1.0] * 100)
    (Densities(densities='0.3,0.2'), tensor([50]))
    """

    densities: str | Sequence[float] = setting(
        "0.5,0.2,0.1,0.05,0.02,0.01",
        "Densities to reach, falling, such as 0.5,0.2,0.1, or cubic:0.05:10 or geometric:0.05:10 in ten steps.",
    )

    def __post_init__(self) -> None:
        given = self.densities
        try:
            found = _listed(given) if isinstance(given, str) else [float(one) for one in given]
        except (TypeError, ValueError):
            found = []
        if not found or not all(a > b for a, b in pairwise([1.0, *found, 0.0])):
            raise ValueError(
                "densities must decrease and lie between 0 and 1, as in 0.5,0.2,0.1, or be a schedule such as "
                f"cubic:0.05:10, got densities={given!r}"
            )
        object.__setattr__(self, "densities", ",".join(repr(one) for one in found))

    def values(self) -> list[float]:
        """The densities as numbers."""
        return [float(one) for one in str(self.densities).split(",")]

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        if source is None:
            raise _sums_alone(self)
        targets = sums.d.new_tensor([round(source.width * density) for density in self.values()])
        below = targets.where(targets < sums.d[:, None], -1).amax(1)
        kept = sums.d.where(below < 0, below)
        return kept.double(), sums.d - kept


def _listed(text: str) -> list[float]:
    """Densities that a text lists, or of the schedule that it names."""
    kind, *numbers = text.split(":")
    if not numbers:
        return [float(one) for one in text.split(",")]
    last, steps = numbers
    low, left = float(last), [1 - k / int(steps) for k in range(1, int(steps) + 1)]
    ways = {"cubic": [low + (1 - low) * x**3 for x in left], "geometric": [low ** (1 - x) for x in left]}
    return [float(f"{one:.12g}") for one in ways.get(kind, [])]


@dataclass(frozen=True)
class _OfAnother(Budget):
    """Budget that changes what another one cuts."""

    budget: Budget

    @property
    def p(self) -> float:  # type: ignore[override]
        """Smaller norm of the reported index, that of the other budget."""
        return self.budget.p

    @property
    def q(self) -> float:  # type: ignore[override]
        """Larger norm of the reported index, that of the other budget."""
        return self.budget.q


@dataclass(frozen=True)
class Partly(_OfAnother):
    r"""A share of what another budget cuts in each unit: :math:`\lfloor s \cdot c \rfloor`.

    A search cuts less with it when the whole cut was too much.

    Args:
        budget: the other budget.
        share: :math:`0 \le s \le 1`.

    >>> Partly(FixedRatio(0.5), 0.5)([1.0] * 100)
    tensor([25])
    """

    share: float

    def __post_init__(self) -> None:
        _check_inner(self.budget)
        if not 0 <= as_number(self.share) <= 1:
            raise ValueError(f"share must be between 0 and 1, got share={self.share!r}")

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        from palmette.pruning.counting import share

        cut = share(self.budget._count(source, sums)[1], self.share)
        return (sums.d - cut).double(), cut


def _sums_alone(budget: Budget) -> TypeError:
    return TypeError(f"power sums alone are enough for Sap and FixedRatio, not for {budget!r}")


By = Literal["index", "uniform", "outliers", "alpha", "erk", "sap"]
ALLOCATIONS: tuple[By, ...] = get_args(By)


@dataclass(frozen=True)
class Allocated(_OfAnother):
    r"""Budget of the whole network, divided between its layers.

    All but "uniform" and "erk" give each block of the network a value :math:`v_b`, and its layers the density

    .. math:: \rho_b = \rho + 2 \lambda \left( \frac{v_b - \min v}{\max v - \min v} - \bar v \right)

    where :math:`\rho` is the density of the network and :math:`\bar v` the mean of the fraction. A block is all
    layers under one numbered name, such as ``model.layers.3`` or ``layer1.0``. Use it in scope "layer", or in
    scope "neuron", where all neurons of a layer have its density.

    Args:
        budget: how many weights the network keeps.
        by: which blocks keep more. "index" (default): those with a high PQ Index, at the norms of `budget`. "sap":
            those with a low one. "outliers": those with more scores above five times their mean (OWL, Yin et al.
            2024). "alpha": those with heavy-tailed spectra (AlphaPruning, Lu et al. 2024). "erk": small layers
            (Evci et al. 2020). "uniform": none.
        spread: :math:`\lambda`; the densities of two blocks differ by at most twice as much.

    >>> import torch, palmette as pm
    >>> weights = {"0.weight": torch.arange(1.0, 101.0), "1.weight": torch.ones(100)}
    >>> masks, _ = pm.prune(weights, scope="layer", budget=pm.Allocated(pm.FixedRatio(0.5), spread=0.1))
    >>> masks["0.weight"].sum(), masks["1.weight"].sum()
    (tensor(60), tensor(40))
    """

    by: By = "index"
    spread: float = 0.15

    def __post_init__(self) -> None:
        _check_inner(self.budget)
        if self.by not in ALLOCATIONS:
            raise ValueError(f"by must be one of {', '.join(ALLOCATIONS)}, got {self.by!r}")
        if not 0 <= as_number(self.spread) <= 0.5:
            raise ValueError(f"spread must be between 0 and 0.5, got spread={self.spread!r}")

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        raise TypeError(f"{self!r} shares a cut between layers, so it needs all of them: use prune or a Pruner")


def check_budget(budget: Budget) -> None:
    """Raise unless `budget` is a `Budget`."""
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget such as Sap() or FixedRatio(0.2), got {budget!r}")


def _check_inner(budget: Budget) -> None:
    check_budget(budget)
    if isinstance(budget, Allocated):
        raise TypeError(
            f"{budget!r} shares a cut between layers, so no other budget can hold it; put the other one inside, "
            "as in Allocated(Partly(Sap(), 0.5))"
        )
