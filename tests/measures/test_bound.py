from __future__ import annotations

import itertools
import math
import re
import runpy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from powers import GRID

from palmette import eta_of_cut, pq_index, retained_lower_bound, tail_mass_count

ETAS = [0.0, 0.001, 0.01, 0.1, 1.0, 7.0]
DOCS = Path(__file__).parents[2] / "docs"


# Numbers to check in the head.


@pytest.mark.parametrize(
    ("index", "d", "p", "q", "eta", "bound"),
    [
        (0.75, 4, 0.5, 1, 0, 1.0),
        (0.3, 4, 1, 2, 0, 1.96),  # 4 * 0.7**2
        (0.0, 100, 1, 2, 0, 100.0),
        (0.0, 100, 1, 2, 1, 25.0),  # 2**-2
        (0.0, 100, 0.5, 1, 1, 25.0),
        (0.5, 100, 0.5, 1, 0, 50.0),  # at p=.5, q=1 the exponent is 1
        (1.0, 100, 0.5, 1, 0, 0.0),
        (0.5, 0, 0.5, 1, 0, 0.0),
    ],
)
def test_the_bound_of_small_numbers_is_what_theorem_2_says(index, d, p, q, eta, bound):
    result = retained_lower_bound(index, d, p=p, q=q, eta=eta)
    assert type(result) is float
    assert result == pytest.approx(bound, rel=1e-15, abs=0)


def test_gaussian_weights_may_keep_2_over_pi():
    assert 1 - retained_lower_bound(1 - math.sqrt(2 / math.pi), 1, p=1, q=2) == pytest.approx(0.36338, abs=5e-6)


def test_the_cut_of_a_small_vector_weighs_what_it_weighs():
    assert eta_of_cut([4.0, 1.0, 1.0, 0.0], 1, p=1) == 0.5
    assert eta_of_cut([4.0, 1.0, 1.0, 0.0], 2, p=1) == 0.2
    assert eta_of_cut([4.0, 1.0, -1.0, 0.0], 1, p=0.5) == 1.0
    assert eta_of_cut([4, 1, 1, 0], 3, p=1) == 0
    assert eta_of_cut([4, 1, 1, 0], 4, p=1) == 0
    assert eta_of_cut([4, 1, 1, 0], 0, p=1) == math.inf


def test_a_row_of_zeros_has_no_eta_and_may_lose_everything():
    assert math.isnan(eta_of_cut([0.0, 0.0], 1, p=1))
    assert math.isnan(eta_of_cut([], 0, p=1))
    assert tail_mass_count([0.0, 0.0], p=1, eta=0) == 0
    assert tail_mass_count([], p=1, eta=0) == 0


@pytest.mark.parametrize(
    ("eta", "count"),
    [(0, 3), (0.1, 3), (0.2, 2), (0.49, 2), (0.5, 1), (1e300, 1)],
)
def test_the_count_of_a_small_vector_drops_what_the_tail_may_weigh(eta, count):
    assert tail_mass_count([4.0, -1.0, 1.0, 0.0], p=1, eta=eta) == count


def test_an_eta_of_zero_drops_zeros_alone():
    w = [5e-324, 0.0, 1e200, 0.0, -1e-300]
    for p in (0.1, 0.5, 1):
        assert tail_mass_count(w, p=p, eta=0) == 3


# Counts are exact: compared with fractions, ties included.


def counted(w, eta):
    """The count at p = 1 of whole numbers by its definition, with a tail of exactly `eta` allowed to go."""
    ordered = sorted(w, reverse=True)
    return next(r for r in range(len(w) + 1) if sum(ordered[r:]) <= eta * sum(ordered[:r]))


def test_every_small_integer_vector_is_counted_as_fractions_count_it():
    etas = {Fraction(a, b) for a in range(8) for b in range(1, 8)}
    checked = ties = 0
    for w in itertools.combinations_with_replacement([0, 1, 2, 3, 7], 4):
        for eta in etas:
            expected = counted(w, eta)
            assert tail_mass_count(list(w), p=1, eta=float(eta)) == expected, (w, eta)
            assert tail_mass_count(np.array(w) / 8, p=1, eta=float(eta)) == expected
            checked += 1
            head = sum(sorted(w, reverse=True)[:expected])
            ties += 0 < sum(w) - head == eta * head
    assert checked > 2000
    assert ties > 90


