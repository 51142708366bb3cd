from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from powers import CORNERS, GRID, GRID_P, GRID_Q

from palmette import pq_index
from palmette.measures.pq import P_GRID, Q_GRID, PowerSums, map_of_rows, power_sums
from palmette.measures.rows import Rows

# Numbers to check in the head.


@pytest.mark.parametrize(
    ("w", "p", "q", "index"),
    [
        ([3.0, 4.0, 0.0, 0.0], 1, 2, 0.3),  # 1 - 7 / (2 * 5)
        ([0, 0, 1, 0], 0.5, 1, 0.75),  # 1 - 1/4
        ([0, 0, -7, 0], 0.5, 1, 0.75),
        ([0, 0, 1, 0], 1, 2, 0.5),  # 1 - 1/2
        ([1, 1, 1, 1], 0.5, 1, 0.0),
        ([-0.1, 0.1, 0.1], 0.5, 1, 0.0),
        ([9, 1], 0.5, 1, 0.2),  # 1 - 4**2 / (2 * 10)
        ([4, 1, 1, 0], 0.5, 1, 1 - 16 / 24),  # roots 2, 1, 1
        ([1, 0], 0.1, 1, 1 - 2**-9),
        ([1, 0], 0.1, 2, 1 - 2**-9.5),
        ([1], 0.3, 1.7, 0.0),
    ],
)
def test_the_index_of_small_vectors_is_what_the_definition_says(w, p, q, index):
    result = pq_index(w, p=p, q=q)
    assert type(result) is float
    assert result == pytest.approx(index, rel=1e-15, abs=0)


@pytest.mark.parametrize(("p", "q"), CORNERS)
def test_equal_magnitudes_have_an_index_of_exactly_zero(p, q):
    for value in (0.1, 1.0, -3.7, 1e-30, 1e30, 5e-324, 1.7e308):
        for d in (1, 2, 3, 49, 1000):
            result = pq_index(np.full(d, value), p=p, q=q)
            assert result == 0
            assert math.copysign(1, result) == 1
    assert pq_index(torch.full((997,), 0.1), p=p, q=q) == 0


@pytest.mark.parametrize(
    ("p", "q", "limit"),
    [(1, 2, 1 - math.sqrt(2 / math.pi)), (0.5, 1, 0.1528)],
)
def test_gaussian_weights_have_the_index_of_the_limit(p, q, limit):
    w = torch.randn(4_000_000, generator=torch.Generator().manual_seed(0))
    assert pq_index(w, p=p, q=q) == pytest.approx(limit, abs=3e-4)


# Properties over tables.


def vectors():
    rng = np.random.default_rng(11)
    yield from (rng.standard_normal(d) for d in (1, 2, 3, 10, 100, 1001))
    yield from (rng.standard_cauchy(d) for d in (2, 5, 1000))
    yield from (np.round(rng.standard_normal(d)) + 0.0 for d in (4, 50))
    yield from (1 + 1e-7 * rng.standard_normal(d) for d in (2, 300))
    yield 10 ** rng.uniform(-300, 300, 50)
    yield np.eye(1, 9)[0]
    yield np.r_[np.ones(3), np.zeros(4)]


VECTORS = [w for w in vectors() if w.any()]


@pytest.mark.parametrize(("p", "q"), GRID)
def test_the_index_lies_in_the_range_of_theorem_1(p, q):
    for w in VECTORS:
        top = 1 - len(w) ** (1 / q - 1 / p)
        assert 0 <= pq_index(w, p=p, q=q) <= top * (1 + 4e-15)


@pytest.mark.parametrize(("p", "q"), GRID)
def test_the_top_of_the_range_is_a_single_entry(p, q):
    for d in (1, 2, 49, 1000):
        for value in (1.0, -0.1, 1e-30, 1e30):
            top = -math.expm1((1 / q - 1 / p) * math.log(d))
            assert pq_index(np.eye(1, d)[0] * value, p=p, q=q) == pytest.approx(top, rel=1e-14)


