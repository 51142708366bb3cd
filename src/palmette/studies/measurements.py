"""Measurements of networks of one architecture, for the whole network and for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palmette.measures.gini import gini_of_rows
from palmette.measures.pq import P_GRID, Q_GRID, index_of_rows, map_of_rows
from palmette.measures.rows import Rows
from palmette.pruning.weights import Weight


def measured(
    weights: Sequence[Mapping[str, Weight]], masks: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Any]]:
    """Density, PQ Index, Gini Index and dead neurons of the kept weights of each network, and of each layer.

    A neuron is dead when none of its kept weights differs from zero. An undefined index is None, as in
    JSON.

    Args:
        weights: `prunable(model)` of each network, in the state of :math:`w_t`.
        masks: :math:`m_t` for the retrained network, :math:`m_{t+1}` for the pruned one.

    Diao et al. 2023, Section 4.2. The index has p = 0.5 and q = 1 for every method, as in the paper.
    """
    rows = _rows(weights, masks)
    found = _numbers(rows)
    for number, name in enumerate(weights[0]):
        layer = _numbers(Rows(rows.segments[number : number + 1], rows.kept[number : number + 1]))
        alive = [
            weight[name].rows((weight[name].values.detach() != 0) & mask[name]).any(1)
            for weight, mask in zip(weights, masks, strict=True)
        ]
        dead = (~torch.stack(alive)).sum(1).tolist()
        for network, numbers, count in zip(found, layer, dead, strict=True):
            network["dead_neurons"] = network.get("dead_neurons", 0) + count
            network.setdefault("layers", {})[name] = {**numbers, "dead_neurons": count}
    return found


def index_maps(
    weights: Sequence[Mapping[str, Weight]], masks: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Any]]:
    """PQ Index of each network's kept weights over the paper's grid of p (rows) and q (columns)."""
    return [
        {"p": P_GRID, "q": Q_GRID, "pq_index": [[_number(value) for value in row] for row in values]}
        for values in map_of_rows(_rows(weights, masks)).tolist()
    ]


def _rows(weights: Sequence[Mapping[str, Weight]], masks: Sequence[Mapping[str, Tensor]]) -> Rows:
    """All weights of each network as one row."""
    return Rows(
        tuple(torch.stack([w[name].values.detach().reshape(-1) for w in weights]) for name in weights[0]),
        tuple(torch.stack([m[name].reshape(-1) for m in masks]) for name in weights[0]),
    )


def _numbers(rows: Rows) -> list[dict[str, Any]]:
    index = index_of_rows(rows, p=0.5, q=1.0)
    numbers = zip(rows.counts().tolist(), index.tolist(), gini_of_rows(rows).tolist(), strict=True)
    return [
        {
            "total": rows.width,
            "kept": kept,
            "density": kept / rows.width,
            "pq_index": _number(index),
            "gini_index": _number(gini),
        }
        for kept, index, gini in numbers
    ]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
