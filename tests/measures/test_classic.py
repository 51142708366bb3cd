import inspect
import math
import random
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from exact_measures import exact

import palmette as pm
from palmette.measures import classic
from palmette.measures.classic import MEASURES
from palmette.measures.hurley_rickard import TABLE_III

LOG2 = math.log(2)


@pytest.mark.parametrize(
    ("name", "w", "value"),
    [
        ("l0", [0, 3, 0, -1], 2),
        ("l0_eps", [0, 0.01, 0.011, -1], 2),
        ("-l1", [1, -2, 3], -6),
        ("-lp", [4, 9, 0], -25),
        ("l2/l1", [3, -4, 0], 5 / 7),
        ("-tanh_ab", [900, 0, 400], -2),
        ("-log", [1, 1, 0], -2 * LOG2),
        ("kappa4", [1, -1, 0, 0], 1 / 2),
        ("u_theta", [0, 1, 4], 3 / 4),
        ("u_theta", [9, 0, 8, 4, 1], 1 - 4 / 9),
        ("-lp_minus", [2, -4, 0], -3 / 4),
        ("H_G", [1 / 2, -1 / 2], 4 * LOG2),
        ("H_S", [3, 3, -3, 3, 0], 4 * LOG2),
        ("H_S_prime", [1 / 2, 1, 0], LOG2),
        ("hoyer", [3, 4, 0, 0], 3 / 5),
        ("gini", [0, 0, 0, 5], 3 / 4),
        ("pq-mean", [0, 1], -1 / 2),
        ("pq", [0, 1], 1 / 2),
    ],
)
def test_values_that_can_be_checked_by_hand(name, w, value):
    assert MEASURES[name](w) == pytest.approx(value, rel=1e-15)


def vectors(seed, count=40):
    rng = random.Random(seed)
    return [[rng.choice([0, 1, rng.gauss(0, 3)]) for _ in range(rng.randint(1, 12))] for _ in range(count)]


@pytest.mark.parametrize("name", MEASURES)
def test_each_measure_equals_its_formula_in_fifty_digits(name):
    for w in vectors(seed=1):
        expected = exact(name, w)
        found = MEASURES[name](w)
        if expected is None:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(float(expected), rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("name", MEASURES)
def test_order_and_sign_of_entries_do_not_matter(name):
    w = np.array([3.0, 1.0, 0.25, 2.0, 5.0])
    assert MEASURES[name](-w[::-1]) == pytest.approx(MEASURES[name](w), rel=1e-14)


@pytest.mark.parametrize("name", MEASURES)
def test_entries_that_are_not_kept_do_not_count(name):
    measure = MEASURES[name]
    w = torch.tensor([[3.0, 1.0, 2.0, 7.0, 5.0], [9.0, 2.0, 8.0, 1.0, 4.0]], dtype=torch.float64)
    kept = torch.tensor([[True, True, True, True, False], [False, True, False, True, True]])
    expected = [measure(row[mask]) for row, mask in zip(w, kept, strict=True)]
    assert torch.allclose(measure(w, dim=1, kept=kept), torch.stack(expected), rtol=1e-14, atol=0)
    hidden = w.masked_fill(~kept, math.nan)
    assert torch.equal(measure(hidden, dim=1, kept=kept), measure(w, dim=1, kept=kept))


@pytest.mark.parametrize("name", MEASURES)
def test_slices_along_dim_are_measured_separately(name):
    measure = MEASURES[name]
    w = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(0))
    found = measure(w, dim=1)
    assert found.shape == (3, 2)
    assert float(found[2, 1]) == pytest.approx(float(measure(w[2, :, 1])), rel=1e-14)


@pytest.mark.parametrize("name", MEASURES)
def test_result_has_the_kind_of_the_input(name):
    measure, w = MEASURES[name], [3.0, 1.0, 2.0]
    assert isinstance(measure(w), float)
    assert isinstance(measure(np.array(w)), np.float64)
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.int64):
        tensor = measure(torch.tensor(w, dtype=dtype))
        assert tensor.dtype == torch.float64
        assert float(tensor) == pytest.approx(measure(w), rel=1e-14)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("w", [[], [1.0, math.nan], [1.0, math.inf], [-math.inf, 2.0, 3.0]])
def test_empty_or_not_finite_input_gives_nan(name, w):
    assert math.isnan(MEASURES[name](w))


@pytest.mark.parametrize("name", MEASURES)
def test_no_kept_entry_gives_nan(name):
    assert math.isnan(MEASURES[name]([1.0, 2.0], kept=[False, False]))


@pytest.mark.parametrize("name", MEASURES)
def test_zeros_have_a_stated_value(name):
    found = MEASURES[name]([0.0, 0.0, 0.0])
    if name in ("l2/l1", "kappa4", "u_theta", "H_G", "H_S", "hoyer", "gini", "pq-mean", "pq"):
        assert math.isnan(found)
    else:
        assert found == (3 if name in ("l0", "l0_eps") else 0)
        assert math.copysign(1, found) == 1


@pytest.mark.parametrize("name", MEASURES)
def test_parameters_in_the_table_are_the_defaults(name):
    measure = MEASURES[name]
    signature = inspect.signature(measure.function).parameters
    own = {key: p.default for key, p in signature.items() if key not in ("w", "dim", "kept")}
    assert own == dict(measure.parameters)
    assert all(p.kind is p.KEYWORD_ONLY for key, p in signature.items() if key != "w")


