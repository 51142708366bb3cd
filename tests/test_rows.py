from __future__ import annotations

import decimal
import fractions

import numpy as np
import pytest
import torch

from palmette import gini_index, pq_index
from palmette.measures import gini as gini_module
from palmette.measures import rows as rows_module
from palmette.measures.rows import Rows, as_rows

MEASURES = [pq_index, gini_index]

TORCH_FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
TORCH_INTEGERS = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
NUMPY_DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", np.longdouble]

# Gini: (-3*0 - 1*1 + 1*3 + 3*4) / (4 * 8).
EXAMPLE, GINI = [[1, 3], [0, 4]], 14 / 32
# PQ at (1, 2): 1 - 8 / (2 * sqrt(26)).
PQ = 1 - 4 / 26**0.5


def both(w, **options):
    return pq_index(w, p=1, q=2, **options), gini_index(w, **options)


# Kinds and dtypes: the same numbers give the same values.


@pytest.mark.parametrize("dtype", [*TORCH_FLOATS, *TORCH_INTEGERS], ids=str)
def test_every_tensor_dtype_is_measured_in_float64(dtype):
    w = torch.tensor(EXAMPLE).to(torch.float32).to(dtype)
    pq, gini = both(w)
    assert pq.dtype == gini.dtype == torch.float64
    assert pq.shape == gini.shape == ()
    assert pq.item() == pytest.approx(PQ, rel=1e-15)
    assert gini.item() == GINI
    assert gini_index(w, dim=1).tolist() == [0.25, 0.5]
    assert pq_index(w, dim=1).tolist() == pytest.approx([1 - (1 + 3**0.5) ** 2 / 8, 0.5], rel=1e-14)
    near = pq_index(torch.ones(2, 3).to(dtype), dim=1, kept=torch.tensor([[True] * 3, [False] * 3]))
    assert near[0] == 0
    assert near[1].isnan()


def test_a_dtype_of_powers_of_two_is_measured_too():
    w = torch.tensor([1.0, 4.0]).to(torch.float8_e8m0fnu)
    assert gini_index(w).item() == 0.3
    assert pq_index(w).item() == pytest.approx(0.1, rel=1e-15)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("order", ["<", ">"])
def test_every_numpy_dtype_and_byte_order_is_measured(dtype, order):
    w = np.array(EXAMPLE).astype(np.dtype(dtype).newbyteorder(order))
    pq, gini = both(w)
    assert type(pq) is type(gini) is np.float64
    assert pq == pytest.approx(PQ, rel=1e-15)
    assert gini == GINI
    rows = gini_index(w, dim=0)
    assert isinstance(rows, np.ndarray)
    assert rows.dtype == np.float64
    assert rows.tolist() == [0.5, (4 - 3) / 14]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_the_smallest_integer_has_a_magnitude(dtype):
    lowest = torch.iinfo(dtype).min
    pq, gini = both(torch.tensor([lowest, 0, 0, 0], dtype=dtype))
    assert pq.item() == 0.5
    assert gini.item() == 0.75


def test_the_largest_unsigned_integer_is_not_negative():
    w = np.array([2**64 - 1, 0, 0, 0], dtype=np.uint64)
    assert both(w) == both(torch.from_numpy(w)) == (0.5, 0.75)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    "w",
    [
        [1.0, 3.0, 0.0, 4.0],
        (1, 3, 0, 4),
        [[1, 3], [0, 4]],
        ((1.0, 3), [0, 4]),
        [np.float32(1), np.int8(-3), 0, 4.0],
        [np.array([1, 3]), np.array([0, 4])],
        [torch.tensor([1.0, 3.0]), torch.tensor([0.0, 4.0])],
        [fractions.Fraction(1), fractions.Fraction(3), 0, 4],
        [decimal.Decimal(1), decimal.Decimal(3), 0, 4],
    ],
    ids=repr,
)
def test_a_list_of_any_numbers_gives_a_float(measure, w):
    assert type(measure(w)) is float
    assert measure(w) == pytest.approx(measure(np.array([1.0, 3.0, 0.0, 4.0])), rel=1e-15)


@pytest.mark.parametrize("measure", MEASURES)
def test_integers_beyond_64_bits_are_numbers(measure):
    assert measure([2**80, 0]) == 0.5


@pytest.mark.parametrize("measure", MEASURES)
def test_a_range_is_a_list(measure):
    assert measure(range(5)) == measure([0, 1, 2, 3, 4])


@pytest.mark.parametrize("measure", MEASURES)
def test_one_number_is_as_dense_as_can_be(measure):
    assert measure(7) == 0
    assert type(measure(np.float32(7))) is np.float64
    assert type(measure(np.array(7))) is np.float64
    result = measure(torch.tensor(-7.0))
    assert result == 0
    assert result.shape == ()


