"""Safetensors files, read in parts; the safetensors package maps whole files into memory.

The format of https://github.com/huggingface/safetensors: eight bytes for the length of the header, the header
as JSON, which says where each tensor is, and the data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.formats.raw import Bytes, check_shape, from_disk, part_from, part_of
from palmette.compression.packing import load
from palmette.errors import MaskMismatch
from palmette.pruning.masks import (
    MASKS_FORMAT,
    MASKS_SUFFIX,
    SEALED_FORMAT,
    WEIGHTS_SEAL,
    check_masks_file,
    shapes_in,
)
from palmette.pruning.sources.stored import StoredWeight, in_memory, unreadable

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
"""Names of dtypes in a header."""
Source = Callable[[Path, torch.dtype], Bytes]
"""Reader of the bytes of a file that hold values of a dtype."""
CHECKED = 1 << 16
"""Entries at the start of a tensor that are compared with its mask."""


def read(file: Path, source: Source = from_disk) -> Contents:
    """The tensors of one file, read by `source`, with the masks that `palmette prune` wrote next to it."""
    return with_config(file, *tensors_of(file, source))


def with_config(file: Path, tensors: Sequence[StoredWeight], aliases: Mapping[str, str] | None = None) -> Contents:
    """Contents with what config.json next to `file` says: whether the output layer is tied to the embedding."""
    config, aliases = file.parent / "config.json", aliases or {}
    head = next((t.name for t in tensors if t.name.endswith("lm_head.weight")), None)
    if not config.is_file():
        return Contents(tensors, aliases)
    if head is None:
        return Contents(tensors, aliases, unwritten=["lm_head.weight"])
    try:
        settings = json.loads(config.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError("config.json next to it is damaged") from error
    settings = settings.get("text_config", settings) if isinstance(settings, dict) else {}
    tied = isinstance(settings, dict) and settings.get("tie_word_embeddings")
    return Contents(tensors, aliases, embedded=[head] if tied else ())


def tensors_of(file: Path, source: Source = from_disk) -> tuple[list[StoredWeight], dict[str, str]]:
    """The tensors of one file, with their masks, and the aliases of those that are tied."""
    with safe_open(file, "np") as opened:  # checks the header
        metadata = opened.metadata() or {}
    if metadata.get("format", "").startswith("palmette-packed"):
        state, first = load(file), dict[int, str]()
        aliases = {n: same for n, t in state.items() if (same := first.setdefault(id(t), n)) != n}
        return [in_memory(name, tensor) for name, tensor in state.items()], aliases
    if metadata.get("format") in (MASKS_FORMAT, SEALED_FORMAT):
        raise ValueError("it holds masks, not weights: give the file that they belong to")
    header, start = header_of(file)
    # A file on the Hub would have to be read twice.
    if (seal := metadata.get(WEIGHTS_SEAL)) is not None and source is from_disk:
        _check_seal(file, header, start, seal)
    masks = masks_file(file)
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    for name, shape in shapes.items():
        check_shape(name, shape)
    kept = _kept(masks, shapes) if masks.is_file() and masks != file else {}
    found = []
    for name, entry in header.items():
        shape, (first, last) = shapes[name], entry["data_offsets"]
        if entry["dtype"] not in DTYPES:
            found.append(unreadable(name, shape, last - first, f"has dtype {entry['dtype']}, which is not read"))
            continue
        dtype = DTYPES[entry["dtype"]]
        reader = part_from(source(file, dtype), start + first, shape, dtype)
        tensor = StoredWeight(name, shape, dtype, reader, last - first, kept=kept.get(name))
        _check_masked(tensor, masks)
        found.append(tensor)
    return found, {}


def _check_seal(file: Path, header: Mapping[str, Any], start: int, seal: str) -> None:
    """Refuse a file that `palmette prune` wrote and that is damaged; its tensors are read once, in parts."""
    size, found = file.stat().st_size - start, seal_of_header(header)
    data = StoredWeight("", (size,), torch.uint8, part_of(file, start, (size,), torch.uint8), size)
    for part in data.raw_parts():
        found.update(part.numpy().data)
    if found.hexdigest() != seal:
        raise ValueError(
            "it is damaged: its content does not fit its seal (if it was changed on purpose, save it without the "
            f"metadata {WEIGHTS_SEAL!r})"
        )


def seal_of_header(header: Mapping[str, Any]) -> hashlib._Hash:
    """Beginning of the seal of a cut file: its header without metadata; the bytes of the tensors follow."""
    return hashlib.sha256(json.dumps(header).encode())


def _check_masked(tensor: StoredWeight, masks: Path) -> None:
    """Refuse masks that are out of date: pruned weights are zero, unless the file was trained since."""
    if tensor.kept is None or not math.prod(tensor.shape):
        return
    rows = min(tensor.shape[0], 1 + CHECKED // math.prod(tensor.shape[1:]))
    back = int(tensor.read(0, rows).float()[~tensor.kept(0, rows)].count_nonzero())
    if back:
        raise ValueError(
            f"it has weights where {masks.name} next to it has none, {back:,} in the first rows of "
            f"{tensor.name!r}: they came back in training, or the masks are of an earlier file (remove them to "
            "continue without)"
        )


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """The header without metadata, and the byte where the data begins."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def masks_file(file: Path) -> Path:
    """File of the masks of a pruned file: ``small.masks.safetensors`` next to ``small.safetensors``."""
    return file.with_name(file.name.removesuffix(".safetensors") + MASKS_SUFFIX)


def _kept(masks: Path, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Callable[[int, int], Tensor]]:
    """Readers of the masks, by name of tensor."""
    try:
        metadata = check_masks_file(masks)
        expected = shapes_in(metadata)
    except SafetensorError as error:
        raise ValueError(f"{masks.name} next to it is damaged") from error
    except MaskMismatch as error:
        raise ValueError(f"{masks.name} next to it {error}") from error
    if metadata.get("format") not in (MASKS_FORMAT, SEALED_FORMAT):
        return {}
    header, start = header_of(masks)
    found = {}
    for name in sorted(header.keys() & shapes.keys()):
        if expected.get(name) != list(shapes[name]):
            raise ValueError(f"{masks.name} next to it belongs to another model: {name!r} differs")
        found[name] = partial(_bits, masks, start + header[name]["data_offsets"][0], shapes[name])
    return found


def _bits(masks: Path, offset: int, shape: tuple[int, ...], first: int, last: int) -> Tensor:
    """Part of a mask that begins at `offset`. Parts start at multiples of 8 entries, which are whole bytes."""
    width = math.prod(shape[1:])
    size = (last - first) * width
    bits = np.fromfile(masks, np.uint8, (size + 7) // 8, offset=offset + first * width // 8)
    flat = np.unpackbits(bits, count=size, bitorder="little").astype(bool)
    return torch.from_numpy(flat).reshape(last - first, *shape[1:])
