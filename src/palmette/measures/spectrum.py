"""Histogram of the magnitudes of a row, which adds up over chunks, tensors and files.

Every measure of a row, and every threshold, is a function of its sorted magnitudes. A 16-bit float has one of 2^15
magnitudes, so their counts are exact. Wider values are stored while they are few; beyond that, a `Spectrum` stores
the count and the sum of each of 2^20 buckets. A bucket is a range of the keys of magnitudes (of float32, 8 bits of
exponent and 12 of mantissa): float32 entries of one bucket differ by at most 2^-12 of themselves, unless they are
below 1e-38.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

EXACT = 1 << 18  # wide entries that are stored exactly: sorting them takes 10 ms
NARROW = (torch.bfloat16, torch.float16)
BUCKET_BITS = 20
_BLOCK = 1 << 20
_INTEGERS: dict[int, np.dtype[Any]] = {31: np.dtype(np.int32), 63: np.dtype(np.int64)}
_REALS: dict[int, np.dtype[Any]] = {31: np.dtype(np.float32), 63: np.dtype(np.float64)}

_Array = np.ndarray[Any, Any]
Points = tuple[_Array, _Array]
"""Distinct magnitudes in ascending order, and how many entries have each."""
Counts = Mapping[torch.dtype, Points]
"""Bits of 16-bit floats without the sign, uint16, and the count of each, by dtype."""


class Spectrum:
    r"""Magnitudes of a row: counts of 16-bit values, a list of few wide values, counts in narrow buckets of many.

    Exact for up to `EXACT` wide entries and any number of 16-bit ones. Beyond that, counts are still exact, and
    measures are off by as much as entries within a bucket differ: less than 1e-7 for the Gini Index of weights.
    The order of parts does not matter. `d` counts all entries, `zeros` the entries that are 0.

    >>> spectrum = Spectrum()
    >>> spectrum.add(torch.tensor([1.0, -2.0]))
    >>> spectrum.add(torch.tensor([[3.0, 4.0]]))
    >>> spectrum.d, spectrum.gini()
    (4, 0.25)
    """

    def __init__(self) -> None:
        self.d = 0
        self.zeros = 0
        self._narrow: dict[torch.dtype, _Array] = {}  # how many entries have each of the 2^15 magnitudes
        self._few: list[_Array] = []
        self._wide = 0  # entries that are not narrow
        # By the width of the keys: the count of each bucket, and the sum of its keys beyond its lowest key.
        self._buckets: dict[int, tuple[_Array, _Array]] = {}
        self._points: Points | None = None

    @property
    def exact(self) -> bool:
        """Whether every magnitude is stored exactly."""
        return not self._buckets

    @property
    def narrow(self) -> bool:
        """Whether all entries are 16-bit floats."""
        return self._wide == 0

    def add(self, values: Tensor, kept: Tensor | None = None) -> None:
        """Count finite `values` of any shape and float or integer dtype; only the `kept` ones if given."""
        chosen = values.detach() if kept is None else values.detach()[kept]
        if chosen.numel() == 0:
            return
        self._points = None
        flat = chosen.cpu().reshape(-1)
        self.d += flat.numel()
        if flat.dtype in NARROW:
            counts = self._counts_of(flat.dtype)
            before = int(counts[0])
            for block in flat.view(torch.int16).split(2 * _BLOCK):
                counts += torch.bincount(block & 0x7FFF, minlength=1 << 15).numpy()
            self.zeros += int(counts[0]) - before
            return
        wide = torch.float32 if flat.is_floating_point() and flat.element_size() <= 4 else torch.float64
        flat = flat.to(wide)
        self.zeros += flat.numel() - int(flat.count_nonzero())
        self._wide += flat.numel()
        if self._wide <= EXACT:
            self._few.append(flat.abs().numpy())
            return
        self._fold()
        for start in range(0, flat.numel(), _BLOCK):
            self._count(flat[start : start + _BLOCK].numpy())

    def merge(self, other: Spectrum) -> None:
        """Add the entries of another spectrum."""
        self._points = None
        self.d += other.d
        self.zeros += other.zeros
        self._wide += other._wide
        for dtype, counts in other._narrow.items():
            self._counts_of(dtype)[:] += counts
        self._few += other._few
        if self._wide > EXACT:
            self._fold()
        for bits, theirs in other._buckets.items():
            for mine, more in zip(self._buckets_of(bits), theirs, strict=True):
                mine += more

    def counts(self) -> Counts:
        """Magnitudes of the 16-bit entries, by dtype, and how often each occurs."""
        found = {}
        for dtype, counts in self._narrow.items():
            used = np.flatnonzero(counts)
            found[dtype] = (used.astype(np.uint16), counts[used])
        return found

    def add_counts(self, counts: Counts) -> None:
        """Add 16-bit entries that were counted elsewhere."""
        self._points = None
        for dtype, (used, times) in counts.items():
            self._counts_of(dtype)[used] += times
            self.d += int(times.sum())
            self.zeros += int(times[used == 0].sum())

    def wide(self) -> tuple[list[_Array], dict[int, tuple[_Array, ...]]]:
        """State of the wider entries, for `of_wide`.

        A few entries are stored exactly, an array for each dtype; many by the width of their keys: the buckets in
        use, the entries in each, and the sum of their keys beyond the lowest key of the bucket.
        """
        dtypes = dict.fromkeys(x.dtype for x in self._few)
        few = [np.concatenate([x for x in self._few if x.dtype == dtype]) for dtype in dtypes]
        used = {bits: np.flatnonzero(counts).astype(np.int32) for bits, (counts, _) in self._buckets.items()}
        return few, {bits: (u, *(array[u] for array in self._buckets[bits])) for bits, u in used.items()}

    @staticmethod
    def of_wide(few: Sequence[_Array], buckets: Mapping[int, tuple[_Array, ...]], *, zeros: int) -> Spectrum:
        """The spectrum that `wide` described."""
        found = Spectrum()
        found.zeros = zeros
        found._few = list(few)
        for bits, (used, counts, above) in buckets.items():
            for array, values in zip(found._buckets_of(bits), (counts, above), strict=True):
                array[used] = values
        found.d = found._wide = sum(map(len, few)) + sum(int(counts.sum()) for _, counts, _ in buckets.values())
        return found

    def points(self) -> Points:
        """Distinct magnitudes (of a bucket its mean) in ascending order, and how many entries have each."""
        if self._points is None:
            few = [(x.astype(np.float64), np.ones(len(x), np.int64)) for x in self._few]
            self._points = joined([*points_of(self.counts()), *few, *map(self._means, self._buckets)])
        return self._points

    def bracket(self, rank: int) -> tuple[float, float, int]:
        """Two magnitudes between which the `rank`-th smallest lies (from 1), and how many are below both.

        The two are equal where the magnitude is known exactly.
        """
        if self.exact:
            values, counts = self.points()
            at, below = bucket_of(rank, counts)
            return float(values[at]), float(values[at]), below
        bits = max(self._buckets)
        bucket, below = bucket_of(rank, self._in_buckets(bits))
        shift = bits - BUCKET_BITS
        edges = np.array([bucket << shift, ((bucket + 1) << shift) - 1], _INTEGERS[bits])
        low, high = edges.view(_REALS[bits])
        return float(low), float(high), below

    def power_sum(self, power: float) -> float:
        r"""The sum of all :math:`|w_i|^{power}`."""
        values, counts = self.points()
        return float(np.sum(values**power * counts))

    def gini(self) -> float:
        """Gini Index, as `palmette.gini_index` defines it; NaN without a non-zero entry."""
        values, counts = self.points()
        if not len(values) or values[-1] == 0:
            return math.nan
        n = counts.astype(np.float64)
        before = np.cumsum(n) - n
        x = values / values[-1]
        median = x[np.searchsorted(before + n, self.d / 2)]
        # The weights of the ranks add up to 0, so any constant may be taken off: the median cancels least.
        spread = float(np.sum((x - median) * n * (2 * before + n - self.d)))
        return max(0.0, spread / self.d / float(np.sum(x * n)))

    def hoyer(self) -> float:
        """Hoyer's sparseness, as `MEASURES` has it; NaN for zeros alone, and for a single entry."""
        values, counts = self.points()
        if self.d < 2 or values[-1] == 0:
            return math.nan
        x = values / values[-1]
        root = math.sqrt(self.d)
        return max(0.0, float(root - np.sum(x * counts) / math.sqrt(np.sum(x * x * counts))) / (root - 1))

    def tail_share(self, cut: int, *, p: float) -> float:
        r"""Mass of the `cut` smallest as a share of the mass of the others: :math:`\eta_r` with :math:`r = d -
        cut`.

        As `palmette.eta_of_cut`; infinite if all non-zero entries are cut, NaN for zeros alone.
        """
        values, counts = self.points()
        if not len(values) or values[-1] == 0:
            return math.nan
        mass = (values / values[-1]) ** p
        gone = np.minimum(np.maximum(cut - (np.cumsum(counts) - counts), 0), counts)
        head = float(np.sum(mass * (counts - gone)))
        return float(np.sum(mass * gone)) / head if head else math.inf

    def _counts_of(self, dtype: torch.dtype) -> _Array:
        return self._narrow.setdefault(dtype, np.zeros(1 << 15, np.int64))

    def _buckets_of(self, bits: int) -> tuple[_Array, _Array]:
        if bits not in self._buckets:
            self._buckets[bits] = np.zeros(1 << BUCKET_BITS, np.int64), np.zeros(1 << BUCKET_BITS)
        return self._buckets[bits]

    def _fold(self) -> None:
        few, self._few = self._few, []
        for values in few:
            self._count(values)

    def _in_buckets(self, bits: int) -> _Array:
        """Entries in each bucket of one width, including those of narrower keys."""
        found = Spectrum()
        found._buckets_of(bits)[0][:] = self._buckets[bits][0]
        others = [self._means(b) for b in self._buckets if b != bits]
        for values, counts in (*points_of(self.counts()), *others):
            found._count(values.astype(_REALS[bits]), counts)
        return found._buckets[bits][0]

    def _count(self, values: _Array, times: _Array | None = None) -> None:
        bits = 8 * values.itemsize - 1
        counts, above = self._buckets_of(bits)
        keys = values.view(_INTEGERS[bits]) & np.iinfo(_INTEGERS[bits]).max
        shift = bits - BUCKET_BITS
        where = keys >> shift
        # Few buckets are in use: counting only within their range is several times faster.
        first = int(where.min())
        where -= first
        found = np.bincount(where, weights=times)
        used = slice(first, first + len(found))
        counts[used] += found.astype(np.int64)
        # Whole numbers of at most 20 bits: they add up without rounding, so in any order.
        beyond = (keys & ((1 << shift) - 1)) >> max(0, shift - 20)
        above[used] += np.bincount(where, weights=beyond if times is None else beyond * times)

    def _means(self, bits: int) -> Points:
        counts, above = self._buckets[bits]
        used = np.flatnonzero(counts)
        shift = bits - BUCKET_BITS
        lowest = (used << shift).astype(_INTEGERS[bits])
        base = lowest.view(_REALS[bits]).astype(np.float64)
        # Within a bucket, floats are evenly spaced.
        step = (lowest + (1 << max(0, shift - 20))).view(_REALS[bits]).astype(np.float64) - base
        return base + step * (above[used] / counts[used]), counts[used]


def points_of(counts: Counts) -> list[Points]:
    """Counts by dtype as points."""
    return [
        (torch.from_numpy(used.astype(np.int16)).view(dtype).to(torch.float64).numpy(), times)
        for dtype, (used, times) in counts.items()
    ]


def joined(parts: list[Points]) -> Points:
    """The points of several rows as one."""
    if len(parts) == 1 and bool((parts[0][0][1:] > parts[0][0][:-1]).all()):
        return parts[0]
    values = np.concatenate([v for v, _ in parts]) if parts else np.empty(0)
    counts = np.concatenate([n for _, n in parts]) if parts else np.empty(0, np.int64)
    order = np.argsort(values, kind="stable")
    values = values[order]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else np.empty(0, np.int64)
    return values[starts], np.add.reduceat(counts[order], starts) if len(values) else counts


def bucket_of(rank: int, counts: _Array) -> tuple[int, int]:
    """Index of the bucket that holds the `rank`-th smallest, and how many entries come before that bucket."""
    upto = np.cumsum(counts)
    at = int(np.searchsorted(upto, rank))
    return at, int(upto[at] - counts[at])
