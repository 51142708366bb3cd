"""PyTorch's own files: weights only, never arbitrary pickle, mapped into memory where the file allows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.measures.rows import as_tensor
from palmette.pruning.stored import Stored, in_memory

# Where training scripts keep the weights, the likeliest first.
_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params", "generator")
_NO_WEIGHTS = ("optim", "sched", "scaler", "ema", "loop", "callback", "hyper", "args", "config")


def read(file: Path) -> tuple[list[Stored], dict[str, str], bool]:
    """The tensors, which of them are another one once more, and whether the file is a bare tensor."""
    found = _load(file)
    if isinstance(found, Tensor):
        flat = as_tensor(found, repr(file.name)).reshape(-1)
        return [in_memory(file.name, flat)], {}, True
    tensors: list[Stored] = []
    seen: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in _flattened(_state(found)):
        if tensor.is_quantized or tensor.is_meta or tensor.layout != torch.strided:
            tensors.append(_unreadable(name, tensor))
            continue
        tensors.append(in_memory(name, tensor.detach()))
        if tensor.numel():
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            first = seen.setdefault(place, name)
            if first != name:
                aliases[name] = first
    return tensors, aliases, False


def read_plain(file: Path) -> list[Stored]:
    """The tensors of a shard."""
    return read(file)[0]


def _unreadable(name: str, tensor: Tensor) -> Stored:
    def read(first: int, last: int) -> Tensor:
        raise ValueError(f"{name!r} is quantised, sparse or without values")

    # No numbers, so that it is left out.
    return Stored(name, tuple(tensor.shape), torch.bool, read, 0)


def _load(file: Path) -> Any:
    zipped = file.open("rb").read(2) == b"PK"  # what torch wrote before 1.6 cannot be mapped
    return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)


def _state(found: Any) -> Mapping[Any, Any]:
    """The weights among all that a checkpoint may hold."""
    if not isinstance(found, Mapping):
        raise TypeError(f"it holds a {type(found).__name__}, not weights by name")
    if any(isinstance(value, Tensor) for value in found.values()):
        return found
    inner = {key: value for key, value in found.items() if isinstance(value, Mapping)}
    for key in _KEYS:
        if inner.get(key):
            return _state(inner[key])
    likely = {k: v for k, v in inner.items() if not any(word in str(k).lower() for word in _NO_WEIGHTS)}
    return _state(next(iter(likely.values()))) if len(likely) == 1 else likely


def _flattened(state: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
