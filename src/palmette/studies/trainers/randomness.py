"""State of the global random generators of PyTorch, NumPy and Python."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """State of all global generators, as tensors and plain values.

    >>> state = random_state()
    >>> first = float(torch.rand(())), random.random(), float(np.random.random())
    >>> set_random_state(state)
    >>> first == (float(torch.rand(())), random.random(), float(np.random.random()))
    True
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the result of `random_state`; states of missing GPUs are ignored."""
    torch.set_rng_state(state["torch"])
    for number, of_gpu in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(of_gpu, number)
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
