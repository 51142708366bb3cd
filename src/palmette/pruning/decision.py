"""Record of a cut, unit by unit; prints as a table."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from palmette.pruning.budgets import Budget
from palmette.pruning.counting import CutPlan
from palmette.pruning.stopping import RoundSummary
from palmette.words import aligned

_NUMBERS = ("d", "index", "r", "c")


@dataclass(frozen=True, eq=False)
class UnitDecisions:
    """Cut of one group: the neurons of a layer, a layer, or the network. One entry per unit.

    Args:
        name: name of the layer, or "global".
        total: entries of each unit, including pruned ones.
        d: entries kept before the cut.
        index: PQ Index of the kept entries, NaN where undefined.
        r: number of entries to keep by the budget, not rounded.
        c: number of entries cut.
    """

    name: str
    total: int
    d: Tensor
    index: Tensor
    r: Tensor
    c: Tensor


@dataclass(frozen=True, eq=False)
class Decision:
    """Result of a cut: measurements and counts for every unit.

    Args:
        scope: "neuron", "layer", "global", or "channel", where counts are of groups of channels.
        budget: the budget as text.
        index: PQ Index of all kept weights together, before the cut, at the budget's p and q.
        groups: the units, group by group.
        score: score of the network before the cut, as passed to `Pruner.step`, or None.
        left: density of the weights after the cut, in scope "channel".

    >>> import palmette as pm
    >>> _, decision = pm.prune({"w": torch.tensor([[0.0, 0.0, -7.0, 0.0]])}, scope="layer", budget=pm.Sap())
    >>> decision.index, decision.cut, decision.density_after
    (0.75, 3, 0.25)
    """

    scope: str
    budget: str
    index: float
    groups: tuple[UnitDecisions, ...]
    score: float | None = None
    left: float | None = None

    @staticmethod
    def of(scope: str, budget: Budget, plans: Sequence[tuple[str, int, CutPlan]]) -> Decision:
        """Decision from (name, entries per unit, plan) of each group."""
        network = reduce(add, (p.sums.over_rows() for _, _, p in plans))
        groups = (UnitDecisions(name, n, p.sums.d, p.index, p.retained, p.cut) for name, n, p in plans)
        return Decision(scope, str(budget), float(network.index()), tuple(groups))

    @property
    def total(self) -> int:
        """Number of prunable weights, including pruned ones."""
        return sum(g.total * len(g.d) for g in self.groups)

    @property
    def kept_before(self) -> int:
        """Number of weights kept before the cut."""
        return sum(int(g.d.sum()) for g in self.groups)

    @property
    def cut(self) -> int:
        """Number of weights cut."""
        return sum(int(g.c.sum()) for g in self.groups)

    @property
    def density_before(self) -> float:
        """Density before the cut."""
        return self.kept_before / self.total

    @property
    def density_after(self) -> float:
        """Density after the cut."""
        return (self.kept_before - self.cut) / self.total

    def summary(self, step: int) -> RoundSummary:
        """Input of stopping rules after this cut; `step` counts cuts from 1."""
        density, kept = self.density_after if self.left is None else self.left, self.kept_before
        return RoundSummary(
            round=step, density=density, index=self.index, kept=kept, cut=self.cut, validation=self.score
        )

    def state_dict(self) -> dict[str, Any]:
        """State as tensors and plain values, for `torch.save` and `torch.load`."""
        return vars(self) | {"groups": [dict(vars(g)) for g in self.groups]}

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> Decision:
        """Inverse of `state_dict`."""
        return Decision(**(dict(state) | {"groups": tuple(UnitDecisions(**g) for g in state["groups"])}))

    def __repr__(self) -> str:
        """Table with one line per group: the median unit and the range where a group has many."""
        head = ("", "units", "kept", "PQ Index", "to keep", "cut", "density")
        rows = [head, *map(_line, self.groups)]
        if len(self.groups) > 1 or len(self.groups[0].d) > 1:
            units = str(sum(len(g.d) for g in self.groups))
            density = f"{self.density_before:.4f} -> {self.density_after:.4f}"
            rows.append(("all", units, f"{self.kept_before:,}", f"{self.index:.4f}", "", f"{self.cut:,}", density))
        left = [] if self.left is None else [f"{self.left:.4f} of the weights remain"]
        return "\n".join([f"{self.budget}, scope {self.scope}", *aligned(rows), *left])


def packed(decisions: Sequence[Decision]) -> bytes:
    """Decisions as one value: a text and four tensors, since thousands of small objects take long to write."""
    parts = [_PARTS.get(d) or _PARTS.setdefault(d, _parts_of(d)) for d in decisions]
    state: dict[str, Any] = {"decisions": f"[{','.join(head for head, _ in parts)}]"}
    if parts:
        columns = zip(*(numbers for _, numbers in parts), strict=True)
        state |= dict(zip(_NUMBERS, map(torch.cat, columns), strict=True))
    torch.save(state, file := io.BytesIO())
    return file.getvalue()


_PARTS = WeakKeyDictionary[Decision, tuple[str, tuple[Tensor, ...]]]()  # made once: a state is written every round


def _parts_of(decision: Decision) -> tuple[str, tuple[Tensor, ...]]:
    """Text and numbers of a decision."""
    groups = decision.groups
    head = vars(decision) | {"groups": [(g.name, g.total, len(g.d)) for g in groups]}
    return json.dumps(head), tuple(torch.cat([getattr(g, name).cpu() for g in groups]) for name in _NUMBERS)


def unpacked(content: bytes) -> list[Decision]:
    """Inverse of `packed`; earlier versions wrote a list of states."""
    try:
        return _unpacked(torch.load(io.BytesIO(content), weights_only=True))
    except Exception as error:  # damaged bytes can break anything
        raise ValueError("the decisions in this state are damaged; load another checkpoint") from error


def _unpacked(state: Any) -> list[Decision]:
    if isinstance(state, list):
        return [Decision.from_state_dict(one) for one in state]
    heads = json.loads(state["decisions"])
    sizes = [size for one in heads for _, _, size in one["groups"]]
    parts = {name: iter(state[name].split(sizes)) for name in _NUMBERS if sizes}
    for one in heads:
        one["groups"] = [
            {"name": name, "total": total} | {key: next(part) for key, part in parts.items()}
            for name, total, _ in one["groups"]
        ]
    return [Decision.from_state_dict(one) for one in heads]


def _line(group: UnitDecisions) -> tuple[str, ...]:
    kept, cut = int(group.d.sum()), int(group.c.sum())
    size = group.total * len(group.d)
    known = group.index[~group.index.isnan()]
    if len(known) == 0:
        index = "none"
    elif len(group.d) == 1:
        index = f"{float(known[0]):.4f}"
    else:
        index = f"{float(known.median()):.4f} ({float(known.min()):.4f}–{float(known.max()):.4f})"
    wanted = torch.where(group.r.isnan(), group.d, group.r).sum()
    return (
        group.name,
        f"{len(group.d):,}",
        f"{kept:,}",
        index,
        f"{float(wanted):,.1f}",
        f"{cut:,}",
        f"{kept / size:.4f} -> {(kept - cut) / size:.4f}",
    )
