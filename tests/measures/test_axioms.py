import math
import re
import runpy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_measures import exact

from palmette.measures.axioms import PROPERTIES, check
from palmette.measures.classic import MEASURES, kappa4, pq_mean
from palmette.measures.gini import gini_index
from palmette.measures.hurley_rickard import published
from palmette.measures.trials import bill_gates, random_vectors, rising_tide, structured_vectors

DOCS = Path(__file__).parents[2] / "docs"

# x: not refuted, .: refuted, !: Hurley and Rickard 2009, Table III, says the opposite.
EXPECTED = """
              D1  D2  D3  D4  P1  P2
    l0        .   x   .   .   .   x
    l0_eps    .   .   .   .   .   x
    -l1       .   .   x   .   .   .
    -lp       x   .   x   .   .   .
    l2/l1     x   x   x!  .   x   .
    -tanh_ab  x   .   x   .   .   .
    -log      .   .   x   .   .   .
    kappa4    .   x   x   .   x   .
    u_theta   .   x   .   x   .!  .
    -lp_minus .   .   .   .   x   .
    H_G       x   .   x   .   .   .
    H_S       .   x!  .   .   .   .
    H_S_prime .   .   .   .   .   .
    hoyer     x   x   x   .   x   .!
    gini      x   x   x   x   x   x
    pq-mean   x   x   x   x   x   x
    pq        x   x   x   x   x   x
"""


@pytest.fixture(scope="module")
def verdicts():
    return {name: check(measure) for name, measure in MEASURES.items()}


def test_verdicts_match_the_expected_table(verdicts):
    rows = [line.split() for line in EXPECTED.strip().splitlines()]
    expected = {name: dict(zip(rows[0], cells, strict=True)) for name, *cells in rows[1:]}

    def cell(name, key, verdict):
        differs = published(name, key) not in (None, verdict.holds)
        return ("x" if verdict.holds else ".") + ("!" if differs else "")

    found = {n: {key: cell(n, key, v) for key, v in of_n.items()} for n, of_n in verdicts.items()}
    assert found == expected


def test_every_verdict_counts_its_trials(verdicts):
    for of_measure in verdicts.values():
        for verdict in of_measure.values():
            assert verdict.trials >= (1 if verdict.counterexample else 1000)


@pytest.mark.parametrize("name", MEASURES)
def test_counterexamples_hold_in_fifty_digits(name, verdicts):
    for key, verdict in verdicts[name].items():
        example = verdict.counterexample
        if example is None:
            continue
        before, after = exact(name, example.before), exact(name, example.after)
        assert float(before) == pytest.approx(example.value_before, rel=1e-13, abs=1e-14)
        if after is None:
            assert (name, key) == ("H_G", "P2")
            assert math.isnan(example.value_after)
            continue
        assert float(after) == pytest.approx(example.value_after, rel=1e-13, abs=1e-14)
        rise = after - before if abs(after - before) > 1e-40 else 0
        assert {"<": rise >= 0, "=": rise != 0, ">": rise <= 0}[PROPERTIES[key].relation]


def test_counterexamples_are_short_and_small(verdicts):
    for of_measure in verdicts.values():
        for verdict in of_measure.values():
            if verdict.counterexample:
                assert len(verdict.counterexample.before) <= 3
                assert max(verdict.counterexample.before) <= 4


def test_l2_over_l1_has_rising_tide_in_exact_arithmetic():
    def squared(w):
        c = [Fraction(x) for x in w]
        return sum(x * x for x in c) / sum(c) ** 2

    trials = [t for w in structured_vectors() for t in rising_tide(w)]
    assert len(trials) > 700
    assert all(squared(t.afters[0][0]) < squared(t.befores[0]) for t in trials)
    assert squared([0, 1]) == 1
    assert squared([1, 2]) == Fraction(5, 9)


def test_shannon_entropy_is_scale_free():
    def shares(w):
        return [Fraction(x) ** 2 / sum(Fraction(y) ** 2 for y in w) for x in w]

    assert shares([1, 2]) == shares([2, 4]) == [Fraction(1, 5), Fraction(4, 5)]
    assert all(shares(w) == shares([7 * x for x in w]) for w in structured_vectors())


def test_u_theta_breaks_bill_gates_on_1_1_2():
    for raised in (2, 3, 10, 10**6, 10**12):
        assert MEASURES["u_theta"]([1, 1, raised]) == 1
    # With entries that all differ it does.
    assert MEASURES["u_theta"]([1, 2, 9]) < MEASURES["u_theta"]([1, 2, 10])


def test_hoyer_breaks_babies_only_for_a_single_non_zero_entry():
    assert exact("hoyer", [0, 1]) == exact("hoyer", [0, 1, 0]) == 1
    for w in structured_vectors():
        if sum(x > 0 for x in w) > 1:
            assert exact("hoyer", (*w, 0)) > exact("hoyer", w)


def test_bill_gates_skips_vectors_with_a_single_non_zero_entry():
    assert next(bill_gates((0.0, 5.0, 0.0))).befores[0] == (1.0, 5.0, 0.0)
    assert all(trial.befores[0][1] == 5.0 for trial in bill_gates((0.0, 5.0, 0.0)))
    assert list(bill_gates((5.0,))) == []


