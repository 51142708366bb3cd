"""The same numbers give the same values, whatever holds them."""

from __future__ import annotations

import decimal
import fractions

import numpy as np
import pytest
import torch

from palmette import gini_index, pq_index

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


# Dtypes and kinds.


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


def test_a_dtype_of_powers_of_two_is_measured():
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
def test_a_range_is_accepted_like_a_list(measure):
    assert measure(range(5)) == measure([0, 1, 2, 3, 4])


@pytest.mark.parametrize("measure", MEASURES)
def test_a_single_number_is_dense(measure):
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
def test_a_memory_mapped_file_is_not_written(measure, tmp_path):
    path = tmp_path / "weights.npy"
    np.save(path, np.array([[3.0, 4.0], [0.0, 0.0]]))
    before = path.read_bytes()
    assert measure(np.load(path, mmap_mode="r")) == measure([3.0, 4.0, 0.0, 0.0])
    assert measure(np.load(path, mmap_mode="r+")) == measure([3.0, 4.0, 0.0, 0.0])
    assert path.read_bytes() == before


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize("kept", [None, [[True, False, True], [True, True, True]]])
def test_input_does_not_change(measure, make, kept):
    numbers = [[-3.0, 1.0, -2.0], [0.0, -5.0, 4.0]]
    w = make(numbers)
    for dim in (None, 0, 1):
        measure(w, dim=dim, kept=kept)
    assert w.tolist() == numbers


def test_an_expanded_tensor_counts_each_entry():
    assert pq_index(torch.tensor([[1.0], [0.0]]).expand(2, 50), p=0.5, q=1) == 0.5
    assert gini_index(np.broadcast_to(np.array([[1.0], [0.0]]), (2, 50))) == 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [*TORCH_FLOATS, *TORCH_INTEGERS], ids=str)
def test_a_cuda_tensor_equals_the_cpu_and_stays_on_the_device(measure, dtype):
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
