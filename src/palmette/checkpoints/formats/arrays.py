"""Plain numbers: .npy and .npz. A vector is one unit, a matrix has a unit for each row."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from torch import Tensor

from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.formats.raw import check_shape
from palmette.measures.rows import as_tensor
from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.sources.stored import StoredWeight

_Array = np.ndarray[Any, Any]
DEFLATE = 1032
"""Bytes that a byte of a deflate stream can hold at most."""
_Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
"""Shape, whether in column-major order, and dtype."""


def read_npy(file: Path) -> Contents:
    """The array of a .npy file, read in parts, or mapped if it is in column-major order."""
    with file.open("rb") as handle:
        header, start = _header(handle), handle.tell()
    _, _, dtype = header
    if other := _no_numbers(dtype):
        raise ValueError(f"it holds {other}")
    _check_whole(header, file.stat().st_size - start)

    def numbers(at: int, n: int) -> _Array:
        return np.fromfile(file, dtype, n, offset=start + at * dtype.itemsize)

    return Contents([_stored(file.name, header, partial(np.load, file, "r"), numbers)], vectors=True)


def read_npz(file: Path) -> Contents:
    """The arrays of a .npz file by name, read in parts unless they are in column-major order."""
    opened = lru_cache(maxsize=1)(ZipFile(file).open)

    @lru_cache(maxsize=1)
    def whole(member: str) -> _Array:
        with ZipFile(file) as archive, archive.open(member) as handle:
            return np.lib.format.read_array(handle, allow_pickle=False)

    def numbers(member: str, start: int, dtype: np.dtype[Any], at: int, n: int) -> _Array:
        handle = opened(member)  # stays open, so that sequential reads decompress once
        handle.seek(start + at * dtype.itemsize)
        data = bytearray(handle.read(n * dtype.itemsize))
        return np.frombuffer(data, dtype, len(data) // dtype.itemsize)

    found, left_out = [], []
    with ZipFile(file) as archive:
        for member in members(archive):
            with archive.open(member) as handle:
                header, start = _header(handle), handle.tell()
            name, (shape, _, dtype) = member.filename.removesuffix(".npy"), header
            if other := _no_numbers(dtype):
                left_out.append(LeftOut(name, shape, other))
            else:
                _check_whole(header, member.file_size - start)
                read = partial(numbers, member.filename, start, dtype)
                found.append(_stored(name, header, partial(whole, member.filename), read))
    return Contents(found, left_out=left_out, vectors=True)


def members(archive: ZipFile) -> list[ZipInfo]:
    """Members of a .npz file; refuse sizes that its compressed bytes cannot have, and bytes that count twice."""
    found = list({info.filename: info for info in archive.infolist()}.values())
    packed = sum(info.compress_size for info in found)
    for info in found:
        most = {ZIP_STORED: 1, ZIP_DEFLATED: DEFLATE}.get(info.compress_type)
        if most is None:
            raise ValueError(f"{info.filename!r} in it is compressed in a way that NumPy does not use")
        if info.file_size > most * info.compress_size + DEFLATE or packed > os.path.getsize(str(archive.filename)):
            raise ValueError(f"{info.filename!r} in it cannot be as large as its header says")
    return found


def _check_whole(header: _Header, there: int) -> None:
    """Refuse an array of more bytes than there are after its header."""
    shape, _, dtype = header
    check_shape("the array", shape)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > there:
        raise ValueError("it is shorter than its header says")


def _no_numbers(dtype: np.dtype[Any]) -> str:
    """Contents of an array that are no real numbers; empty for real numbers."""
    kind = "Python objects" if dtype.hasobject else f"dtype {dtype}"
    return "" if dtype.kind in "fiu" else f"{kind}, no real numbers"


def _header(handle: IO[bytes]) -> _Header:
    """Header of an array; leaves `handle` at the values."""
    first = np.lib.format.read_magic(handle) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(handle)
    return shape, by_columns and len(shape) > 1, dtype


def _stored(
    name: str, header: _Header, whole: Callable[[], _Array], numbers: Callable[[int, int], _Array]
) -> StoredWeight:
    """An array: `numbers` (first entry, count) reads a range, `whole` one in column-major order."""
    shape, by_columns, dtype = header
    shape = shape or (1,)
    width = math.prod(shape[1:])

    def rows(first: int, last: int) -> Tensor:
        if by_columns:
            return as_tensor(whole()[first:last], repr(name))
        found = numbers(first * width, (last - first) * width)
        if len(found) != (last - first) * width:
            raise ValueError("it is shorter than its header says")
        return as_tensor(found.reshape(last - first, *shape[1:]), repr(name))

    kind = as_tensor(np.empty(0, dtype), repr(name)).dtype
    return StoredWeight(name, shape, kind, rows, math.prod(shape) * dtype.itemsize)
