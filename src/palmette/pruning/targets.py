"""Budgets that name the density to reach next, from the scores so far; a search uses them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from palmette.pruning.budgets import Allocated, Budget

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.measures.pq import PowerSums
    from palmette.pruning.sources.source import Source


@dataclass(frozen=True)
class Probe:
    """A network that was trained and scored.

    Args:
        density: fraction of the weights that it kept.
        loss: how much worse it is than the dense network, in units of the tolerance: 1 is just allowed.
    """

    density: float
    loss: float


@dataclass(frozen=True)
class Target(Budget):
    """Budget of a search: it names the density of the next network, not a number of weights to cut."""

    @abstractmethod
    def next_density(self, probes: Sequence[Probe], good: float, bad: float | None) -> float:
        """Density of the next network, below `good` and above `bad`.

        Args:
            probes: all networks so far, the dense one first.
            good: density of the sparsest network within the tolerance.
            bad: density of the densest network that is not; None if there is none.
        """

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        raise TypeError(
            f"{self!r} chooses densities from scores, which only a search has: use prune_and_retrain with "
            "evaluate, or palmette run --tolerance"
        )


def target_of(budget: Budget) -> Target | None:
    """The `Target` that `budget` is, or whose cuts it shares between layers; None for other budgets.

    >>> target_of(Allocated(Bisect(), by="erk"))
    Bisect()
    """
    inner = budget.budget if isinstance(budget, Allocated) else budget
    return inner if isinstance(inner, Target) else None


@dataclass(frozen=True)
class Bisect(Target):
    r"""Halve the bracket in log density: :math:`d = \sqrt{d_\text{good}\, d_\text{bad}}`.

    Until a network is bad, 0.1 % is used as the bad density.

    >>> import palmette as pm
    >>> round(pm.Bisect().next_density([], good=0.4, bad=0.1), 6)
    0.2
    """

    def next_density(self, probes: Sequence[Probe], good: float, bad: float | None) -> float:
        """Geometric mean of the two ends."""
        return math.sqrt(good * (min(0.001, good / 2) if bad is None else bad))


# Tuned by simulating searches on the runs on record; see results/how-far.
_LARGEST, _SMALLEST = 4.0, 2.0  # a cut divides the density by at most, and before the first failure at least, this
_LOW, _HIGH = 0.1, 10.0  # losses are clipped to these multiples of the tolerance
_APART = 1.09  # factor between the next density and the ends of the bracket, below its width for rounding


@dataclass(frozen=True)
class Interpolate(Target):
    r"""Next density where the loss is expected to equal the tolerance; the default schedule of a search.

    Between a good network and a bad one, the loss :math:`\ell`, in units of the tolerance, is modeled as a
    power of the density, and the next density is where it equals 1:

    .. math:: \log d = \log d_\text{good} - \frac{\log \ell_\text{good}}
              {\log \ell_\text{good} - \log \ell_\text{bad}} (\log d_\text{good} - \log d_\text{bad})

    It stays a factor of 1.1 away from both ends, so that one network on the other side of the limit closes the
    bracket. Before the first failure, the loss is modeled as inversely proportional to the density. A cut divides
    the density by at most 4, since larger ones cost accuracy that retraining does not bring back.

    >>> import palmette as pm
    >>> from palmette.pruning.targets import Probe
    >>> tried = [Probe(density=1.0, loss=0.0), Probe(density=0.2, loss=0.5), Probe(density=0.05, loss=2.0)]
    >>> round(pm.Interpolate().next_density(tried, good=0.2, bad=0.05), 3)
    0.1
    """

    def next_density(self, probes: Sequence[Probe], good: float, bad: float | None) -> float:
        """Density where the line between both ends, in logarithms, meets the tolerance."""
        start, at_good = math.log(good), min(_log_loss(probes, good, _LOW), 0.0)
        if bad is None:
            return math.exp(start - min(max(-at_good, math.log(_SMALLEST)), math.log(_LARGEST)))
        width, at_bad = start - math.log(bad), max(_log_loss(probes, bad, _HIGH), 0.0)
        margin = math.log(_APART)
        if width <= 2 * margin or at_bad == at_good:
            return math.exp(start - width / 2)
        step = -at_good / (at_bad - at_good) * width
        return math.exp(start - min(max(step, margin), width - margin, math.log(_LARGEST)))


def _log_loss(probes: Sequence[Probe], density: float, unknown: float) -> float:
    """Logarithm of the mean loss at a density, clipped; that of `unknown` without a finite loss."""
    losses = [t.loss for t in probes if math.isclose(t.density, density) and math.isfinite(t.loss)]
    return math.log(min(max(fmean(losses), _LOW), _HIGH) if losses else unknown)
