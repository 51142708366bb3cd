"""Checks of values: only finite floats can be ranked."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.errors import NotFinite

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_values(name: str, values: Tensor, what: str = "weight") -> None:
    """Raise, naming the parameter, unless `values` are one or more finite floats."""
    check_kind(name, values, what)
    if not all_finite(values.detach()):
        raise not_finite(name, values, what, int((~torch.isfinite(values.detach())).sum()))


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite; there must be one."""
    low, high = torch.aminmax(values)  # one pass, no copy; NaN propagates
    return bool(torch.isfinite(low) & torch.isfinite(high))


def check_kind(name: str, values: Tensor, what: str) -> None:
    """Raise, naming the parameter, unless `values` are one or more floats."""
    if not (isinstance(values, Tensor) and values.dtype in _DTYPES and values.dim() and values.numel()):
        got = f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
        raise TypeError(
            f"every {what} must be a tensor of one or more dimensions, not empty, in float64, float32, float16 "
            f"or bfloat16, got {got} for {name!r}"
        )
    if values.is_meta:
        raise ValueError(
            f"every {what} must have values to be ranked, got {name!r} on the meta device; load its values first"
        )


def check_changeable(name: str, weight: Tensor) -> None:
    """Raise, naming the parameter, unless `weight` holds floats that can be set to zero in place."""
    check_kind(name, weight, "weight")
    if weight.is_inference():
        raise ValueError(f"{name!r} was made in inference mode, where no weight can change; make it outside")


def not_finite(name: str, values: Tensor, what: str, count: int) -> NotFinite:
    """Error with the number of `values` that are NaN or infinite."""
    return NotFinite(
        f"every {what} must be finite to be ranked, got {count} NaN or infinite in {name!r} "
        f"of shape {tuple(values.shape)}"
    )
