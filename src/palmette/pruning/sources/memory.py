"""Weights in memory, on any device: exact selection of the smallest, ties by index, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from palmette.measures.pq import PowerSums, index_from_sums, power_sums
from palmette.measures.rows import INTEGER, TILE, Rows, cut_into_tiles
from palmette.measures.tail import tail_count
from palmette.pruning.sources import cuda as fused
from palmette.pruning.sources.selection import NO_CUT, Threshold, keys_of

# Rows up to this width are sorted, many at once; longer ones are searched for their threshold.
SORTED_WIDTH = 1 << 16
SAMPLE = 1 << 17  # for 10^8 entries, 1 % fall into the bracket
CUDA_SAMPLE = 1 << 19
SORTED_KEYS = 1 << 19
_COUNTED_ROWS = 1 << 8  # rows whose tails are counted at a time: their 256 counts and masses stay in the cache


class Memory(Rows):
    """Rows to measure and cut; a row is a neuron, a layer or a network."""

    def power_sums(self, *, p: float, q: float) -> PowerSums:
        """Power sums of each row."""
        return power_sums(self, p=p, q=q)

    def rounded(self, chosen: Tensor) -> Memory:
        """Rows that `chosen` marks, to be summed again without rounding."""
        return self.take(chosen)

    @property
    def rounding(self) -> float:
        """Largest error of `power_sums`, in units of the last digit."""
        if any(s.is_cuda for s in self.segments):
            return 1e-11 / torch.finfo(torch.float64).eps  # see `pq_index`
        # torch adds up a tile in a few hundred parallel chains, and the tiles one after another.
        return min(self.width, 512) + self.width / TILE + len(self.segments)

    def index(self, sums: PowerSums) -> Tensor:
        """PQ Index of each row."""
        return index_from_sums(self, sums)

    def tail_count(self, *, p: float, eta: float) -> Tensor:
        """Number of smallest entries of each row whose mass is at most `eta` times that of the rest."""
        parts = (self.take(slice(i, i + _COUNTED_ROWS)) for i in range(0, self.n, _COUNTED_ROWS))
        return torch.cat([torch.empty(0, dtype=torch.int64), *(tail_count(part, p=p, eta=eta) for part in parts)])

    def select(self, cut: Tensor) -> tuple[Tensor, ...]:
        """Masks after pruning the `cut` smallest magnitudes of each row.

        Args:
            cut: number of kept entries to prune in each row, int64.

        Returns:
            A boolean matrix per segment, True where an entry remains. The count is exact; of equal magnitudes,
            those with the lowest index are pruned first, earlier segments first.

        >>> Memory.of(torch.tensor([[3.0, -1.0, 1.0, 1.0]])).select(torch.tensor([2]))
        (tensor([[ True, False, False,  True]]),)
        """
        if self.width <= SORTED_WIDTH:
            return _select_by_sorting(self, cut)
        remaining = tuple(torch.empty(s.shape, dtype=torch.bool, device=s.device) for s in self.segments)
        for i in range(self.n):
            row = self.take(slice(i, i + 1))
            write_remaining(row, find_threshold(row, int(cut[i])), [r[i : i + 1] for r in remaining])
        return remaining

    def threshold(self, cut: int) -> float:
        """The `cut`-th smallest magnitude among the kept entries of a single row.

        >>> Memory.of(torch.tensor([[3.0, -1.0, 2.0]])).threshold(2)
        2.0
        """
        key = torch.tensor(find_threshold(self, cut).key, dtype=INTEGER[self.dtype.itemsize])
        return float(key.view(self.dtype))


# Short rows.


def _select_by_sorting(rows: Rows, cut: Tensor) -> tuple[Tensor, ...]:
    remaining = torch.empty(rows.n, rows.width, dtype=torch.bool, device=rows.device)
    for part, _ in cut_into_tiles(remaining):
        block = rows.take(part)
        keys = [keys_of(s, k, rows.dtype) for s, k in zip(block.segments, block.kept, strict=True)]
        remaining[part] = _remaining_of_block(torch.cat(keys, 1), cut[part].to(rows.device))
    # Pruned entries stay pruned.
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


# Long rows: guess a bracket from a sample, count the keys below it, and examine only the keys inside.


def find_threshold(row: Rows, cut: int) -> Threshold:
    """Threshold that prunes exactly `cut` entries of a single row."""
    if cut == 0:
        return NO_CUT
    most = torch.iinfo(INTEGER[row.dtype.itemsize]).max
    sample = _sorted_sample(row)
    d = int(row.counts()[0])
    middle = cut / d * len(sample)
    margin = 4 * math.sqrt(middle * (1 - cut / d)) + 2
    at_most: dict[int, int] = {-1: 0}  # key -> number of keys at most that large

    def count_at_most(key: int) -> int:
        if key not in at_most:
            at_most[key] = sum(_count(keys <= key) for keys in _key_tiles(row, row.dtype))
        return at_most[key]

    def from_sample(position: float) -> int:
        if position < 0:
            return -1
        return int(sample[int(position)]) if position < len(sample) else most

    low, high = from_sample(middle - margin), from_sample(middle + margin)
    room = min(d, int(3 * margin / max(1, len(sample)) * row.width) + 4096)  # 1.5 times the expected number
    while True:
        high = max(high, low + 1)
        counts, found, between = split(row, low, high, room)
        at_most |= counts
        below = at_most[low]
        if below < cut <= below + found:
            if row.device.type == "cuda" and SORTED_KEYS < len(between) < row.width // 2:
                # Sorting would take several times their memory. There are fewer keys now, so the recursion ends.
                return find_threshold(Rows.of(between.view(row.dtype)[None]), cut - below)
            return _threshold_among(between, cut - below)
        # Many keys are equal, or the sample misled: try the end, then a wider bracket beyond it.
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
    """Sorted keys of kept entries, sampled evenly over the whole row; all keys of a short row."""
    size = SAMPLE
    if row.device.type == "cuda":  # 2^19 of 2^30, fewer of fewer
        size = min(CUDA_SAMPLE, max(SAMPLE, row.width // 2048))
    drawn = []
    for segment, kept in zip(row.segments, row.kept, strict=True):
        values, mask = segment[0], None if kept is None else kept[0]
        if row.width > size and len(values):
            # Any sample gives the right answer; a fixed seed makes the number of passes reproducible.
            generator = torch.Generator(device=segment.device).manual_seed(len(values))
            share = math.ceil(size * len(values) / row.width)
            where = torch.randint(len(values), (share,), generator=generator, device=segment.device)
            values, mask = values[where], None if mask is None else mask[where]
        keys = keys_of(values, None, row.dtype)
        drawn.append((keys if mask is None else keys[mask]).to(row.device))
    return torch.cat(drawn).sort().values


def split(
    row: Rows, low: int, high: int, room: int, dtype: torch.dtype | None = None
) -> tuple[dict[int, int], int, Tensor]:
    """Number of keys at most `low`, number strictly between `low` and `high`, and these keys, in one pass.

    Args:
        row: a single row.
        low, high: keys, low < high.
        room: expected number of keys between them.
        dtype: dtype of the keys; that of the row by default.
    """
    if dtype is None and fused.usable(row):
        return fused.split(row, low, high, room)
    dtype = row.dtype if dtype is None else dtype
    below, found = 0, 0
    between = torch.empty(room, dtype=INTEGER[dtype.itemsize], device=row.device)
    for keys in _key_tiles(row, dtype):
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


def _threshold_among(keys: Tensor, cut: int) -> Threshold:
    """Threshold that prunes exactly `cut` of `keys`."""
    if keys.device.type == "cpu":
        key = int(np.partition(keys.numpy(), cut - 1)[cut - 1])
    else:
        key = int(keys.sort().values[cut - 1])
    return Threshold(key, cut - _count(keys < key), _count(keys == key))


def write_remaining(
    row: Rows, at: Threshold, remaining: list[Tensor], dtype: torch.dtype | None = None
) -> Threshold:
    """Fill `remaining`, a mask for each segment of a single row; return the threshold for entries that follow.

    Args:
        at: threshold with keys of `dtype`, by default that of the row.
        remaining: contiguous masks, overwritten.
    """
    if dtype is None and fused.usable(row):
        fused.write_remaining(row, at.key, at.ties, at.equal, remaining)
        return at
    dtype = row.dtype if dtype is None else dtype
    all_go = at.ties == at.equal
    last_to_go, ties = (at.key, 0) if all_go else (at.key - 1, at.ties)
    keys: Tensor | None = None
    for segment, kept, out in zip(row.segments, row.kept, remaining, strict=True):
        for part, columns in cut_into_tiles(segment):
            mask = None if kept is None else kept[part, columns]
            keys = keys_of(segment[part, columns], mask, dtype, keys)
            tile = torch.gt(keys, last_to_go, out=out[part, columns])
            if mask is not None:
                tile &= mask  # pruned entries stay pruned
            if ties:
                equal = (keys == at.key).nonzero()[:ties, 1]
                tile[0, equal] = False
                ties -= len(equal)
    return at if all_go else replace(at, ties=ties)


def _key_tiles(row: Rows, dtype: torch.dtype) -> Iterator[Tensor]:
    """Keys of a single row, tile by tile; the next tile may overwrite the last."""
    scratch: Tensor | None = None
    for segment, kept in zip(row.segments, row.kept, strict=True):
        for part, columns in cut_into_tiles(segment):
            mask = None if kept is None else kept[part, columns]
            scratch = keys_of(segment[part, columns], mask, dtype, scratch)
            yield scratch


def _count(marked: Tensor) -> int:
    return int(np.count_nonzero(marked.numpy())) if marked.device.type == "cpu" else int(marked.sum())
