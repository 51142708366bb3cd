"""From how many to which: exactly that many of the smallest, ties by index, in bounded memory.

Magnitudes are compared as bit patterns: a float without its sign bit, read as an integer, sorts like the
magnitude it stands for. So counts are exact, and the same on every device and for every float dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from palmette.measures.rows import Rows, cut_into_tiles
from palmette.pruning.sources import cuda as fused
from palmette.pruning.weights import INTEGER

# Rows up to this width are sorted, many at once; longer ones are searched for their threshold.
SORTED_WIDTH = 1 << 16
SAMPLE = 1 << 17  # of 10^8 this puts 1 % into the bracket
CUDA_SAMPLE = 1 << 19
SORTED_KEYS = 1 << 19


def select(rows: Rows, cut: Tensor) -> tuple[Tensor, ...]:
    """Which entries remain when each row loses its `cut` smallest magnitudes.

    Args:
        rows: finite scores (their magnitudes are compared) and which of them are still kept.
        cut: how many of each row's kept entries go, int64, at most as many as it has.

    Returns:
        For each segment of `rows` a boolean matrix, True where an entry remains. The count is exact;
        among equal magnitudes the one with the lowest index goes first, the earlier segment first.

    >>> select(Rows.of(torch.tensor([[3.0, -1.0, 1.0, 1.0]])), torch.tensor([2]))
    (tensor([[ True, False, False,  True]]),)
    """
    if rows.width <= SORTED_WIDTH:
        return _select_by_sorting(rows, cut)
    remaining = tuple(torch.empty(s.shape, dtype=torch.bool, device=s.device) for s in rows.segments)
    for i in range(rows.n):
        row = rows.part(slice(i, i + 1))
        _write_remaining(row, _find_cut(row, int(cut[i])), [r[i : i + 1] for r in remaining])
    return remaining


@dataclass(frozen=True)
class Threshold:
    """Where a row is cut: every key below `key` goes, and the first `ties` of those equal to it."""

    key: int
    ties: int
    equal: int


def threshold(rows: Rows, cut: int) -> float:
    """The `cut`-th smallest magnitude among the kept entries of a single row.

    >>> threshold(Rows.of(torch.tensor([[3.0, -1.0, 2.0]])), 2)
    2.0
    """
    key = torch.tensor(_find_cut(rows, cut).key, dtype=INTEGER[_key_dtype(rows).itemsize])
    return float(key.view(_key_dtype(rows)))


# Short rows.


def _select_by_sorting(rows: Rows, cut: Tensor) -> tuple[Tensor, ...]:
    remaining = torch.empty(rows.n, rows.width, dtype=torch.bool, device=rows.device)
    for part, _ in cut_into_tiles(remaining):
        block = rows.part(part)
        keys = [_keys(s, k, _key_dtype(rows)) for s, k in zip(block.segments, block.kept, strict=True)]
        remaining[part] = _remaining_of_block(torch.cat(keys, 1), cut[part].to(rows.device))
    # An entry that was gone stays gone.
    widths = [s.shape[1] for s in rows.segments]
    return tuple(
        r.contiguous() if k is None else r & k
        for r, k in zip(remaining.split_with_sizes(widths, 1), rows.kept, strict=True)
    )


def _remaining_of_block(keys: Tensor, cut: Tensor) -> Tensor:
    if keys.device.type == "cpu":
        ordered = torch.from_numpy(np.sort(keys.numpy(), axis=1))
    else:
        ordered = keys.sort(dim=1).values
    cut = cut[:, None]
    at = ordered.gather(1, (cut - 1).clamp_min(0)).masked_fill_(cut == 0, -1)
    below, equal = keys < at, keys == at
    ties = cut - below.sum(1, keepdim=True)
    gone = below | (equal & (equal.cumsum(1) <= ties))
    return ~gone


# Long rows: guess a bracket from a sample, count what is below it, look only at what is inside.


def _find_cut(row: Rows, cut: int) -> Threshold:
    if cut == 0:
        return Threshold(-1, 0, 0)
    most = torch.iinfo(INTEGER[_key_dtype(row).itemsize]).max
    sample = _sorted_sample(row)
    d = int(row.counts()[0])
    middle = cut / d * len(sample)
    margin = 4 * math.sqrt(middle * (1 - cut / d)) + 2
    at_most: dict[int, int] = {-1: 0}  # key: how many are at most that

    def count_at_most(key: int) -> int:
        if key not in at_most:
            at_most[key] = sum(_count(keys <= key) for keys in _key_tiles(row))
        return at_most[key]

    def from_sample(position: float) -> int:
        if position < 0:
            return -1
        return int(sample[int(position)]) if position < len(sample) else most

    low, high = from_sample(middle - margin), from_sample(middle + margin)
    room = min(d, int(3 * margin / max(1, len(sample)) * row.width) + 4096)  # half as much again as is expected
    while True:
        high = max(high, low + 1)
        counts, found, between = _split(row, low, high, room)
        at_most |= counts
        below = at_most[low]
        if below < cut <= below + found:
            if row.device.type == "cuda" and SORTED_KEYS < len(between) < row.width // 2:
                # Sorting would take several times their memory; they are fewer, so this ends.
                return _find_cut(Rows.of(between.view(_key_dtype(row))[None]), cut - below)
            return _cut_among(between, cut - below)
        # Many are equal, or the sample misled: look at the end, then at a wider bracket beyond it.
        margin *= 8
        if cut <= below:
            less = count_at_most(low - 1)
            if less < cut:
                return Threshold(low, cut - less, below - less)
            low, high = min(low - 1, from_sample(middle - margin)), low
        else:
            less = below + found
            if cut <= count_at_most(high):
                return Threshold(high, cut - less, count_at_most(high) - less)
            low, high = high, max(high + 1, from_sample(middle + margin))


def _sorted_sample(row: Rows) -> Tensor:
    """Keys of some kept entries, drawn evenly over the whole row; of all of them if they are few."""
    size = SAMPLE
    if row.device.type == "cuda":  # 2^19 of 2^30, fewer of fewer
        size = min(CUDA_SAMPLE, max(SAMPLE, row.width // 2048))
    drawn = []
    for segment, kept in zip(row.segments, row.kept, strict=True):
        values, mask = segment[0], None if kept is None else kept[0]
        if row.width > size and len(values):
            # Any sample gives the right answer; this one gives it in the same number of passes each time.
            generator = torch.Generator(device=segment.device).manual_seed(len(values))
            share = math.ceil(size * len(values) / row.width)
            where = torch.randint(len(values), (share,), generator=generator, device=segment.device)
            values, mask = values[where], None if mask is None else mask[where]
        keys = _keys(values, None, _key_dtype(row))
        drawn.append((keys if mask is None else keys[mask]).to(row.device))
    return torch.cat(drawn).sort().values


def _split(row: Rows, low: int, high: int, room: int) -> tuple[dict[int, int], int, Tensor]:
    """How many keys are at most `low` and how many strictly between it and `high`, and these, in one pass."""
    if fused.usable(row):
        return fused.split(row, low, high, room)
    below, found = 0, 0
    between = torch.empty(room, dtype=INTEGER[_key_dtype(row).itemsize], device=row.device)
    for keys in _key_tiles(row):
        if keys.device.type == "cpu":  # numpy compresses several times faster than torch
            array = keys.numpy().reshape(-1)
            at_most_low = array <= low
            below += int(np.count_nonzero(at_most_low))
            inside = torch.from_numpy(array[(array < high) ^ at_most_low])
        else:
            below += _count(keys <= low)
            inside = keys[(keys > low) & (keys < high)]
        if found + len(inside) > len(between):
            between = torch.cat([between[:found], between.new_empty(found + 2 * len(inside))])
        between[found : found + len(inside)] = inside
        found += len(inside)
    return {low: below}, found, between[:found]


def _cut_among(keys: Tensor, cut: int) -> Threshold:
    """Where `keys` are cut, so that `cut` of them go."""
    if keys.device.type == "cpu":
        key = int(np.partition(keys.numpy(), cut - 1)[cut - 1])
    else:
        key = int(keys.sort().values[cut - 1])
    return Threshold(key, cut - _count(keys < key), _count(keys == key))


def _write_remaining(row: Rows, cut: Threshold, remaining: list[Tensor]) -> None:
    """Fill `remaining`, a mask for each segment of a single row."""
    if fused.usable(row):
        fused.write_remaining(row, cut.key, cut.ties, cut.equal, remaining)
        return
    ties = 0 if cut.ties == cut.equal else cut.ties
    last_to_go = cut.key - 1 if ties else cut.key
    keys: Tensor | None = None
    for segment, kept, out in zip(row.segments, row.kept, remaining, strict=True):
        for part, columns in cut_into_tiles(segment):
            mask = None if kept is None else kept[part, columns]
            keys = _keys(segment[part, columns], mask, _key_dtype(row), keys)
            tile = torch.gt(keys, last_to_go, out=out[part, columns])
            if mask is not None:
                tile &= mask  # what was gone stays gone
            if ties:
                equal = (keys == cut.key).nonzero()[:ties, 1]
                tile[0, equal] = False
                ties -= len(equal)


# Keys.


def _key_dtype(rows: Rows) -> torch.dtype:
    """The narrowest dtype that holds the values of all segments."""
    return reduce(torch.promote_types, (segment.dtype for segment in rows.segments))


def _keys(values: Tensor, kept: Tensor | None, dtype: torch.dtype, scratch: Tensor | None = None) -> Tensor:
    """Integers that sort like magnitudes; above all of them where an entry is not kept."""
    bits = values.to(dtype).contiguous().view(INTEGER[dtype.itemsize])
    most = torch.iinfo(bits.dtype).max
    fits = scratch is not None and (scratch.shape, scratch.device) == (bits.shape, bits.device)
    keys = torch.bitwise_and(bits, most, out=scratch if fits else None)
    return keys if kept is None else keys.masked_fill_(~kept, most)


def _key_tiles(row: Rows) -> Iterator[Tensor]:
    """The keys of a single row, tile by tile; one is scratch memory that the next one may be written to."""
    dtype = _key_dtype(row)
    scratch: Tensor | None = None
    for segment, kept in zip(row.segments, row.kept, strict=True):
        for part, columns in cut_into_tiles(segment):
            mask = None if kept is None else kept[part, columns]
            scratch = _keys(segment[part, columns], mask, dtype, scratch)
            yield scratch


def _count(marked: Tensor) -> int:
    return int(np.count_nonzero(marked.numpy())) if marked.device.type == "cpu" else int(marked.sum())
