"""One rule each for spread over seeds, differences, within a point of dense, and accuracy at a density."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

WITHIN = 0.01
"""Largest loss of accuracy, compared with the dense network, that counts as kept: one point."""
CONFIDENCE = 0.95
"""Of an interval."""
APART, CLOSE = 1.5, 1.05
"""Ratios of densities: rounds near enough to interpolate between, and near enough to one of them anyway."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Density and accuracy of a run, round by round."""


@dataclass(frozen=True)
class MeanSd:
    """Mean, standard deviation (with n - 1) and number of values; NaN where undefined."""

    mean: float
    sd: float
    n: int

    @staticmethod
    def of(values: Iterable[float | None]) -> MeanSd:
        """Mean and standard deviation of the values that exist: None and NaN are skipped.

        >>> MeanSd.of([1.0, 3.0, None]), MeanSd.of([2.0])
        (MeanSd(mean=2.0, sd=1.4142135623730951, n=2), MeanSd(mean=2.0, sd=nan, n=1))
        """
        known = [float(v) for v in values if v is not None and not math.isnan(v)]
        sd = statistics.stdev(known) if len(known) > 1 else math.nan
        return MeanSd(statistics.fmean(known) if known else math.nan, sd, len(known))


@dataclass(frozen=True)
class Difference:
    """Mean difference with its 95 % interval; NaN where undefined."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Difference:
        r"""Mean of changes, one per run, with Student's interval: from one round to another, for example.

        .. math:: \bar x \pm t_{0.975,\, n - 1} \, s / \sqrt n

        >>> Difference.of([1.0, 1.0]), Difference.of([3.0])
        (Difference(mean=1.0, low=1.0, high=1.0), Difference(mean=3.0, low=nan, high=nan))

        Student 1908.
        """
        found = MeanSd.of(values)
        return _around(found.mean, (found.sd**2 / found.n, found.n - 1) if found.n > 1 else None)

    @staticmethod
    def between(one: Iterable[float], other: Iterable[float]) -> Difference:
        r"""Mean of `one` minus mean of `other`, runs of two methods, with Welch's interval.

        .. math:: \bar x - \bar y \pm t_{0.975,\, \nu} \sqrt{v + w}, \quad v = s_x^2 / n,\; w = s_y^2 / m, \quad
            \nu = \frac{(v + w)^2}{v^2 / (n - 1) + w^2 / (m - 1)}

        Runs of equal seed are not paired: after the first cut their accuracies are hardly correlated.
        The interval needs two runs of each.

        >>> Difference.between([0.75, 0.75], [0.25, 0.25])
        Difference(mean=0.5, low=0.5, high=0.5)

        Welch 1947.
        """
        arms = [MeanSd.of(one), MeanSd.of(other)]
        found = arms[0].mean - arms[1].mean
        if min(arm.n for arm in arms) < 2:
            return _around(found, None)
        parts = [arm.sd**2 / arm.n for arm in arms]
        weights = sum(part**2 / (arm.n - 1) for part, arm in zip(parts, arms, strict=True))
        return _around(found, (sum(parts), sum(parts) ** 2 / weights if weights else math.inf))

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes 0, else 0; 0 without interval.

        >>> Difference.of([1.0, 1.0]).sign, Difference.of([1.0, -1.0]).sign, Difference.of([1.0]).sign
        (1, 0, 0)
        """
        return int(self.low > 0) - int(self.high < 0)

    @property
    def tied(self) -> bool:
        """Whether the means are equal, or the interval includes 0.

        >>> Difference.of([0.0]).tied, Difference.of([1.0, -1.0]).tied, Difference.of([1.0]).tied
        (True, True, False)
        """
        return self.mean == 0 or self.low <= 0 <= self.high


def _around(mean: float, noise: tuple[float, float] | None) -> Difference:
    """The interval around a mean, from its variance and degrees of freedom."""
    half = math.nan if noise is None else math.sqrt(noise[0]) * (student(noise[1]) if noise[0] else 1.0)
    return Difference(mean, mean - half, mean + half)


