"""Counter-based random numbers for data order and augmentation, the same on every device.

Torch's generators differ between CPU and GPU and have a state to save. Here entry i of a stream is a hash of its
key and i, so that the streams of many members are one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def mix(*numbers: int) -> int:
    """Hash several numbers to a key below 2^63, unrelated for neighbouring numbers.

    >>> mix(0, 0, 1) == mix(0, 1, 0)
    False

    Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", the finaliser of SplitMix64.
    """
    state = 0
    for number in numbers:
        state = (state + _GOLDEN + number) % 2**64
        for shift, factor in _FACTORS:
            state = (state ^ (state >> shift)) * factor % 2**64
        state ^= state >> _LAST_SHIFT
    return state % 2**63


def random_bits(keys: Sequence[int], count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """`count` uniform integers from 0 to 2^63 - 1 for each key: SplitMix64 seeded with the key.

    >>> random_bits([7], 2).tolist() == [[mix(7), mix(7 + _GOLDEN)]]
    True
    """
    # int64 multiplication wraps around as unsigned does; the mask removes the sign that a shift copies.
    steps = torch.arange(1, count + 1, device=device) * _signed(_GOLDEN)
    state = torch.tensor([_signed(key) for key in keys], device=device)[:, None] + steps
    for shift, factor in _FACTORS:
        state ^= (state >> shift) & (2 ** (64 - shift) - 1)
        state *= _signed(factor)
    state ^= (state >> _LAST_SHIFT) & (2 ** (64 - _LAST_SHIFT) - 1)
    return state & (2**63 - 1)


def random_order(keys: Sequence[int], count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Permutation of 0 … count - 1 for each key.

    >>> random_order([1, 2], 5).tolist()
    [[0, 1, 4, 3, 2], [0, 2, 1, 3, 4]]
    """
    # The index is in the low bits, because sorting values is many times faster than argsort.
    low = 2 ** max(1, count - 1).bit_length() - 1
    tagged: Tensor = random_bits(keys, count, device=device) & ~low | torch.arange(count, device=device)
    if tagged.device.type == "cpu":
        tagged = torch.from_numpy(np.sort(tagged.numpy(), axis=1))
    else:
        tagged = tagged.sort(1).values
    return tagged.bitwise_and_(low)


def _signed(number: int) -> int:
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number