@pytest.mark.parametrize("seed", range(10))
def test_a_tie_is_a_tie_for_long_integer_vectors(seed):
    rng = np.random.default_rng(seed)
    w = rng.integers(0, 1000, rng.integers(2, 300))
    ordered = np.sort(w)[::-1]
    for r in rng.integers(1, len(w), 5):
        eta = Fraction(int(ordered[r:].sum()), int(ordered[:r].sum()))
        expected = counted(w.tolist(), eta)
        assert expected <= r
        assert tail_mass_count(w, p=1, eta=float(eta)) == expected
        assert tail_mass_count(w * 2.0**-60, p=1, eta=float(eta)) == expected
        if eta:
            below = math.nextafter(float(eta), 0)
            assert tail_mass_count(w, p=1, eta=below) == counted(w.tolist(), Fraction(below)) > expected


@pytest.mark.parametrize("value", [0.1, 1.0, 0.7, 1e-30, 3e30, 5e-324])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1])
def test_equal_magnitudes_are_counted_whatever_their_value(value, p):
    for d, eta, count in [
        (10, 1 / 4, 8),
        (12, 1 / 3, 9),
        (21, 0.4, 15),
        (30, 0.2, 25),
        (7, 1 / 6, 6),
        (1000, 1.0, 500),
    ]:
        assert tail_mass_count([value] * d, p=p, eta=eta) == count
        assert tail_mass_count(np.r_[np.full(d, value), np.zeros(99)], p=p, eta=eta) == count
        assert tail_mass_count([value] * d, p=p, eta=math.nextafter(eta, 0)) == count + 1


def test_the_tail_and_the_head_are_summed_exactly_and_their_quotient_is_rounded_once():
    crumbs = [1.0] + [2.0**-54] * 2**10  # none of them would show in a sum that starts at 1
    assert eta_of_cut(crumbs, 1, p=1) == 2.0**-44
    assert eta_of_cut([0.5, *crumbs], 1, p=1) == 0.5 + 2.0**-44
    assert tail_mass_count([0.5, *crumbs], p=1, eta=0.5 + 2.0**-44) == 1
    assert tail_mass_count([0.5, *crumbs], p=1, eta=0.5 + 2.0**-45) == 2


def test_the_largest_and_smallest_magnitudes_are_counted():
    assert tail_mass_count([1.7e308] * 12, p=1, eta=1 / 3) == 9
    assert tail_mass_count([1.7e308] * 12, p=0.9, eta=1 / 3) == 9
    assert eta_of_cut([5e-324, 1e-323], 1, p=1) == 0.5


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1])
def test_the_count_and_the_eta_of_a_cut_agree(p):
    rng = np.random.default_rng(1)
    for d in (1, 2, 17, 150):
        w = rng.standard_normal(d) * 10 ** rng.uniform(-30, 30, d)
        etas = [eta_of_cut(w, r, p) for r in range(d + 1)]
        assert etas == sorted(etas, reverse=True)
        for r in range(1, d + 1):
            # The first of those that weigh the same.
            assert tail_mass_count(w, p=p, eta=etas[r]) == etas.index(etas[r])


def test_a_million_equal_weights_are_counted_to_the_last():
    w = torch.full((1_000_000,), 0.1)
    assert tail_mass_count(w, p=0.3, eta=0.25) == 800_000
    assert eta_of_cut(w, 800_000, 0.3) == 0.25


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=["list", "numpy", "tensor"])
def test_any_kind_of_vector_is_counted(kind):
    w = kind([[4, 1], [-1, 0]])
    assert type(tail_mass_count(w, p=1, eta=0.5)) is int
    assert tail_mass_count(w, p=1, eta=0.5) == 1
    assert type(eta_of_cut(w, 1, 1)) is float
    assert eta_of_cut(w, np.int64(1), 1) == 0.5


# Theorem 2.


