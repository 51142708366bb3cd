"""Sums without rounding: the same in any order, in any number of parts, on any number of processes.

A float64 is a whole number times a power of two. Written as digits of 31 bits below a common power of two, terms
add up as integers, and integers do not round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from palmette.measures.pq import PowerSums
from palmette.measures.rows import Rows

_DIGIT = 31
_FIRST = 16  # bits of the first digit: room for 2^47 terms


def powers(x: Tensor, exponent: float) -> Tensor:
    """`x` ** `exponent` of float64 magnitudes, in place; the same for a value wherever in `x` it stands."""
    if exponent == 1:
        return x
    if exponent == 2:
        return x.mul_(x)
    if exponent == 0.5:
        return x.sqrt_()
    if x.device.type == "cpu":
        # torch takes other arithmetic for the last few entries of a tensor.
        return x.copy_(torch.from_numpy(np.power(x.contiguous().numpy(), exponent)))
    return x.pow_(exponent)


def bits_above(largest: Tensor) -> Tensor:
    """The powers of two, int64, above which no term is, from the largest term of each row."""
    return torch.frexp(largest.cpu()).exponent.to(torch.int64).clamp(-1000, 1023)


def digits_of(terms: Tensor, top: Tensor) -> Iterator[Tensor]:
    """The digits of float64 `terms`, the most significant first, int64; as many as it takes for all of them.

    Args:
        terms: below ``2 ** top``, one row for each entry of `top`. Written over.
        top: int64.
    """
    unit = torch.from_numpy(np.ldexp(1.0, (_FIRST - top).clamp_max(1023).numpy())).to(terms.device)
    terms *= unit[:, None]
    while True:
        whole = terms.floor()
        yield whole.to(torch.int64)
        terms -= whole
        if not bool(terms.any()):
            return
        terms *= 2.0**_DIGIT


class ExactSums:
    """Sums of non-negative terms, one for each row.

    Args:
        top: int64, powers of two above the largest term of each row.

    >>> sums = ExactSums(bits_above(torch.tensor([1e16])))
    >>> sums.add(slice(0, 1), torch.tensor([[1.0, 1e16, 1.0]], dtype=torch.float64))
    >>> f"{float(sums.value()):.0f}"
    '10000000000000002'
    """

    def __init__(self, top: Tensor) -> None:
        self.top = top
        self.digits = torch.zeros(1, len(top), dtype=torch.int64)

    def add(self, chosen: slice | Tensor, terms: Tensor) -> None:
        """Add the terms of some rows; they are written over."""
        found = torch.stack([digit.sum(1) for digit in digits_of(terms, self.top[chosen])]).cpu()
        self.digits = padded(self.digits, len(found))
        part = self.digits[:, chosen]
        part[: len(found)] += found
        self.digits[:, chosen] = carried(part)

    def value(self) -> Tensor:
        """The sums as float64, to the last digit or so; equal for equal sums."""
        total = torch.zeros(len(self.top), dtype=torch.float64)
        for digit in self.digits.flip(0):
            total = total * 2.0**-_DIGIT + digit
        return torch.from_numpy(np.ldexp(total.numpy(), (self.top - _FIRST).numpy()))


def padded(digits: Tensor, many: int) -> Tensor:
    """The same number with at least so many digits."""
    if many <= len(digits):
        return digits
    return torch.cat([digits, digits.new_zeros(many - len(digits), *digits.shape[1:])])


def carried(digits: Tensor) -> Tensor:
    """The same number, every digit but the first below 2^31; in place."""
    for k in range(len(digits) - 1, 0, -1):
        digits[k - 1] += digits[k] >> _DIGIT
        digits[k] &= (1 << _DIGIT) - 1
    return digits


def whole(digits: Tensor) -> int:
    """The digits of one number as that number, in units of the last digit.

    >>> whole(torch.tensor([1, 0, 5])) == 2**62 + 5
    True
    """
    number = 0
    for digit in digits.tolist():
        number = (number << _DIGIT) + digit
    return number


class ExactPowerSums:
    """The two power sums of each row, without rounding; see `PowerSums`.

    Args:
        largest: the largest magnitude of each row, float64.
        p, q: the powers.
        wide: whether there are float64 among the values, whose powers may overflow.
    """

    def __init__(self, largest: Tensor, *, p: float, q: float, wide: bool) -> None:
        self.p, self.q, self._scaled = p, q, q > 2 or wide
        # So that no power overflows; else the magnitudes as they are.
        self.scale = largest.where((largest > 0) & self._scaled, 1.0)
        self.p_sums, self.q_sums = (ExactSums(bits_above(powers(largest / self.scale, power))) for power in (p, q))

    def add(self, chosen: slice | Tensor, tile: Tensor) -> None:
        """Add the float64 magnitudes of some rows; they are written over."""
        if self._scaled:
            tile /= self.scale[chosen].to(tile.device)[:, None]
        self.q_sums.add(chosen, powers(tile.clone(), self.q))
        self.p_sums.add(chosen, powers(tile, self.p))

    def value(self, d: Tensor) -> PowerSums:
        """As float64, with the number of entries that count."""
        return PowerSums(d, self.scale, self.p_sums.value(), self.q_sums.value(), self.p, self.q)


def exact_power_sums(rows: Rows, *, p: float, q: float) -> PowerSums:
    """`power_sums` that are the same in any order; it takes several times as long.

    >>> exact_power_sums(Rows.of(torch.tensor([[4.0, 9.0]])), p=0.5, q=1).p_sum
    tensor([5.], dtype=torch.float64)
    """
    wide = any(s.dtype == torch.float64 for s in rows.segments)
    sums = ExactPowerSums(rows.largest(), p=p, q=q, wide=wide)
    for chosen, tile in rows.tiles():
        sums.add(chosen, tile)
    return sums.value(rows.counts())
