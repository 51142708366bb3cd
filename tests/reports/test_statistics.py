"""Statistics: numbers that can be checked in the head, then properties."""

from __future__ import annotations

import math
import random

import pytest

from palmette.reports.statistics import (
    Difference,
    MeanSd,
    accuracy_at,
    at_own_densities,
    last_within,
    student,
)

# Accuracy at equal density


def test_interpolation_is_linear_in_the_logarithm_of_the_density():
    assert accuracy_at(0.9, [1.0, 0.81], [1.0, 0.5]) == pytest.approx(0.75)
    assert accuracy_at(0.1, [1.0, 0.1, 0.01], [1.0, 0.75, 0.5]) == 0.75


def test_no_interpolation_between_rounds_more_than_one_and_a_half_times_apart():
    assert accuracy_at(0.8, [1.0, 0.67], [1.0, 0.5]) == pytest.approx(0.72, abs=0.01)
    assert math.isnan(accuracy_at(0.8, [1.0, 0.66], [1.0, 0.5]))
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
        densities = sorted((randomly.uniform(0.67, 0.9) for _ in range(5)), reverse=True)
        accuracies = [randomly.random() for _ in densities]
        density = randomly.uniform(0.5, 1)
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
    assert accuracy_at(0.25, [1.0, 0.25, 0.0], [1.0, 0.5, 0.1]) == 0.5
    assert math.isnan(accuracy_at(0.01, [1.0, 0.25, 0.0], [1.0, 0.5, 0.1]))
    assert accuracy_at(1.0, [1.0], [0.9]) == 0.9
    assert math.isnan(accuracy_at(0.5, [], []))


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5, math.nan])
def test_a_density_is_a_fraction_above_zero(density):
    with pytest.raises(ValueError, match="above 0 and at most 1, got"):
        accuracy_at(density, [1.0], [0.9])


# Differences


TABLE = {1: 12.70620, 1.5: 6.01666, 3: 3.18245, 7.3: 2.34507, 30: 2.04227, 10_000: 1.96020}


@pytest.mark.parametrize(("freedom", "quantile"), TABLE.items())
def test_quantiles_are_those_of_students_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, rel=2e-5)


def test_a_change_within_runs_has_students_interval():
    found = Difference.of([0.0, 1.0, 2.0, 3.0])
    assert (found.mean, found.sign) == (1.5, 0)
    assert found.high - found.mean == pytest.approx(3.18245 * (5 / 3) ** 0.5 / 2, rel=1e-5)
    assert Difference.of([0.5] * 4) == Difference(0.5, 0.5, 0.5)
    assert all(math.isnan(Difference.of(values).low) for values in ([0.5], []))


def test_equal_spreads_have_the_interval_of_two_samples():
    """Variance 1 in both arms of 4, so 2 (n - 1) degrees of freedom."""
    values = [-1.0, -1.0, 1.0, 1.0]
    found = Difference.between([value + 5 for value in values], values)
    assert found.mean == 5
    assert found.high - 5 == pytest.approx(2.44691 * (2 * (4 / 3) / 4) ** 0.5, rel=1e-5)


def test_an_arm_without_spread_leaves_the_noise_of_the_other():
    alone, both = Difference.of([1.0, 2.0, 3.0]), Difference.between([1.0, 2.0, 3.0], [0.5, 0.5, 0.5, 0.5])
    assert (both.low, both.high) == pytest.approx((alone.low - 0.5, alone.high - 0.5))
    assert Difference.between([0.75] * 2, [0.25] * 2) == Difference(0.5, 0.5, 0.5)


def test_a_single_run_has_a_difference_and_no_interval():
    found = Difference.between([0.75], [0.5, 0.25])
    assert (found.mean, found.sign) == (0.375, 0)
    assert math.isnan(found.low)
    assert math.isnan(Difference.between([0.75], []).mean)


def test_intervals_cover_the_difference_in_95_percent_of_cases():
    randomly = random.Random(0)
    gauss = lambda sd, n: [randomly.gauss(0, sd) for _ in range(n)]  # noqa: E731
    found = [Difference.between(gauss(1, 4), gauss(3, 8)) for _ in range(500)]
    assert sum(d.sign == 0 for d in found) / 500 == pytest.approx(0.95, abs=0.03)


# Differences at own densities


def test_a_method_is_compared_where_it_was_and_only_the_other_is_interpolated():
    other = [([1.0, 0.8, 0.64, 0.5], [1.0, 0.75, 0.5, 0.25]), ([1.0, 0.8, 0.64, 0.5], [0.5, 0.25, 0.0, -0.25])]
    own = [([1.0, 0.5], [1.0, 0.5]), ([1.0, 0.64], [1.0, 0.5])]  # 0.25, 0.5 and 0.25, 0.25 above the mean
    assert at_own_densities(own, other).mean == pytest.approx((0.375 + 0.25) / 2)
    assert at_own_densities(own, other, high=0.7).mean == pytest.approx((0.5 + 0.25) / 2)
    assert at_own_densities(other, [(d, [a - 0.125 for a in accuracies]) for d, accuracies in own]).mean != 0


def test_noise_is_that_of_both_around_the_mean_curve_of_the_other():
    falling = [1.0, 0.8, 0.64], [0.75, 0.5, 0.25]
    other = [falling, (falling[0], [a + 0.5 for a in falling[1]])]
    apart = at_own_densities([([0.8], [0.75]), ([0.64], [0.5])], other)  # both on the mean curve
    assert apart == Difference.between([0.0, 0.0], [-0.25, 0.25])
    assert at_own_densities([([0.8], [0.75]), ([0.8], [1.0])], other) == Difference.between(
        [0.0, 0.25], [-0.25, 0.25]
    )


def test_rounds_that_the_other_did_not_all_reach_are_left_out():
    other = [([1.0, 0.8], [0.5, 0.5]), ([1.0, 0.8, 0.64], [0.5, 0.5, 0.5])]
    assert at_own_densities([([0.8, 0.64], [0.75, 0.0])], other).mean == 0.25
    for runs, others in (([([0.64], [0.5])], other), ([([0.0], [0.1])], other), ([], other), (other, [])):
        assert math.isnan(at_own_densities(runs, others).mean)
    wide = [([1.0, 0.5], [0.5, 0.25])]
    assert math.isnan(at_own_densities([([0.8], [0.75])], wide).mean)
    assert at_own_densities([([0.5], [0.75])], wide).mean == 0.5


# Mean and standard deviation, and within a point


def test_spread_skips_missing_values():
    assert MeanSd.of([0.5, None, 1.0, math.nan]) == MeanSd(0.75, pytest.approx(0.125**0.5), 2)
    assert math.isnan(MeanSd.of([0.5]).sd)
    assert MeanSd.of([]).n == 0


def test_the_first_loss_of_more_than_a_point_counts():
    assert last_within([0.9, 0.89, 0.95, 0.8899, 0.9]) == 2
    assert last_within([0.9, 0.5]) == 0
    assert last_within([0.9, 0.9]) == 1
