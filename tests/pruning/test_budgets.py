from __future__ import annotations

import dataclasses
import math
import random
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch

import palmette as pm
from palmette.pruning.counting import share
from palmette.pruning.sources.memory import Memory

BUDGETS = [
    pm.Sap(),
    pm.Sap(p=1, q=2, eta=0.1, gamma=3, beta=0.5),
    pm.FixedRatio(0.2),
    pm.TailMass(),
    pm.TailMass(p=1, eta=0.5),
    pm.Densities([0.5, 0.3]),
]


# Numbers to check in the head.


@pytest.mark.parametrize(
    ("budget", "row", "count"),
    [
        (pm.Sap(p=1, q=2), [3.0, 4.0, 0.0, 0.0], 2),  # r = 49/25
        (pm.Sap(p=1, q=2, beta=0.25), [3.0, 4.0, 0.0, 0.0], 1),
        (pm.Sap(p=1, q=2, gamma=0.5), [3.0, 4.0, 0.0, 0.0], 1),
        (pm.Sap(p=1, q=2, eta=0.5), [1.0, 1.0, 1.0, 1.0], 2),  # r = 4 / 1.5^2
        (pm.Sap(), [9.0, 1.0, 0.0, 0.0], 2),  # r = (3 + 1)^2 / (9 + 1), so 2.4 may go
        (pm.Sap(), [0.0, 0.0, 5.0, 0.0], 3),
        (pm.Sap(), [1.0, -1.0, 1.0, -1.0], 0),
        (pm.Sap(gamma=1e300), [1.0, -1.0, 1.0, -1.0], 0),
        (pm.Sap(gamma=1e300), [1.0, -1.0, 1.0, -2.0], 3),  # floor(4 * 0.9)
        (pm.FixedRatio(0.5), [1.0, 1.0, 1.0, 1.0, 1.0], 2),
        (pm.FixedRatio(0), [1.0, 2.0], 0),
        (pm.FixedRatio(1), [1.0, 2.0], 2),
        (pm.TailMass(p=1, eta=0.5), [4.0, 1.0, 1.0, 0.0], 3),
        (pm.TailMass(p=1, eta=0.49), [4.0, 1.0, 1.0, 0.0], 2),
        (pm.TailMass(p=1, eta=0.0), [4.0, 1.0, 1.0, 0.0], 1),
        (pm.TailMass(p=0.5, eta=0.5), [16.0, 1.0, 1.0, 0.0], 3),
        (pm.TailMass(p=1, eta=1e300), [1.0, 1.0, 1.0], 2),  # the head is never empty
        (pm.Densities([0.5, 0.25]), [1.0, 2.0, 3.0, 4.0], 2),
        (pm.Densities("0.25"), [1.0, 2.0, 3.0, 4.0], 3),
        (pm.Densities(), [1.0], 1),  # round(0.5) is 0
    ],
    ids=str,
)
def test_counts_that_can_be_checked_in_the_head(budget, row, count):
    counts = budget(torch.tensor(row))
    assert counts.dtype == torch.int64
    assert counts.tolist() == [count]


def test_with_the_default_norms_the_fraction_that_goes_is_the_index_itself():
    torch.manual_seed(0)
    rows = torch.randn(200, 1000, dtype=torch.float64)
    index = pm.pq_index(rows, dim=1)
    assert pm.Sap()(rows).tolist() == (1000 * index).floor().to(torch.int64).tolist()


@pytest.mark.parametrize(("p", "q", "fraction"), [(1.0, 2.0, 1 - 2 / math.pi), (0.5, 1.0, 0.1528)])
def test_gaussian_weights_lose_what_theory_says(p, q, fraction):
    torch.manual_seed(0)
    (count,) = pm.Sap(p=p, q=q)(torch.randn(1, 1_000_000)).tolist()
    assert count / 1_000_000 == pytest.approx(fraction, abs=1e-3)


# Exact counts.