@pytest.mark.parametrize(("p", "q"), CORNERS)
@pytest.mark.parametrize(
    "change",
    [
        lambda w: np.random.default_rng(0).permutation(w),
        lambda w: w[::-1],
        lambda w: -w,
        lambda w: np.abs(w),
        lambda w: w * 2.0**-20,
        lambda w: w * 3.0,
        lambda w: w / 7.0,
        lambda w: np.tile(w, 3),
        lambda w: np.repeat(w, 2),
        lambda w: w.reshape(1, -1, 1),
    ],
    ids=[
        "permuted",
        "reversed",
        "negated",
        "absolute",
        "halved",
        "tripled",
        "divided",
        "cloned",
        "doubled",
        "reshaped",
    ],
)
def test_order_sign_scale_and_cloning_leave_the_index_unchanged(change, p, q):
    for w in VECTORS:
        # Entries that differ in the seventh digit keep nine digits of their difference when they are rounded anew.
        assert pq_index(change(w), p=p, q=q) == pytest.approx(pq_index(w, p=p, q=q), rel=1e-8, abs=0)
        if np.ptp(np.abs(w)) > 0.1 * np.abs(w).max():
            assert pq_index(change(w), p=p, q=q) == pytest.approx(pq_index(w, p=p, q=q), rel=1e-12, abs=0)


@pytest.mark.parametrize(("p", "q"), CORNERS)
def test_masking_an_entry_is_removing_it(p, q):
    rng = np.random.default_rng(2)
    for w in VECTORS:
        kept = rng.random(len(w)) < 0.6
        masked, removed = pq_index(w, p=p, q=q, kept=kept), pq_index(w[kept], p=p, q=q)
        np.testing.assert_allclose(masked, removed, rtol=1e-13)


def test_a_kept_zero_counts_and_a_masked_zero_does_not():
    assert pq_index([1.0, 0.0, 0.0, 0.0], kept=[True, True, False, False]) == 0.5
    assert pq_index([1.0, 0.0, 0.0, 0.0], kept=[True, False, False, False]) == 0.0
    assert pq_index([1.0, 0.0, 0.0, 0.0], kept=[True, True, True, True]) == 0.75


def test_a_larger_gap_between_p_and_q_gives_a_larger_index():
    w = np.random.default_rng(4).standard_normal(500)
    for q in GRID_Q:
        down = [pq_index(w, p=p, q=q) for p in GRID_P if p != q]
        assert down == sorted(down, reverse=True)
    for p in GRID_P:
        up = [pq_index(w, p=p, q=q) for q in GRID_Q if p != q]
        assert up == sorted(up)


# Errors.


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (0, 1),
        (-0.5, 1),
        (1.1, 2),
        (0.5, 0.9),
        (1, 1),
        (2, 1),
        (1, math.inf),
        (math.nan, 1),
        (0.5, math.nan),
        ("0.5", 1),
        (0.5, None),
        (1j, 2),
    ],
)
def test_p_and_q_outside_theorem_1_are_refused_with_rule_and_values(p, q):
    with pytest.raises(ValueError, match=r"0 < p <= 1 <= q < inf and p != q \(Theorem 1\)") as raised:
        pq_index([1.0, 2.0], p=p, q=q)
    assert f"got p={p!r}, q={q!r}" in str(raised.value)


def test_q_of_one_is_allowed_though_the_definition_writes_less_than():
    assert pq_index([1.0, 0.0], p=0.5, q=1) == 0.5
    assert pq_index([1.0, 0.0], p=1, q=1.0001) == pytest.approx(1 - 2 ** (1 / 1.0001 - 1), rel=1e-11)


# Power sums add.


def sums_of(values, p, q):
    return power_sums(Rows.of(torch.as_tensor(values).reshape(1, -1)), p=p, q=q)


