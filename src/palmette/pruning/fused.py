"""Selection on a CUDA device in one read of the data, with Triton; elsewhere plain torch does the same."""

from __future__ import annotations

from torch import Tensor

from palmette.measures.rows import Rows


def usable(row: Rows) -> bool:
    return False


def split(row: Rows, low: int, high: int) -> tuple[dict[int, int], Tensor]:
    raise RuntimeError


def write_remaining(row: Rows, key: int, remaining: list[Tensor]) -> None:
    raise RuntimeError
