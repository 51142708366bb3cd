"""What is known of a dense network: numbers of its weights, its training, and its headroom without retraining."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.checkpoints.report import how_compressible
from palmette.measures.gini import gini_index
from palmette.measures.pq import pq_index
from palmette.pruning.weights import Weight, prunable
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.loop import Score, evaluate

NORMS = ((0.5, 1.0), (1.0, 2.0))
TAIL = 0.1
"""Share of the weights that the Hill exponent reads, and of the mass that the smallest weights may have."""


def of_network(
    model: nn.Module, images: Images, held_out: Sequence[Tensor], *, score: Score, prepare: Preparation
) -> dict[str, Any]:
    """Features of a trained dense network; `score` is that of its last epoch."""
    weights = prunable(model)
    count = sum(weight.tensor.numel() for weight in weights.values())
    found = {
        "weights": count,
        "weights_per_example": count / len(images.train_images),
        "train_loss": score.loss,
        "train_accuracy": score.accuracy,
        **of_weights(weights),
    }
    pixels, labels = held_out

    def accuracy(changed: nn.Module) -> float:
        return evaluate(changed, pixels, labels, prepare).accuracy

    report = how_compressible(model, evaluate=accuracy, tolerance=0.01, scopes=["layer", "global"])
    found["validation_accuracy"] = report.headroom[0].dense.score.value
    return found | {f"headroom_{room.scope}": room.share for room in report.headroom}


def of_weights(weights: Mapping[str, Weight]) -> dict[str, float]:
    """Features of weights alone; in neuron and layer scope, means over all weights."""
    rows = {name: weight.rows(weight.tensor.detach().double().cpu()) for name, weight in weights.items()}
    every = torch.cat([matrix.flatten() for matrix in rows.values()])
    found = {}
    for p, q in NORMS:
        neurons = [(pq_index(m, p=p, q=q, dim=1).nan_to_num().mean(), m.numel()) for m in rows.values()]
        layers = [(pq_index(m.flatten(), p=p, q=q), m.numel()) for m in rows.values()]
        found[f"index_{p:g}_{q:g}_neuron"] = _mean(neurons)
        found[f"index_{p:g}_{q:g}_layer"] = _mean(layers)
        found[f"index_{p:g}_{q:g}_global"] = float(pq_index(every, p=p, q=q))
    magnitudes = every.abs().sort().values
    mass = magnitudes.cumsum(0) / magnitudes.sum()
    found["gini"] = float(gini_index(every))
    found["tail"] = float((mass <= TAIL).double().mean())
    largest = magnitudes[-max(2, int(TAIL * len(magnitudes))) :].clamp_min(1e-12)
    found["hill"] = 1 / max(1e-12, float((largest / largest[0]).log().mean()))
    found["norm"] = math.sqrt(float(every.square().mean()))
    found["largest_over_norm"] = float(magnitudes[-1]) / max(1e-12, found["norm"])
    return found


def _mean(values: Sequence[tuple[Any, int]]) -> float:
    """Mean weighted by the number of weights."""
    return sum(float(value) * n for value, n in values) / sum(n for _, n in values)
