"""Selection on a CUDA device in one read of the weights, with Triton; elsewhere plain torch does the same."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.measures import fused
from palmette.measures.rows import Rows

BLOCK = 4096
_PROGRAMS = 132 * 8
_INTEGER = {2: torch.int16, 4: torch.int32}


def usable(row: Rows) -> bool:
    """Whether all of a single row can be read by the kernels: one device, one dtype."""
    first = row.segments[0]
    return row.n == 1 and all(
        s.numel() == 0 or (fused.usable(s) and s.dtype == first.dtype and s.device == first.device)
        for s in row.segments
    )


def split(row: Rows, low: int, high: int, room: int) -> tuple[dict[int, int], Tensor]:
    """Counts of the keys at most `low - 1`, `low` and `high`, and the keys strictly between, in one read.

    Args:
        row: of which `usable` is true.
        low, high: keys, low < high.
        room: how many between are expected; where there are more, the row is read again.
    """
    from palmette.pruning import kernels

    integer = _INTEGER[row.segments[0].element_size()]
    counts = torch.zeros(4, dtype=torch.int64, device=row.device)  # < low, <= low, <= high, between
    between = torch.empty(room, dtype=integer, device=row.device)
    with torch.cuda.device(row.device):
        for segment, kept in zip(row.segments, row.kept, strict=True):
            size = segment.numel()
            if size == 0:
                continue
            kernels.split[(min(_PROGRAMS, -(-size // BLOCK)),)](
                segment.view(integer),
                segment if kept is None else kept.contiguous().view(torch.uint8),
                counts,
                between,
                size,
                low,
                high,
                room,
                MOST=torch.iinfo(integer).max,
                MASKED=kept is not None,
                BLOCK=BLOCK,
                num_warps=8,
            )
    less, low_count, high_count, found = counts.tolist()
    if found > room:
        return split(row, low, high, found)
    return {low - 1: less, low: low_count, high: high_count}, between[:found]


def write_remaining(row: Rows, key: int, remaining: list[Tensor]) -> None:
    """Mark what is kept and above `key`, in one read; `remaining` are contiguous boolean matrices."""
    from palmette.pruning import kernels

    integer = _INTEGER[row.segments[0].element_size()]
    with torch.cuda.device(row.device):
        for segment, kept, out in zip(row.segments, row.kept, remaining, strict=True):
            size = segment.numel()
            if size == 0:
                continue
            kernels.write_remaining[(-(-size // BLOCK),)](
                segment.view(integer),
                segment if kept is None else kept.contiguous().view(torch.uint8),
                out.view(torch.uint8),
                size,
                key,
                MOST=torch.iinfo(integer).max,
                MASKED=kept is not None,
                BLOCK=BLOCK,
                num_warps=8,
            )
