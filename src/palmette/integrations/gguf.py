"""GGUF, the format of llama.cpp: mapped into memory, and unpacked to float32 row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.pruning.stored import Stored

_FLOATS = ("F32", "F16", "F64", "BF16")


def read(file: Path) -> list[Stored]:
    """The tensors; quantised ones as the float32 that they stand for."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("GGUF needs the gguf package: pip install 'palmette[gguf]'") from error
    return [_stored(tensor) for tensor in GGUFReader(file).tensors]


def _stored(tensor: Any) -> Stored:
    from gguf import dequantize

    kind, data = tensor.tensor_type, tensor.data
    # ggml counts dimensions from the innermost; an array of F32 is floats already, all others are bytes.
    shape = tuple(int(size) for size in reversed(tensor.shape))

    def part(first: int, last: int) -> Tensor:
        rows = data.reshape(shape[0], -1)[first:last]
        return torch.from_numpy(dequantize(rows, kind).copy()).reshape(last - first, *shape[1:])

    coding = "" if kind.name in _FLOATS else kind.name
    return Stored(str(tensor.name), shape, torch.float32, part, int(tensor.n_bytes), coding=coding)
