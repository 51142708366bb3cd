"""Plain numbers: .npy, .npz and .csv. A vector is one unit, a matrix has a unit for each row."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np

from palmette.checkpoints.compressibility import LeftOut
from palmette.checkpoints.formats.contents import Contents
from palmette.measures.rows import as_tensor
from palmette.pruning.sources.stored import StoredWeight

_Array = np.ndarray[Any, Any]


def read_npy(file: Path) -> Contents:
    """The array of a .npy file, read in parts unless it is in column-major order."""
    with file.open("rb") as handle:
        shape, by_columns, dtype = _header(handle)
        start = handle.tell()
    if other := _no_numbers(dtype):
        raise ValueError(f"it holds {other}")
    if by_columns:
        return Contents([_whole(file.name, np.lib.format.open_memmap(file, mode="r"))], vectors=True)

    def numbers(at: int, n: int) -> _Array:
        return np.fromfile(file, dtype, n, offset=start + at * dtype.itemsize)

    return Contents([_in_parts(file.name, shape, dtype, numbers)], vectors=True)


def read_npz(file: Path) -> Contents:
    """The arrays of a .npz file by name, read in parts unless they are in column-major order."""
    opened = lru_cache(maxsize=1)(ZipFile(file).open)

    @lru_cache(maxsize=1)
    def loaded(member: str) -> _Array:
        with ZipFile(file) as archive, archive.open(member) as handle:
            return np.lib.format.read_array(handle, allow_pickle=False)

    def rows(member: str, first: int, last: int) -> _Array:
        return loaded(member)[first:last]

    def numbers(member: str, start: int, dtype: np.dtype[Any], at: int, n: int) -> _Array:
        handle = opened(member)  # stays open, so that sequential reads decompress once
        handle.seek(start + at * dtype.itemsize)
        data = bytearray(handle.read(n * dtype.itemsize))
        return np.frombuffer(data, dtype, len(data) // dtype.itemsize)

    found, left_out = [], []
    with ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as handle:
                shape, by_columns, dtype = _header(handle)
                start = handle.tell()
            name = member.removesuffix(".npy")
            if other := _no_numbers(dtype):
                left_out.append(LeftOut(name, shape, other))
            elif by_columns:
                found.append(_stored(name, shape, dtype, partial(rows, member)))
            else:
                found.append(_in_parts(name, shape, dtype, partial(numbers, member, start, dtype)))
    return Contents(found, left_out=left_out, vectors=True)


def _no_numbers(dtype: np.dtype[Any]) -> str:
    """What an array holds in place of real numbers; empty if it holds these."""
    kind = "Python objects" if dtype.hasobject else f"dtype {dtype}"
    return "" if dtype.kind in "fiu" else f"{kind}, no real numbers"


def _header(handle: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in column-major order, and dtype; leaves `handle` at the values."""
    first = np.lib.format.read_magic(handle) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(handle)
    return shape, by_columns and len(shape) > 1, dtype


def read_csv(file: Path) -> Contents:
    """All numbers of a .csv file as one vector or matrix; with a header line, each column as a vector."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as handle:
            rows = (row for row in csv.reader(handle) if row and not row[0].startswith("#"))
            first = next(rows, [])
            if first and not any(_is_number(cell) for cell in first):
                return _columns(first, list(rows))
        table = np.loadtxt(file, delimiter=",", ndmin=1, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("its text is not in UTF-8: save it again in that encoding") from error
    return Contents([_whole(file.name, table.reshape(-1) if 1 in table.shape else table)], vectors=True)


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Contents:
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise ValueError(f"the number of columns changed from {len(names)} to {len(row)} at row {number}")
    found, left_out = [], []
    for number, heading in enumerate(names):
        name, cells = heading.strip() or f"column {number + 1}", [row[number] for row in rows]
        if wrong := sum(not _is_number(cell) for cell in cells):
            left_out.append(LeftOut(name, (len(cells),), f"{wrong} of {len(cells)} cells are no numbers"))
        elif cells:
            found.append(_whole(name, np.array([float(cell) for cell in cells])))
    if rows and not found:
        said = ", ".join(f"{column.name} ({column.why})" for column in left_out[:4])
        raise ValueError(f"it has no column of numbers, with commas between columns: {said}")
    return Contents(found, left_out=left_out, vectors=True)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(name: str, array: _Array) -> StoredWeight:
    array = array.reshape(1) if array.ndim == 0 else array
    return _stored(name, array.shape, array.dtype, lambda first, last: array[first:last])


def _in_parts(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], numbers: Callable[[int, int], _Array]
) -> StoredWeight:
    """An array that `numbers` (first entry, count) reads a range of."""
    shape = shape or (1,)
    width = math.prod(shape[1:])

    def rows(first: int, last: int) -> _Array:
        found = numbers(first * width, (last - first) * width)
        if len(found) != (last - first) * width:
            raise ValueError("it is shorter than its header says")
        return found.reshape(last - first, *shape[1:])

    return _stored(name, shape, dtype, rows)


def _stored(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], rows: Callable[[int, int], _Array]
) -> StoredWeight:
    return StoredWeight(
        name,
        shape,
        as_tensor(np.empty(0, dtype), repr(name)).dtype,
        lambda first, last: as_tensor(rows(first, last), repr(name)),
        math.prod(shape) * dtype.itemsize,
    )
