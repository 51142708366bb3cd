"""Read tensors that lie in a file as plain bytes, in parts."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.pruning.masks import MOST_AXES

DONTCACHE = 0x80
"""RWF_DONTCACHE of Linux 6.14: bytes that are read do not stay in the page cache, unless they were there."""
PAST_CACHE: float = (
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if sys.platform == "linux" else math.inf
)
"""Size in bytes from which files bypass the page cache, which takes time to fill: half of the machine's memory."""


Bytes = Callable[[int, int], np.ndarray[Any, Any]]
"""Reader of a file: (start, count) -> bytes, fewer where the file ends."""


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Refuse more axes or entries than a tensor can have; an axis of length 0 does not excuse the others."""
    size = 1
    for length in shape[: MOST_AXES + 1]:
        size *= max(1, length)
    if len(shape) > MOST_AXES or size >= 1 << 63:
        what = f"{len(shape):,} axes" if len(shape) > MOST_AXES else "2^63 entries or more"
        raise ValueError(f"{name!r} has {what}; a tensor has at most {MOST_AXES} axes and fewer than 2^63 entries")


def from_disk(file: Path, dtype: torch.dtype) -> Bytes:
    """Reader of a file on this machine."""
    return partial(_bytes, file)


def part_of(file: Path, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[int, int], Tensor]:
    """Reader of a range of the first axis of a tensor that begins at byte `start` of `file`."""
    return part_from(from_disk(file, dtype), start, shape, dtype)


def part_from(read: Bytes, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[int, int], Tensor]:
    """Reader of a range of the first axis of a tensor that begins at byte `start` of what `read` reads."""
    width = math.prod(shape[1:]) * dtype.itemsize

    def part(first: int, last: int) -> Tensor:
        count = (last - first) * width if shape else dtype.itemsize
        data = read(start + first * width, count)
        if len(data) != count:
            raise ValueError("it is shorter than its header says")
        if not count:
            return torch.empty((last - first, *shape[1:]), dtype=dtype)
        return torch.from_numpy(data).view(dtype).reshape((last - first, *shape[1:]) if shape else ())

    return part


def _bytes(file: Path, start: int, count: int) -> np.ndarray[Any, Any]:
    if file.stat().st_size > PAST_CACHE:
        data, done = np.empty(count, np.uint8), 0
        unsupported = (OSError, AttributeError, NotImplementedError)  # by file system, Windows or macOS
        with suppress(*unsupported), file.open("rb", buffering=0) as handle:
            while more := os.preadv(handle.fileno(), [data.data[done:]], start + done, DONTCACHE):
                done += more
            return data[:done]
    return np.fromfile(file, np.uint8, count, offset=start)
