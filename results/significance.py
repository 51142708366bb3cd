"""Which of many paired differences are more than noise."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy import stats

Key = TypeVar("Key", bound=Hashable)

LEVEL = 0.05
"""Level of a family of tests."""


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
    tests = {key: float(stats.ttest_1samp(values, 0.0).pvalue) for key, values in pairs.items() if len(values) > 2}
    sure = {key for key, p in zip(tests, holm(list(tests.values())), strict=True) if p < LEVEL}
    return {key: (1 if np.mean(values) > 0 else -1) if key in sure else 0 for key, values in pairs.items()}
