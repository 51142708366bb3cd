"""One cut of a set of weights: measure, count, select and mask; `regrow` and `TopK` also restore weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from palmette.errors import NotHeld, NothingToPrune
from palmette.pruning.allocation import LayerFacts, budgets_of
from palmette.pruning.budgets import Budget, FixedRatio, check_budget
from palmette.pruning.decision import Decision
from palmette.pruning.holding import ZeroCheck, in_words, steppers_of
from palmette.pruning.masks import Masks, check_match
from palmette.pruning.methods import Scope, check_scope
from palmette.pruning.saliency import Saliency, magnitude, ranking
from palmette.pruning.scopes import groups_of
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.sharding import Spread, check_finite, check_whole, is_sharded, placed_like
from palmette.pruning.weights import Weight, prunable, tensors_of


def prune(
    weights: Mapping[str, Tensor | Weight],
    masks: Mapping[str, Tensor] | None = None,
    *,
    scope: Scope,
    budget: Budget,
    saliency: Saliency | str = magnitude,
) -> tuple[Masks, Decision]:
    """Cut once: measure each unit, and prune its least salient weights, as many as the budget says.

    The arguments are not modified.

    Args:
        weights: by name; the first axis of a plain tensor counts neurons, a `Weight` has its own layout.
        masks: which weights are kept so far, all by default.
        scope: "neuron", "layer", "global" or "n:m": the unit within which weights are ranked, see `Pruner`.
        budget: how many weights to prune.
        saliency: how much each weight matters, as for `Pruner`.

    Returns:
        The new masks, a subset of the old ones, and the decision for each unit. Counts are exact; of equal
        scores, the lowest index is pruned first.

    >>> import palmette as pm, torch
    >>> weights = {"w": torch.tensor([[4.0, 3.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])}
    >>> masks, decision = pm.prune(weights, scope="neuron", budget=pm.Sap(p=1, q=2))
    >>> masks["w"]
    tensor([[ True,  True, False, False],
            [ True,  True,  True,  True]])

    Diao et al. 2023, Algorithm 1.
    """
    check_scope(scope, also=("n:m",))
    check_budget(budget)
    ranked = ranking(saliency)
    tensors_of(weights)  # raises if they are none
    given = {n: w if isinstance(w, Weight) else Weight(w) for n, w in weights.items()}
    whole = {n: w if w.gain is None else replace(w, tensor=w.values, gain=None) for n, w in given.items()}
    tensors = tensors_of(whole)
    if not tensors:
        raise NothingToPrune("weights must hold at least one tensor, got none")
    sharded = any(map(is_sharded, tensors.values()))
    check_finite(tensors, {}, "weight")
    kept: dict[str, Tensor] = {}
    if masks is not None or sharded:
        masks = Masks.ones_like(tensors) if masks is None else Masks(masks)
        check_match(masks, {n: w.shape for n, w in tensors.items()}, "the masks")
        # A mask that keeps everything need not be read, unless other processes must agree.
        kept = {
            n: placed_like(masks[n], w, n) if sharded else masks[n].to(w.device)
            for n, w in tensors.items()
            if sharded or not bool(masks[n].all())
        }
    scores = {n: scores_of(n, w, ranked) for n, w in tensors.items()}
    check_finite({n: s for n, s in scores.items() if s is not tensors[n]}, kept, "score")

    def row(name: str, values: Tensor) -> Memory:
        return Memory.of(values.detach().reshape(1, -1), kept[name].reshape(1, -1) if name in kept else None)

    def network() -> Memory:
        check_whole(tensors, "a cut that is shared between layers")
        rows = [row(*weight) for weight in tensors.items()]
        return Memory(tuple(r.segments[0] for r in rows), tuple(r.kept[0] for r in rows))

    layers = {n: LayerFacts(t.shape, partial(row, n, t), partial(row, n, scores[n])) for n, t in tensors.items()}
    budgets = budgets_of(budget, scope, layers, network)
    new: dict[str, Tensor] = {}
    plans = []
    for group in groups_of(whole, scores, kept, scope):
        plan = group.plan(budgets.get(group.name, budget))
        new |= group.cut(plan)
        plans.append((group.name, group.weights.width, group.everywhere(plan)))
    return Masks(new), Decision.of(scope, budget, plans)


def regrow(
    weights: Mapping[str, Tensor | Weight],
    masks: Mapping[str, Tensor],
    *,
    scope: Scope,
    share: float,
    by: Saliency | str,
    saliency: Saliency | str = magnitude,
) -> Masks:
    """Prune a fraction of the kept weights of each unit and restore equally many others.

    The arguments are not modified.

    Args:
        weights, scope, saliency: as for `prune`; not "n:m", and not sharded.
        masks: which weights are kept so far.
        share: fraction of the kept weights to prune, those of the smallest saliency.
        by: scores of the pruned weights; the largest are restored. Weights just pruned are candidates too.

    >>> import torch
    >>> weights, slopes = {"w": torch.tensor([[4.0, 1.0, 0.0, 0.0]])}, torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    >>> masks = {"w": torch.tensor([[True, True, False, False]])}
    >>> regrow(weights, masks, scope="layer", share=0.5, by=lambda name, weight: slopes)["w"]
    tensor([[ True, False, False,  True]])

    Evci et al. 2020 (RigL) restore by gradient, Mocanu et al. 2018 (SET) at random.
    """
    check_whole(tensors_of(weights), "regrow")
    left, decision = prune(weights, masks, scope=scope, budget=FixedRatio(share), saliency=saliency)
    given = {n: w if isinstance(w, Weight) else Weight(w) for n, w in weights.items()}
    ranked = ranking(by)
    scores = {n: scores_of(n, w.tensor, ranked) for n, w in given.items()}
    gone = {n: ~mask for n, mask in left.items()}
    check_finite(scores, gone, "score")
    back: dict[str, Tensor] = {}
    for group, cut in zip(groups_of(given, scores, gone, scope), decision.groups, strict=True):
        back |= group.masks(group.scores.select(group.scores.counts() - cut.c))
    return Masks({n: mask | back[n] for n, mask in left.items()})


class TopK:
    """Weight-sparse training: after each optimizer step, keep only the largest weights.

    All weights have gradients, optimizer state and updates, so a weight that is zero can grow again in any step.
    There is nothing to save: the masks follow from the weights.

    Args:
        model: the model to train.
        hold: its optimizer; a copied one needs a new TopK.
        budget: how many weights are zero, such as ``Densities([0.05])``; can be replaced during training.
        scope, saliency, include, exclude: as for `Pruner`.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1, bias=False)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> from palmette import Densities
    >>> sparse = TopK(model, hold=optimizer, budget=Densities([0.5]))
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    >>> int(model.weight.count_nonzero()), sparse.masks.density
    (2, 0.5)

    Gao et al. 2025, who also lower the density during training.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        hold: torch.optim.Optimizer,
        budget: Budget,
        scope: Scope = "global",
        saliency: Saliency | str = magnitude,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
    ) -> None:
        self._weights = prunable(model, include=include, exclude=exclude)
        self.budget, self.scope, self.saliency = budget, scope, saliency
        steppers = steppers_of(hold, tensors_of(self._weights))
        self._watch = ZeroCheck(Masks.ones_like(tensors_of(self._weights)).of_parameters(self._weights)[0])
        self._hold()
        for one in steppers:
            one.register_step_post_hook(lambda *_: self._hold())

    def check(self) -> None:
        """Raise `NotHeld` unless every pruned weight of this process is zero; `save` warns of the same."""
        if said := in_words({name: int(count) for name, count in self._watch.back().items()}):
            raise NotHeld(said)

    def _hold(self) -> None:
        self.masks, _ = prune(self._weights, scope=self.scope, budget=self.budget, saliency=self.saliency)
        self.masks.apply_(self._weights)
        self._watch.expect(self.masks.of_parameters(self._weights)[1])


def scores_of(name: str, weight: Tensor, saliency: Saliency) -> Tensor:
    """Scores of a weight by `saliency`; raise unless shape, device and sharding match the weight."""
    scores = saliency(name, weight)
    if scores is weight:
        return weight
    ours, theirs = Spread.of(weight), Spread.of(scores)
    if not isinstance(scores, Tensor) or scores.shape != weight.shape or ours != theirs:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else repr(scores)
        spread = f", spread over processes as the weight is, {ours.placements}" if ours.placements else ""
        raise ValueError(
            f"saliency must give a tensor of the weight's shape, {tuple(weight.shape)} for {name!r}{spread}, got "
            f"{got}{f', {theirs.placements}' if ours != theirs else ''}"
        )
    return scores.detach() if ours.placements else scores.detach().to(weight.device)