@pytest.mark.parametrize(("p", "q"), CORNERS)
@pytest.mark.parametrize("seed", range(8))
def test_the_sums_of_random_splits_add_to_the_sums_of_the_whole(p, q, seed):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(500) * 10 ** rng.uniform(-40, 40)
    whole = sums_of(w, p, q)
    cuts = np.sort(rng.integers(0, 501, rng.integers(1, 9)))  # some parts are empty
    parts = [sums_of(part, p, q) for part in np.split(w, cuts)]
    rng.shuffle(parts)
    added = sum(parts[1:], start=parts[0])
    assert added.d.tolist() == whole.d.tolist() == [500]
    assert added.scale.tolist() == whole.scale.tolist()
    torch.testing.assert_close(added.p_sum, whole.p_sum, rtol=1e-14, atol=0)
    torch.testing.assert_close(added.q_sum, whole.q_sum, rtol=1e-14, atol=0)
    torch.testing.assert_close(added.index(), whole.index(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("magnitude", [1e-200, 1e-30, 1.0, 1e30, 1e200])
@pytest.mark.parametrize("zeros", [torch.zeros(0), torch.zeros(3), torch.zeros(3).double(), torch.zeros(3).int()])
def test_a_part_of_zeros_adds_its_count_and_nothing_else(magnitude, zeros):
    w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * magnitude
    expected = pq_index(torch.cat([w, zeros.double()]), p=0.5, q=2)
    part, nothing = sums_of(w, 0.5, 2), sums_of(zeros, 0.5, 2)
    for added in (part + nothing, nothing + part, nothing + nothing + part):
        if added.d == part.d + nothing.d:
            torch.testing.assert_close(added.index()[0], expected, rtol=1e-14, atol=0)
    assert (nothing + nothing).index().isnan().all()


def test_parts_of_different_dtypes_add():
    narrow, wide = torch.tensor([1.0, 2.0]), torch.tensor([3e200, 4e200], dtype=torch.float64)
    added = sums_of(narrow, 1, 2) + sums_of(wide, 1, 2)
    assert added.index().item() == pytest.approx(0.3, rel=1e-15)


def test_a_nan_in_a_part_is_a_nan_in_the_whole():
    good, bad = sums_of([1.0, 2.0], 0.5, 1), sums_of([1.0, math.nan], 0.5, 1)
    assert (good + bad).index().isnan().all()
    assert (bad + good).index().isnan().all()


def test_the_sums_of_all_rows_are_those_of_one_long_row():
    w = torch.randn(6, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-200
    w[2] = 0
    together = power_sums(Rows.of(w), p=0.5, q=2).over_rows()
    assert isinstance(together, PowerSums)
    assert together.d.tolist() == [300]
    assert together.index().item() == pytest.approx(pq_index(w, p=0.5, q=2).item(), rel=1e-14)


def test_sums_of_different_powers_do_not_add():
    with pytest.raises(ValueError, match=r"same p and q only, got \(0.5, 1\) and \(1, 2\)"):
        sums_of([1.0], 0.5, 1) + sums_of([1.0], 1, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("p", "q"), [*CORNERS, (0.3, 1.5)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nan_or_infinity_on_a_gpu_spoils_its_own_row_only(p, q, bad):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        w = torch.tensor([[1.0, bad, 0.0, 2.0], [3.0, 0.0, 1.0, 0.0]], dtype=dtype)
        result = pq_index(w.cuda(), p=p, q=q, dim=1)
        assert result[0].isnan()
        assert result[1].item() == pytest.approx(pq_index(w[1], p=p, q=q).item(), rel=1e-12)
        masked = pq_index(w.cuda(), p=p, q=q, dim=1, kept=w.isfinite())
        assert masked[0].item() == pytest.approx(pq_index([1.0, 0.0, 2.0], p=p, q=q), rel=1e-12)


def test_grid_of_the_paper():
    assert tuple(k / 10 for k in range(1, 11)) == P_GRID
    assert tuple(k / 10 for k in range(10, 21)) == Q_GRID


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_every_value_equals_the_index_at_its_p_and_q(scale):
    w = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    kept = torch.rand(1000, generator=torch.Generator().manual_seed(1)) < 0.7
    (values,) = map_of_rows(Rows.of(w[None], kept[None]))
    assert values.shape == (10, 11)
    for i, p in enumerate(P_GRID):
        for j, q in enumerate(Q_GRID):
            if p == q:
                assert math.isnan(values[i, j])
            else:
                assert float(values[i, j]) == pytest.approx(float(pq_index(w, p=p, q=q, kept=kept)), rel=1e-11)


def test_a_row_of_several_segments_equals_one_segment():
    parts = torch.randn(3, 10).split((4, 6), 1)
    values = map_of_rows(Rows(tuple(parts), (None, None)))
    assert torch.allclose(values, map_of_rows(Rows.of(torch.cat(parts, 1))), rtol=1e-12, equal_nan=True)


def test_map_of_zeros_is_nan():
    assert bool(map_of_rows(Rows.of(torch.zeros(1, 2))).isnan().all())
    assert bool(map_of_rows(Rows.of(torch.zeros(1, 0))).isnan().all())