def staircase(width):
    """Ones, and masks that keep 1, 2, …, `width` of them."""
    return torch.ones(width, width), torch.ones(width, width, dtype=torch.bool).tril()


RATIOS = ["0.2", "0.29", "0.57", "0.1", "0.7", "0.999", "0.001", "0.123456789"]


@pytest.mark.parametrize("ratio", [*RATIOS, *(f"{i / 100:.2f}" for i in range(0, 101, 5))])
def test_a_fixed_ratio_counts_like_fractions(ratio):
    counts = pm.FixedRatio(float(ratio))(*staircase(500))
    assert counts.tolist() == [math.floor(d * Fraction(ratio)) for d in range(1, 501)]


@pytest.mark.parametrize("digits", range(1, 16))
def test_shares_of_any_number_of_weights_are_exact(digits):
    chooser = random.Random(digits)
    for _ in range(50):
        decimal = Fraction(chooser.randrange(10**digits + 1), 10**digits)
        sizes = [chooser.randrange(10**k) for k in range(1, 16)]
        assert share(torch.tensor(sizes), float(decimal)).tolist() == [math.floor(d * decimal) for d in sizes]


@pytest.mark.parametrize(("part", "whole"), [(1, 3), (2, 3), (1, 7), (5, 6), (1, 49), (355, 1130)])
def test_a_ratio_written_as_a_division_is_that_fraction(part, whole):
    counts = pm.FixedRatio(part / whole)(*staircase(500))
    assert counts.tolist() == [d * part // whole for d in range(1, 501)]


NORMS = [
    (0.5, 1),
    (1, 2),
    (0.1, 1),
    (0.2, 1),
    (0.8, 1),
    (0.99, 1),
    (1, 1.01),
    (1, 1.2),
    (0.3, 1.7),
    (0.5, 3),
    (0.01, 1),
]


@pytest.mark.parametrize(("p", "q"), NORMS)
def test_a_single_weight_among_zeros_is_all_that_stays(p, q):
    _, kept = staircase(500)
    counts = pm.Sap(p=p, q=q, beta=1)(torch.eye(500)[:1].expand(500, 500), kept)
    assert counts.tolist() == list(range(500))


@pytest.mark.parametrize(("p", "q"), NORMS)
@pytest.mark.parametrize("value", [0.3, 1e-30, 7e20])
def test_equal_weights_among_zeros_are_all_that_stay(p, q, value):
    ones, _ = staircase(64)
    counts = pm.Sap(p=p, q=q, beta=1)(value * ones.tril())
    assert counts.tolist() == list(range(63, -1, -1))
    counts = pm.Sap(p=p, q=q, beta=1, gamma=0.29)(value * ones.tril())
    assert counts.tolist() == [29 * k // 100 for k in range(63, -1, -1)]


@pytest.mark.parametrize(("p", "q", "root"), [(0.5, 1, math.isqrt), (1, 2, int)], ids=["(.5, 1)", "(1, 2)"])
def test_whole_numbers_are_counted_like_fractions(p, q, root):
    chooser = random.Random(0)
    for gamma in ("0.5", "1", "3"):
        roots = [[chooser.randrange(6) for _ in range(12)] + [1] for _ in range(500)]
        rows = torch.tensor(roots, dtype=torch.float64) ** (1 / p)
        exact = [Fraction(sum(row) ** 2, sum(x * x for x in row)) for row in roots]
        wanted = [min(math.floor(Fraction(gamma) * (13 - r)), math.floor(13 * Fraction("0.9"))) for r in exact]
        assert pm.Sap(p=p, q=q, gamma=float(gamma))(rows).tolist() == wanted


def exact_sap(row, p, q, eta, gamma, beta):
    p, q, eta, gamma = (mpmath.mpf(str(x)) for x in (p, q, eta, gamma))
    d = len(row)
    of_p, of_q = (mpmath.fsum(mpmath.mpf(abs(x)) ** power for x in row if x) for power in (p, q))
    index = 1 - mpmath.mpf(d) ** (1 / q - 1 / p) * of_p ** (1 / p) / of_q ** (1 / q)
    retained = d * (1 + eta) ** (-q / (q - p)) * (1 - index) ** (q * p / (q - p))
    at_most = math.floor(d * Fraction(str(beta)))
    # 50 digits round too: a whole number may come out a hair below itself.
    return min(int(mpmath.floor(gamma * (d - retained) + mpmath.mpf("1e-30"))), at_most)


SETTINGS = [
    (0.5, 1, 0, 1, 0.9),
    (1, 2, 0, 1, 0.9),
    (0.2, 1, 0, 1, 0.9),
    (0.8, 1, 0.001, 1, 0.9),
    (1, 1.2, 0.1, 3, 0.95),
    (0.1, 1, 0, 1, 1),
    (0.5, 1, 0, 9, 0.29),
    (1, 4, 1, 0.5, 1),
    (0.3, 1.7, 0, 1, 1),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_counts_agree_with_fifty_digits(setting, dtype):
    torch.manual_seed(0)
    p, q, eta, gamma, beta = setting
    budget = pm.Sap(p=p, q=q, eta=eta, gamma=gamma, beta=beta)
    with mpmath.workdps(50):
        for d in (2, 3, 7, 20):
            rows = torch.cat(
                [
                    torch.randn(16, d),
                    torch.randn(16, d) * (torch.rand(16, d) < 0.5),
                    torch.randn(16, d).exp() ** 4,
                    torch.randint(-2, 3, (16, d)).float(),
                    1 + 1e-3 * torch.randn(16, d),
                ]
            ).to(dtype)
            rows[:, 0] += (rows == 0).all(1)  # a row of zeros has no index
            assert budget(rows).tolist() == [exact_sap(row, *setting) for row in rows.tolist()]


def test_counts_are_as_exact_for_a_million_weights():
    row = torch.zeros(1, 1_000_000)
    row[:, ::3] = 0.3
    assert pm.Sap(p=0.2, q=1)(row).tolist() == [666_666]
    assert pm.Sap(p=1, q=1.2, gamma=0.5)(row).tolist() == [333_333]


@pytest.mark.parametrize("eta", [0.0, 0.1, 1 / 3, 0.5, 1.0, 2.0])
def test_the_tail_is_counted_and_not_bounded(eta):
    chooser = random.Random(0)
    rows = [[chooser.randrange(7) for _ in range(15)] + [1] for _ in range(100)]

    def longest_tail(row):
        row = sorted(row)
        fits = [
            c for c in range(16) if Fraction(sum(row[:c]), sum(row[c:])) <= Fraction(eta).limit_denominator(100)
        ]
        return max(fits)

    counts = pm.TailMass(p=1, eta=eta)(torch.tensor(rows, dtype=torch.float32))
    assert counts.tolist() == [longest_tail(row) for row in rows]


def test_theorem_2_holds_for_every_tail():
    torch.manual_seed(0)
    rows = torch.randn(50, 40, dtype=torch.float64)
    for p, eta in ((0.5, 0.1), (1.0, 0.5)):
        bound = pm.Sap(p=p, q=2, eta=eta, beta=1)(rows)
        assert bool((pm.TailMass(p=p, eta=eta)(rows) <= bound).all())


# What is not there.


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_an_empty_an_all_zero_and_a_broken_row_lose_nothing(budget):
    rows = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0], [float("nan"), 1.0, 2.0, 3.0]])
    kept = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    assert budget(rows, kept).tolist() == [0, 0, 0]
    plan = budget.plan(Memory.of(rows, kept))
    assert bool(plan.index.isnan().all())


