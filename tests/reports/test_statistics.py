"""Statistics: numbers that can be checked in the head, then properties."""

from __future__ import annotations

import math
import random

import pytest

from palmette.reports.statistics import (
    Difference,
    MeanSd,
    accuracy_at,
    interval,
    last_within,
)

# Accuracy at equal density


def test_interpolation_is_linear_in_the_logarithm_of_the_density():
    assert accuracy_at(0.5, [1.0, 0.25], [1.0, 0.5]) == 0.75
    assert accuracy_at(0.1, [1.0, 0.1, 0.01], [1.0, 0.75, 0.5]) == 0.75


def test_no_interpolation_across_a_cut_that_leaves_less_than_a_quarter():
    assert accuracy_at(0.5, [1.0, 0.251], [1.0, 0.5]) == pytest.approx(0.75, abs=0.01)
    assert math.isnan(accuracy_at(0.5, [1.0, 0.249], [1.0, 0.5]))
    assert accuracy_at(0.1, [1.0, 0.1004, 0.01], [1.0, 0.75, 0.5]) == pytest.approx(0.75, abs=0.001)
    assert accuracy_at(0.99, [1.0, 0.1], [1.0, 0.5]) == pytest.approx(1, abs=0.01)


def test_accuracy_at_the_density_of_a_round_is_exact():
    randomly = random.Random(0)
    densities = [0.8**t for t in range(31)]
    accuracies = [randomly.random() for _ in densities]
    assert [accuracy_at(d, densities, accuracies) for d in densities] == accuracies


def test_accuracy_lies_between_those_of_the_neighbouring_rounds():
    randomly = random.Random(1)
    for _ in range(200):
        densities = sorted((randomly.uniform(0.25, 0.9) for _ in range(5)), reverse=True)
        accuracies = [randomly.random() for _ in densities]
        density = randomly.uniform(0.1, 1)
        found = accuracy_at(density, densities, accuracies)
        beside = [i for i in range(4) if densities[i] >= density >= densities[i + 1]]
        if not beside:
            assert math.isnan(found)
        else:
            ends = sorted(accuracies[beside[0] : beside[0] + 2])
            assert ends[0] - 1e-12 <= found <= ends[1] + 1e-12


def test_the_last_of_equal_densities_counts():
    assert accuracy_at(0.5, [1.0, 0.5, 0.5], [0.9, 0.8, 0.7]) == 0.7


def test_networks_without_weights_are_skipped():
    assert accuracy_at(0.5, [1.0, 0.25, 0.0], [1.0, 0.5, 0.1]) == 0.75
    assert math.isnan(accuracy_at(0.01, [1.0, 0.25, 0.0], [1.0, 0.5, 0.1]))
    assert accuracy_at(1.0, [1.0], [0.9]) == 0.9
    assert math.isnan(accuracy_at(0.5, [], []))


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5, math.nan])
def test_a_density_is_a_fraction_above_zero(density):
    with pytest.raises(ValueError, match="above 0 and at most 1, got"):
        accuracy_at(density, [1.0], [0.9])


# The interval


def test_few_values_have_students_interval():
    assert interval([0.0, 2.0]) == pytest.approx((1 - 12.7062, 1 + 12.7062), rel=1e-5)
    half = 4.30265 * 2 / 3**0.5
    assert interval([1.0, 5.0, 3.0]) == pytest.approx((3 - half, 3 + half), rel=1e-5)


def test_students_interval_covers_the_mean_in_95_percent_of_cases():
    randomly = random.Random(0)
    ends = (interval([randomly.gauss(0, 1) for _ in range(4)]) for _ in range(2_000))
    assert sum(low <= 0 <= high for low, high in ends) / 2_000 == pytest.approx(0.95, abs=0.015)


def test_intervals_of_equal_values_and_of_one_value():
    assert interval([0.5] * 4) == (0.5, 0.5)
    assert all(math.isnan(end) for end in (*interval([0.5]), *interval([])))


def test_intervals_are_deterministic_and_contain_the_mean():
    randomly = random.Random(2)
    for n in (2, 4, 16):
        values = [randomly.gauss(0, 1) for _ in range(n)]
        low, high = interval(values)
        assert (low, high) == interval(values)
        assert low <= sum(values) / n <= high
        moved = interval([value + 10 for value in values])
        assert moved == pytest.approx((low + 10, high + 10), abs=1e-12)


def test_the_bootstrap_approaches_the_normal_interval():
    low, high = interval([-1.0, 1.0] * 200)
    assert (low, high) == pytest.approx((-0.098, 0.098), abs=0.01)  # 1.96 / sqrt(400)


# Differences


def test_few_pairs_have_students_interval_and_many_the_bootstrap():
    four = Difference.of([0.0, 1.0, 2.0, 3.0])
    assert (four.mean, four.pairs, four.sign) == (1.5, 4, 0)
    assert four.high - four.mean == pytest.approx(3.18245 * (5 / 3) ** 0.5 / 2, rel=1e-5)
    assert four.high > 3  # wider than a bootstrap can be
    many = Difference.of([1.0] * 16)
    assert (many.low, many.high, many.sign) == (1.0, 1.0, 1)


def test_differences_pair_equal_keys():
    found = Difference.between({0: 0.5, 1: 1.0, 2: 9.0}, {0: 0.25, 1: 0.75, 3: 9.0})
    assert (found.mean, found.low, found.high, found.pairs, found.sign) == (0.25, 0.25, 0.25, 2, 1)
    nothing = Difference.between({0: 0.5}, {1: 0.5})
    assert math.isnan(nothing.mean)
    assert (nothing.pairs, nothing.sign) == (0, 0)


# Mean and standard deviation, and within a point


def test_spread_skips_missing_values():
    assert MeanSd.of([0.5, None, 1.0, math.nan]) == MeanSd(0.75, pytest.approx(0.125**0.5), 2)
    assert math.isnan(MeanSd.of([0.5]).sd)
    assert MeanSd.of([]).n == 0


def test_the_first_loss_of_more_than_a_point_counts():
    assert last_within([0.9, 0.89, 0.95, 0.8899, 0.9]) == 2
    assert last_within([0.9, 0.5]) == 0
    assert last_within([0.9, 0.9]) == 1
