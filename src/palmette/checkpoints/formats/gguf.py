"""GGUF, the format of llama.cpp: read in parts, and dequantized to float32.

A file is a header of keys and values, a list of tensors, and their bytes. Each count and length in it is checked
against the bytes that are left before anything is done with it.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.contents import Contents, check_together
from palmette.checkpoints.formats.raw import check_shape
from palmette.errors import extra
from palmette.pruning.sources.stored import StoredWeight, unreadable

_FLOATS = ("F32", "F16", "F64", "BF16")
_STRING, _ARRAY = 8, 9
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of each other type."""
_DAMAGED = "it is damaged or truncated"


def read(file: Path) -> Contents:
    """All tensors, quantized ones as float32."""
    with extra("gguf", "GGUF needs the gguf package"):
        import gguf  # noqa: F401
    size = file.stat().st_size
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _tensors(file, _Header(data))
    check_together(found, size)
    return Contents(found)


class _Header:
    """Position in the header of a file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def skip(self, count: int) -> int:
        """Pass over bytes; returns where they begin."""
        first, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise ValueError(_DAMAGED)
        return first

    def number(self, width: int) -> int:
        """A whole number."""
        first = self.skip(width)
        return int.from_bytes(self.data[first : self.at], "little")

    def text(self) -> str:
        """Bytes with their count before them."""
        first = self.skip(self.number(8))
        return self.data[first : self.at].decode("utf-8", "replace")

    def pass_value(self, kind: int, depth: int = 0) -> None:
        """Pass over the value of a key."""
        if kind == _STRING:
            self.skip(self.number(8))
        elif kind == _ARRAY:
            inner, count = self.number(4), self.number(8)
            if inner in _WIDTHS:
                self.skip(count * _WIDTHS[inner])
            elif depth == 4:
                raise ValueError("its arrays are nested too deep")
            else:  # each takes eight bytes at least, so that the file ends before a count without end
                for _ in range(count):
                    self.pass_value(inner, depth + 1)
        elif kind in _WIDTHS:
            self.skip(_WIDTHS[kind])
        else:
            raise ValueError(_DAMAGED)


def _tensors(file: Path, head: _Header) -> list[StoredWeight]:
    if head.number(4) != int.from_bytes(b"GGUF", "little"):
        raise ValueError("GGUF magic invalid")
    if (version := head.number(4)) not in (2, 3):
        raise ValueError(f"it has version {version} of GGUF, or is big-endian; versions 2 and 3 are read")
    tensors, keys, alignment = head.number(8), head.number(8), 32
    for _ in range(keys):
        key, kind = head.text(), head.number(4)
        if key == "general.alignment" and kind == 4:
            alignment = head.number(4) or alignment
        else:
            head.pass_value(kind)
    listed = [_entry(head) for _ in range(tensors)]
    head.skip(-head.at % alignment)
    return [_stored(file, entry, head) for entry in listed]


def _entry(head: _Header) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset of a tensor."""
    name, axes = head.text(), head.number(4)
    if not 1 <= axes <= 4:
        raise ValueError(_DAMAGED)
    sizes = [head.number(8) for _ in range(axes)]
    return name, tuple(reversed(sizes)), head.number(4), head.number(8)  # ggml counts from the innermost axis


def _stored(file: Path, entry: tuple[str, tuple[int, ...], int, int], head: _Header) -> StoredWeight:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    name, shape, number, offset = entry
    check_shape(name, shape)
    kind: Any = GGMLQuantizationType(number)
    block, width = GGML_QUANT_SIZES[kind]
    start, size = head.at + offset, math.prod(shape) // block * width
    if shape[-1] % block or start + size > len(head.data):
        raise ValueError(_DAMAGED)
    if kind.name in ("I8", "I16", "I32", "I64"):
        return unreadable(name, shape, size, "is of integers")
    row = size // shape[0] if size else 0

    def part(first: int, last: int) -> Tensor:
        data = np.fromfile(file, np.uint8, (last - first) * row, offset=start + first * row)
        try:
            values = dequantize(data.reshape(last - first, row), kind)
        except NotImplementedError as error:
            raise ValueError(f"{name!r} is coded as {kind.name}, which gguf cannot unpack") from error
        return torch.from_numpy(values).reshape(last - first, *shape[1:])

    coding = "" if kind.name in _FLOATS else kind.name
    return StoredWeight(name, shape, torch.float32, part, size, coding=coding)
