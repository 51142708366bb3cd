"""Weights as rows, one row per unit: a neuron, a layer, the whole network, or neighbours in a pattern n:m.

Measuring, counting and selecting work on rows and are independent of the scope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from palmette.pruning.budgets import Budget
from palmette.pruning.counting import CutPlan
from palmette.pruning.methods import Scope, pattern_of
from palmette.pruning.sources.dtensor import ShardGroup
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.sharding import check_whole, is_sharded
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

    def plan(self, budget: Budget) -> CutPlan:
        """Count of each unit."""
        return budget.plan(self.weights)

    def cut(self, plan: CutPlan) -> dict[str, Tensor]:
        """New masks of the parameters, by name."""
        return self.masks(self.scores.select(plan.cut))


@dataclass(frozen=True)
class Pattern(Group):
    """A layer of which `most` of every m neighbours remain: it is measured whole, and its scores have m columns.

    Neighbours that are all zero are cut too, since they may be trained.
    """

    most: int = 1

    def plan(self, budget: Budget) -> CutPlan:
        """Count of the layer."""
        found, cut = budget.plan(self.weights), self._excess().sum()[None]
        return replace(found, retained=(found.sums.d - cut).double(), cut=cut)

    def cut(self, plan: CutPlan) -> dict[str, Tensor]:
        """New mask of the layer."""
        return self.masks(self.scores.select(self._excess()))

    def _excess(self) -> Tensor:
        return (self.scores.counts() - self.most).clamp_min(0)


def groups_of(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], kept: Mapping[str, Tensor], scope: Scope
) -> Iterator[Group]:
    """Units of `scope`, group by group; weights are copied only if their layout requires it.

    Args:
        weights, scores: by name.
        kept: masks by name; a weight without a mask is fully kept.
        scope: "neuron", "layer", "global" or "n:m".
    """
    if (pattern := pattern_of(scope)) is not None:
        check_widths(weights, scope)
        yield from (_pattern(n, w, scores[n], kept.get(n), pattern) for n, w in weights.items())
        return
    together = {"global": weights} if scope == "global" else {name: {name: w} for name, w in weights.items()}
    sharded = any(is_sharded(weight.tensor) for weight in weights.values())
    for label, some in together.items():
        if sharded:
            group = ShardGroup.of(some, scores, kept, per_neuron=scope == "neuron")
            yield Group(label, group.weights, group.scores, group.masks, group.everywhere)
        else:
            yield _in_memory(label, some, scores, kept, scope == "neuron")


def check_widths(weights: Mapping[str, Weight], scope: str) -> None:
    """Raise unless m divides the number of inputs of each weight in a scope "n:m"."""
    if (pattern := pattern_of(scope)) is None:
        return
    check_whole({name: weight.tensor for name, weight in weights.items()}, f"scope {scope!r}")
    odd = {name: _sizes(weight)[1] for name, weight in weights.items() if _sizes(weight)[1] % pattern[1]}
    if odd:
        said = ", ".join(f"{name!r} has {inputs}" for name, inputs in odd.items())
        raise ValueError(
            f"scope {scope!r} needs a number of inputs divisible by {pattern[1]}, but {said}; leave such weights "
            f"out with exclude={list(odd)}"
        )


def _sizes(weight: Weight) -> tuple[int, int, int]:
    """Neurons, inputs of each, and pixels of each input."""
    shape, groups = weight.folded
    pixels = math.prod(shape[2:])
    if weight.transposed:
        return groups * shape[1], shape[0] // groups, pixels
    return shape[0], math.prod(shape[1:2]), pixels


def _pattern(name: str, weight: Weight, scores: Tensor, kept: Tensor | None, pattern: tuple[int, int]) -> Group:
    neurons, inputs, pixels = _sizes(weight)

    def neighbours(values: Tensor) -> Tensor:
        return weight.rows(values).reshape(neurons, inputs, pixels).transpose(1, 2).reshape(-1, pattern[1])

    def masks(segments: Sequence[Tensor]) -> dict[str, Tensor]:
        rows = segments[0].reshape(neurons, pixels, inputs).transpose(1, 2).reshape(neurons, -1)
        return {name: weight.from_rows(rows)}

    layer = Memory.of(weight.tensor.detach().reshape(1, -1), None if kept is None else kept.reshape(1, -1))
    units = Memory.of(neighbours(scores.detach()), None if kept is None else neighbours(kept))
    return Pattern(name, layer, units, masks, most=pattern[0])


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
