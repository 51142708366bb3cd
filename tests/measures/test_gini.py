from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from palmette import gini_index
from palmette.measures.gini import gini_of_rows
from palmette.measures.rows import Rows


def exact_gini(values, times=None):
    """The mean absolute difference over twice the mean, in fractions: not the formula of the code."""
    pairs = sorted((abs(Fraction(float(v))), n) for v, n in zip(values, times or [1] * len(values), strict=True))
    d, total = sum(n for _, n in pairs), sum(v * n for v, n in pairs)
    differences, below, sum_below = Fraction(0), 0, Fraction(0)
    for v, n in pairs:
        differences += n * (v * below - sum_below)
        below, sum_below = below + n, sum_below + v * n
    return differences / (d * total)


def error(result, exact):
    return float(abs(Fraction(float(result)) - exact) / exact) if exact else abs(float(result))


@pytest.mark.parametrize(
    ("w", "index"),
    [
        ([0, 0, 0, 5], 0.75),
        ([1, 2, 3, 4], 0.25),
        ([4, -1, 3, -2], 0.25),
        ([1, 3], 0.25),
        ([0, 1], 0.5),
        ([0, 1, 1], 1 / 3),
        ([7], 0.0),
        ([0.1] * 10, 0.0),
        ([3, 4, 0, 0], (1 * 3 + 3 * 4) / (4 * 7)),
    ],
)
def test_small_vectors_match_the_definition(w, index):
    result = gini_index(w)
    assert type(result) is float
    assert result == pytest.approx(index, rel=1e-15, abs=0)


def test_nothing_is_added_to_the_entries():
    # With 1e-7 added to each, as the authors' code does, this would be 0.005.
    assert gini_index([1e-9, 0.0]) == 0.5
    assert gini_index(np.array([1e-30, 0.0, 0.0, 0.0], dtype=np.float32)) == 0.75


@pytest.mark.parametrize("d", [1, 2, 3, 49, 1000])
@pytest.mark.parametrize("value", [0.1, 1.0, -3.7, 1e-30, 1e30, 5e-324, 1.7e308])
def test_range_from_equal_entries_to_a_single_one(d, value):
    assert gini_index(np.full(d, value)) == 0
    assert gini_index(np.eye(1, d)[0] * value) == pytest.approx(1 - 1 / d, rel=1e-15, abs=0)


def vectors():
    rng = np.random.default_rng(7)
    gauss = rng.standard_normal(1000)
    return {
        "gaussian": gauss,
        "odd count": gauss[:999],
        "gaussian at 1e-30": gauss * 1e-30,
        "gaussian at 1e30": gauss * 1e30,
        "gaussian at 1e-300": gauss * 1e-300,
        "gaussian at 1e307": gauss * 1e307,
        "float32 at 1e30": (gauss * 1e30).astype(np.float32),
        "float32 at 1e-30": (gauss * 1e-30).astype(np.float32),
        "float16": gauss.astype(np.float16),
        "magnitudes from 1e-30 to 1e30": 10 ** rng.uniform(-30, 30, 1000),
        "half zeros": np.where(rng.random(1000) < 0.5, 0, gauss),
        "one tiny": np.r_[np.ones(999), 1e-30],
        "one-hot and dust": np.r_[np.full(999, 1e-30), 1e30],
        "ties": np.round(gauss),
        "nearly equal, 1e-15": 0.7 + 1e-15 * rng.random(1000),
        "nearly equal, 1e-9": 0.7 + 1e-9 * rng.random(1000),
        "nearly equal, 1e-3": 0.7 + 1e-3 * rng.random(1000),
        "last bit of one": np.r_[np.ones(999), np.nextafter(1.0, 2.0)],
        "cauchy": rng.standard_cauchy(1000),
        "integers": rng.integers(-(2**31), 2**31, 1000),
    }


@pytest.mark.parametrize("name", vectors())
def test_a_thousand_entries_are_accurate_to_1e_12(name):
    w = vectors()[name]
    exact = exact_gini(w)
    assert exact > 0
    assert error(gini_index(w), exact) < 1e-13
    assert error(gini_index(torch.from_numpy(w)), exact) < 1e-13
    assert error(gini_index(np.stack([w, w[::-1]]), dim=1)[1], exact) < 1e-13


def test_forty_million_float32_entries_are_accurate_to_1e_9():
    many = {0.1: 17_000_003, 3.3e-5: 9_000_001, 1.7: 11_000_000, 2.9e-12: 2_000_000, 0.0: 999_990, 41.0: 6}
    values = torch.tensor(list(many), dtype=torch.float32)
    w = values.repeat_interleave(torch.tensor(list(many.values())))
    assert error(gini_index(w), exact_gini(values.tolist(), list(many.values()))) < 1e-13


@pytest.mark.parametrize(
    "change",
    [
        lambda w: np.random.default_rng(0).permutation(w),
        lambda w: w[::-1],
        lambda w: -w,
        lambda w: w * 2.0**-20,
        lambda w: w / 7.0,
        lambda w: np.tile(w, 3),
        lambda w: w.reshape(1, -1, 1),
    ],
    ids=["permuted", "reversed", "negated", "scaled", "divided", "cloned", "reshaped"],
)
def test_order_sign_scale_and_cloning_leave_the_index_unchanged(change):
    for d in (1, 2, 3, 10, 1001):
        w = np.random.default_rng(d).standard_normal(d)
        assert gini_index(change(w)) == pytest.approx(gini_index(w), rel=1e-13, abs=0)


def test_masking_an_entry_equals_removing_it():
    rng = np.random.default_rng(2)
    for d in (1, 2, 5, 100, 999):
        w, kept = rng.standard_normal(d), rng.random(d) < 0.6
        w[rng.random(d) < 0.2] = 0
        np.testing.assert_allclose(gini_index(w, kept=kept), gini_index(w[kept]), rtol=1e-13)


def test_a_kept_zero_counts_and_a_masked_zero_does_not():
    assert gini_index([1.0, 0.0, 0.0, 0.0], kept=[True, True, False, False]) == 0.5
    assert gini_index([1.0, 0.0, 0.0, 0.0], kept=[True, False, False, False]) == 0.0


@pytest.mark.parametrize("shape", [(5, 7), (700, 501), (3, 200_000)])
def test_many_rows_equal_each_row_alone(shape):
    w = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.7
    together = gini_index(w, dim=1, kept=kept)
    assert together.shape == shape[:1]
    for i in {0, 1, shape[0] // 2, shape[0] - 1}:
        assert together[i].item() == pytest.approx(gini_index(w[i][kept[i]]).item(), rel=1e-13)


def test_a_row_of_several_segments_equals_one_segment():
    w = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    kept = torch.rand(4, 30, generator=torch.Generator().manual_seed(1)) < 0.7
    parts = Rows(
        (w[:, :3].double(), w[:, 3:20], w[:, 20:20], w[:, 20:]),
        (kept[:, :3], None, None, kept[:, 20:]),
    )
    whole = kept.clone()
    whole[:, 3:20] = True
    torch.testing.assert_close(gini_of_rows(parts), gini_index(w, dim=1, kept=whole), rtol=1e-14, atol=0)
