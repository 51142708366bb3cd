"""The state of the random numbers that a training loop draws: PyTorch's, NumPy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """What the next numbers depend on, in tensors and plain values; of the generators that everybody shares.

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
    """Go back to what `random_state` gave; GPUs that are not there any more are passed over."""
    torch.set_rng_state(state["torch"])
    for number, of_gpu in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(of_gpu, number)
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
