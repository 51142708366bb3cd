from __future__ import annotations

import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch

from palmette import pq_index, retained_lower_bound
from palmette.measures.pq import PowerSums, power_sums
from palmette.measures.rows import Rows

GRID_P = [k / 10 for k in range(1, 11)]
GRID_Q = [k / 10 for k in range(10, 21)]
GRID = [(p, q) for p in GRID_P for q in GRID_Q if p != q]
CORNERS = [(0.1, 1.0), (0.1, 2.0), (0.5, 1.0), (0.9, 1.0), (1.0, 1.1), (1.0, 2.0)]


class Reference:
    """The definition in 50 digits, for entries with multiplicities."""

    def __init__(self, values, times=None):
        with mpmath.workdps(50):
            self.values = [abs(mpmath.mpf(float(v))) for v in values]
        self.times = times or [1] * len(self.values)
        self.norms = {}

    def norm(self, p):
        """The power mean: d^(-1/p) times the p-norm."""
        if p not in self.norms:
            power, d = mpmath.mpf(p), sum(self.times)
            total = mpmath.fsum(n * v**power for v, n in zip(self.values, self.times, strict=True) if v)
            self.norms[p] = (total / d) ** (1 / power)
        return self.norms[p]

    def index(self, p, q):
        with mpmath.workdps(50):
            return 1 - self.norm(p) / self.norm(q)

    def error(self, result, p, q):
        """Relative error of `result`."""
        with mpmath.workdps(50):
            exact = self.index(p, q)
            return float(abs((mpmath.mpf(float(result)) - exact) / exact)) if exact else abs(float(result))


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


def test_the_defaults_are_p_one_half_and_q_one():
    assert pq_index([9, 1]) == pq_index([9, 1], p=0.5, q=1.0) == pytest.approx(0.2, rel=1e-15)


@pytest.mark.parametrize(("p", "q"), CORNERS)
def test_equal_magnitudes_have_an_index_of_exactly_zero(p, q):
    for value in (0.1, 1.0, -3.7, 1e-30, 1e30, 5e-324, 1.7e308):
        for d in (1, 2, 3, 49, 1000):
            result = pq_index(np.full(d, value), p=p, q=q)
            assert result == 0
            assert math.copysign(1, result) == 1
    assert pq_index(torch.full((997,), 0.1), p=p, q=q) == 0


def test_with_the_default_the_fraction_that_goes_is_the_index_itself():
    w = np.random.default_rng(0).standard_normal(1000)
    index = pq_index(w)
    assert 1 - retained_lower_bound(index, 1000, p=0.5, q=1) / 1000 == pytest.approx(index, rel=1e-14)


@pytest.mark.parametrize(
    ("p", "q", "limit"),
    [(1, 2, 1 - math.sqrt(2 / math.pi)), (0.5, 1, 0.1528)],
)
def test_gaussian_weights_have_the_index_of_the_limit(p, q, limit):
    w = torch.randn(4_000_000, generator=torch.Generator().manual_seed(0))
    assert pq_index(w, p=p, q=q) == pytest.approx(limit, abs=3e-4)