def adversaries(rng):
    """Vectors of many shapes, from one entry to some dozens, none all zero."""
    d = int(rng.integers(1, 40))
    flat = np.zeros(d)
    flat[: rng.integers(1, d + 1)] = rng.choice([1.0, 0.1, 1e-30, 7e30])
    yield flat
    yield rng.standard_normal(d)
    yield rng.standard_cauchy(d)
    yield 10 ** rng.uniform(-30, 30, d)
    yield rng.uniform(0.01, 0.99) ** np.arange(d)
    yield np.where(np.arange(d) < rng.integers(1, d + 1), 1.0, 10 ** rng.uniform(-12, 0))
    yield 1 + 10 ** rng.uniform(-15, -1) * rng.standard_normal(d)
    yield rng.integers(0, 4, d) + np.eye(1, d)[0]


def nearby(w, p, q):
    """The index, as much larger and as much smaller as rounding may have made it."""
    index, rounding = float(pq_index(w, p=p, q=q)), 2.0**-51
    return min(1.0, index + rounding), max(0.0, index - rounding)


@pytest.mark.parametrize("seed", range(50))
def test_no_cut_of_any_vector_keeps_fewer_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    for _ in range(8):
        for w in adversaries(rng):
            p, q = GRID[rng.integers(len(GRID))]
            cuts = sorted({1, len(w), *rng.integers(1, len(w) + 1, 3).tolist()})
            index, _ = nearby(w, p, q)
            for r in cuts:
                bound = retained_lower_bound(index, len(w), p=p, q=q, eta=eta_of_cut(w, r, p))
                assert bound <= r * (1 + 1e-12), (w, p, q, r)


@pytest.mark.parametrize("seed", range(30))
def test_no_count_is_below_its_bound(seed):
    rng = np.random.default_rng(seed)
    for w in adversaries(rng):
        p, q = GRID[rng.integers(len(GRID))]
        index, _ = nearby(w, p, q)
        counts = [tail_mass_count(w, p=p, eta=eta) for eta in ETAS]
        assert counts == sorted(counts, reverse=True)
        for eta, count in zip(ETAS, counts, strict=True):
            bound = retained_lower_bound(index, len(w), p=p, q=q, eta=eta)
            assert math.ceil(bound * (1 - 1e-12)) <= count


