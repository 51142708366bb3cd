"""One cut of weights that are spread over processes; every process decides the same, and cuts what it has.

Where a process has all entries of a unit, as of a neuron of a weight that `fully_shard` has cut by rows, it does
what one process does with them, and only tells the others how many went. Else sums and counts are added up over
the processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from palmette.measures.pq import PowerSums
from palmette.measures.rows import Rows
from palmette.pruning.budgets import Budget, TailMass
from palmette.pruning.counting import CutPlan
from palmette.pruning.decision import Decision
from palmette.pruning.masks import Masks
from palmette.pruning.saliency import Saliency
from palmette.pruning.selection import select
from palmette.pruning.sources.dtensor import Piece, ShardPart, Spread, added, local
from palmette.pruning.sources.dtensor_search import Units, tail_mass_cut
from palmette.pruning.sources.dtensor_search import select as select_over_all
from palmette.pruning.weights import Weight, check_kind, not_finite, tensors_of


def prune_sharded(
    weights: Mapping[str, Weight],
    masks: Mapping[str, Tensor],
    *,
    scope: str,
    budget: Budget,
    saliency: Saliency,
) -> tuple[Masks, Decision]:
    """`prune` of weights some of which are DTensors. All processes that have a part call it together."""
    tensors = tensors_of(weights)
    _check_all(tensors, {}, "weight")
    scores = {n: _scores(n, w, saliency) for n, w in tensors.items()}
    _check_all({n: s for n, s in scores.items() if s is not tensors[n]}, masks, "score")
    new: dict[str, Tensor] = {}
    plans = []
    for label, names in [("global", list(weights))] if scope == "global" else [(n, [n]) for n in weights]:
        parts = _parts(weights, names, per_neuron=scope == "neuron")
        width, plan, narrowed = _cut(parts, names, tensors, scores, masks, budget)
        new |= narrowed
        plans.append((label, width, plan))
    return Masks(new), Decision.of(scope, budget, plans)


def _parts(weights: Mapping[str, Weight], names: Sequence[str], *, per_neuron: bool) -> list[ShardPart]:
    parts, offset = [], 0
    for name in names:
        parts.append(ShardPart(weights[name], per_neuron, offset))
        offset += weights[name].tensor.numel()
    return parts


def _cut(
    parts: Sequence[ShardPart],
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    scores: Mapping[str, Tensor],
    kept: Mapping[str, Tensor],
    budget: Budget,
) -> tuple[int, CutPlan, dict[str, Tensor]]:
    """(entries of a unit, what was planned, new masks by name)."""
    count = parts[0].units
    width = sum(part.weight.tensor.numel() for part in parts) // count
    spreads = list(dict.fromkeys(Spread.of(part.weight.tensor) for part in parts))

    def units(values: Mapping[str, Tensor]) -> tuple[Units, list[list[Piece]]]:
        pieces = [part.pieces(values[n], kept[n]) for part, n in zip(parts, names, strict=True)]
        dtype = reduce(torch.promote_types, (values[name].dtype for name in names))
        return Units(count, width, [piece for own in pieces for piece in own], spreads, dtype), pieces

    (measured, pieces), (ranked, _) = units(tensors), units(scores)
    if all(part.is_whole for part in parts):
        plan, remaining = _cut_here(measured, ranked, budget)
    else:
        plan = _plan(measured, budget)
        remaining = select_over_all(ranked, plan.cut)
    left = iter(remaining)
    new = {
        name: part.from_pieces([next(left) for _ in own])
        for name, part, own in zip(names, parts, pieces, strict=True)
    }
    return width, plan, new


def _plan(units: Units, budget: Budget) -> CutPlan:
    """What the budget says of units that are spread over processes."""
    sums = units.power_sums(p=float(budget.p), q=float(budget.q))
    if not isinstance(budget, TailMass):
        return budget.plan_of_sums(sums)
    cut = tail_mass_cut(units, p=float(budget.p), eta=float(budget.eta))
    return CutPlan.of(sums, sums.index(), (sums.d - cut).to(torch.float64), cut)


def _cut_here(units: Units, ranked: Units, budget: Budget) -> tuple[CutPlan, list[Tensor]]:
    """What one process does with the units that are here as a whole; and the plan of all, for all."""
    plan = budget.plan(_rows(units.pieces))
    remaining = list(select(_rows(ranked.pieces), plan.cut))
    spread, here = units.pieces[0].spread, units.pieces[0].units
    if not spread.dimensions():
        return plan, remaining
    sums = plan.sums
    # Bit patterns add up without rounding where all others are zero.
    reals = (sums.scale, sums.p_sum, sums.q_sum, plan.index, plan.retained)
    numbers = [sums.d, plan.cut, *(x.view(torch.int64) for x in reals)]
    table = torch.zeros(len(numbers), units.count, dtype=torch.int64)
    table[:, here] = torch.stack(numbers)
    d, cut, *bits = (x.clone() for x in spread.add(table))
    scale, p_sum, q_sum, index, retained = (x.view(torch.float64) for x in bits)
    return CutPlan(PowerSums(d, scale, p_sum, q_sum, sums.p, sums.q), index, retained, cut), remaining


def _rows(pieces: Sequence[Piece]) -> Rows:
    return Rows(tuple(piece.matrix for piece in pieces), tuple(piece.kept for piece in pieces))


def _scores(name: str, weight: Tensor, saliency: Saliency) -> Tensor:
    scores = saliency(name, weight)
    if scores is weight:
        return weight
    ours, theirs = Spread.of(weight), Spread.of(scores)
    if not isinstance(scores, Tensor) or scores.shape != weight.shape or ours != theirs:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else repr(scores)
        raise ValueError(
            f"saliency must give a tensor of the weight's shape, {tuple(weight.shape)} for {name!r}, spread over "
            f"processes as the weight is, {ours.placements}, got {got}, {theirs.placements}"
        )
    return scores.detach()


def _check_all(values: Mapping[str, Tensor], kept: Mapping[str, Tensor], what: str) -> None:
    """Raise on every process if one of them has a NaN or an infinity: others would wait for one that raised."""
    found = {}
    for name, tensor in values.items():
        check_kind(name, tensor, what)
        bad = ~torch.isfinite(local(tensor.detach()))
        found[name] = (bad & local(kept[name]) if name in kept else bad).sum()
    counts = torch.tensor([*added(found, values).values()])
    for spread in dict.fromkeys(map(Spread.of, values.values())):
        counts = spread.largest(counts)  # of weights, too, that each process has as a whole
    for count, (name, tensor) in zip(counts.tolist(), values.items(), strict=True):
        if count:
            raise not_finite(name, tensor, what, count)
