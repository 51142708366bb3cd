"""Shares of a cut between layers; `Allocated` in `budgets` is the value that asks for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from palmette.measures.pq import power_sums
from palmette.pruning.budgets import Allocated, Budget, Densities, FixedRatio
from palmette.pruning.methods import Scope, check_fits
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.source import Source

_OUTLIER = 5.0  # times the mean score of a block, as in OWL


@dataclass(frozen=True)
class LayerFacts:
    """Facts about a weight that an allocation may ask for.

    Args:
        shape: shape of the weight.
        weights, scores: its values and their scores as one row; read when asked for.
    """

    shape: Sequence[int]
    weights: Callable[[], Memory]
    scores: Callable[[], Memory]


def budgets_of(
    budget: Budget, scope: Scope, layers: Mapping[str, LayerFacts], network: Callable[[], Source]
) -> dict[str, Budget]:
    """Budget of each layer: `budget` itself, or the shares of a cut of the whole `network`."""
    check_fits(budget, scope)
    if not isinstance(budget, Allocated):
        return dict.fromkeys(layers, budget)
    whole = budget.budget.plan(network())
    left = int(whole.sums.d[0] - whole.cut[0])
    sizes = {name: math.prod(layer.shape) for name, layer in layers.items()}
    limits = {name: int(layer.weights().counts()[0]) / sizes[name] for name, layer in layers.items()}
    found = filled(densities(budget, layers, left / sum(sizes.values())), sizes, limits, left)
    return {n: FixedRatio(0.0) if rho >= limits[n] else _to(rho) for n, rho in found.items()}


def _to(density: float) -> Budget:
    return Densities([density]) if density > 0 else FixedRatio(1.0)


def densities(budget: Allocated, layers: Mapping[str, LayerFacts], density: float) -> dict[str, float]:
    """Density that each layer should have, before limits, where the network has `density`."""
    if budget.by == "uniform":
        return dict.fromkeys(layers, density)
    if budget.by == "erk":
        return {name: sum(layer.shape) / math.prod(layer.shape) for name, layer in layers.items()}
    blocks: dict[str, list[str]] = {}
    for name in layers:
        blocks.setdefault(block_of(name), []).append(name)
    value = {block: _VALUES[budget.by]([layers[n] for n in names], budget) for block, names in blocks.items()}
    low, high = min(value.values()), max(value.values())
    scaled = {b: (v - low) / (high - low) if high > low else 0.5 for b, v in value.items()}
    sizes = {b: sum(math.prod(layers[n].shape) for n in names) for b, names in blocks.items()}
    mean = sum(scaled[b] * size for b, size in sizes.items()) / sum(sizes.values())
    return {n: max(density + 2 * budget.spread * (scaled[block_of(n)] - mean), 0.0) for n in layers}


def block_of(name: str) -> str:
    """The part of a parameter's name up to its last number; the whole name if it has none.

    >>> block_of("model.layers.3.mlp.up_proj.weight"), block_of("layer1.0.conv2.weight"), block_of("fc.weight")
    ('model.layers.3', 'layer1.0', 'fc.weight')
    """
    found = re.match(r"(.*\.)?\d+(?=\.)", name)
    return found[0] if found else name


def filled(
    goals: Mapping[str, float], sizes: Mapping[str, int], limits: Mapping[str, float], left: int
) -> dict[str, float]:
    """Densities proportional to `goals`, at most `limits`, that keep `left` entries in all.

    >>> filled({"a": 1.0, "b": 4.0}, {"a": 100, "b": 10}, {"a": 1.0, "b": 1.0}, 50)
    {'a': 0.4, 'b': 1.0}
    """
    found: dict[str, float] = {}
    rest, room = dict(goals), float(left)
    while rest:
        wanted = sum(goal * sizes[n] for n, goal in rest.items())
        factor = room / wanted if wanted else 0.0
        full = {n: limits[n] for n, goal in rest.items() if goal * factor >= limits[n]}
        if not full:
            found |= {n: goal * factor for n, goal in rest.items()}
            break
        found |= full
        room -= sum(density * sizes[n] for n, density in full.items())
        rest = {n: goal for n, goal in rest.items() if n not in full}
    return {n: found[n] for n in goals}


def _index(block: Sequence[LayerFacts], budget: Budget) -> float:
    found = float(reduce(add, (power_sums(layer.weights(), p=budget.p, q=budget.q) for layer in block)).index())
    return 0.0 if math.isnan(found) else found


def _counted(scores: Memory) -> Tensor:
    (values,), (kept,) = scores.segments, scores.kept
    return (values if kept is None else values[kept]).abs()


def _outliers(block: Sequence[LayerFacts], budget: Budget) -> float:
    """Share of the scores of a block above `_OUTLIER` times their mean."""
    count = sum(int(layer.scores().counts()[0]) for layer in block)
    total = sum(float(_counted(layer.scores()).sum(dtype=torch.float64)) for layer in block)
    above = sum(int((_counted(layer.scores()) > _OUTLIER * total / max(count, 1)).sum()) for layer in block)
    return above / max(count, 1)


def _heavy_tail(block: Sequence[LayerFacts], budget: Budget) -> float:
    r"""Minus the mean Hill exponent of the spectra: :math:`1 + k / \sum_i \ln(\lambda_i / \lambda_k)`."""
    alphas = []
    for layer in block:
        matrix = layer.weights().segments[0].detach().reshape(*layer.shape).flatten(1)
        spectrum = torch.linalg.svdvals(matrix.to(torch.float32)).double().square()
        tail = spectrum[: max(len(spectrum) // 2, 2)]
        spread = float((tail / tail[-1]).log().sum())
        if 0 < spread < math.inf:
            alphas.append(1 + len(tail) / spread)
    return -sum(alphas) / len(alphas) if alphas else 0.0


_VALUES: Mapping[str, Callable[[Sequence[LayerFacts], Budget], float]] = {
    "outliers": _outliers,
    "alpha": _heavy_tail,
    "index": _index,
    "sap": lambda block, budget: -_index(block, budget),
}
