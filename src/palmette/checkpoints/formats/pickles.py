"""PyTorch's own files: weights only, never arbitrary pickle. Large files are read in parts, others are mapped.

Such a file is a zip archive of a pickle, which lists the tensors, and the uncompressed bytes of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.formats.raw import part_of
from palmette.measures.rows import as_tensor
from palmette.pruning.sources.stored import StoredWeight, in_memory, unreadable

# Keys under which training scripts save the weights, the most common first.
_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")

LARGE = 1 << 28  # bytes, from which on a file is read in parts, which costs torch a second to list tensors


def read(file: Path, *, in_parts: bool = False) -> Contents:
    """The tensors of a file, read in parts if asked or `LARGE`; a single tensor is a vector of plain numbers."""
    large = in_parts or file.stat().st_size >= LARGE
    found = _heads(file) if large and _zipped(file) else None
    if found is None or isinstance(found, Tensor):
        found = _load(file)
    if isinstance(found, Tensor):
        flat = as_tensor(found, repr(file.name)).reshape(-1)
        return Contents([in_memory(file.name, flat)], vectors=True)
    tensors: list[StoredWeight] = []
    seen: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in _flattened(_state(found)):
        if tensor.is_quantized or (tensor.is_meta and _offset(tensor) is None) or tensor.layout != torch.strided:
            tensors.append(unreadable(name, tuple(tensor.shape), 0, "is quantised, sparse or without values"))
            continue
        start = _offset(tensor)
        tensors.append(in_memory(name, tensor.detach()) if start is None else _in_file(file, name, tensor, start))
        if tensor.numel():
            where = tensor.data_ptr() if start is None else start
            first = seen.setdefault((where, tensor.shape, tensor.stride(), tensor.dtype), name)
            if first != name:
                aliases[name] = first
    return Contents(tensors, aliases)


def _load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True, mmap=_zipped(file))


def _zipped(file: Path) -> bool:
    """Whether a file is a zip archive; files of torch before 1.6 are not, and are loaded as a whole."""
    with file.open("rb") as handle:
        return handle.read(2) == b"PK"


def _heads(file: Path) -> Any:
    """Content of the file, with tensors without values; None where torch fails."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # plain loading raises a better message
        return None


def _offset(tensor: Tensor) -> int | None:
    """Byte of the file where the values of a tensor without values begin."""
    if type(tensor).__name__ != "FakeTensor":
        return None
    start: int | None = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    return None if start is None else start + int(tensor.storage_offset()) * tensor.element_size()


def _in_file(file: Path, name: str, tensor: Tensor, start: int) -> StoredWeight:
    shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
    size = tensor.numel() * dtype.itemsize
    if tensor.is_contiguous():
        return StoredWeight(name, shape, dtype, part_of(file, start, shape, dtype), size)

    def strided(first: int, last: int) -> Tensor:
        extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        data = np.memmap(file, np.uint8, "c", start, (extent * dtype.itemsize,))
        return torch.from_numpy(data).view(dtype).as_strided(shape, stride)[first:last]

    return StoredWeight(name, shape, dtype, strided, size)


def _state(found: Any) -> Mapping[Any, Any]:
    """The state_dict in a checkpoint: tensors by name, flat or as a tree.

    It is the value of the only key with weights, or of the first of `_KEYS` with weights, or the whole checkpoint.
    """
    if not isinstance(found, Mapping):
        raise TypeError(f"it holds a {type(found).__name__}, not weights by name")
    holding = {key: value for key, value in found.items() if _has_weights(value)}
    if len(holding) > 1:
        holding = {key: holding[key] for key in _KEYS if isinstance(holding.get(key), Mapping)}
    inner = next(iter(holding.values()), None)
    return _state(inner) if isinstance(inner, Mapping) else found


def _has_weights(value: Any) -> bool:
    """Whether there is a floating-point tensor with axes; a step, a score or a random state is none."""
    return any(tensor.is_floating_point() and tensor.dim() for _, tensor in _flattened({"": value}))


def _flattened(state: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and "param_groups" not in value:  # not an optimizer
            yield from _flattened(value, f"{prefix}{key}.")
