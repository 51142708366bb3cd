"""One rule each for spread over seeds, paired difference, within a point of dense, and accuracy at a density."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)

WITHIN = 0.01
"""Largest loss of accuracy, compared with the dense network, that counts as kept: one point."""
CONFIDENCE = 0.95
"""Of an interval."""
ENOUGH = 16
"""Pairs for a bootstrap; fewer get Student's interval, because their bootstrap is too narrow."""
RESAMPLES, SEED = 9_999, 0
"""Of the bootstrap; the seed is fixed, so that a table is the same each time."""
LEVEL = 0.05
"""Of a family of tests."""
WIDE, CLOSE = 4, 1.05
"""Ratios of densities: rounds too far apart to interpolate between, and close enough to one of them anyway."""


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
    """Mean of paired differences, its 95 % interval (see `interval`) and the number of pairs."""

    mean: float
    low: float
    high: float
    pairs: int

    @staticmethod
    def of(values: Sequence[float]) -> Difference:
        """Difference from one value per pair.

        >>> Difference.of([1.0, 1.0])
        Difference(mean=1.0, low=1.0, high=1.0, pairs=2)
        """
        return Difference(MeanSd.of(values).mean, *interval(values), len(values))

    @staticmethod
    def between(one: Mapping[Key, float], other: Mapping[Key, float]) -> Difference:
        """`one` minus `other`, paired by key: the seed, which fixes initial weights and the order of images.

        >>> Difference.between({0: 0.75, 1: 0.5}, {0: 0.25, 2: 0.5}).mean
        0.5
        """
        return Difference.of([one[key] - other[key] for key in one if key in other])

    @property
    def sign(self) -> int:
        """1 or -1 if the difference is beyond the noise (its interval excludes 0), else 0; 0 without interval.

        >>> Difference.of([1.0, 1.0]).sign, Difference.of([1.0, -1.0]).sign, Difference.of([1.0]).sign
        (1, 0, 0)
        """
        return int(self.low > 0) - int(self.high < 0)


def interval(values: Sequence[float]) -> tuple[float, float]:
    r"""95 % confidence interval of the mean: Student's for fewer than 16 values, else the percentile bootstrap.

    .. math:: \bar x \pm t_{0.975,\, n - 1} \, s / \sqrt n

    is right for few values of a normal distribution. The bootstrap (9,999 resamples, seed 0) would contain their
    mean in only 51 % of all cases for two values, 79 % for four and 92 % for sixteen. NaN for fewer than two.

    >>> low, high = interval([0.0, 2.0])
    >>> round(low, 3), round(high, 3)  # 1 -+ 12.706
    (-11.706, 13.706)
    >>> interval([3.0])
    (nan, nan)

    Student 1908; Efron and Tibshirani 1993, Section 13.3.
    """
    if len(values) < 2:
        return math.nan, math.nan
    from scipy import stats

    known = np.asarray(values, dtype=float)
    if len(known) < ENOUGH:
        half = stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
        return float(known.mean() - half), float(known.mean() + half)
    found = stats.bootstrap(
        (known,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


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
    NaN outside the densities of the run (no extrapolation), and NaN across a cut that leaves less than a quarter
    of the weights, unless :math:`d` is within 5 % of one of the two rounds. Of rounds with equal density the last
    counts; a network without weights, at density 0, has no logarithm and is skipped.

    >>> accuracy_at(0.5, [1.0, 0.25], [0.75, 0.25])  # 1/2 is half-way from 1 to 1/4
    0.5
    >>> accuracy_at(0.2, [1.0, 0.25], [0.75, 0.25]), accuracy_at(0.5, [1.0, 0.1], [0.75, 0.25])
    (nan, nan)
    """
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, got {density}")
    last = {d: a for d, a in zip(densities, accuracies, strict=True) if d > 0 and not math.isnan(a)}
    if not last or not min(last) <= density <= max(last):
        return math.nan
    rising = sorted(last)
    below, above = max(d for d in rising if d <= density), min(d for d in rising if d >= density)
    if above > WIDE * below and min(density / below, above / density) > CLOSE:
        return math.nan
    return float(np.interp(math.log(density), np.log(rising), [last[d] for d in rising]))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number: the chance of any false positive among all is at most the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Holm 1979.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def beyond_noise(pairs: Mapping[Key, Sequence[float]]) -> dict[Key, int]:
    """1 or -1 for each set of paired differences that stays significant when all are tested together, else 0.

    Paired t-tests with Holm's correction at `LEVEL`; fewer than three pairs are not tested and give 0.

    >>> beyond_noise({"a": [0.1, 0.11, 0.12], "b": [0.1, -0.1, 0.1], "c": [1.0, 1.0]})
    {'a': 1, 'b': 0, 'c': 0}
    """
    from scipy import stats  # an extra

    tests = {key: float(stats.ttest_1samp(values, 0.0).pvalue) for key, values in pairs.items() if len(values) > 2}
    sure = {key for key, p in zip(tests, holm(list(tests.values())), strict=True) if p < LEVEL}
    return {key: (1 if np.mean(values) > 0 else -1) if key in sure else 0 for key, values in pairs.items()}