# Layout: only the numbers count, not how they lie in memory.


def layouts():
    plain = np.arange(1.0, 13.0).reshape(3, 4)
    record = np.zeros((3, 4), dtype=[("odd", "u1"), ("x", "f8")])
    record["x"] = plain
    wide = np.zeros((3, 8))
    wide[:, ::2] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    misaligned = np.frombuffer(b"\0" + plain.tobytes(), dtype="f8", offset=1).reshape(3, 4)
    return {
        "plain": plain,
        "fortran": np.asfortranarray(plain),
        "negative strides": plain[::-1, ::-1].copy()[::-1, ::-1],
        "one negative stride": plain[:, ::-1].copy()[:, ::-1],
        "every second": wide[:, ::2],
        "read-only": frozen,
        "field of a record": record["x"],
        "misaligned": misaligned,
        "big-endian": plain.astype(">f8"),
        "tensor": torch.from_numpy(plain),
        "transposed tensor": torch.from_numpy(plain.T.copy()).t(),
        "strided tensor": torch.from_numpy(wide)[:, ::2],
        "offset tensor": torch.cat([torch.zeros(1, 4).double(), torch.from_numpy(plain)])[1:],
        "tensor that wants a gradient": torch.from_numpy(plain).requires_grad_(),
        "result of a computation": torch.from_numpy(plain).requires_grad_() * 1,
        "parameter": torch.nn.Parameter(torch.from_numpy(plain)),
        "lazily negated": torch._neg_view(-torch.from_numpy(plain)),
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("measure", MEASURES)
def test_layout_in_memory_does_not_matter(measure, name, dim):
    w = layouts()[name]
    expected = np.asarray(measure(layouts()["plain"], dim=dim))
    result = measure(w, dim=dim)
    if isinstance(w, torch.Tensor):
        assert type(result) is torch.Tensor
        assert not result.requires_grad
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-15)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_memory_mapped_file_is_read_and_not_written(measure, tmp_path):
    path = tmp_path / "weights.npy"
    np.save(path, np.array([[3.0, 4.0], [0.0, 0.0]]))
    before = path.read_bytes()
    assert measure(np.load(path, mmap_mode="r")) == measure([3.0, 4.0, 0.0, 0.0])
    assert measure(np.load(path, mmap_mode="r+")) == measure([3.0, 4.0, 0.0, 0.0])
    assert path.read_bytes() == before


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize("kept", [None, [[True, False, True], [True, True, True]]])
def test_the_input_is_left_as_it_was(measure, make, kept):
    numbers = [[-3.0, 1.0, -2.0], [0.0, -5.0, 4.0]]
    w = make(numbers)
    for dim in (None, 0, 1):
        measure(w, dim=dim, kept=kept)
    assert w.tolist() == numbers


def test_an_expanded_tensor_counts_each_entry():
    assert pq_index(torch.tensor([[1.0], [0.0]]).expand(2, 50), p=0.5, q=1) == 0.5
    assert gini_index(np.broadcast_to(np.array([[1.0], [0.0]]), (2, 50))) == 0.5


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
        ([[1.0], [1.0, 2.0]], r"w must be numbers in one rectangular list, got \[\[1.0\], \[1.0, 2.0\]\]"),
        ([None, 1.0], r"w must be numbers .* got \[None, 1.0\]"),
        (None, r"w must be numbers .* got None"),
        (["1", "2"], r"w must hold real numbers, got an array of dtype <U1"),
        ([True, False], r"w must hold real numbers .* torch.bool"),
        ([1j, 2.0], r"w must hold real numbers, got an array of dtype complex128"),
        ([10**400], r"w must be numbers .* too large"),
        ({1.0, 2.0}, r"w must be numbers .* got \{1.0, 2.0\}"),
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [*TORCH_FLOATS, *TORCH_INTEGERS], ids=str)
def test_a_cuda_tensor_gives_the_value_of_the_cpu_on_the_device(measure, dtype):
    w = torch.randint(0, 9, (40, 50), generator=torch.Generator().manual_seed(0)).float().to(dtype)
    kept = torch.rand(40, 50, generator=torch.Generator().manual_seed(1)) < 0.7
    for dim in (None, 0, 1):
        for mask in (None, kept, kept.cuda(), kept.numpy()):
            result = measure(w.cuda(), dim=dim, kept=mask)
            assert result.is_cuda
            assert result.dtype == torch.float64
            expected = measure(w, dim=dim, kept=None if mask is None else kept)
            torch.testing.assert_close(result.cpu(), expected, rtol=1e-12, atol=0)
            assert torch.equal(result, measure(w.cuda(), dim=dim, kept=mask))
