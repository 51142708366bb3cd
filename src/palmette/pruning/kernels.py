"""The Triton kernels behind `palmette.pruning.fused`; imported only where Triton is there."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def split(
    bits_ptr,
    kept_ptr,
    counts_ptr,
    between_ptr,
    size,
    low,
    high,
    room,
    MOST: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count keys below, at and up to the ends of (low, high), and collect those inside, in any order."""
    lane = tl.arange(0, BLOCK).to(tl.int64)
    less = tl.zeros([BLOCK], tl.int32)
    at_most_low = tl.zeros([BLOCK], tl.int32)
    at_most_high = tl.zeros([BLOCK], tl.int32)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, step):
        where = start + lane
        inside = where < size
        key = (tl.load(bits_ptr + where, mask=inside, other=0) & MOST).to(tl.int32)
        if MASKED:
            inside = inside & (tl.load(kept_ptr + where, mask=inside, other=0) != 0)
        less += (inside & (key < low)).to(tl.int32)
        at_most_low += (inside & (key <= low)).to(tl.int32)
        at_most_high += (inside & (key <= high)).to(tl.int32)
        chosen = (inside & (key > low) & (key < high)).to(tl.int32)
        found = tl.sum(chosen, 0)
        if found > 0:
            first = tl.atomic_add(counts_ptr + 3, found.to(tl.int64))
            place = first + tl.cumsum(chosen, 0) - 1
            fits = (chosen != 0) & (place < room)
            tl.store(between_ptr + place, key.to(between_ptr.dtype.element_ty), mask=fits)
    tl.atomic_add(counts_ptr, tl.sum(less, 0).to(tl.int64))
    tl.atomic_add(counts_ptr + 1, tl.sum(at_most_low, 0).to(tl.int64))
    tl.atomic_add(counts_ptr + 2, tl.sum(at_most_high, 0).to(tl.int64))


@triton.jit
def write_remaining(
    bits_ptr, kept_ptr, out_ptr, size, key, MOST: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """out = kept and above `key`."""
    where = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = where < size
    remains = (tl.load(bits_ptr + where, mask=inside, other=0) & MOST).to(tl.int32) > key
    if MASKED:
        remains = remains & (tl.load(kept_ptr + where, mask=inside, other=0) != 0)
    tl.store(out_ptr + where, remains.to(tl.uint8), mask=inside)
