"""The floating point operations of a pass through a model, counted while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def flops_of(run: Callable[[], object]) -> int:
    """FLOPs of what `run()` computes: two for each multiplication with an addition.

    Convolutions, matrix products and attention count; biases, norms, activations and pools do not.

    >>> flops_of(lambda: torch.zeros(5, 4) @ torch.zeros(4, 3))
    120
    """
    counter = FlopCounterMode(display=False)
    # The fused kernels for attention are not known to the counter, the products they stand for are.
    # What is compiled while it counts, as `torch.cond` is, would fail, now or in later calls.
    with no_fast_path(), sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"), counter:
        run()
    return int(counter.get_total_flops())


@contextmanager
def no_fast_path() -> Iterator[None]:
    """PyTorch's transformer layers as the operations they are made of, which their fast path hides."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
