from __future__ import annotations

import itertools

import pytest
import torch

from palmette.measures import rows as rows_module
from palmette.pruning.sources import memory
from palmette.pruning.sources.memory import Memory

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["sorted", "searched", "searched with few samples"])
def path(request, monkeypatch):
    """All ways through the code, whatever the size of the rows."""
    if request.param != "sorted":
        monkeypatch.setattr(memory, "SORTED_WIDTH", 0)
        monkeypatch.setattr(rows_module, "TILE", 7)  # several tiles even in a short row
    if request.param == "searched with few samples":
        monkeypatch.setattr(memory, "SAMPLE", 3)
    return request.param


def brute_force(rows, cut):
    """Sort (magnitude, index) of what is kept; the first `cut` go."""
    remaining = []
    for i, count in enumerate(cut.tolist()):
        values = torch.cat([s[i].double().abs() for s in rows.segments]).tolist()
        kept = torch.cat(
            [
                torch.ones(s.shape[1], dtype=torch.bool) if k is None else k[i]
                for s, k in zip(rows.segments, rows.kept, strict=True)
            ]
        ).tolist()
        order = sorted((value, j) for j, value in enumerate(values) if kept[j])
        for _, j in order[:count]:
            kept[j] = False
        remaining.append(kept)
    widths = [s.shape[1] for s in rows.segments]
    return torch.tensor(remaining).reshape(rows.n, sum(widths)).split(widths, 1)


def agree(rows, cut):
    found, wanted = rows.select(cut), brute_force(rows, cut)
    assert [f.dtype for f in found] == [torch.bool] * len(rows.segments)
    return all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


