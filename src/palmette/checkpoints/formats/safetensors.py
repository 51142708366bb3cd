"""Safetensors read in parts: a header of JSON, then the bytes of each tensor where it says.

The format is that of https://github.com/huggingface/safetensors: eight bytes for the length of the header,
the header, the data. The safetensors package maps a whole file into memory; here no more is read than asked for.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from palmette.compression.packing import load
from palmette.pruning.masks import MASKS_FORMAT
from palmette.pruning.sources.file import StoredWeight, in_memory, unreadable

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""The names of dtypes in a header."""

DONTCACHE = 0x80
"""RWF_DONTCACHE of Linux 6.14: what is read does not stay in the page cache, unless it was there."""
PAST_CACHE: float = (
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if sys.platform == "linux" else math.inf
)
"""Bytes, from which on a file does not go into the page cache: half of the memory of the machine."""

LOOKED_AT = 1 << 16
"""Entries of a tensor that are compared with its mask before anything is done."""


def read(file: Path) -> tuple[list[StoredWeight], dict[str, str]]:
    """The tensors of one file, with the masks that `palmette prune` left beside it, and which of them are tied."""
    with safe_open(file, "np") as opened:  # which checks the header
        metadata = opened.metadata() or {}
    if metadata.get("format", "").startswith("palmette-packed"):
        state, first = load(file), dict[int, str]()
        aliases = {n: same for n, t in state.items() if (same := first.setdefault(id(t), n)) != n}
        return [in_memory(name, tensor) for name, tensor in state.items()], aliases
    if metadata.get("format") == MASKS_FORMAT:
        raise ValueError("it holds masks, not weights: name the file that they are for")
    header, start = header_of(file)
    masks = masks_file(file)
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    kept = _kept(masks, shapes) if masks.is_file() and masks != file else {}
    found = []
    for name, entry in header.items():
        shape, (first, last) = shapes[name], entry["data_offsets"]
        if entry["dtype"] not in DTYPES:
            found.append(unreadable(name, shape, last - first, f"has dtype {entry['dtype']}, which is not read"))
            continue
        dtype = DTYPES[entry["dtype"]]
        reader = part_of(file, start + first, shape, dtype)
        tensor = StoredWeight(name, shape, dtype, reader, last - first, kept=kept.get(name))
        _check_masked(tensor, masks)
        found.append(tensor)
    return found, {}


def _check_masked(tensor: StoredWeight, masks: Path) -> None:
    """Whether what the masks call pruned is zero, in the first rows: it is not when the file was trained since."""
    if tensor.kept is None or not math.prod(tensor.shape):
        return
    rows = min(tensor.shape[0], 1 + LOOKED_AT // math.prod(tensor.shape[1:]))
    back = int(tensor.read(0, rows).float()[~tensor.kept(0, rows)].count_nonzero())
    if back:
        raise ValueError(
            f"it has weights where {masks.name} beside it has none, {back:,} in the first rows of {tensor.name!r}"
            ": they came back in training, or the masks are of an earlier file (remove them to go on without)"
        )


def read_sharded(index: Path, read_shard: Callable[[Path], Sequence[StoredWeight]]) -> list[StoredWeight]:
    """The tensors of all files that an ``*.index.json`` names."""
    try:
        where = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
    except (ValueError, AttributeError):
        where = None
    if not (isinstance(where, dict) and all(isinstance(name, str) for name in where.values())):
        raise ValueError(f"{index.name} has no weight_map of files")
    shards = list(dict.fromkeys(where.values()))
    if missing := [name for name in shards if not (index.parent / name).is_file()]:
        raise ValueError(f"{len(missing)} of {len(shards)} shards are missing, such as {missing[0]}")
    # What the index says to be in another shard was left over in this one.
    found = [t for name in shards for t in read_shard(index.parent / name) if where.get(t.name, name) == name]
    if lost := where.keys() - {t.name for t in found}:
        raise ValueError(f"{min(lost)!r} is in the index and in no shard")
    return found


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """The header, without metadata, and where the data begins."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def part_of(file: Path, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[int, int], Tensor]:
    """Reads some of the first axis of a tensor that lies in `file` from byte `start` on."""
    width = math.prod(shape[1:]) * dtype.itemsize

    def part(first: int, last: int) -> Tensor:
        count = (last - first) * width if shape else dtype.itemsize
        data = _bytes(file, start + first * width, count)
        if len(data) != count:
            raise ValueError("it is shorter than its header says")
        if not count:
            return torch.empty((last - first, *shape[1:]), dtype=dtype)
        return torch.from_numpy(data).view(dtype).reshape((last - first, *shape[1:]) if shape else ())

    return part


def _bytes(file: Path, start: int, count: int) -> np.ndarray[Any, Any]:
    """Some bytes of a file; one that memory cannot hold is read past the page cache, which takes time to fill."""
    if file.stat().st_size > PAST_CACHE:
        data, done = np.empty(count, np.uint8), 0
        unsupported = (OSError, AttributeError, NotImplementedError)  # by file system, Windows or macOS
        with suppress(*unsupported), file.open("rb", buffering=0) as handle:
            while more := os.preadv(handle.fileno(), [data.data[done:]], start + done, DONTCACHE):
                done += more
            return data[:done]
    return np.fromfile(file, np.uint8, count, offset=start)


def masks_file(file: Path) -> Path:
    """Where the masks of a pruned file are: ``small.masks.safetensors`` beside ``small.safetensors``."""
    return file.with_name(file.name.removesuffix(".safetensors") + ".masks.safetensors")


def _kept(masks: Path, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Callable[[int, int], Tensor]]:
    """For each masked tensor of these `shapes`: what reads its mask in parts."""
    try:
        with safe_open(masks, "np") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{masks.name} beside it is damaged") from error
    if metadata.get("format") != MASKS_FORMAT:
        return {}
    header, start = header_of(masks)
    said = json.loads(metadata.get("shapes", "{}"))
    found = {}
    for name in sorted(header.keys() & shapes.keys()):
        if tuple(said.get(name, ())) != shapes[name]:
            raise ValueError(f"{masks.name} beside it belongs to another model: {name!r} differs")
        found[name] = partial(_bits, masks, start + header[name]["data_offsets"][0], shapes[name])
    return found


def _bits(masks: Path, offset: int, shape: tuple[int, ...], first: int, last: int) -> Tensor:
    """Part of a mask that begins at `offset`. Parts begin at multiples of 8 entries, so at whole bytes."""
    width = math.prod(shape[1:])
    size = (last - first) * width
    bits = np.fromfile(masks, np.uint8, (size + 7) // 8, offset=offset + first * width // 8)
    flat = np.unpackbits(bits, count=size, bitorder="little").astype(bool)
    return torch.from_numpy(flat).reshape(last - first, *shape[1:])
