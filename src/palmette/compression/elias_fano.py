"""Positions of the non-zeros of a tensor in few bytes: a bit mask, or Elias–Fano codes of their indices."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Indices: TypeAlias = NDArray[np.int64]


def mask_bytes(size: int) -> int:
    """Bytes of a mask over `size` entries."""
    return -(-size // 8)


def low_bits(kept: int, size: int) -> int:
    r"""Number of low bits to write verbatim so that `kept` indices below `size` take the fewest bytes.

    The number :math:`l` that minimises :math:`k l + k + \lfloor (N - 1) / 2^l \rfloor + 1` bits, close to
    :math:`\log_2(N / k)`.

    >>> low_bits(100, 1000), low_bits(100, 10_000), low_bits(100, 100_000)
    (3, 6, 9)
    """
    if not kept:
        return 0
    most = int(math.log2(size / kept)) + 1
    return min(range(most + 1), key=lambda low: index_bytes(kept, size, low))


def index_bytes(kept: int, size: int, low: int) -> int:
    """Bytes of `kept` indices below `size` with `low` low bits each."""
    return low * mask_bytes(kept) + mask_bytes(_high_length(kept, size, low)) if kept else 0


def pack_indices(indices: Indices, size: int, low: int) -> Bytes:
    r"""Encode rising `indices` below `size` in about :math:`2 + \log_2(N / k)` bits each.

    The `low` lowest bits are written plane by plane, lowest plane first, each padded to whole bytes. The high bits
    :math:`h_i` of index number :math:`i` never decrease: each is a one at position :math:`h_i + i` of a bit row.
    The first bit of a byte is its lowest.

    >>> pack_indices(np.array([2, 3, 9]), size=12, low=1).tolist()  # low 0,1,1; high 1,1,4: ones at 1, 2, 6
    [6, 70, 0]

    Elias 1974; Fano 1971.
    """
    planes = [np.packbits((indices >> bit).astype(np.uint8) & 1, bitorder="little") for bit in range(low)]
    high = np.zeros(_high_length(len(indices), size, low) if len(indices) else 0, np.uint8)
    high[(indices >> low) + np.arange(len(indices))] = 1
    return np.concatenate([*planes, np.packbits(high, bitorder="little")])


def unpack_indices(code: Bytes, kept: int, size: int, low: int) -> Indices:
    """Decode what `pack_indices` encoded; ValueError for a `code` that it cannot have written.

    >>> unpack_indices(np.array([6, 70, 0], np.uint8), kept=3, size=12, low=1).tolist()
    [2, 3, 9]
    """
    if not (0 <= low < 64 and len(code) == index_bytes(kept, size, low)):
        raise ValueError(f"{len(code)} bytes do not hold {kept} indices below {size}")
    if not kept:
        return np.zeros(0, np.int64)
    plane = mask_bytes(kept)
    high = np.unpackbits(code[low * plane :], count=_high_length(kept, size, low), bitorder="little")
    ones = np.flatnonzero(high.view(np.bool_))
    if len(ones) != kept:
        raise ValueError(f"{len(ones)} indices where {kept} should be")
    indices = (ones - np.arange(kept)) << low
    for bit in range(low):
        part = np.unpackbits(code[bit * plane : (bit + 1) * plane], count=kept, bitorder="little")
        indices |= part.astype(np.int64) << bit
    if indices[-1] >= size or (np.diff(indices) <= 0).any():
        raise ValueError(f"the indices are not increasing numbers below {size}")
    return indices


def _high_length(kept: int, size: int, low: int) -> int:
    return kept + ((size - 1) >> low) + 1