def counts_for(rows):
    """None, one, half, all but one and all of what each row has, and any number."""
    d = rows.counts()
    yield from (d * 0, (d > 0).long(), d // 2, (d - 1).clamp_min(0), d)
    yield (torch.rand(rows.n) * (d + 1)).long().clamp(max=d)


DATA = {
    "gaussian": lambda n, w: torch.randn(n, w),
    "many ties": lambda n, w: torch.randint(-3, 4, (n, w)).float(),
    "all equal": lambda n, w: torch.full((n, w), -2.5),
    "all zero": lambda n, w: torch.zeros(n, w),
    "zeros of both signs": lambda n, w: torch.where(torch.rand(n, w) < 0.5, 0.0, -0.0),
    "mostly zero": lambda n, w: torch.randn(n, w) * (torch.rand(n, w) < 0.1),
    "rising": lambda n, w: torch.arange(n * w).reshape(n, w).float(),
    "falling": lambda n, w: -torch.arange(n * w).reshape(n, w).float().flip(1),
    "far apart": lambda n, w: torch.randn(n, w).mul(3).exp() * torch.randn(n, w).sign(),
}
MASKS = {
    "all kept": lambda n, w: None,
    "half kept": lambda n, w: torch.rand(n, w) < 0.5,
    "few kept": lambda n, w: torch.rand(n, w) < 0.1,
    "some rows gone": lambda n, w: (torch.rand(n, 1) < 0.5).expand(n, w),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("data", DATA)
def test_exactly_the_smallest_go_and_ties_in_index_order(path, data, mask, dtype):
    torch.manual_seed(0)
    for n, width in ((1, 1), (3, 2), (4, 33), (1, 200)):
        rows = Memory.of(DATA[data](n, width).to(dtype), MASKS[mask](n, width))
        for cut in counts_for(rows):
            assert agree(rows, cut)


@pytest.mark.parametrize(
    "dtypes",
    [*itertools.combinations(FLOATS, 2), FLOATS, [torch.float32] * 3, [torch.bfloat16, torch.float16]],
    ids=str,
)
def test_segments_of_any_dtype_are_compared_by_value(path, dtypes):
    torch.manual_seed(0)
    for data, mask in itertools.product(DATA, MASKS):
        widths = [5, 0, 17, 1][: len(dtypes)]
        rows = Memory(
            tuple(DATA[data](3, w).to(dtype) for w, dtype in zip(widths, dtypes, strict=True)),
            tuple(MASKS[mask](3, w) for w in widths),
        )
        for cut in counts_for(rows):
            assert agree(rows, cut)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_subnormal_magnitudes_are_compared(path, dtype):
    tiny = torch.finfo(dtype).smallest_normal
    row = torch.tensor([[4, 3, 2, 1, 0]], dtype=torch.float64) * tiny / 8
    row = torch.cat([row, -row, torch.full((1, 2), torch.finfo(dtype).max, dtype=torch.float64)], 1).to(dtype)
    for cut in range(13):
        assert agree(Memory.of(row), torch.tensor([cut]))


def test_neighbouring_values_of_different_dtypes_are_compared(path):
    one = torch.tensor([[1.0]])
    above = torch.nextafter(one, torch.tensor(2.0))
    rows = Memory((above, one.half(), one.bfloat16()), (None, None, None))
    assert [r.item() for r in rows.select(torch.tensor([2]))] == [True, False, False]


# Where a sample misleads.


def poisoned(width):
    """Rows in which what a sample sees is nothing like the rest."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(width)
    seen = torch.randint(width, (memory.SAMPLE,), generator=generator).unique()
    hidden = torch.ones(width, dtype=torch.bool)
    hidden[seen] = False
    yield "seen are equal", torch.where(hidden, torch.randn(width), torch.tensor(0.5))
    yield "seen are the largest", torch.where(hidden, torch.randn(width), 1e9 + torch.rand(width))
    yield "seen are the smallest", torch.where(hidden, 5 + torch.rand(width), 1e-9 * torch.rand(width))
    yield "hidden are equal", torch.where(hidden, torch.tensor(0.5), torch.randn(width))
    yield "hidden are zero", torch.where(hidden, torch.tensor(0.0), torch.randn(width))


def test_any_sample_gives_the_right_answer(monkeypatch):
    monkeypatch.setattr(memory, "SORTED_WIDTH", 0)
    monkeypatch.setattr(memory, "SAMPLE", 64)
    width = 1000
    for name, row in poisoned(width):
        for cut in (0, 1, 2, 60, 64, 65, 300, 500, 935, 936, 937, 999, 1000):
            assert agree(Memory.of(row[None]), torch.tensor([cut])), (name, cut)


@pytest.mark.parametrize("left", [1, 2, 5])
def test_a_sample_without_kept_entries_gives_the_right_answer(monkeypatch, left):
    monkeypatch.setattr(memory, "SORTED_WIDTH", 0)
    monkeypatch.setattr(memory, "SAMPLE", 4)
    torch.manual_seed(0)
    kept = torch.zeros(1, 5000, dtype=torch.bool)
    kept[0, torch.randperm(5000)[:left]] = True
    for cut in range(left + 1):
        assert agree(Memory.of(torch.randn(1, 5000), kept), torch.tensor([cut]))


@pytest.mark.parametrize("data", ["gaussian", "many ties", "mostly zero"])
def test_millions_are_cut_exactly(data):
    torch.manual_seed(0)
    width = 3_000_000
    row, kept = DATA[data](1, width), torch.rand(1, width) < 0.7
    d = int(kept.sum())
    cut = d // 3
    (remaining,) = Memory.of(row, kept).select(torch.tensor([cut]))
    assert int(remaining.sum()) == d - cut
    assert not bool((remaining & ~kept).any())
    gone = kept & ~remaining
    last = row.abs()[gone].max()
    assert bool(last <= row.abs()[remaining].min())
    # Of those as large as the last to go, the first go: from the first that stays on, all stay.
    of_tied = remaining[kept & (row.abs() == last)].to(torch.int8)
    assert bool((of_tied.diff() >= 0).all())


def test_layers_of_a_large_network_are_cut_as_one():
    torch.manual_seed(0)
    segments = tuple(torch.randn(1, w).round(decimals=2) for w in (100_000, 7, 0, 60_000))
    kept = (torch.rand(1, 100_000) < 0.5, None, None, torch.rand(1, 60_000) < 0.9)
    rows = Memory(segments, kept)
    for cut in (1, 50_000, int(rows.counts()[0]) - 1):
        assert agree(rows, torch.tensor([cut]))


# The threshold.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_threshold_is_the_largest_magnitude_cut(path, dtype):
    row = Memory.of(torch.tensor([[3.0, -1.0, 2.0, -5.0]]).to(dtype), torch.tensor([[True, True, False, True]]))
    assert [row.threshold(cut) for cut in (1, 2, 3)] == [1.0, 3.0, 5.0]


def test_select_does_not_change_its_inputs(path):
    torch.manual_seed(0)
    row, kept = torch.randn(2, 50), torch.rand(2, 50) < 0.5
    before = row.clone(), kept.clone()
    Memory.of(row, kept).select(kept.sum(1) // 2)
    assert torch.equal(row, before[0])
    assert torch.equal(kept, before[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("data", DATA)
def test_cuda_breaks_ties_in_the_same_order(path, data, dtype):
    torch.manual_seed(0)
    for (n, width), mask in itertools.product(((3, 33), (1, 5000)), MASKS.values()):
        rows = Memory.of(DATA[data](n, width).to(dtype), mask(n, width))
        there = Memory.of(*(None if t is None else t.cuda() for t in (rows.segments[0], rows.kept[0])))
        for cut in counts_for(rows):
            (found,) = there.select(cut.cuda())
            assert torch.equal(found.cpu(), brute_force(rows, cut)[0])
