"""On a CUDA device: the index beside a copy, the exact global threshold beside sort, kthvalue and torch's prune."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import palmette as pm
from benchmarks.meters import Figure, extra_bytes, ms, seconds
from palmette.measures.rows import Rows
from palmette.pruning.selection import select, threshold

SIZE = 2**30
CUT = SIZE // 5


def _weights(dtype: torch.dtype) -> Tensor:
    return torch.randn(SIZE, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(dtype)


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), 20)


def index(bandwidth: float) -> list[Figure]:
    figures = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = _weights(dtype)
        for p, q in ((0.5, 1.0), (1.0, 2.0)):
            time = seconds(lambda w=weights, p=p, q=q: pm.pq_index(w, p=p, q=q), 20)
            memory = extra_bytes(lambda w=weights, p=p, q=q: pm.pq_index(w, p=p, q=q))
            rate = weights.numel() * weights.element_size() / time
            figures.append(
                Figure(
                    f"PQ Index ({p:g}, {q:g}) of 2^30 {str(dtype)[6:]}, +{memory / 2**20:.1f} MB",
                    f"{ms(time)}, {rate / 1e12:.2f} TB/s",
                    "copy, bytes read and written",
                    f"{bandwidth / 1e12:.2f} TB/s",
                    f"{rate / bandwidth:.0%}",
                    "≥ 80 %",
                )
            )
        del weights
    return figures


def global_threshold(bandwidth: float) -> list[Figure]:
    figures = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = _weights(dtype)
        rows = Rows.of(weights[None])
        nbytes = weights.numel() * weights.element_size()
        found = threshold(rows, CUT)
        below = int(sum((part.abs() < found).sum() for part in weights.split(2**26)))
        at_most = int(sum((part.abs() <= found).sum() for part in weights.split(2**26)))
        assert below < CUT <= at_most, "not the exact threshold"
        mask = select(rows, torch.tensor([CUT]))[0]
        assert int((~mask).sum()) == CUT, "not the exact count"
        del mask
        time = seconds(lambda r=rows: threshold(r, CUT), 10)
        memory = extra_bytes(lambda r=rows: threshold(r, CUT))
        with_mask = seconds(lambda r=rows: select(r, torch.tensor([CUT], device="cuda")), 10)
        name = f"2^30 {str(dtype)[6:]}"
        reads = time * bandwidth / nbytes
        figures.append(
            Figure(
                f"exact global threshold, {name}",
                ms(time),
                "reads of the data that would take as long",
                f"{reads:.1f}",
                f"+{memory / nbytes:.2%} memory",
                "≤ 4 reads, < 2 %",
            )
        )
        figures.append(Figure(f"the same with the mask written, {name}", ms(with_mask)))
        if dtype == torch.float32:
            sort = seconds(lambda w=weights: w.abs().sort(), 3)
            sort_memory = extra_bytes(lambda w=weights: w.abs().sort())
            figures.append(_beside("`torch.sort`", time, sort, f", {sort_memory / 1e9:.1f} GB"))
            kth = seconds(lambda w=weights: w.abs().kthvalue(CUT), 1)
            figures.append(_beside("`torch.kthvalue`", time, kth))
            layer = nn.Module()

            def theirs(w: Tensor = weights, layer: nn.Module = layer) -> object:
                layer = nn.Module()
                layer.weight = nn.Parameter(w)
                torch_prune.global_unstructured([(layer, "weight")], torch_prune.L1Unstructured, amount=CUT)
                return layer

            prune_memory = extra_bytes(theirs)
            figures.append(
                _beside(
                    "`prune.global_unstructured`", with_mask, seconds(theirs, 3), f", {prune_memory / 1e9:.1f} GB"
                )
            )
        del weights, rows
    return figures


def _beside(name: str, ours: float, theirs: float, more: str = "") -> Figure:
    return Figure("", ms(ours), name, ms(theirs) + more, f"{theirs / ours:.0f}× faster")
