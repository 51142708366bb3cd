"""Weights as rows, one row per unit: a neuron, a layer, or the whole network.

Measuring, counting and selecting work on rows and are independent of the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from palmette.pruning.counting import CutPlan
from palmette.pruning.methods import Scope
from palmette.pruning.sources.dtensor import ShardGroup
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.sharding import is_sharded
from palmette.pruning.sources.source import Selectable
from palmette.pruning.weights import Weight


@dataclass(frozen=True)
class Group:
    """Units that are measured and cut together: the neurons of a layer, one layer, or the network.

    Args:
        name: label in decisions.
        weights: one row per unit, on which the index is measured.
        scores: same shape; the smallest are pruned.
        masks: converts masks of the rows to masks of the parameters, by name.
        everywhere: gathers the plan of all units from the plan of the units in this process.
    """

    name: str
    weights: Selectable
    scores: Selectable
    masks: Callable[[Sequence[Tensor]], dict[str, Tensor]]
    everywhere: Callable[[CutPlan], CutPlan] = lambda plan: plan


def groups_of(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], kept: Mapping[str, Tensor], scope: Scope
) -> Iterator[Group]:
    """Units of `scope`, group by group; weights are copied only if their layout requires it.

    Args:
        weights, scores: by name.
        kept: masks by name; a weight without a mask is fully kept.
        scope: "neuron", "layer" or "global".
    """
    together = {"global": weights} if scope == "global" else {name: {name: w} for name, w in weights.items()}
    sharded = any(is_sharded(weight.tensor) for weight in weights.values())
    for label, some in together.items():
        if sharded:
            group = ShardGroup.of(some, scores, kept, per_neuron=scope == "neuron")
            yield Group(label, group.weights, group.scores, group.masks, group.everywhere)
        else:
            yield _in_memory(label, some, scores, kept, scope == "neuron")


def _in_memory(
    label: str,
    weights: Mapping[str, Weight],
    scores: Mapping[str, Tensor],
    kept: Mapping[str, Tensor],
    per_neuron: bool,
) -> Group:
    def rows(name: str, values: Tensor) -> Tensor:
        return weights[name].rows(values) if per_neuron else values.reshape(1, -1)

    def masks(segments: Sequence[Tensor]) -> dict[str, Tensor]:
        return {
            name: weight.from_rows(s) if per_neuron else s.reshape(weight.shape)
            for (name, weight), s in zip(weights.items(), segments, strict=True)
        }

    marks = tuple(rows(n, kept[n]) if n in kept else None for n in weights)
    return Group(
        label,
        Memory(tuple(rows(n, w.tensor.detach()) for n, w in weights.items()), marks),
        Memory(tuple(rows(n, scores[n].detach()) for n in weights), marks),
        masks,
    )