def test_a_constant_measure_has_scaling_and_cloning_only():
    found = check(lambda w: 3.0, trials=10)
    assert [key for key, verdict in found.items() if verdict.holds] == ["D2", "D4"]


@pytest.mark.parametrize(
    ("wrong", "lost"),
    [
        (lambda w, dim: gini_index(w, dim=dim) * w.shape[dim], ["D4"]),
        (lambda w, dim: gini_index(w, dim=dim) + 1e-9 * w.sum(dim), ["D2", "D4"]),
        (lambda w, dim: gini_index(w, dim=dim) * w.shape[dim] / (w.shape[dim] - 1), ["D4", "P2"]),
        (lambda w, dim: -gini_index(w, dim=dim), ["D1", "D3", "P1", "P2"]),
        # Right but for vectors that no one looks at: sixteen entries, the first above 7.
        (
            lambda w, dim: gini_index(w, dim=dim) + (w[:, 0] > 7) * (w.shape[dim] == 16),
            ["D1", "D2", "D3", "D4", "P2"],
        ),
    ],
)
def test_a_faulty_gini_index_loses_the_right_properties(wrong, lost):
    assert [key for key, verdict in check(wrong).items() if not verdict.holds] == lost


def test_bill_gates_needs_one_beta_only():
    late = check(lambda w: max(w) if max(w) > 100 else 0.0, trials=10)
    assert late["P1"].holds
    early = check(lambda w: min(max(w), 10.0), trials=10)
    assert not early["P1"].holds


def test_functions_of_a_vector_and_of_rows_get_equal_verdicts():
    def one(w):
        assert isinstance(w, np.ndarray)
        assert w.ndim == 1
        return (w**4).sum() / (w**2).sum() ** 2

    def shown(verdicts):
        return {key: (verdict.trials, str(verdict)) for key, verdict in verdicts.items()}

    assert shown(check(one, trials=50)) == shown(check(kappa4, trials=50))


@pytest.mark.parametrize("undefined", [math.nan, math.inf, -math.inf])
def test_undefined_values_before_are_skipped_and_after_count_against(undefined):
    def only(lengths):
        return lambda w, dim: gini_index(w, dim=dim) + (0.0 if w.shape[dim] in lengths else undefined)

    only_long = check(only(range(3, 99)), trials=50)
    assert all(verdict.holds for verdict in only_long.values())
    only_short = check(only(range(17)), trials=50)
    assert [key for key, verdict in only_short.items() if not verdict.holds] == ["D4", "P2"]
    assert all(str(only_short[key]).endswith(" to undefined") for key in ("D4", "P2"))


def test_a_tie_differs_from_a_small_step():
    tiny = check(lambda w, dim: gini_index(w, dim=dim) * 1e-6, trials=100)
    assert all(verdict.holds for verdict in tiny.values())
    invisible = check(lambda w, dim: gini_index(w, dim=dim) * 1e-14, trials=100)
    assert not invisible["D1"].holds


def test_verdicts_do_not_depend_on_trials_and_seed():
    assert list(random_vectors(50, seed=0)) == list(random_vectors(50, seed=0))
    assert list(random_vectors(50, seed=0)) != list(random_vectors(50, seed=1))
    few, many = check(MEASURES["pq"], trials=0)["P2"], check(MEASURES["pq"], trials=2000, seed=1)["P2"]
    assert few.holds
    assert many.holds
    assert many.trials == few.trials + 2000
    assert check(MEASURES["pq"], trials=np.int64(2000), seed=np.int64(1))["P2"] == many


def test_pq_mean_outside_its_range_breaks_robin_hood():
    small = [1 / 64] * 998
    assert pq_mean([8, 4, *small], p=0.5, q=0.9) < pq_mean([7, 5, *small], p=0.5, q=0.9)


def test_invalid_arguments_are_named():
    for trials in (-1, 1.5, math.nan, "9", None):
        says = f"trials must be a whole number of at least 0, got trials={trials!r}"
        with pytest.raises(ValueError, match=re.escape(says)):
            check(gini_index, trials=trials)
    for seed in (0.5, "1", None):
        with pytest.raises(ValueError, match=re.escape(f"seed must be a whole number, got seed={seed!r}")):
            check(gini_index, seed=seed)
    with pytest.raises(TypeError, match="measure must be a function, got 'gini'"):
        check("gini")
    with pytest.raises(ValueError, match=r"one value per row, got shape \(\) for"):
        check(lambda w, dim: torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"must be finite on some vectors, got none at all in testing D1"):
        check(lambda w: math.nan, trials=0)


def test_counterexamples_read_as_sentences(verdicts):
    assert str(verdicts["kappa4"]["D1"]) == (
        "moving 1 from the 2nd to the 1st entry: [0, 3, 4] -> [1, 2, 4], S goes from 0.5392 to 0.619"
    )
    assert str(verdicts["hoyer"]["P2"]) == "appending a zero: [0, 1] -> [0, 1, 0], S stays 1"
    assert str(verdicts["gini"]["D4"]).startswith("holds on ")


def test_documentation_page_is_up_to_date():
    page = (DOCS / "axioms.md").read_text(encoding="utf-8")
    filled = runpy.run_path(str(DOCS / "make_axioms.py"))["filled"]
    assert filled(page) == page, "run python docs/make_axioms.py"


def test_example_on_the_page_prints_its_output(capsys):
    page = (DOCS / "axioms.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.M)
