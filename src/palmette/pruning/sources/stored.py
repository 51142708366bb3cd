"""Weights that are read part by part when needed: from a file larger than memory, or from a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from palmette.errors import NotFinite
from palmette.measures.parameters import is_number
from palmette.measures.rows import Rows
from palmette.pruning.choosing.values import all_finite
from palmette.pruning.weights import Weight, normed

CHUNK = 1 << 23  # entries per read: 32 MB of float32
MEMORY = 10**9
"""Default memory limit in bytes."""
_BASE = 4 * 10**8  # Python, torch and the counts of magnitudes
_THREAD = 10**8  # each thread


@contextmanager
def within(memory: int) -> Iterator[int]:
    """Entries per read, with as many threads as keep the process below `memory` bytes.

    Each entry takes up to 16 bytes in each worker thread, in the reading thread and in one queued part.
    Counting takes about 50 MB more per thread.

    >>> with within(10**12) as chunk:
    ...     chunk == CHUNK
    True
    """
    if not (is_number(memory, whole=True) and memory >= _BASE + _THREAD):
        raise ValueError(f"memory must be at least {(_BASE + _THREAD) // 10**6} MB, in bytes, got {memory!r}")
    before = torch.get_num_threads()
    threads = min(before, (memory - _BASE) // _THREAD)
    torch.set_num_threads(threads)
    try:
        yield min(CHUNK, (memory - _BASE) // 16 // (threads + 2))
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class StoredWeight:
    """A weight that can be read in parts.

    Args:
        name: name of the parameter.
        shape: shape of the whole weight.
        dtype: dtype of the values of `read`.
        read: (first, last) -> ``values[first:last]``, along the first axis.
        nbytes: stored size.
        transposed, groups, stacked: layout of its neurons, see `Weight`.
        kept: like `read`, True where an entry is not pruned yet; None if all entries count.
        coding: the integer format that the values were unpacked from, such as "Q4_1"; empty for floats.
        gain: g under weight norm, of which this is the direction v.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, int], Tensor]
    nbytes: int
    transposed: bool = False
    groups: int = 1
    kept: Callable[[int, int], Tensor] | None = None
    coding: str = ""
    stacked: bool = False
    gain: StoredWeight | None = None

    @property
    def layout(self) -> Weight:
        """Shape and layout, without the values."""
        return Weight(torch.empty(self.shape, device="meta"), self.transposed, self.groups, self.stacked)

    @property
    def entries(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def neurons(self) -> int:
        """Number of neurons; 1 for a vector, which is one unit."""
        if len(self.shape) < 2:
            return 1
        if self.stacked:
            return self.shape[0] * self.shape[2 if self.transposed else 1]
        return self.shape[1] * self.groups if self.transposed else self.shape[0]

    def parts(self, chunk: int = CHUNK) -> Iterator[FilePart]:
        """All parts of the weight in order: whole rows of the first axis, about `chunk` finite entries each.

        A grouped transposed convolution is one part, since its neurons extend over the whole weight.
        """
        for first, last in self._slices(self.entries if self.groups > 1 else chunk):
            raw = self.read(first, last)
            values = self.values(raw, first, last)
            if values.is_floating_point() and values.numel() and not all_finite(values):
                raise NotFinite(f"NaN or infinite numbers in {self.name!r}")
            yield FilePart(self, raw, values, None if self.kept is None else self.kept(first, last))

    def values(self, raw: Tensor, first: int, last: int) -> Tensor:
        """Values to measure and rank of ``raw = read(first, last)``; under weight norm, g · v/‖v‖."""
        # Few torch functions support 8-bit floats; bfloat16 holds all their values.
        values = raw.to(torch.bfloat16) if raw.is_floating_point() and raw.element_size() == 1 else raw
        if self.gain is None:
            return values
        gain = self.gain.whole()
        if gain.dim() and gain.shape[0] == self.shape[0]:  # each row has a norm of its own
            return normed(values, gain[first:last])
        return normed(self.read(0, self.shape[0]), gain)[first:last]

    def whole(self) -> Tensor:
        """The tensor as stored."""
        found = list(self.raw_parts())
        return found[0] if len(found) == 1 else torch.cat(found)

    def raw_parts(self, chunk: int = CHUNK) -> Iterator[Tensor]:
        """All parts of the tensor as stored, unchecked."""
        for first, last in self._slices(chunk):
            yield self.read(first, last)

    def _slices(self, chunk: int) -> Iterator[tuple[int, int]]:
        length, width = self.shape[0] if self.shape else 1, math.prod(self.shape[1:])
        # Multiples of 8 entries: a mask packed part by part then has no padding between parts.
        step = 8 // math.gcd(8, width)
        rows = length if chunk >= self.entries else max(step, chunk // max(1, width) // step * step)
        for first in range(0, max(1, length), max(1, rows)):
            yield first, min(first + rows, length)


@dataclass(frozen=True)
class FilePart:
    """Some rows of the first axis of a stored weight: as stored, as numbers, and which are kept."""

    of: StoredWeight
    raw: Tensor
    values: Tensor
    kept: Tensor | None

    @property
    def weight(self) -> Weight:
        """Values with the layout of their neurons; a vector is one neuron."""
        if len(self.of.shape) < 2:
            return Weight(self.values.reshape(1, -1))
        return Weight(self.values, self.of.transposed, self.of.groups, self.of.stacked)

    @property
    def row(self) -> Rows:
        """All values as a single row, on the CPU."""
        kept = None if self.kept is None else self.kept.cpu().reshape(1, -1)
        return Rows.of(self.values.detach().cpu().reshape(1, -1), kept)

    def rows(self, values: Tensor) -> Tensor:
        """Values or masks of this part, one row per neuron."""
        return self.weight.rows(values.reshape(self.weight.shape))


def stored_weights(weights: Mapping[str, Weight], masks: Mapping[str, Tensor] | None = None) -> list[StoredWeight]:
    """Weights of a model, as `prunable` returns them, to be read like weights of a file."""
    return [
        replace(
            in_memory(name, weight.values.detach()),
            transposed=weight.transposed,
            groups=weight.groups,
            stacked=weight.stacked,
            kept=None if masks is None else in_memory(name, masks[name]).read,
        )
        for name, weight in weights.items()
    ]


def in_memory(name: str, tensor: Tensor) -> StoredWeight:
    """Tensor in memory, or memory-mapped."""
    return StoredWeight(
        name,
        tuple(tensor.shape),
        tensor.dtype,
        lambda first, last: tensor[first:last] if tensor.dim() else tensor,
        tensor.numel() * tensor.element_size(),
    )


def unreadable(name: str, shape: tuple[int, ...], nbytes: int, why: str) -> StoredWeight:
    """Tensor whose values cannot be read; its dtype is not a float dtype, so it is left out."""

    def read(first: int, last: int) -> Tensor:
        raise ValueError(f"{name!r} {why}")

    return StoredWeight(name, shape, torch.bool, read, nbytes)
