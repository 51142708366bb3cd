"""On a GPU: the index compared with a copy, the global threshold with sort, kthvalue and torch.nn.utils.prune."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import palmette as pm
from benchmarks.meters import Figure, device_seconds, extra_bytes, ms, seconds
from palmette.measures import cuda_sums as fused
from palmette.pruning.sources.memory import Memory

SIZE = 2**30
CUT = SIZE // 5


def _weights(dtype: torch.dtype) -> Tensor:
    return torch.randn(SIZE, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(dtype)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), 20)


def index(bandwidth: float) -> list[Figure]:
    figures = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = _weights(dtype)
        nbytes = weights.numel() * weights.element_size()
        for p, q in ((0.5, 1.0), (1.0, 2.0)):
            kernel = device_seconds(partial(fused.power_sums, weights[None], None, p, q))
            call = partial(pm.pq_index, weights, p=p, q=q)
            whole, memory = seconds(call, 20), extra_bytes(call)
            rate = nbytes / kernel
            figures.append(
                Figure(
                    f"PQ Index ({p:g}, {q:g}) of 2^30 {_name(dtype)}, +{memory / 2**20:.1f} MB",
                    f"{ms(kernel)} on the device; {ms(whole)} for the call",
                    "bandwidth of a copy",
                    f"{bandwidth / 1e12:.2f} TB/s",
                    f"{rate / bandwidth:.0%}; call {nbytes / whole / bandwidth:.0%}",
                )
            )
        del weights
    return figures


def global_threshold(bandwidth: float) -> list[Figure]:
    figures = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = _weights(dtype)
        row = Memory.of(weights[None])
        nbytes = weights.numel() * weights.element_size()
        _check(weights, row.threshold(CUT), row.select(torch.tensor([CUT]))[0])
        find, cut = partial(row.threshold, CUT), partial(row.select, torch.tensor([CUT]))
        time, memory, with_mask = seconds(find, 10), extra_bytes(find), seconds(cut, 10)
        figures += [
            Figure(
                f"exact global threshold, 2^30 {_name(dtype)}",
                ms(time),
                "reads that would take as long",
                f"{time * bandwidth / nbytes:.1f}",
                f"+{memory / nbytes:.2%} memory",
            ),
            Figure(f"threshold and mask, 2^30 {_name(dtype)}", ms(with_mask)),
        ]
        if dtype == torch.float32:
            figures += [
                _compared("`torch.sort`", time, partial(_sort, weights), 3),
                _compared("`torch.kthvalue`", time, partial(_kthvalue, weights), 1),
                _compared("`prune.global_unstructured`", with_mask, partial(_torch_prune, weights), 3),
            ]
        del weights, row, find, cut
    return figures


def _check(weights: Tensor, found: float, mask: Tensor) -> None:
    below = sum(int((part.abs() < found).sum()) for part in weights.split(2**26))
    at_most = sum(int((part.abs() <= found).sum()) for part in weights.split(2**26))
    assert below < CUT <= at_most, "not the exact threshold"
    assert int((~mask).sum()) == CUT, "not the exact count"


def _sort(weights: Tensor) -> object:
    return weights.abs().sort()


def _kthvalue(weights: Tensor) -> object:
    return weights.abs().kthvalue(CUT)


def _torch_prune(weights: Tensor) -> nn.Module:
    layer = nn.Module()
    layer.weight = nn.Parameter(weights)
    torch_prune.global_unstructured([(layer, "weight")], torch_prune.L1Unstructured, amount=CUT)
    return layer


def _compared(name: str, ours: float, work: Callable[[], object], repeats: int) -> Figure:
    theirs, memory = seconds(work, repeats), extra_bytes(work)
    return Figure("", ms(ours), name, f"{ms(theirs)}, {memory / 1e9:.1f} GB", f"{theirs / ours:.0f}× faster")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