# All but Densities, which counts pruned weights in the density.
@pytest.mark.parametrize("budget", [b for b in BUDGETS if not isinstance(b, pm.Densities)], ids=str)
def test_what_is_not_kept_is_as_if_it_were_not_there(budget):
    torch.manual_seed(0)
    rows, kept = torch.randn(20, 50), torch.rand(20, 50) < 0.5
    alone = [budget(row[mask]).item() for row, mask in zip(rows, kept, strict=True)]
    assert budget(rows, kept).tolist() == alone
    rows[~kept] = float("inf")
    assert budget(rows, kept).tolist() == alone


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_row_in_segments_counts_as_one(budget):
    torch.manual_seed(0)
    whole, kept = torch.randn(7, 60), torch.rand(7, 60) < 0.8
    cuts = [10, 20, 30]
    split = Memory(whole.split(cuts, 1), (kept[:, :10], kept[:, 10:30], kept[:, 30:]))
    assert budget.plan(split).cut.tolist() == budget(whole, kept).tolist()


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("scale", [1e-300, 1e300, 1.0], ids=str)
def test_counts_do_not_depend_on_the_unit(budget, scale):
    torch.manual_seed(0)
    rows = torch.randn(30, 40, dtype=torch.float64)
    assert budget(rows * scale).tolist() == budget(rows).tolist()


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("kind", [list, np.asarray], ids=["list", "numpy"])
def test_lists_and_arrays_are_counted_like_tensors(budget, kind):
    rows, kept = [[3.0, 4.0, 0.0, 0.0], [1.0, 2.0, 3.0, 9.0]], [[True] * 4, [True, False, True, True]]
    assert budget(kind(rows), kind(kept)).tolist() == budget(torch.tensor(rows), torch.tensor(kept)).tolist()


