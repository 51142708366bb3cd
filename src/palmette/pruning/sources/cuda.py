"""Acceleration of `Memory` on a CUDA device: selection in one read of the weights, with Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.measures import cuda_sums as fused
from palmette.measures.rows import INTEGER, Rows

_REGIONS = 132 * 8
_SPLIT_BLOCK = 512
_WRITE_BLOCK = 2048


def usable(row: Rows) -> bool:
    """Whether all of a single row can be read by the kernels: one device, one dtype."""
    first = row.segments[0]
    return row.n == 1 and all(
        fused.usable(s) and s.dtype == first.dtype and s.device == first.device for s in row.segments if s.numel()
    )


def split(row: Rows, low: int, high: int, room: int) -> tuple[dict[int, int], int, Tensor]:
    """Count the keys at most `low - 1`, `low` and `high`, and collect the keys strictly between, in one read.

    Args:
        row: a row for which `usable` is true.
        low, high: keys, low < high.
        room: expected number of keys between; if there are more, the row is read again.

    Returns:
        The counts by key, the number of keys between, and these keys in any order, padded with larger values.
    """
    from palmette.pruning.sources import selection_kernels as kernels

    integer = INTEGER[row.segments[0].element_size()]
    most = torch.iinfo(integer).max
    counts = torch.zeros(3, dtype=torch.int64, device=row.device)
    found = torch.zeros(_REGIONS, dtype=torch.int32, device=row.device)
    each = -(-room // _REGIONS)
    between = torch.full((_REGIONS * each,), most, dtype=integer, device=row.device)
    first = 0
    with torch.cuda.device(row.device):
        for segment, kept in zip(row.segments, row.kept, strict=True):
            if segment.numel() == 0:
                continue
            programs = min(_REGIONS, -(-segment.numel() // _SPLIT_BLOCK))
            kernels.split[(programs,)](
                segment.view(integer),
                segment if kept is None else kept.contiguous().view(torch.uint8),
                counts,
                found,
                between,
                segment.numel(),
                low,
                high,
                first,
                _REGIONS,
                each,
                MOST=most,
                MASKED=kept is not None,
                BLOCK=_SPLIT_BLOCK,
                num_warps=4,
            )
            first = (first + programs) % _REGIONS  # spread small segments over the regions
    fullest = int(found.max())
    if fullest > each:
        return split(row, low, high, fullest * _REGIONS)
    less, at_most_low, at_most_high = counts.tolist()
    return {low - 1: less, low: at_most_low, high: at_most_high}, int(found.sum()), between


def write_remaining(row: Rows, key: int, ties: int, equal: int, remaining: list[Tensor]) -> None:
    """Mark kept entries above `key`, and all but the first `ties` of the `equal` entries whose key is `key`.

    Reads the row once, or twice if only some of the equal entries are pruned. `remaining` must be contiguous.
    """
    from palmette.pruning.sources import selection_kernels as kernels

    with torch.cuda.device(row.device):
        for segment, kept, out in zip(row.segments, row.kept, remaining, strict=True):
            size = segment.numel()
            if size == 0:
                continue
            blocks = -(-size // _WRITE_BLOCK)
            bits = segment.view(INTEGER[segment.element_size()])
            marks = segment if kept is None else kept.contiguous().view(torch.uint8)
            settings = {"MASKED": kept is not None, "MOST": torch.iinfo(bits.dtype).max, "BLOCK": _WRITE_BLOCK}
            last = size  # index of the last equal entry to prune
            if ties == 0:
                last = -1
            elif ties < equal:
                counts = torch.empty(blocks, dtype=torch.int32, device=row.device)
                kernels.count_equal[(blocks,)](bits, marks, counts, size, key, **settings)
                running = counts.cumsum(0)
                here = int(running[-1])
                if ties < here:
                    last = _place_of_tie(bits[0], None if kept is None else kept[0], key, ties, running)
                ties, equal = max(0, ties - here), equal - here
            kernels.write_remaining[(blocks,)](bits, marks, out.view(torch.uint8), size, key, last, **settings)


def _place_of_tie(bits: Tensor, kept: Tensor | None, key: int, ties: int, running: Tensor) -> int:
    """Index of the `ties`-th kept entry with this key, from the running counts of such entries per block."""
    block = int(torch.searchsorted(running, ties))
    before = int(running[block - 1]) if block else 0
    part = slice(block * _WRITE_BLOCK, (block + 1) * _WRITE_BLOCK)
    equal = (bits[part] & torch.iinfo(bits.dtype).max) == key
    if kept is not None:
        equal &= kept[part]
    return part.start + int(equal.nonzero()[ties - before - 1])
