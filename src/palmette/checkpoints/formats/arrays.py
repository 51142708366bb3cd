"""Plain numbers: .npy, .npz and .csv. A vector is one unit; the rows of a matrix are its units."""

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
from palmette.measures.rows import as_tensor
from palmette.pruning.sources.file import StoredWeight

_Array = np.ndarray[Any, Any]


def read_npy(file: Path) -> list[StoredWeight]:
    """The array of a .npy file, read in parts."""
    with file.open("rb") as handle:
        shape, by_columns, dtype = _header(handle)
        start = handle.tell()
    if other := _no_numbers(dtype):
        raise ValueError(f"it holds {other}")
    if by_columns:  # any row is all over the file
        return [_whole(file.name, np.lib.format.open_memmap(file, mode="r"))]
    return [
        _in_parts(
            file.name, shape, dtype, lambda at, n: np.fromfile(file, dtype, n, offset=start + at * dtype.itemsize)
        )
    ]


def read_npz(file: Path) -> tuple[list[StoredWeight], list[LeftOut]]:
    """The arrays of a .npz file by name, read in parts; one whose columns lie one after another as a whole.

    Arrays of anything but real numbers, as labels and marks beside them, come second.
    """
    load, opened = lru_cache(maxsize=1)(partial(_member, file)), lru_cache(maxsize=1)(ZipFile(file).open)

    def numbers(member: str, start: int, dtype: np.dtype[Any], at: int, n: int) -> _Array:
        handle = opened(member)  # and left open, so that what is asked for in order is unpacked once
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
                found.append(_stored(name, shape, dtype, partial(_rows_of, partial(load, member))))
            else:
                found.append(_in_parts(name, shape, dtype, partial(numbers, member, start, dtype)))
    return found, left_out


def _no_numbers(dtype: np.dtype[Any]) -> str:
    """What an array of anything but real numbers holds; empty for one of these."""
    kind = "Python objects" if dtype.hasobject else f"dtype {dtype}"
    return "" if dtype.kind in "fiu" else f"{kind}, no real numbers"


def _member(file: Path, member: str) -> _Array:
    with ZipFile(file) as archive, archive.open(member) as handle:
        return np.lib.format.read_array(handle, allow_pickle=False)


def _rows_of(load: Callable[[], _Array], first: int, last: int) -> _Array:
    return load()[first:last]


def _header(handle: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns lie one after another in place of rows, and dtype; what follows are the values."""
    first = np.lib.format.read_magic(handle) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(handle)
    return shape, by_columns and len(shape) > 1, dtype


def read_csv(file: Path) -> tuple[list[StoredWeight], list[LeftOut]]:
    """All numbers of a .csv file as one vector or matrix; with a line of names on top, each column as a vector.

    Columns that are not all numbers come second, each with how many of its cells are none.
    """
    with file.open(encoding="utf-8-sig", newline="") as handle:
        rows = (row for row in csv.reader(handle) if row and not row[0].startswith("#"))
        first = next(rows, [])
        if first and not any(_is_number(cell) for cell in first):
            return _columns(first, list(rows))
    table = np.loadtxt(file, delimiter=",", ndmin=1, encoding="utf-8-sig")
    return [_whole(file.name, table.reshape(-1) if 1 in table.shape else table)], []


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[StoredWeight], list[LeftOut]]:
    uneven = next((number for number, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if uneven is not None:
        raise ValueError(
            f"the number of columns changed from {len(names)} to {len(rows[uneven - 2])} at row {uneven}"
        )
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
    return found, left_out


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(name: str, array: _Array) -> StoredWeight:
    array = array.reshape(1) if array.ndim == 0 else array
    return _stored(name, array.shape, array.dtype, partial(_rows_of, lambda: array))


def _in_parts(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], numbers: Callable[[int, int], _Array]
) -> StoredWeight:
    """An array of which `numbers` (from where on, how many) gives what is asked for."""
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