def test_a_reversed_and_a_frozen_mask_are_masks():
    kept = np.array([True, True, False, True])
    kept.flags.writeable = False
    assert pm.FixedRatio(0.5)([1.0, 2.0, 3.0, 4.0], kept).tolist() == [1]
    assert pm.FixedRatio(0.5)([1.0, 2.0, 3.0, 4.0], kept[::-1]).tolist() == [1]


# Values.


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16, Fraction], ids=str)
def test_any_kind_of_number_is_a_setting(number):
    torch.manual_seed(0)
    rows = torch.randn(50, 40)
    for make, settings in (
        (pm.Sap, {"p": 0.5, "q": 1.5, "eta": 0.25, "gamma": 2.0, "beta": 0.75}),
        (pm.FixedRatio, {"ratio": 0.375}),
        (pm.TailMass, {"p": 0.5, "eta": 0.25}),
    ):
        same = make(**{name: number(value) for name, value in settings.items()})
        assert same(rows).tolist() == make(**settings)(rows).tolist()


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_budget_is_a_frozen_value(budget):
    assert budget == dataclasses.replace(budget)
    assert hash(budget) == hash(dataclasses.replace(budget))
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.p = 0.1


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (pm.Sap(), "Sap(p=0.5, q=1.0, eta=0.0, gamma=1.0, beta=0.9)"),
        (pm.Sap(p=1, q=2, eta=0.1, gamma=3, beta=0.5), "Sap(p=1, q=2, eta=0.1, gamma=3, beta=0.5)"),
        (pm.FixedRatio(0.2), "FixedRatio(ratio=0.2)"),
        (pm.TailMass(), "TailMass(p=0.5, eta=0.1)"),
        (pm.TailMass(p=1, eta=0.5), "TailMass(p=1, eta=0.5)"),
        (pm.Densities([0.5, 0.1]), "Densities(densities='0.5,0.1')"),
    ],
    ids=str,
)
def test_a_budget_is_shown_as_the_call_that_makes_it(budget, text):
    assert repr(budget) == text