def student(freedom: float) -> float:
    r"""Quantile of Student's distribution that an interval of 95 % needs, for 1 degree of freedom or more.

    With :math:`t = \sqrt\nu \tan\theta` its density is proportional to :math:`\cos^{\nu - 1}\theta`.

    >>> [round(student(freedom), 3) for freedom in (1, 3, 30)]
    [12.706, 3.182, 2.042]
    """
    import numpy as np  # not above, since help loads this module

    angles = np.linspace(0, math.pi / 2, 100_001)
    heights = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(heights[1:] + heights[:-1])])
    return math.sqrt(freedom) * math.tan(float(np.interp(CONFIDENCE * below[-1], below, angles)))


def last_within(accuracies: Sequence[float]) -> int:
    """Last round up to which every accuracy is within `WITHIN` of round 0, the dense network.

    The first loss counts, although a later round may recover: the best of many rounds would be chosen by looking
    at the data that judges it.

    >>> last_within([0.90, 0.91, 0.89, 0.88, 0.90])
    2
    """
    return len(list(takewhile(lambda a: a >= accuracies[0] - WITHIN - 1e-9, accuracies))) - 1


def accuracy_at(density: float, densities: Sequence[float], accuracies: Sequence[float]) -> float:
    r"""Accuracy of a run at a density, interpolated between the rounds on either side.

    .. math:: a = a_t + (a_{t+1} - a_t) \frac{\log d_t - \log d}{\log d_t - \log d_{t+1}}

    for :math:`d_t \ge d \ge d_{t+1}` of `densities` and :math:`a_t` of `accuracies`, round by round: linear in the
    logarithm, since a round removes a share of what remains.
    NaN outside the densities of the run (no extrapolation), and between rounds more than 1.5 times apart, unless
    :math:`d` is within 5 % of one of the two. Of rounds with equal density the last counts; a network without
    weights, at density 0, has no logarithm and is skipped.

    >>> round(accuracy_at(0.9, [1.0, 0.81], [0.75, 0.25]), 9)  # 0.9 is half-way from 1 to 0.81
    0.5
    >>> accuracy_at(0.6, [1.0, 0.81], [0.75, 0.25]), accuracy_at(0.8, [1.0, 0.5], [0.75, 0.25])
    (nan, nan)
    """
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, got {density}")
    last = {d: a for d, a in zip(densities, accuracies, strict=True) if d > 0 and not math.isnan(a)}
    if not last or not min(last) <= density <= max(last):
        return math.nan
    below, above = max(d for d in last if d <= density), min(d for d in last if d >= density)
    if below == above:
        return last[density]
    if above > APART * below and min(density / below, above / density) > CLOSE:
        return math.nan
    return last[above] + (last[below] - last[above]) * math.log(above / density) / math.log(above / below)


def at_own_densities(
    runs: Iterable[Curve], other: Sequence[Curve], *, low: float = 0.0, high: float = 1.0
) -> Difference:
    """Difference of `runs` from the runs of an `other` method, at the densities that `runs` reached.

    Each round of a run with a density from `low` to `high` is compared with the other method there (see
    `accuracy_at`); a run counts with the mean over its rounds. Rounds where not all of the other runs have an
    accuracy are left out. The interval is Welch's, of the runs around the mean curve of the other method, and of
    that method's runs around it. Empty if a run has no round to compare.

    >>> at_own_densities([([1.0, 0.5], [0.75, 0.75])], [([1.0, 0.8, 0.5], [0.75, 0.75, 0.25])]).mean
    0.25
    """
    import numpy as np

    own, there = [], []
    for densities, accuracies in runs:
        inside = [(d, a) for d, a in zip(densities, accuracies, strict=True) if low <= d <= high and d > 0]
        rows = [(a, [accuracy_at(d, *curve) for curve in other]) for d, a in inside]
        rows = [(a, row) for a, row in rows if not any(math.isnan(v) for v in row)]
        if not rows or not other:
            return Difference(math.nan, math.nan, math.nan)
        own.append(statistics.fmean(a - statistics.fmean(row) for a, row in rows))
        there.append(np.mean([row for _, row in rows], axis=0))
    center = np.mean(there, axis=0) if there else np.array([])
    return Difference.between(own, (center - center.mean()).tolist() if len(center) else [])
