"""How many entries have which magnitude: a summary of a row that adds up over chunks, tensors and files.

Every measure of a row, and every threshold, is a function of its sorted magnitudes. A `Spectrum` knows them: all
of them while there are few, and beyond that how many fall into each of 2^20 buckets and what these add up to. A
bucket is a piece of the integers that floats without their sign are (8 bits of exponent, 12 of mantissa), so that
each 16-bit float has a bucket of its own, and float32 entries of one bucket differ by at most 2^-12 of themselves,
unless they are below 1e-38.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

EXACT = 1 << 18  # up to so many entries are kept as they are: sorting them takes 10 ms
_BUCKET_BITS = 20
_BLOCK = 1 << 20
_KEY_BITS: dict[Any, int] = {np.dtype(np.float32): 31, np.dtype(np.float64): 63}
_INTEGERS: dict[int, np.dtype[Any]] = {31: np.dtype(np.int32), 63: np.dtype(np.int64)}

_Array = np.ndarray[Any, Any]


class Spectrum:
    r"""The magnitudes of a row, as a list that is exact, or as counts in narrow buckets.

    It is exact for up to `EXACT` entries, and for any number of 16-bit ones. Beyond, counts and the sum of all
    magnitudes are still exact, and what else is computed is off by as much as entries within a bucket differ:
    less than 1e-7 for the Gini Index of weights. `d` counts all entries, `zeros` those that are exactly zero.

    >>> spectrum = Spectrum()
    >>> spectrum.add(torch.tensor([1.0, -2.0]))
    >>> spectrum.add(torch.tensor([[3.0, 4.0]]))
    >>> spectrum.d, spectrum.gini()
    (4, 0.25)
    """

    def __init__(self) -> None:
        self.d = 0
        self.zeros = 0
        self._few: list[_Array] = []
        self._counts: _Array | None = None
        self._above: _Array | None = None  # per bucket, what its keys add up to beyond its lowest one
        self._key_bits = 31
        self._narrow = True
        self._points: tuple[_Array, _Array] | None = None

    def add(self, values: Tensor, kept: Tensor | None = None) -> None:
        """Count finite `values`, of any shape and float or integer dtype; if `kept` is given, those it marks."""
        chosen = values.detach() if kept is None else values.detach()[kept]
        if chosen.numel() == 0:
            return
        self._points = None
        self._narrow &= chosen.dtype in (torch.float16, torch.bfloat16)
        wide = torch.float32 if chosen.is_floating_point() and chosen.element_size() <= 4 else torch.float64
        flat = chosen.cpu().reshape(-1)
        flat = flat if flat.is_floating_point() else flat.to(wide)
        self.d += flat.numel()
        self.zeros += flat.numel() - int(flat.count_nonzero())
        if self.d <= EXACT:
            # A copy: the caller may use its memory again.
            self._few.append(flat.to(wide, copy=True).abs_().numpy())
            return
        self._fold()
        for start in range(0, flat.numel(), _BLOCK):
            self._count(flat[start : start + _BLOCK].to(wide).numpy())

    def merge(self, other: Spectrum) -> None:
        """Add what another spectrum has counted."""
        self._points = None
        self.d += other.d
        self.zeros += other.zeros
        self._narrow &= other._narrow
        if other._counts is None and self._counts is None and self.d <= EXACT:
            self._few += other._few
            return
        self._fold()
        for values in other._few:
            self._count(values)
        if other._counts is not None and other._above is not None:
            counts, above = self._buckets(other._key_bits)
            if self._key_bits == other._key_bits:
                counts += other._counts
                above += other._above
            else:
                self._count(*other._points_of_buckets())

    def points(self) -> tuple[_Array, _Array]:
        """Magnitudes in ascending order, none twice (a bucket has its mean), and how many entries have each."""
        if self._points is None:
            self._points = self._points_of_few() if self._counts is None else self._points_of_buckets()
        return self._points

    def _points_of_few(self) -> tuple[_Array, _Array]:
        values = np.concatenate([few.astype(np.float64) for few in self._few]) if self._few else np.empty(0)
        values.sort()
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else np.empty(0, np.int64)
        return values[starts], np.diff(np.r_[starts, len(values)])

    def bracket(self, rank: int) -> tuple[float, float, int]:
        """Between which two magnitudes the `rank`-th smallest lies (from 1), and how many are below both.

        They are equal where it is known exactly.
        """
        values, counts = self.points()
        upto = np.cumsum(counts)
        at = int(np.searchsorted(upto, rank))
        below = int(upto[at] - counts[at])
        if self._counts is None or self._narrow:
            return float(values[at]), float(values[at]), below
        bucket = int(np.flatnonzero(self._counts)[at])
        shift = self._key_bits - _BUCKET_BITS
        edges = np.array([bucket << shift, ((bucket + 1) << shift) - 1], _INTEGERS[self._key_bits])
        low, high = edges.view(np.float32 if self._key_bits == 31 else np.float64)
        return float(low), float(high), below

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
        """Hoyer's sparseness, as `MEASURES` has it; NaN without a non-zero entry, or with a single one."""
        values, counts = self.points()
        if self.d < 2 or values[-1] == 0:
            return math.nan
        x = values / values[-1]
        root = math.sqrt(self.d)
        return float((root - np.sum(x * counts) / math.sqrt(np.sum(x * x * counts))) / (root - 1))

    def tail_share(self, cut: int, *, p: float) -> float:
        r"""What the `cut` smallest weigh as a share of the others: :math:`\eta_r` with :math:`r = d - cut`.

        As `palmette.eta_of_cut`; infinite when all that is not zero goes, NaN for zeros alone.
        """
        values, counts = self.points()
        if not len(values) or values[-1] == 0:
            return math.nan
        mass = (values / values[-1]) ** p
        gone = np.minimum(np.maximum(cut - (np.cumsum(counts) - counts), 0), counts)
        head = float(np.sum(mass * (counts - gone)))
        return float(np.sum(mass * gone)) / head if head else math.inf

    def distinct(self) -> int:
        """How many different magnitudes there are; in buckets, at least so many."""
        return len(self.points()[0])

    def _fold(self) -> None:
        few, self._few = self._few, []
        for values in few:
            self._count(values)

    def _buckets(self, key_bits: int) -> tuple[_Array, _Array]:
        """The two arrays of buckets, for keys at least so wide."""
        if self._counts is None or self._above is None:
            self._key_bits = key_bits
            self._counts = np.zeros(1 << _BUCKET_BITS, np.int64)
            self._above = np.zeros(1 << _BUCKET_BITS)
        elif key_bits > self._key_bits:
            values, counts = self._points_of_buckets()
            self._counts = None
            self._buckets(key_bits)
            self._count(values, counts)
        assert self._counts is not None
        assert self._above is not None
        return self._counts, self._above

    def _count(self, values: _Array, times: _Array | None = None) -> None:
        counts, above = self._buckets(_KEY_BITS[values.dtype])
        bits = self._key_bits
        if _KEY_BITS[values.dtype] < bits:
            values = values.astype(np.float64)
        keys = values.view(_INTEGERS[bits]) & np.iinfo(_INTEGERS[bits]).max
        shift = bits - _BUCKET_BITS
        where = keys >> shift
        first = int(
            where.min()
        )  # few of the buckets are in use: counting only among these is several times faster
        where -= first
        found = np.bincount(where, weights=times)
        used = slice(first, first + len(found))
        counts[used] += found.astype(np.int64)
        if not self._narrow:
            beyond = keys & ((1 << shift) - 1)
            above[used] += np.bincount(where, weights=beyond if times is None else beyond * times)

    def _points_of_buckets(self) -> tuple[_Array, _Array]:
        assert self._counts is not None
        assert self._above is not None
        used = np.flatnonzero(self._counts)
        counts = self._counts[used]
        integer = _INTEGERS[self._key_bits]
        lowest = (used << (self._key_bits - _BUCKET_BITS)).astype(integer)
        real = np.float32 if self._key_bits == 31 else np.float64
        base = lowest.view(real).astype(np.float64)
        step = (lowest + 1).view(real).astype(np.float64) - base  # within a bucket, floats are evenly spaced
        return base + step * (self._above[used] / counts), counts
