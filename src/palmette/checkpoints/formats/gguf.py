"""GGUF, the format of llama.cpp: read in parts, and dequantised to float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.contents import Contents
from palmette.pruning.sources.stored import StoredWeight

_FLOATS = ("F32", "F16", "F64", "BF16")


def read(file: Path) -> Contents:
    """All tensors, quantised ones as float32."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("GGUF needs the gguf package: pip install 'palmette[gguf]'") from error
    return Contents([_stored(file, tensor) for tensor in GGUFReader(file).tensors])


def _stored(file: Path, tensor: Any) -> StoredWeight:
    from gguf import dequantize

    kind, start = tensor.tensor_type, int(tensor.data_offset)
    shape = tuple(int(size) for size in reversed(tensor.shape))  # ggml counts dimensions from the innermost
    width = int(tensor.n_bytes) // shape[0]

    def part(first: int, last: int) -> Tensor:
        data = np.fromfile(file, np.uint8, (last - first) * width, offset=start + first * width)
        values = dequantize(data.reshape(last - first, width), kind)
        return torch.from_numpy(values).reshape(last - first, *shape[1:])

    coding = "" if kind.name in _FLOATS else kind.name
    return StoredWeight(str(tensor.name), shape, torch.float32, part, int(tensor.n_bytes), coding=coding)
