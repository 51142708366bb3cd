"""Budgets that name the density to reach next, from the scores so far; a search uses them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from palmette.pruning.budgets import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.measures.pq import PowerSums
    from palmette.pruning.sources.source import Source


@dataclass(frozen=True)
class Trial:
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

    p: float = field(default=0.5, init=False, repr=False)
    q: float = field(default=1.0, init=False, repr=False)

    @abstractmethod
    def next_density(self, trials: Sequence[Trial], good: float, bad: float | None) -> float:
        """Density of the next network, below `good` and above `bad`.

        Args:
            trials: all networks so far, the dense one first.
            good: density of the sparsest network within the tolerance.
            bad: density of the densest network that is not; None if there is none.
        """

    def _count(self, source: Source | None, sums: PowerSums) -> tuple[Tensor, Tensor]:
        raise TypeError(
            f"{self!r} chooses densities from scores, which only a search has: use prune_and_retrain with "
            "evaluate, or palmette run --tolerance"
        )


@dataclass(frozen=True)
class Bisect(Target):
    r"""Halve the bracket in log density: :math:`d = \sqrt{d_\text{good}\, d_\text{bad}}`.

    Until a network is bad, a density of 0.1 % is taken for the bad one.

    >>> Bisect().next_density([Trial(1.0, 0.0)], good=0.1, bad=None)
    0.01
    """

    def next_density(self, trials: Sequence[Trial], good: float, bad: float | None) -> float:
        """Geometric mean of the two ends."""
        return math.sqrt(good * (min(0.001, good / 2) if bad is None else bad))


# Constants of `Predict`, tuned on the runs on record in results/ (see results/how-far).
_MEDIAN, _SPREAD = 0.05, 1.1  # Laplace prior of ln(limit): median, and mean distance from it
_SLOPES = (0.5, 1.0, 2.0)  # b, equally likely before the first round
_NOISE, _MISFIT = 0.4, 0.3  # sd of a loss in tolerances: noise, and share of its distance from 1
_MOST = 3.0  # losses are clipped to [-1, 3]: a collapse says only that the limit is far above
_LARGEST, _APART = 4.0, 1.1  # factors on the density: largest cut, distance from the ends of the bracket
_STEP, _LEAST = 0.05, 1e-5  # step of the grid of ln(limit), and its smallest density


@dataclass(frozen=True)
class Predict(Target):
    r"""Jump to where the limit probably lies, from all networks so far.

    The loss near the limit :math:`d^*` is a power of the density, in units of the tolerance

    .. math:: \ell(d) = (d^* / d)^b

    Prior weights over :math:`d^*` and :math:`b` come from the runs on record, where the limit is 5 %, give or take
    a factor of 3. Every trained network updates them, and the next density is the median of :math:`d^*`.

    A cut divides the density by at most 4, and stays a factor of 1.1 from the ends of the bracket, so that one
    network on the other side of the limit closes it.

    >>> predict = Predict()
    >>> dense, good = Trial(1.0, 0.0), Trial(0.25, 0.1)
    >>> round(predict.next_density([dense], 1.0, None), 3)
    0.25
    >>> 0.25 > predict.next_density([dense, good], 0.25, None) > 0.0625 - 1e-9
    True
    """

    def next_density(self, trials: Sequence[Trial], good: float, bad: float | None) -> float:
        """Median of the limit, inside the bracket."""
        start, margin = -math.log(good), math.log(_APART)
        place = min(max(_median(trials[1:]), start + margin), start + math.log(_LARGEST))
        if bad is not None:
            end = -math.log(bad)
            place = min(place, end - margin) if end - start > 2 * margin else (start + end) / 2
        return math.exp(-place)


def _median(trials: Sequence[Trial]) -> float:
    """Median of -ln(limit) after the trials."""
    seen = [(-math.log(t.density), min(max(t.loss, -1.0), _MOST)) for t in trials if math.isfinite(t.loss)]
    limits = [(i + 0.5) * _STEP for i in range(int(-math.log(_LEAST) / _STEP))]
    logs = [[_log_weight(limit, slope, seen) for slope in _SLOPES] for limit in limits]
    top = max(map(max, logs))
    weights = [sum(math.exp(value - top) for value in row) for row in logs]
    half, total = 0.5 * sum(weights), 0.0
    for limit, weight in zip(limits, weights, strict=True):
        if total + weight >= half:
            return limit + _STEP * ((half - total) / weight - 0.5)
        total += weight
    return limits[-1]


def _log_weight(limit: float, slope: float, seen: Sequence[tuple[float, float]]) -> float:
    """Log of prior times likelihood, for -ln(density) and loss of each trial."""
    found = -abs(limit + math.log(_MEDIAN)) / _SPREAD
    for place, loss in seen:
        expected = min(math.exp(min(slope * (place - limit), 5.0)), _MOST)
        sd = math.hypot(_NOISE, _MISFIT * (expected - 1))
        found -= 0.5 * ((loss - expected) / sd) ** 2 + math.log(sd)
    return found
