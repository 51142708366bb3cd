"""What a round leaves behind: plain numbers about the weights, for the whole network and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from palmette.measures.gini import gini_of_rows
from palmette.measures.pq import index_of_rows
from palmette.measures.pq_map import P_GRID, Q_GRID, map_of_rows
from palmette.measures.rows import Rows
from palmette.pruning.weights import Weight


def measured(
    weights: Mapping[str, Weight], masks: Mapping[str, Tensor], *, p: float = 0.5, q: float = 1.0
) -> dict[str, Any]:
    """Density, PQ Index, Gini Index and dead neurons of the kept weights: of all together, and of each layer.

    A neuron is dead when none of its kept weights differs from zero. An index that does not exist is None, as in
    JSON.

    Args:
        weights: as `prunable(model)` gives them, in the state of :math:`w_t`.
        masks: which of them count: :math:`m_t` for the retrained record, :math:`m_{t+1}` for the pruned one.
        p, q: the norms of the index; the paper reports it at (0.5, 1) whatever the method.

    Diao et al. 2023, Section 4.2.
    """
    layers = {name: _of(_rows({name: weight}, masks), p, q) for name, weight in weights.items()}
    for name, weight in weights.items():
        alive = (weight.rows(weight.tensor.detach()) != 0) & weight.rows(masks[name])
        layers[name]["dead_neurons"] = int((~alive.any(1)).sum())
    dead = sum(layer["dead_neurons"] for layer in layers.values())
    return {**_of(_rows(weights, masks), p, q), "dead_neurons": dead, "layers": layers}


def index_map(weights: Mapping[str, Weight], masks: Mapping[str, Tensor]) -> dict[str, Any]:
    """The PQ Index of all kept weights over the paper's grid of p and q: its rows are p, its columns q."""
    values = map_of_rows(_rows(weights, masks))[0].tolist()
    return {"p": P_GRID, "q": Q_GRID, "pq_index": [[_plain(value) for value in row] for row in values]}


def _rows(weights: Mapping[str, Weight], masks: Mapping[str, Tensor]) -> Rows:
    """All of `weights` as one row."""
    return Rows(
        tuple(w.tensor.detach().reshape(1, -1) for w in weights.values()),
        tuple(masks[n].reshape(1, -1) for n in weights),
    )


def _of(rows: Rows, p: float, q: float) -> dict[str, Any]:
    kept = int(rows.counts()[0])
    return {
        "total": rows.width,
        "kept": kept,
        "density": kept / rows.width,
        "pq_index": _plain(float(index_of_rows(rows, p=p, q=q)[0])),
        "gini_index": _plain(float(gini_of_rows(rows)[0])),
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
