from __future__ import annotations

import numpy as np
import pytest
import torch

from palmette import gini_index, pq_index
from palmette.measures import gini as gini_module
from palmette.measures import rows as rows_module
from palmette.measures.rows import Rows, as_rows

MEASURES = [pq_index, gini_index]


# Slices and masks.


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dim", range(-3, 3))
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["list", "numpy", "tensor"])
def test_a_dim_is_a_loop_over_slices(measure, dim, masked, kind):
    rng = np.random.default_rng(dim % 3)
    w = rng.standard_normal((3, 4, 5))
    kept = rng.random(w.shape) < 0.6 if masked else None
    give = {"list": np.ndarray.tolist, "numpy": np.asarray, "tensor": torch.from_numpy}[kind]
    result = measure(give(w), dim=dim, kept=None if kept is None else give(kept))
    moved = np.moveaxis(w, dim, -1)
    marks = np.ones_like(moved, dtype=bool) if kept is None else np.moveaxis(kept, dim, -1)
    assert np.asarray(result).shape == moved.shape[:2]
    for i, j in np.ndindex(moved.shape[:2]):
        alone = measure(moved[i, j][marks[i, j]])
        np.testing.assert_allclose(float(result[i][j]), alone, rtol=1e-13)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (0, 0)])
def test_sizes_of_zero_have_shape_and_no_value(measure, shape):
    assert np.isnan(measure(np.zeros(shape)))
    for dim in range(-len(shape), len(shape)):
        left = tuple(s for i, s in enumerate(shape) if i != dim % len(shape))
        for kept in (None, np.ones(shape, dtype=bool)):
            result = measure(np.ones(shape), dim=dim, kept=kept)
            assert result.shape == left
            assert np.isnan(result).all()


@pytest.mark.parametrize("measure", MEASURES)
def test_zeros_nothing_and_all_masked_have_no_value(measure):
    for w in ([], [0.0], [0, 0, 0], [[], []], [-0.0]):
        assert np.isnan(measure(w))
    assert np.isnan(measure([1.0, 2.0], kept=[False, False]))
    assert np.isnan(measure([0.0, 2.0], kept=[True, False]))
    assert np.isnan(measure([], kept=[]))
    rows = measure([[1.0, 1.0], [0.0, 0.0], [1.0, 5.0]], dim=1, kept=[[True] * 2, [True] * 2, [False] * 2])
    assert rows[0] == 0
    assert np.isnan(rows[1:]).all()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_nan_or_infinity_spoils_its_own_row_only(measure, bad, dtype):
    w = torch.tensor([[1.0, bad, 2.0], [3.0, 0.0, 0.0], [bad, bad, bad]], dtype=dtype)
    result = measure(w, dim=1)
    assert result[0].isnan()
    assert result[1] == pytest.approx(2 / 3, rel=1e-15)
    assert result[2].isnan()
    assert measure(w).isnan()
    kept = torch.tensor([[True, False, True], [True] * 3, [False] * 3])
    result = measure(w, dim=1, kept=kept)
    assert result[0] == pytest.approx(float(measure([1.0, 2.0])), rel=1e-15)
    assert result[2].isnan()
    assert not measure(w, kept=kept).isnan()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_a_mask_of_any_kind_goes_with_numbers_of_any_kind(measure, make):
    for w in ([5.0, 1.0, 0.0], np.array([5.0, 1.0, 0.0]), torch.tensor([5.0, 1.0, 0.0])):
        assert float(measure(w, kept=make([True, False, True]))) == pytest.approx(0.5, rel=1e-15)


def test_a_reversed_or_frozen_mask_is_a_mask():
    kept = np.array([True, False, True, True])
    frozen = kept.copy()
    frozen.flags.writeable = False
    assert gini_index([0.0, 1.0, 9.0, 5.0], kept=kept[::-1]) == gini_index([0.0, 1.0, 5.0])
    assert gini_index([0.0, 1.0, 9.0, 5.0], kept=frozen) == gini_index([0.0, 9.0, 5.0])


