import math

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.measures import spectrum as module
from palmette.measures.spectrum import Spectrum


def spectrum_of(values, pieces=1):
    spectrum = Spectrum()
    for part in values.chunk(pieces):
        spectrum.add(part)
    return spectrum


def gaussian(size, dtype=torch.float32, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


VECTORS = {
    "gaussian": gaussian(5000),
    "float64": gaussian(5000).double() * 1e200,
    "bfloat16": gaussian(5000, torch.bfloat16),
    "float16": gaussian(5000, torch.float16) * 1e-5,
    "float8": gaussian(5000, torch.float8_e4m3fn),
    "integers": torch.arange(-40, 60),
    "mostly zeros": gaussian(5000) * (torch.arange(5000) % 10 == 0),
    "equal": torch.full((300,), 0.1),
    "one": torch.tensor([0.0, 0.0, -7.0, 0.0]),
    "subnormal": torch.tensor([1e-45, 3e-45, 0.0, 1e-42]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_few_entries_are_measured_exactly(name):
    w = VECTORS[name]
    spectrum = spectrum_of(w, pieces=3)
    assert spectrum.d == len(w)
    assert spectrum.zeros == int((w == 0).sum())
    assert spectrum.gini() == pytest.approx(float(pm.gini_index(w)), rel=1e-12, abs=1e-15)
    hoyer = pm.MEASURES["hoyer"](w)
    assert spectrum.hoyer() == pytest.approx(float(hoyer), rel=1e-12, abs=1e-15)
    for keep in (1, len(w) // 3, len(w)):
        exact = pm.eta_of_cut(w, keep, 0.5)
        assert spectrum.tail_share(len(w) - keep, p=0.5) == pytest.approx(exact, rel=1e-12)
    magnitudes = w.abs().double().sort().values
    for rank in (1, len(w) // 2, len(w)):
        assert spectrum.bracket(rank)[:2] == (float(magnitudes[rank - 1]),) * 2


@pytest.mark.parametrize("name", [name for name in VECTORS if name != "subnormal"])
def test_buckets_count_exactly_and_measure_closely(name, monkeypatch):
    w = VECTORS[name]
    monkeypatch.setattr(module, "EXACT", 2)
    spectrum = spectrum_of(w, pieces=3)
    # An entry is within 2^-12 of the mean of its bucket, and float64 entries within 2^-9.
    near = 2**-9 if w.dtype == torch.float64 else 2**-12
    assert (spectrum.d, spectrum.zeros) == (len(w), int((w == 0).sum()))
    assert spectrum.gini() == pytest.approx(float(pm.gini_index(w)), abs=near / 4)
    assert spectrum.tail_share(len(w) // 3, p=0.5) == pytest.approx(
        pm.eta_of_cut(w, len(w) - len(w) // 3, 0.5), abs=near
    )
    magnitudes = w.abs().double().sort().values
    for rank in (1, len(w) // 2, len(w)):
        low, high, below = spectrum.bracket(rank)
        assert low <= float(magnitudes[rank - 1]) <= high
        assert below == int((magnitudes < low).sum())
        assert int((magnitudes <= high).sum()) >= rank


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_number_of_16_bit_values_is_exact(dtype, monkeypatch):
    w = torch.cat([gaussian(5000, dtype), gaussian(5000, dtype, seed=1) * 1e-6])
    exact = spectrum_of(w)
    monkeypatch.setattr(module, "EXACT", 0)
    spectrum = spectrum_of(w, pieces=4)
    for ours, theirs in zip(spectrum.points(), exact.points(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert spectrum.gini() == pytest.approx(float(pm.gini_index(w)), rel=1e-12)
    low, high, below = spectrum.bracket(777)
    assert low == high == float(w.abs().sort().values[776])
    assert below == int((w.abs() < low).sum())


def test_the_gini_index_of_a_million_weights_is_good_to_eight_digits():
    w = gaussian(1_000_000)
    assert spectrum_of(w, pieces=7).gini() == pytest.approx(float(pm.gini_index(w)), abs=1e-8)


@pytest.mark.parametrize("limit", [0, 150, 10**6])
@pytest.mark.parametrize("kinds", [("gaussian", "bfloat16"), ("bfloat16", "float64"), ("float64", "gaussian")])
def test_parts_merge_to_the_whole(limit, kinds, monkeypatch):
    monkeypatch.setattr(module, "EXACT", limit)
    parts = [VECTORS[name][:100] for name in kinds]
    merged = Spectrum()
    for part in parts:
        merged.merge(spectrum_of(part))
    whole = torch.cat([part.double() for part in parts])
    assert (merged.d, merged.zeros) == (200, 0)
    assert merged.gini() == pytest.approx(float(pm.gini_index(whole)), abs=2**-9)
    assert merged.tail_share(50, p=1) == pytest.approx(pm.eta_of_cut(whole, 150, 1), rel=2**-8)


def test_entries_that_are_not_kept_do_not_count():
    spectrum = Spectrum()
    spectrum.add(torch.tensor([[1.0, 9.0], [2.0, 0.0]]), torch.tensor([[True, False], [True, False]]))
    assert (spectrum.d, spectrum.zeros, len(spectrum.points()[0])) == (2, 0, 2)


def test_zeros_alone_and_nothing_at_all_have_no_measures():
    for values in (torch.zeros(3), torch.empty(0)):
        spectrum = spectrum_of(values)
        assert math.isnan(spectrum.gini())
        assert math.isnan(spectrum.hoyer())
        assert math.isnan(spectrum.tail_share(1, p=0.5))
    assert spectrum_of(torch.tensor([0.0, 2.0])).tail_share(2, p=1) == math.inf
