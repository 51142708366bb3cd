"""Sums without rounding: the same in any order, in any number of parts, on any number of processes.

A float64 is a whole number times a power of two. As digits of 31 bits below a common power of two, terms add up as
integers, which do not round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from palmette.measures.pq import PowerSums
from palmette.measures.rows import Summable, Tiles

_DIGIT = 31
_FIRST = 16  # bits of the first digit: room for 2^47 terms


def powers(x: Tensor, exponent: float) -> Tensor:
    """`x` ** `exponent` of float64 magnitudes, in place; independent of the position of a value in `x`."""
    if exponent == 1:
        return x
    if exponent == 2:
        return x.mul_(x)
    if exponent == 0.5:
        return x.sqrt_()
    if x.device.type == "cpu":
        # torch uses other arithmetic for the last few entries of a tensor.
        return x.copy_(torch.from_numpy(np.power(x.contiguous().numpy(), exponent)))
    return x.pow_(exponent)


def bits_above(largest: Tensor) -> Tensor:
    """Exponents of two, int64, that bound all terms of a row, from its largest term."""
    return torch.frexp(largest.cpu()).exponent.to(torch.int64).clamp(-1000, 1023)


def digit_unit(top: Tensor) -> Tensor:
    """Float64 factors that scale terms below ``2 ** top`` for `digits_of`."""
    return torch.from_numpy(np.ldexp(1.0, (_FIRST - top).clamp_max(1023).numpy()))


def digits_of(terms: Tensor, unit: Tensor) -> Iterator[Tensor]:
    """Digits of float64 `terms`, most significant first, int64, until all terms are exact.

    `terms` are overwritten, and the `digit_unit` of each term's row broadcasts to them.
    """
    terms *= unit.clamp_min(1.0)
    unit = unit.clamp_max(1.0)  # scaled down, a small term would underflow; scale its digits instead
    while True:
        plain = bool((unit == 1.0).all())
        whole = terms.floor() if plain else (terms * unit).floor()
        yield whole.to(torch.int64)
        terms -= whole if plain else whole / unit
        if not bool(terms.any()):
            return
        next_unit = (unit * 2.0**_DIGIT).clamp_max(1.0)
        terms *= 2.0**_DIGIT if plain else unit * 2.0**_DIGIT / next_unit
        unit = next_unit


class ExactSums:
    """Sums of non-negative terms, one for each row, from `bits_above` its largest term and the digits so far.

    >>> sums = ExactSums(bits_above(torch.tensor([1e16])))
    >>> sums.add(slice(0, 1), torch.tensor([[1.0, 1e16, 1.0]], dtype=torch.float64))
    >>> f"{float(sums.value()):.0f}"
    '10000000000000002'
    """

    def __init__(self, top: Tensor, digits: Tensor | None = None) -> None:
        self.top = top
        self.digits = torch.zeros(1, len(top), dtype=torch.int64) if digits is None else digits

    def add(self, chosen: slice | Tensor, terms: Tensor) -> None:
        """Add the terms of some rows; `terms` is overwritten."""
        unit = digit_unit(self.top[chosen])[:, None].to(terms.device)
        found = torch.stack([digit.sum(1) for digit in digits_of(terms, unit)]).cpu()
        self.digits = padded(self.digits, len(found))
        part = self.digits[:, chosen]
        part[: len(found)] += found
        self.digits[:, chosen] = carried(part)

    def value(self) -> Tensor:
        """The sums as float64, off by at most a rounding or two; equal for equal sums."""
        return torch.from_numpy(np.ldexp(value_of(self.digits).numpy(), (self.top - _FIRST).numpy()))


def value_of(digits: Tensor) -> Tensor:
    """Float64 value of the digits, in units of the first digit."""
    value = torch.zeros_like(digits[0], dtype=torch.float64)
    for digit in digits.flip(0):
        value = value * 2.0**-_DIGIT + digit
    return value


def padded(digits: Tensor, many: int) -> Tensor:
    """The same number with at least `many` digits."""
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
    """Integer value of the digits, in units of the last digit.

    >>> whole(torch.tensor([1, 0, 5])) == 2**62 + 5
    True
    """
    number = 0
    for digit in digits.tolist():
        number = (number << _DIGIT) + digit
    return number


def exact_power_sums(rows: Summable, *, p: float, q: float) -> PowerSums:
    """`power_sums` that do not depend on the order of the entries; takes several times as long.

    >>> from palmette.measures.rows import Rows
    >>> exact_power_sums(Rows.of(torch.tensor([[4.0, 9.0]])), p=0.5, q=1).p_sum
    tensor([5.], dtype=torch.float64)
    """
    largest, scaled = rows.largest(), q > 2 or rows.dtype == torch.float64
    # Divide by the largest magnitude where a power could overflow; otherwise use the magnitudes as they are.
    scale = largest.where((largest > 0) & scaled, 1.0)
    tops = [bits_above(powers(largest / scale, power)) for power in (p, q)]

    def summed(tiles: Tiles) -> list[Tensor]:
        p_sums, q_sums = map(ExactSums, tops)
        for chosen, tile in tiles:
            if scaled:
                tile /= scale[chosen].to(tile.device)[:, None]
            q_sums.add(chosen, powers(tile.clone(), q))
            p_sums.add(chosen, powers(tile, p))
        return [p_sums.digits, q_sums.digits]

    p_sum, q_sum = (ExactSums(top, digits).value() for top, digits in zip(tops, rows.totals(summed), strict=True))
    return PowerSums(rows.counts(), scale, p_sum, q_sum, p, q)
