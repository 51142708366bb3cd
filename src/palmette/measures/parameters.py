"""Checks of the numbers that measures and budgets take. Imports no torch, so that specs and help load at once."""

from __future__ import annotations

import math
from dataclasses import field
from numbers import Integral, Real
from typing import Any


def setting(default: Any, help: str, group: str = "", *, short: str = "", in_label: bool = False) -> Any:
    """A dataclass field with a line of `help` below the heading `group`.

    `short` letters stand for it in the id of a run, unless empty; tables and figures show it if `in_label`.
    """
    return field(default=default, metadata={"help": help, "group": group, "short": short, "in_label": in_label})


def is_number(value: object, *, whole: bool = False) -> bool:
    """Whether `value` is a real number, numpy's included; a whole one where asked."""
    return isinstance(value, Integral if whole else Real)


def as_number(value: object) -> float:
    """A real number as the nearest float; NaN, which is in no range, for anything else.

    >>> as_number(2), as_number("0.5"), as_number(10**400)
    (2.0, nan, nan)
    """
    if not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def check_pq(p: float, q: float) -> None:
    """Raise unless ``0 < p <= 1 <= q`` and ``p != q``, the range that the proof of Theorem 1 covers."""
    small, large = as_number(p), as_number(q)
    if not (0 < small <= 1 <= large < math.inf and small != large):
        raise ValueError(f"the PQ Index needs 0 < p <= 1 <= q < inf and p != q (Theorem 1), got p={p!r}, q={q!r}")


def check_eta(eta: float) -> None:
    """Raise unless `eta` is a finite number of at least 0."""
    if not 0 <= as_number(eta) < math.inf:
        raise ValueError(f"eta must be at least 0 and finite, got eta={eta!r}")


def check_mass_power(p: float) -> None:
    """Raise unless ``0 < p <= 1``, the powers whose sum is a mass in Theorem 2."""
    if not 0 < as_number(p) <= 1:
        raise ValueError(f"p must be above 0 and at most 1 (Theorem 2), got p={p!r}")