@pytest.mark.parametrize(
    ("make", "name", "bad"),
    [
        *((pm.Sap, "p", bad) for bad in (0, -1, 1.5, math.nan, "half", None)),
        *((pm.Sap, "q", bad) for bad in (0.5, 0.99, math.inf, math.nan, "one")),
        *((pm.Sap, "eta", bad) for bad in (-0.1, math.inf, math.nan, "0")),
        *((pm.Sap, "gamma", bad) for bad in (0, -1, math.inf, math.nan, "1", 10**400)),
        *((pm.Sap, "beta", bad) for bad in (0, -0.5, 1.1, 90, math.nan, "0.9")),
        *((pm.FixedRatio, "ratio", bad) for bad in (-0.1, 1.1, 20, math.nan, "0.2", None)),
        *((pm.TailMass, "p", bad) for bad in (0, 1.1, math.nan, "1")),
        *((pm.TailMass, "eta", bad) for bad in (-1, math.inf, math.nan, "1")),
        *((pm.Densities, "densities", bad) for bad in ("", "a", "0.5,0.5", [1.0], [0.0], [math.nan], 0.5, None)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_setting_out_of_range_is_refused_by_name_and_value(make, name, bad):
    with pytest.raises(ValueError) as error:
        make(**{name: bad})
    assert f"{name}={bad!r}" in str(error.value)


def test_densities_are_reached_one_after_another():
    weights = {"a": torch.arange(1.0, 61), "b": torch.arange(0.5, 40)}
    masks, budget = None, pm.Densities([0.51, 0.2])
    for kept in (51, 20, 20):
        masks, _ = pm.prune(weights, masks, scope="global", budget=budget)
        assert sum(int(mask.sum()) for mask in masks.values()) == kept
    assert pm.Densities([0.5, 0.1]) == pm.Densities("0.5, .1")


def test_equal_norms_are_refused():
    with pytest.raises(ValueError, match="p=1, q=1"):
        pm.Sap(p=1, q=1)


@pytest.mark.parametrize(
    ("rows", "kept", "error", "says"),
    [
        (torch.ones(2, 3), torch.ones(3, 2).bool(), ValueError, "of rows, (2, 3), got a mask of shape (3, 2)"),
        (torch.ones(3), torch.ones(1, 3).bool(), ValueError, "of rows, (3,), got a mask of shape (1, 3)"),
        (torch.ones(2, 3), torch.ones(2, 3), TypeError, "torch.float32"),
        (torch.ones(2, 3, 4), None, ValueError, "(2, 3, 4)"),
        (torch.tensor(1.0), None, ValueError, "()"),
    ],
    ids=["shape", "dimensions", "dtype", "too many", "too few"],
)
def test_rows_and_masks_that_do_not_fit_are_refused(rows, kept, error, says):
    with pytest.raises(error) as caught:
        pm.Sap()(rows, kept)
    assert says in str(caught.value)


def test_schedules_are_lists_of_densities():
    assert pm.Densities("cubic:0.2:2") == pm.Densities([0.3, 0.2])  # 0.2 + 0.8 / 8, then 0.2
    assert pm.Densities("geometric:0.25:2") == pm.Densities([0.5, 0.25])
    cubic = pm.Densities("cubic:0.05:10").values()
    assert cubic == pytest.approx([0.05 + 0.95 * (1 - k / 10) ** 3 for k in range(1, 11)])
    assert cubic[-1] == 0.05
    shares = pm.Densities("geometric:0.1:100").values()
    assert len(shares) == 100
    assert [b / a for a, b in pairwise([1.0, *shares])] == pytest.approx([0.1 ** (1 / 100)] * 100)


def test_the_first_step_of_a_geometric_schedule_can_be_that_of_sap():
    torch.manual_seed(0)
    weights = torch.randn(10_000)
    index = pm.pq_index(weights, p=0.5, q=1.0).item()  # the share that SAP cuts
    schedule = pm.Densities(f"geometric:{(1 - index) ** 3!r}:3")
    assert abs(int(schedule(weights)) - int(pm.Sap()(weights))) <= 1  # rounded, and rounded down


@pytest.mark.parametrize(
    "text", ["cubic", "cubic:0.1", "cubic:0.1:0", "cubic:0.1:2.5", "cubic:0.1:3:4", "cubic:1:3", "linear:0.1:3"]
)
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(ValueError, match=r"or be a schedule such as cubic:0\.05:10, got densities='"):
        pm.Densities(text)
