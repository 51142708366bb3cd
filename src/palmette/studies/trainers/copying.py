"""Copies of states, and the check that a state can be saved."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def copied(values: Any, device: torch.device | None = None) -> Any:
    """Copy without shared memory: a slice of a stack would keep, and save, the whole stack."""
    if isinstance(values, Tensor):
        return values.detach().to(device or values.device, copy=True, memory_format=torch.contiguous_format)
    if isinstance(values, Mapping):
        return {key: copied(value, device) for key, value in values.items()}
    return [copied(value, device) for value in values] if isinstance(values, list) else copy.deepcopy(values)


def check_plain(state: Mapping[str, object]) -> None:
    """Raise, before any training, if a model's `get_extra_state` cannot be saved in a checkpoint."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            continue
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:  # pickling may raise anything
            raise TypeError(
                f"the model's {name!r} could not be read back to resume from: only tensors and plain "
                f"values can, and its {type(value).__name__} is, or holds, something else. Give only these in "
                "get_extra_state"
            ) from error
