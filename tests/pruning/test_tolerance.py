"""`Tolerance` accepts losses of score up to its limit."""

import math

import numpy as np
import pytest
import torch

from palmette.pruning.tolerance import Estimate, Tolerance


@pytest.mark.parametrize(
    ("given", "dense", "good", "bad"),
    [
        (0.01, 0.95, 0.94, 0.9399),
        ("1%", 200.0, 198.0, 197.9),
        ("0", 0.5, 0.5, 0.4999),
        (2, 91.0, 89.0, 88.9),
    ],
)
def test_a_score_at_the_limit_is_allowed_and_below_it_is_not(given, dense, good, bad):
    tolerance = Tolerance.parse(given)
    assert tolerance.allows(good, dense=dense)
    assert not tolerance.allows(bad, dense=dense)


def test_smaller_is_better_when_maximize_is_off():
    tolerance = Tolerance.parse("10%", maximize=False)
    assert tolerance.allows(22.0, dense=20.0)
    assert not tolerance.allows(22.1, dense=20.0)
    assert tolerance.loss(18.0, dense=20.0) == -2.0


def test_not_worse_uses_the_standard_errors_of_both_scores():
    tolerance = Tolerance.parse("not-worse:0.95")
    dense = Estimate(
        0.9, 0.003
    )  # with 0.004 the difference has a standard error of 0.005, and 1.645 of them 0.0082
    assert tolerance.allows(Estimate(0.892, 0.004), dense=dense)
    assert not tolerance.allows(Estimate(0.8917, 0.004), dense=dense)
    with pytest.raises(ValueError, match="needs the standard error"):
        tolerance.allows(0.892, dense=dense)


def test_a_score_that_is_not_a_number_is_never_good():
    assert not Tolerance(0.5).allows(math.nan, dense=0.9)


@pytest.mark.parametrize(
    "given", ["", "a", "-1", "-1%", "nan", math.inf, "not-worse:1", "not-worse:0.2", True, None]
)
def test_what_is_no_tolerance_is_refused_with_examples(given):
    with pytest.raises((ValueError, TypeError), match=r"tolerance|confidence"):
        Tolerance.parse(given)


@pytest.mark.parametrize("text", ["0.01", "1%", "not-worse:0.9"])
def test_text_round_trips(text):
    assert str(Tolerance.parse(text)) == text


@pytest.mark.parametrize(
    ("value", "mean", "error"),
    [
        (0.5, 0.5, None),
        (torch.tensor(0.5, requires_grad=True), 0.5, None),
        (np.float32(0.5), 0.5, None),
        ([1.0, 3.0], 2.0, 1.0),
        (torch.tensor([1.0, 3.0]), 2.0, 1.0),
        (np.array([1, 3]), 2.0, 1.0),
        ((torch.tensor(1.0), np.float64(3.0)), 2.0, 1.0),
        (torch.tensor([True, False, False, True]), 0.5, pytest.approx(1 / 12**0.5)),
        ([0.25], 0.25, None),
        (Estimate(0.5, 0.1), 0.5, 0.1),
    ],
)
def test_one_number_or_several_are_an_estimate(value, mean, error):
    assert Estimate.of(value, "evaluate") == Estimate(mean, error)


def test_numbers_that_are_not_finite_have_no_mean():
    assert math.isnan(Estimate.of([1.0, math.inf], "evaluate").value)


@pytest.mark.parametrize("value", [None, "0.5", [], {"accuracy": 0.5}, [[0.5]], 1j])
def test_anything_else_is_refused_with_its_value(value):
    with pytest.raises(TypeError, match="evaluate must return one number, or a list or vector with one") as told:
        Estimate.of(value, "evaluate")
    assert repr(value) in str(told.value)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("maximize", [True, False])
def test_a_score_that_is_not_finite_is_not_good(score, maximize):
    assert not Tolerance(0.1, maximize=maximize).allows(score, dense=0.9)


@pytest.mark.parametrize("given", [1 / 3, "0.07%", "7%", "not-worse:0.9999999", 1e-9])
def test_the_text_of_a_tolerance_is_read_as_the_same(given):
    text = str(Tolerance.parse(given))
    assert str(Tolerance.parse(text)) == text
    assert Tolerance.parse(text).by == pytest.approx(Tolerance.parse(given).by, rel=1e-11)


@pytest.mark.parametrize(("own", "given"), [(True, True), (True, False), (False, True), (False, False)])
def test_smaller_scores_are_better_if_the_tolerance_or_the_argument_says_so(own, given):
    tolerance = Tolerance.parse(Tolerance(0.1, maximize=own), maximize=given)
    assert tolerance.allows(5.0, dense=1.0) is (own and given)