@pytest.mark.parametrize(("p", "q"), GRID)
def test_equal_magnitudes_among_zeros_reach_the_bound(p, q):
    for d in (1, 2, 49, 1000):
        for r in {1, (d + 1) // 2, d}:
            w = np.r_[np.full(r, 0.1), np.zeros(d - r)]
            low, high = retained_lower_bound(nearby(w, p, q), d, p=p, q=q)
            assert low * (1 - 1e-13) <= r <= high * (1 + 1e-13)
            if pq_index(w, p=p, q=q) < 0.99:
                assert retained_lower_bound(pq_index(w, p=p, q=q), d, p=p, q=q) == pytest.approx(r, rel=1e-13)
            assert tail_mass_count(w, p=p, eta=0) == r


def test_a_larger_eta_lets_more_go():
    bounds = [retained_lower_bound(0.2, 1000, p=0.5, q=1, eta=eta) for eta in ETAS]
    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == len(ETAS)


# Kinds.


def test_the_bound_comes_in_the_kind_of_the_index_and_in_float64():
    assert retained_lower_bound([0.5, 0.75], 4, p=0.5, q=1) == [2.0, 1.0]
    array = retained_lower_bound(np.array([0.5, 0.75], dtype=np.float32), np.array([4, 8]), p=0.5, q=1)
    assert array.dtype == np.float64
    assert array.tolist() == [2.0, 2.0]
    assert type(retained_lower_bound(np.float32(0.5), 4, p=0.5, q=1)) is np.float64
    tensor = retained_lower_bound(torch.tensor([0.5, 0.75]), torch.tensor([4, 8]), p=0.5, q=1)
    assert tensor.dtype == torch.float64
    assert tensor.tolist() == [2.0, 2.0]
    assert retained_lower_bound(torch.tensor(0.3), 10**9, p=0.5, q=1).item() == pytest.approx(7e8 - 12, abs=1)


def test_the_index_of_rows_goes_into_the_bound_as_it_came_out():
    w = [[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    for given in (w, np.array(w), torch.tensor(w)):
        bound = retained_lower_bound(pq_index(given, p=1, q=2, dim=1), 4, p=1, q=2)
        assert list(bound[:2]) == pytest.approx([1.96, 4.0], rel=1e-15)
        assert math.isnan(bound[2])


# Errors name the argument, the rule and the value received.


@pytest.mark.parametrize("eta", [-0.1, -1, math.inf, math.nan, "0.1", None])
def test_an_eta_out_of_range_is_refused(eta):
    says = re.escape(f"eta must be at least 0 and finite, got eta={eta!r}")
    with pytest.raises(ValueError, match=says):
        retained_lower_bound(0.5, 10, p=0.5, q=1, eta=eta)
    with pytest.raises(ValueError, match=says):
        tail_mass_count([1.0], p=0.5, eta=eta)


@pytest.mark.parametrize("p", [0, -1, 1.1, math.nan, math.inf, "1"])
def test_a_p_out_of_range_is_refused(p):
    says = re.escape(f"p must be above 0 and at most 1 (Theorem 2), got p={p!r}")
    with pytest.raises(ValueError, match=says):
        eta_of_cut([1.0, 2.0], 1, p)
    with pytest.raises(ValueError, match=says):
        tail_mass_count([1.0, 2.0], p=p, eta=0.1)
    with pytest.raises(ValueError, match=re.escape(f"got p={p!r}, q=2")):
        retained_lower_bound(0.5, 10, p=p, q=2)


@pytest.mark.parametrize("r", [-1, 3, 1.0, 0.5, math.nan, "1", None])
def test_a_cut_that_w_does_not_have_is_refused(r):
    says = re.escape(f"r must be a whole number from 0 to the 2 entries of w, got r={r!r}")
    with pytest.raises(ValueError, match=says):
        eta_of_cut([1.0, 2.0], r, 1)


@pytest.mark.parametrize("index", [-0.1, 1.5, math.inf, [0.5, -1.0]])
def test_an_index_that_no_vector_has_is_refused(index):
    with pytest.raises(ValueError, match=r"index must lie between 0 and 1 \(Theorem 1\), got index="):
        retained_lower_bound(index, 10, p=0.5, q=1)


def test_a_negative_number_of_entries_is_refused():
    with pytest.raises(ValueError, match="d must be at least 0, got d=-1"):
        retained_lower_bound(0.5, -1, p=0.5, q=1)


def test_numbers_of_entries_that_do_not_fit_the_indices_are_refused():
    with pytest.raises(ValueError, match=r"one for each index, got d of shape \(3,\) for index of shape \(2,\)"):
        retained_lower_bound([0.3, 0.4], [4, 5, 6], p=0.5, q=1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_or_infinity_has_no_count(bad):
    for call in (lambda w: eta_of_cut(w, 1, 1), lambda w: tail_mass_count(w, p=1, eta=0)):
        with pytest.raises(ValueError, match="w must be finite, got 1 entries that are NaN or infinite"):
            call([1.0, bad])


# The page.


def test_the_tables_of_the_page_are_what_its_script_makes():
    page = runpy.run_path(str(DOCS / "make_bound.py"))["page"]
    assert page() == (DOCS / "bound.md").read_text(encoding="utf-8")


def test_no_measured_tightness_is_above_one():
    cells = re.findall(r"^\| .+ \|$", (DOCS / "bound.md").read_text(encoding="utf-8"), re.MULTILINE)
    measured = [row.split("|") for row in cells if re.search(r"\| [01]\.\d{3}", row)]
    assert len(measured) == 10
    assert all(0 <= float(cell) <= 1 for row in measured for cell in (*row[2:5], *row[6:9]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_counts_of_a_gpu_are_those_of_the_cpu():
    rng = np.random.default_rng(0)
    for w in adversaries(rng):
        on_gpu = torch.from_numpy(w).cuda()
        for p in (0.1, 0.5, 1):
            for eta in ETAS:
                assert tail_mass_count(on_gpu, p=p, eta=eta) == tail_mass_count(w, p=p, eta=eta)
        assert retained_lower_bound(pq_index(on_gpu), len(w), p=0.5, q=1).is_cuda
    assert tail_mass_count(torch.full((1_000_000,), 0.1, device="cuda"), p=0.3, eta=0.25) == 800_000
