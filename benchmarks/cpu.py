"""On a CPU: the index compared with two norms, the global cut with numpy and torch.nn.utils.prune."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import palmette as pm
from benchmarks.meters import Figure, extra_bytes, ms, seconds
from palmette.pruning.sources.memory import Memory

CUT = 0.2


def index() -> list[Figure]:
    weights = torch.randn(10**8, generator=torch.Generator().manual_seed(0))
    ours = seconds(lambda: pm.pq_index(weights))
    norms = seconds(lambda: (torch.linalg.vector_norm(weights, 0.5), torch.linalg.vector_norm(weights, 1)))
    memory = extra_bytes(lambda: pm.pq_index(weights))
    return [
        Figure(
            "PQ Index (.5, 1) of 10^8 float32",
            ms(ours),
            "two calls of `vector_norm`",
            ms(norms),
            f"{norms / ours:.1f}× faster",
        ),
        Figure("its extra memory", f"{memory / 2**20:.1f} MB"),
    ]


def global_cut() -> list[Figure]:
    tensors, size = 100, 10**6
    generator = torch.Generator().manual_seed(0)
    weights = {f"w{i}": torch.randn(size, generator=generator) for i in range(tensors)}
    cut = int(CUT * tensors * size)
    rows = Memory(tuple(w[None] for w in weights.values()), (None,) * tensors)

    def partition() -> float:
        magnitudes = np.abs(np.concatenate([w.numpy() for w in weights.values()]))
        return float(np.partition(magnitudes, cut - 1)[cut - 1])

    def ours() -> pm.Masks:
        return pm.prune(weights, scope="global", budget=pm.FixedRatio(CUT))[0]

    def theirs() -> list[nn.Module]:
        layers = []
        for weight in weights.values():
            layer = nn.Module()
            layer.weight = nn.Parameter(weight)
            layers.append(layer)
        torch_prune.global_unstructured([(m, "weight") for m in layers], torch_prune.L1Unstructured, amount=cut)
        return layers

    assert rows.threshold(cut) == partition(), "not the same threshold"
    assert ours().kept == tensors * size - cut, "not the exact count"
    found, numpy_time = seconds(lambda: rows.threshold(cut)), seconds(partition)
    whole, torch_time = seconds(ours), seconds(theirs, 2)
    weight_bytes = 4 * tensors * size
    memory, torch_memory = extra_bytes(ours) / weight_bytes, extra_bytes(theirs) / weight_bytes
    return [
        Figure(
            "exact global threshold, 100 tensors of 10^6 float32",
            ms(found),
            "`numpy.partition` of their concatenation",
            ms(numpy_time),
            f"{numpy_time / found:.1f}× faster",
        ),
        Figure(
            "whole cut: index, threshold, masks",
            ms(whole),
            "`prune.global_unstructured`",
            ms(torch_time),
            f"{torch_time / whole:.1f}× faster",
        ),
        Figure(
            "its extra memory, masks included",
            f"{memory:.1%} of the weights",
            "`prune.global_unstructured`",
            f"{torch_memory:.0%}",
            f"{torch_memory / memory:.0f}× less",
        ),
    ]