def test_gaussian_weights_lose_1_minus_2_over_pi_in_the_first_cut():
    w = torch.randn(4_000_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kept = retained_lower_bound(pq_index(w, p=1, q=2), len(w), p=1, q=2) / len(w)
    assert 1 - kept == pytest.approx(0.36338, abs=5e-4)


# Accuracy against 50 digits.


def thousand_entries():
    rng = np.random.default_rng(7)
    gauss = rng.standard_normal(1000)
    return {
        "gaussian": gauss,
        "gaussian at 1e-30": gauss * 1e-30,
        "gaussian at 1e30": gauss * 1e30,
        "gaussian at 1e-300": gauss * 1e-300,
        "gaussian at 1e300": gauss * 1e300,
        "gaussian, float32 at 1e30": (gauss * 1e30).astype(np.float32),
        "gaussian, float32 at 1e-30": (gauss * 1e-30).astype(np.float32),
        "gaussian, float16": gauss.astype(np.float16),
        "magnitudes from 1e-30 to 1e30": 10 ** rng.uniform(-30, 30, 1000),
        "float32 magnitudes from 1e-30 to 1e30": (10 ** rng.uniform(-30, 30, 1000)).astype(np.float32),
        "half zeros": np.where(rng.random(1000) < 0.5, 0, gauss),
        "one zero": np.r_[np.ones(999), 0],
        "one-hot": np.r_[np.zeros(999), 3.7],
        "one-hot and dust": np.r_[np.full(999, 1e-30), 1e30],
        "two": np.r_[np.ones(500), np.full(500, 2.0)],
        "cauchy": rng.standard_cauchy(1000),
        "integers": rng.integers(-(2**31), 2**31, 1000),
        "uniform": rng.random(1000),
    }


@pytest.mark.parametrize("name", thousand_entries())
def test_a_thousand_entries_are_measured_to_1e_12_at_every_p_and_q(name):
    w = thousand_entries()[name]
    reference = Reference(w)
    for p, q in GRID:
        assert reference.error(pq_index(w, p=p, q=q), p, q) < 1e-12, (p, q)


@pytest.mark.parametrize("spread", [1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
def test_nearly_equal_magnitudes_keep_their_relative_accuracy(spread):
    w = 0.7 * (1 + spread * np.random.default_rng(3).uniform(-1, 1, 1000))
    reference = Reference(w)
    for p, q in CORNERS:
        result = pq_index(w, p=p, q=q)
        assert result > 0
        assert reference.error(result, p, q) < 1e-12, (p, q)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("far", [0.49, 0.1, 1e-5, 1e-10, 1e-16, 1e-30, 1e-300, 5e-324, 0.0, 1.02, 3.0, 50.0])
def test_one_entry_far_from_equal_others_keeps_the_accuracy(far, dtype):
    w = np.r_[np.ones(9999), far].astype(dtype)
    reference = Reference([1.0, w[-1]], [9999, 1])
    for p, q in CORNERS:
        for values in (w, -w[::-1], w * np.array(2.0**80, dtype)):
            assert reference.error(pq_index(values, p=p, q=q), p, q) < 1e-12, (p, q)


@pytest.mark.parametrize("far", [0.0, 1e-300, 1e-3, 2.5])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_some_entries_far_from_nearly_equal_others_keep_the_accuracy(far, share):
    rng = np.random.default_rng(9)
    w = np.where(rng.random(1000) < share, far, 1 + 1e-6 * rng.standard_normal(1000))
    reference = Reference(w)
    for p, q in CORNERS:
        assert reference.error(pq_index(w, p=p, q=q), p, q) < 1e-12, (p, q)
        masked = pq_index(np.r_[w, np.full(99_000, 7.0)], p=p, q=q, kept=np.arange(100_000) < 1000)
        assert reference.error(masked, p, q) < 1e-12, (p, q)


def test_the_last_bit_of_one_entry_is_seen():
    w = [1.0, np.nextafter(1.0, 2.0)]
    for p, q in CORNERS:
        assert Reference(w).error(pq_index(w, p=p, q=q), p, q) < 1e-12


@pytest.mark.parametrize("q", [2.5, 10, 1000, 3000, 1e5, 1e9])
@pytest.mark.parametrize("p", [0.1, 0.5, 1])
def test_a_large_q_neither_overflows_nor_underflows(p, q):
    rng = np.random.default_rng(1)
    for w in (rng.random(100), rng.random(100).astype(np.float32) * 1e30, 1 - 0.02 * rng.random(100)):
        assert Reference(w).error(pq_index(w, p=p, q=q), p, q) < 1e-12


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_no_float32_magnitude_overflows(scale):
    w = torch.tensor([3.0, 4.0, 0.0, 0.0]) * scale
    assert pq_index(w, p=1, q=2).item() == pytest.approx(0.3, rel=1e-6)
    assert pq_index(w.double(), p=1, q=2).item() == pytest.approx(0.3, rel=1e-6)


def test_the_powers_of_a_small_p_stay_finite_where_float32_overflows():
    w = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    in_float32 = 1 - len(w) ** (1 / 1 - 1 / 0.1) * torch.linalg.vector_norm(w, 0.1) / w.abs().sum()
    assert in_float32 == -math.inf
    assert pq_index(w, p=0.1, q=1) == pytest.approx(0.2967, abs=0.005)


# 4·10^7 float32 entries. Few distinct values, so that the reference has few terms to add up.
MANY = {0.1: 17_000_003, 3.3e-5: 9_000_001, 1.7: 11_000_000, 2.9e-12: 2_000_000, 0.0: 999_990, 41.0: 6}


@pytest.fixture(scope="module")
def forty_million():
    values = torch.tensor(list(MANY), dtype=torch.float32)
    w = values.repeat_interleave(torch.tensor(list(MANY.values())))
    assert len(w) == 40_000_000
    return w, Reference(values.tolist(), list(MANY.values()))


def test_forty_million_float32_entries_are_measured_to_1e_9(forty_million):
    w, reference = forty_million
    for p, q in [(0.1, 1), (0.5, 1), (1, 2), (0.3, 1.7)]:
        assert reference.error(pq_index(w, p=p, q=q), p, q) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("q", GRID_Q)
def test_forty_million_float32_entries_are_measured_to_1e_9_at_every_p_and_q(forty_million, q):
    w, reference = forty_million
    for p in GRID_P:
        if p != q:
            assert reference.error(pq_index(w, p=p, q=q), p, q) < 1e-13


def test_forty_million_gaussian_weights_have_an_index_of_0_20212_and_not_0_2249():
    w = torch.randn(40_000_000, generator=torch.Generator().manual_seed(0))
    # Squares of float32 are exact in float64; chunks are summed with 64 bits, and fsum rounds once.
    chunks = [chunk.double().numpy() for chunk in w.split(1_000_000)]
    total = math.fsum(np.abs(chunk).sum(dtype=np.longdouble) for chunk in chunks)
    squares = math.fsum((chunk * chunk).sum(dtype=np.longdouble) for chunk in chunks)
    exact = 1 - total / math.sqrt(len(w) * squares)
    result = pq_index(w, p=1, q=2).item()
    assert result == pytest.approx(exact, rel=1e-13)
    assert round(result, 3) == 0.202


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_large_tensor_is_not_copied_or_widened():
    program = """
import torch
from palmette import pq_index

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

pq_index(torch.ones(1000)), pq_index(torch.rand(1000))
w = torch.rand(20_000_000)  # 76 MB
kept = w < 0.5
before = peak()
pq_index(w, p=0.3, q=1.5, kept=kept)
pq_index(w.view(2000, 10_000), dim=1)
pq_index(w.clamp_(0.9, 0.90001)[:4_000_000])
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 48


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


def test_numpy_numbers_are_numbers_for_p_and_q():
    assert pq_index([9, 1], p=np.float32(0.5), q=np.int64(1)) == pq_index([9, 1])
    assert pq_index([3.0, 4.0, 0.0, 0.0], p=np.float64(1), q=2) == 0.3


def test_options_are_named():
    with pytest.raises(TypeError, match="positional"):
        pq_index([1.0], 0.5, 1.0)


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
def test_forty_million_entries_on_a_gpu_are_measured_to_1e_9_at_every_p_and_q(forty_million):
    w, reference = forty_million
    for scale in (1, 2.0**-80, 2.0**80):
        scaled = w.cuda() * scale
        for p, q in GRID if scale == 1 else CORNERS:
            assert reference.error(pq_index(scaled, p=p, q=q), p, q) < 1e-12


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