# Errors name the argument, the rule and the value received.


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"kept": [True]}, ValueError, r"kept must have the shape of w, \(2, 2\), got a mask of shape \(1,\)"),
        ({"kept": [[True, True]]}, ValueError, r"kept must have the shape of w, \(2, 2\), got .* \(1, 2\)"),
        ({"kept": True}, ValueError, r"kept must have the shape of w, \(2, 2\), got a mask of shape \(\)"),
        ({"kept": []}, ValueError, r"kept must have the shape of w, \(2, 2\), got a mask of shape \(0,\)"),
        ({"kept": [[1, 0], [1, 0]]}, TypeError, r"kept must be a boolean mask, got .*int64"),
        ({"kept": np.ones((2, 2))}, TypeError, r"kept must be a boolean mask, got .*float64"),
        ({"kept": torch.ones(2, 2)}, TypeError, r"kept must be a boolean mask, got .*float32"),
        (
            {"kept": [[True], [True, False]]},
            TypeError,
            r"kept must be .* rectangular .*\[\[True\], \[True, False\]\]",
        ),
        ({"dim": 2}, ValueError, r"dim must name one of the 2 dimensions of w, got dim=2"),
        ({"dim": -3}, ValueError, r"dim must name one of the 2 dimensions of w, got dim=-3"),
        ({"dim": 0.5}, ValueError, r"dim must name one of the 2 dimensions of w, got dim=0.5"),
        ({"dim": "0"}, ValueError, r"dim must name one of the 2 dimensions of w, got dim='0'"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named_with_its_rule_and_value(measure, options, error, says):
    with pytest.raises(error, match=says):
        measure([[3.0, 4.0], [0.0, 1.0]], **options)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("w", "says"),
    [
        ([[1.0], [1.0, 2.0]], r"w must be real numbers in one rectangular list, got \[\[1.0\], \[1.0, 2.0\]\]"),
        ([None, 1.0], r"w must be real numbers .* got \[None, 1.0\]"),
        (None, r"w must be real numbers .* got None"),
        (["1", "2"], r"w must hold real numbers, got an array of dtype <U1"),
        ([True, False], r"w must hold real numbers .* torch.bool"),
        ([1j, 2.0], r"w must hold real numbers, got an array of dtype complex128"),
        ([10**400], r"w must be real numbers .* too large"),
        ({1.0, 2.0}, r"w must be real numbers .* got \{1.0, 2.0\}"),
        (np.array([True]), r"w must hold real numbers .* torch.bool"),
        (np.array([1j]), r"w must hold real numbers, got an array of dtype complex128"),
        (np.array(["a"]), r"w must hold real numbers, got an array of dtype <U1"),
        (np.array([1, 2], dtype=object), r"w must hold real numbers, got an array of dtype object"),
        (np.array([1], dtype="m8[s]"), r"w must hold real numbers, got an array of dtype timedelta64"),
        (np.zeros(1, dtype=[("x", "f8")]), r"w must hold real numbers, got an array of dtype \[\('x'"),
        (np.ma.masked_array([1.0, 9.0], mask=[False, True]), r"w must be a plain array, got a masked one: .*kept"),
        (torch.tensor([True]), r"w must hold real numbers .* torch.bool"),
        (torch.tensor([1j]), r"w must hold real numbers .* torch.complex64"),
        (torch.eye(2).to_sparse(), r"w must hold real numbers in a dense layout, got .* torch.sparse_coo"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), r"w must hold real numbers .*float4"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_is_not_numbers_is_refused_and_named(measure, w, says):
    with pytest.raises(TypeError, match=says):
        measure(w)


def test_a_zero_dimensional_input_has_no_dim():
    with pytest.raises(ValueError, match="dim must name one of the 0 dimensions of w, got dim=0"):
        pq_index(3.0, dim=0)


# Rows themselves.


def test_rows_of_several_segments_are_measured_as_one():
    left, right = torch.tensor([[3.0], [1.0]]), torch.tensor([[4, 0, 0], [1, 1, 1]])
    rows = Rows((left, right), (None, torch.tensor([[True] * 3, [True, True, False]])))
    assert (rows.n, rows.width) == (2, 4)
    assert rows.counts().tolist() == [4, 3]
    assert rows.largest().tolist() == [4, 1]
    taken = rows.take(torch.tensor([False, True]))
    assert taken.segments[1].tolist() == [[1, 1, 1]]
    assert taken.counts().tolist() == [3]
    assert rows.take(torch.tensor([True, True])) is rows


@pytest.mark.parametrize("tile", [1, 2, 3, 5, 7, 16, 1 << 18])
@pytest.mark.parametrize("shape", [(1, 1), (1, 13), (4, 6), (13, 1), (3, 16)])
def test_tiles_hold_each_counted_magnitude_once(monkeypatch, tile, shape):
    monkeypatch.setattr(rows_module, "TILE", tile)
    matrix = -torch.arange(1.0, 1.0 + shape[0] * shape[1]).reshape(shape)
    kept = matrix.long() % 3 != 0
    seen = torch.zeros(shape[0], dtype=torch.float64)
    squares = torch.zeros(shape[0], dtype=torch.float64)
    for which, part in Rows.of(matrix, kept).tiles():
        assert part.dtype == torch.float64
        assert part.numel() <= tile
        seen[which] += part.sum(1)
        squares[which] += part.square().sum(1)
    assert seen.tolist() == (matrix.abs() * kept).sum(1).tolist()
    assert squares.tolist() == (matrix.square() * kept).sum(1).tolist()


@pytest.mark.parametrize("tile", [1, 3, 8, 64])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("spread", [1e-9, 1.0])
def test_the_size_of_a_tile_changes_nothing(monkeypatch, measure, tile, dim, spread):
    rng = np.random.default_rng(5)
    w, kept = 1 + spread * rng.standard_normal((7, 23)), rng.random((7, 23)) < 0.7
    expected = measure(w, dim=dim, kept=kept)
    monkeypatch.setattr(rows_module, "TILE", tile)
    monkeypatch.setattr(gini_module, "TILE", tile)
    np.testing.assert_allclose(measure(w, dim=dim, kept=kept), expected, rtol=1e-13)


def test_rows_are_views_of_what_came_in():
    w = np.ones((100, 1000), dtype=np.float32)
    rows, _ = as_rows(w)
    assert rows.segments[0].data_ptr() == w.ctypes.data
    rows, _ = as_rows(torch.from_numpy(w), dim=1)
    assert rows.segments[0].data_ptr() == w.ctypes.data
