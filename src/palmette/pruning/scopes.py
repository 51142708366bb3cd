"""Weights as rows, one row per unit: a neuron, a layer, or the whole network.

Measuring, counting and selecting work on rows and never ask which scope it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from palmette.measures.rows import Rows
from palmette.pruning.methods import Scope
from palmette.pruning.weights import Weight


@dataclass(frozen=True)
class Group:
    """Units that are measured and cut together: the neurons of a layer, one layer, or the network.

    Args:
        name: for eyes.
        weights: one row per unit; the index is measured on these.
        scores: the same shape; the smallest of these go.
        masks: takes masks in the shape of the rows and names them in the shape of the parameters.
    """

    name: str
    weights: Rows
    scores: Rows
    masks: Callable[[Sequence[Tensor]], dict[str, Tensor]]


def groups_of(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], kept: Mapping[str, Tensor | None], scope: Scope
) -> list[Group]:
    """The units of `scope`, group by group, without copying weights where their layout allows it."""
    if scope == "global":
        return [_group("global", list(weights), weights, scores, kept, per_neuron=False)]
    return [_group(n, [n], weights, scores, kept, per_neuron=scope == "neuron") for n in weights]


def _group(
    label: str,
    names: Sequence[str],
    weights: Mapping[str, Weight],
    scores: Mapping[str, Tensor],
    kept: Mapping[str, Tensor | None],
    *,
    per_neuron: bool,
) -> Group:
    def rows(name: str, values: Tensor) -> Tensor:
        return weights[name].rows(values) if per_neuron else values.reshape(1, -1)

    def masks(segments: Sequence[Tensor]) -> dict[str, Tensor]:
        return {
            n: weights[n].from_rows(s) if per_neuron else s.reshape(weights[n].shape)
            for n, s in zip(names, segments, strict=True)
        }

    marks = tuple(None if (k := kept[n]) is None else rows(n, k) for n in names)
    return Group(
        label,
        Rows(tuple(rows(n, weights[n].tensor.detach()) for n in names), marks),
        Rows(tuple(rows(n, scores[n].detach()) for n in names), marks),
        masks,
    )
