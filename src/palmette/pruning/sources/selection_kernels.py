"""The Triton kernels behind `palmette.pruning.sources.cuda`; imported only if Triton is available."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def split(
    bits_ptr,
    kept_ptr,
    counts_ptr,
    found_ptr,
    between_ptr,
    size,
    low,
    high,
    first,
    regions,
    room,
    MOST: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count keys below, at and up to the ends of (low, high), and collect those inside, in any order.

    Programs collect into separate regions, so that few of them wait for the same counter.
    """
    lane = tl.arange(0, BLOCK)
    region = (tl.program_id(0) + first) % regions
    found = found_ptr + region + tl.zeros([BLOCK], tl.int32)
    less = tl.zeros([BLOCK], tl.int32)
    at_most_low = tl.zeros([BLOCK], tl.int32)
    at_most_high = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0).to(tl.int64) * BLOCK):
        inside = lane < tl.minimum(size - start, BLOCK).to(tl.int32)
        if MASKED:
            inside = inside & (tl.load(kept_ptr + start + lane, mask=inside, other=0) != 0)
        key = (tl.load(bits_ptr + start + lane, mask=inside, other=MOST) & MOST).to(tl.int32)
        less += (key < low).to(tl.int32)
        at_most_low += (key <= low).to(tl.int32)
        at_most_high += (key <= high).to(tl.int32)
        chosen = (key > low) & (key < high)
        place = tl.atomic_add(found, 1, mask=chosen, sem="relaxed")
        where = region.to(tl.int64) * room + place
        tl.store(between_ptr + where, key.to(between_ptr.dtype.element_ty), mask=chosen & (place < room))
    tl.atomic_add(counts_ptr, tl.sum(less, 0).to(tl.int64))
    tl.atomic_add(counts_ptr + 1, tl.sum(at_most_low, 0).to(tl.int64))
    tl.atomic_add(counts_ptr + 2, tl.sum(at_most_high, 0).to(tl.int64))


@triton.jit
def count_equal(
    bits_ptr, kept_ptr, counts_ptr, size, key, MOST: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """Count the kept keys of each block that equal `key`."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < tl.minimum(size - start, BLOCK).to(tl.int32)
    equal = inside & ((tl.load(bits_ptr + start + lane, mask=inside, other=0) & MOST).to(tl.int32) == key)
    if MASKED:
        equal = equal & (tl.load(kept_ptr + start + lane, mask=inside, other=0) != 0)
    tl.store(counts_ptr + tl.program_id(0), tl.sum(equal.to(tl.int32), 0))


@triton.jit
def write_remaining(
    bits_ptr, kept_ptr, out_ptr, size, key, last, MOST: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """out = kept and above `key`, or equal to it and after the index `last`."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < tl.minimum(size - start, BLOCK).to(tl.int32)
    bits = (tl.load(bits_ptr + start + lane, mask=inside, other=0) & MOST).to(tl.int32)
    remains = (bits > key) | ((bits == key) & (start + lane > last))
    if MASKED:
        remains = remains & (tl.load(kept_ptr + start + lane, mask=inside, other=0) != 0)
    tl.store(out_ptr + start + lane, remains.to(tl.uint8), mask=inside)
