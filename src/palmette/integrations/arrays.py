"""Plain numbers: .npy, .npz and .csv. A vector is one unit; the rows of a matrix are its units."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from palmette.measures.rows import as_tensor
from palmette.pruning.stored import Stored

_Array = np.ndarray[Any, Any]


def read_npy(file: Path) -> list[Stored]:
    """The array of a .npy file, mapped into memory."""
    return [_whole(file.name, np.lib.format.open_memmap(file, mode="r"))]


def read_npz(file: Path) -> list[Stored]:
    """The arrays of a .npz file by name; one at a time is in memory."""
    load = lru_cache(maxsize=1)(partial(_member, file))
    found = []
    with ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as handle:
                version = np.lib.format.read_magic(handle)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(handle)
            if dtype.kind in "USMm":  # labels and dates, beside the numbers
                continue
            found.append(_stored(member.removesuffix(".npy"), shape or (1,), dtype, partial(load, member)))
    return found


def _member(file: Path, member: str) -> _Array:
    with ZipFile(file) as archive, archive.open(member) as handle:
        array = np.lib.format.read_array(handle, allow_pickle=False)
        return array.reshape(1) if array.ndim == 0 else array


def read_csv(file: Path) -> list[Stored]:
    """All numbers of a .csv file as one vector or matrix; with a line of names on top, each column as a vector."""
    with file.open(encoding="utf-8-sig", newline="") as handle:
        first = next((row for row in csv.reader(handle) if row and not row[0].startswith("#")), [])
    if not first or any(_is_number(cell) for cell in first):
        table = np.loadtxt(file, delimiter=",", ndmin=1, encoding="utf-8-sig")
        return [_whole(file.name, table.reshape(-1) if 1 in table.shape else table)]
    with file.open(encoding="utf-8-sig", newline="") as handle:
        _, *rows = (row for row in csv.reader(handle) if row and not row[0].startswith("#"))
    return _columns(first, rows)


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Stored]:
    uneven = next((number for number, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if uneven is not None:
        raise ValueError(
            f"the number of columns changed from {len(names)} to {len(rows[uneven - 2])} at row {uneven}"
        )
    found = []
    for number, name in enumerate(names):
        cells = [row[number] for row in rows]
        if cells and all(_is_number(cell) for cell in cells):
            found.append(_whole(name.strip() or f"column {number + 1}", np.array([float(cell) for cell in cells])))
    if rows and not found:
        raise ValueError("it has no column of numbers")
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(name: str, array: _Array) -> Stored:
    array = array.reshape(1) if array.ndim == 0 else array
    return _stored(name, array.shape, array.dtype, lambda: array)


def _stored(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], load: Callable[[], _Array]) -> Stored:
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    probe = as_tensor(np.empty(0, dtype), repr(name))  # refuses what is no real number
    return Stored(
        name,
        shape,
        probe.dtype,
        lambda first, last: as_tensor(load()[first:last], repr(name)),
        math.prod(shape) * dtype.itemsize,
    )