@pytest.mark.parametrize("name", MEASURES)
def test_direction_in_the_table_matches_a_spike_and_a_flat_vector(name):
    flat, spike = MEASURES[name]([3.0, 2.5, 3.5]), MEASURES[name]([8.5, 0.25, 0.25])
    if name not in ("l0", "l0_eps", "-l1", "-lp_minus"):  # equal, or contrary to its listed direction
        assert (spike > flat) == MEASURES[name].sparser_is_larger


def test_table_has_the_fifteen_measures_of_hurley_and_rickard_and_the_pq_index():
    assert list(MEASURES) == [*TABLE_III, "pq-mean", "pq"]
    assert pm.MEASURES is MEASURES
    assert all(measure.name == name for name, measure in MEASURES.items())


@pytest.mark.parametrize("name", ["l2/l1", "kappa4", "u_theta", "H_S", "hoyer", "gini", "pq-mean", "pq"])
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale_free_measures_survive_any_magnitude(name, scale):
    w = np.array([3.0, 1.0, 0.25, 2.0])
    assert MEASURES[name](scale * w) == pytest.approx(MEASURES[name](w), rel=1e-14)


def test_u_theta_counts_a_whole_share_exactly():
    # 0.07 * 100 is 7.000000000000001; eight entries would span 7 of 99.
    assert classic.u_theta(np.arange(100.0), theta=0.07) == 1 - 6 / 99
    assert classic.u_theta(np.arange(100.0), theta=0.15) == 1 - 14 / 99  # which float32 has above 15


def test_u_theta_counts_the_smallest_share_as_one_entry():
    assert classic.u_theta([1.0, 2.0, 9.0], theta=1e-12) == 1


def test_negative_log_does_not_overflow():
    assert classic.negative_log([1e200, 0.0]) == pytest.approx(-400 * math.log(10), rel=1e-15)


def test_hoyer_of_equal_magnitudes_is_not_negative():
    assert all(0 <= classic.hoyer([0.1] * d) < 1e-15 for d in range(2, 50))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classic.l0_eps([1.0], eps=-1), r"eps must be at least 0 and finite, got eps=-1"),
        (lambda: classic.negative_lp([1.0], p=1), r"needs 0 < p < 1, got p=1"),
        (lambda: classic.negative_tanh([1.0], a=0), r"needs a > 0 and b > 0, both finite, got a=0, b=0.5"),
        (lambda: classic.u_theta([1.0], theta=1), r"needs 0 < theta < 1, got theta=1"),
        (lambda: classic.negative_lp_minus([1.0], p=0), r"needs a finite p < 0, got p=0"),
        (lambda: classic.pq_mean([1.0], p=2, q=1), r"needs 0 < p < q, both finite, got p=2, q=1"),
        (lambda: classic.shannon_entropy([1.0], dim=3), r"dim must name one of"),
    ],
)
def test_errors_name_argument_rule_and_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Every function with a parameter, and values for it that halves and quarters can write.
SETTINGS = [
    (classic.l0_eps, {"eps": 1.5}),
    (classic.negative_lp, {"p": 0.5}),
    (classic.negative_tanh, {"a": 0.5, "b": 0.75}),
    (classic.u_theta, {"theta": 0.5}),
    (classic.negative_lp_minus, {"p": -0.5}),
    (classic.pq_mean, {"p": 0.5, "q": 1.5}),
    (pm.pq_index, {"p": 0.5, "q": 1.5}),
    (pm.tail_mass_count, {"p": 0.5, "eta": 0.25}),
    (lambda w, p: pm.eta_of_cut(w, 2, p), {"p": 0.25}),
    (lambda w, p, q, eta: pm.retained_lower_bound(0.3, w, p=p, q=q, eta=eta), {"p": 0.5, "q": 1.5, "eta": 0.25}),
]


@pytest.mark.parametrize(("function", "settings"), SETTINGS)
@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64, Fraction])
def test_any_kind_of_number_is_a_parameter(function, settings, number):
    w = [3.0, 1.0, 0.3, 2.0, 5.0]
    assert function(w, **{name: number(value) for name, value in settings.items()}) == function(w, **settings)


@pytest.mark.parametrize(("function", "settings"), SETTINGS)
def test_a_narrow_parameter_keeps_float64_arithmetic(function, settings):
    w = [3.0, 1.0, 0.3, 2.0, 5.0]
    narrow = {name: np.float32(value * 0.9 + 0.1) for name, value in settings.items()}
    assert function(w, **narrow) == function(w, **{name: float(value) for name, value in narrow.items()})


@pytest.mark.parametrize(
    ("function", "settings", "name"), [(f, settings, name) for f, settings in SETTINGS for name in settings]
)
@pytest.mark.parametrize("bad", ["x", None, 1j, [0.5], math.nan, 10**400], ids=lambda bad: type(bad).__name__)
def test_invalid_parameters_are_named(function, settings, name, bad):
    with pytest.raises(ValueError, match=re.escape(f"{name}={bad!r}")):
        function([3.0, 1.0], **(settings | {name: bad}))
