"""Channels that can only be removed together, their scores, and their masks: the scope "channel"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from palmette.errors import NothingToPrune
from palmette.pruning.budgets import Budget, FixedRatio, check_budget
from palmette.pruning.channels.graph import Walk
from palmette.pruning.channels.tracing import traced
from palmette.pruning.cut import scores_of
from palmette.pruning.decision import Decision
from palmette.pruning.masks import Masks
from palmette.pruning.methods import check_fits
from palmette.pruning.saliency import Saliency
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.sharding import check_finite, check_whole
from palmette.pruning.weights import Weight


def check_inputs(scope: str, inputs: object) -> None:
    """Raise unless example inputs come with scope "channel", and only with it."""
    if (scope == "channel") != (inputs is not None):
        needs = "scope 'channel' follows the graph of the model: give example inputs, as inputs=torch.zeros(…)"
        raise ValueError(needs if inputs is None else f"inputs are for scope 'channel', got scope {scope!r}")


def example_of(scope: str, shape: Sequence[int], device: torch.device) -> Tensor | None:
    """Example inputs of a model of images of `shape` where `scope` needs them; None elsewhere."""
    return torch.zeros(1, *shape, device=device) if scope == "channel" else None


def norm_scale(name: str, weight: Tensor) -> Tensor:
    """Saliency for scope "channel": the magnitude of the batch-norm gain of a channel.

    Channels that go together count with the mean of their gains. Channels without a batch norm are not cut.

    Liu et al. 2017.
    """
    raise ValueError(f"norm_scale ranks channels, not the entries of {name!r}: use it in scope 'channel'")


@dataclass(frozen=True, eq=False)
class ChannelGroups:
    """Groups of channels of a model: all channels of a group are removed together.

    A group has slices of weights: rows of the layers that produce its channels, and columns of the layers that
    read them. Where all of them are zero, nothing depends on the group, and `compact` removes it.

    Args:
        count: number of groups.
        members: weight -> axis -> group of each index along it, -1 where the index stays.
        layers: groups of the channels that each layer produces.
        gains: gain of a batch norm -> group of each entry, -1 where it stays.
        notes: sentences about channels that stay, and why.
    """

    count: int
    members: Mapping[str, Mapping[int, Tensor]] = field(repr=False)
    layers: tuple[Tensor, ...] = field(repr=False)
    gains: Mapping[str, Tensor] = field(repr=False)
    notes: tuple[str, ...]

    @staticmethod
    def of(model: nn.Module, inputs: object, weights: Mapping[str, Weight]) -> ChannelGroups:
        """Groups of the channels that only `weights`, biases and norms have to do with.

        Args:
            model: any module that `torch.export` can trace.
            inputs: example inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
            weights: prunable weights of the model by name; channels that another weight produces or reads stay.
        """
        check_whole({n: w.tensor for n, w in weights.items()}, "scope 'channel'")
        walk, why = traced(model, inputs)
        if walk is None:
            raise ValueError(f"scope 'channel' follows the graph of the model, but {why}")
        for chunks, _ in walk.equal:  # chunks must lose equally many: they lose the same positions
            for other in chunks[1:]:
                walk.join(chunks[0], other)
        roots = walk.roots()
        outputs = {id(layer.weight): (1 - layer.in_axis, layer.outputs) for layer in walk.mixing}
        outputs |= {id(weight): (0, weight.axes[0]) for weight, _ in walk.groups}
        produced = {root for _, atoms in outputs.values() for root in roots[atoms].tolist()}
        stays = {int(roots[atom]): why for atom, why in reversed(walk.pins.items())}
        names = {(w.tensor.data_ptr(), w.shape): name for name, w in weights.items()}
        covered = {}
        for stored in walk.tensors:
            name = names.get((stored.tensor.data_ptr(), stored.tensor.shape))
            if name is not None:
                covered[name] = stored
            elif id(stored) in outputs or stored.tensor.numel() > max(stored.tensor.shape, default=0):
                for atoms in stored.axes.values():
                    stays |= dict.fromkeys(roots[atoms].tolist(), f"{stored.names[0]}, which is not pruned")
        number: dict[int, int] = {}

        def numbered(atoms: Tensor) -> Tensor:
            free = [root if root in produced and root not in stays else -1 for root in roots[atoms].tolist()]
            found = [-1 if root < 0 else number.setdefault(root, len(number)) for root in free]
            return torch.tensor(found, dtype=torch.long)

        members = {n: {axis: numbered(atoms) for axis, atoms in s.axes.items()} for n, s in covered.items()}
        if not number:
            why = "; ".join(_notes(stays, produced)[:3]) or "it has no layer whose channels can be followed"
            raise NothingToPrune(f"scope 'channel' finds nothing to prune in this model: {why}")
        axes = [members[n][outputs[id(s)][0]] for n, s in covered.items() if id(s) in outputs]
        layers = tuple(found for groups in axes if len(found := groups[groups >= 0].unique()))
        notes = _notes(stays, produced)
        return ChannelGroups(len(number), members, layers, _gains(walk, numbered), notes)

    @torch.no_grad()
    def cut(
        self,
        weights: Mapping[str, Weight],
        masks: Masks,
        gains: Mapping[str, Tensor],
        *,
        budget: Budget,
        saliency: Saliency,
    ) -> tuple[Masks, Decision]:
        """Cut once: score the groups, and prune as many of the least salient as the budget says of this vector.

        One group of each layer stays. `gains` has those of `self.gains`, by name.
        """
        check_budget(budget)
        check_fits(budget, "channel")
        check_finite({n: weights[n].tensor for n in self.members}, {}, "weight")
        alive = self.alive(masks)
        if saliency is norm_scale:
            scores, counted = self._mean_gains(gains)
            alive = alive & counted
        else:
            found = {n: scores_of(n, weights[n].tensor, saliency) for n in self.members}
            check_finite(found, {n: masks[n] for n in self.members}, "score")
            scores = self.scores(found, masks, together=getattr(saliency, "together", ""))
        plan = budget.plan(Memory.of(scores[None], alive[None]))
        protected = self._protected(scores, alive)
        cut = plan.cut.clamp_max(int((alive & ~protected).sum()))
        ranked = scores.abs().where(~protected, torch.inf)
        keep = Memory.of(ranked[None], alive[None]).select(cut)[0][0] | ~alive
        new = masks & (dict(masks) | self.masks(keep, weights))
        decision = Decision.of("channel", budget, [("channels", self.count, replace(plan, cut=cut))])
        return new, replace(decision, left=new.density)

    @staticmethod
    def share_to(density: float, plan: Callable[[Budget], tuple[Masks, Decision]]) -> FixedRatio:
        """Largest share of the groups whose cut leaves at least `density` of the weights.

        Args:
            density: fraction of the weights.
            plan: the `plan` of a `Pruner` in scope "channel".
        """
        count = plan(FixedRatio(0.0))[1].kept_before
        fits, too_many = 0, count + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            left = plan(FixedRatio(middle / count))[0]
            fits, too_many = (middle, too_many) if left.kept >= density * left.total - 1e-6 else (fits, middle)
        return FixedRatio(fits / max(count, 1))

    def alive(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Groups of which an entry is kept."""
        return self._sums({n: masks[n].double() for n in self.members}) > 0

    def scores(self, values: Mapping[str, Tensor], masks: Mapping[str, Tensor], *, together: str = "") -> Tensor:
        r"""Score of each group: the root mean square of its kept entries, over the mean of its layer.

        .. math:: s_g = \sqrt{\frac{1}{n_g} \sum_{i \in g} v_i^2} \Big/ \frac{1}{L} \sum_{h} \sqrt{\dots}

        Without the mean, wide layers late in a network, whose weights are small, would go first. A saliency with
        the attribute ``together = "sum"`` is one whose entries add up, signs included: the sum is the score.
        """
        kept = {n: values[n].double().where(masks[n], 0) for n in self.members}
        if together == "sum":
            return self._sums(kept)
        counts = self._sums({n: masks[n].double() for n in self.members})
        sizes = (self._sums({n: v.square() for n, v in kept.items()}) / counts.clamp_min(1)).sqrt()
        scores, done = torch.zeros_like(sizes), torch.zeros(self.count, dtype=torch.bool)
        for groups in self.layers:
            own, mean = groups[~done[groups]], sizes[groups[counts[groups] > 0]].mean()
            scores[own] = sizes[own] / mean if mean > 0 else 0
            done[own] = True
        return scores

    def masks(self, keep: Tensor, weights: Mapping[str, Tensor | Weight]) -> dict[str, Tensor]:
        """Masks of all weights with slices, by name: rows and columns of the groups in `keep` remain."""
        stays = torch.cat([keep, torch.ones(1, dtype=torch.bool)])  # the last, index -1
        found = {}
        for name, axes in self.members.items():
            shape = weights[name].shape
            found[name] = torch.ones(shape, dtype=torch.bool)
            for axis, groups in axes.items():
                found[name] &= stays[groups].reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return found

    def _sums(self, values: Mapping[str, Tensor]) -> Tensor:
        """Sum of the values of each group, slice by slice."""
        total = torch.zeros(self.count + 1, dtype=torch.float64)
        for name, axes in self.members.items():
            for axis, groups in axes.items():
                others = [d for d in range(values[name].dim()) if d != axis]
                total.index_add_(0, groups % len(total), values[name].sum(others).cpu())
        return total[:-1]

    def _mean_gains(self, gains: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean magnitude of the gains of each group, and which groups have any."""
        total, count = torch.zeros(2, self.count + 1, dtype=torch.float64)
        for name, groups in self.gains.items():
            total.index_add_(0, groups % len(total), gains[name].detach().double().abs().cpu())
            count.index_add_(0, groups % len(total), torch.ones(len(groups), dtype=torch.float64))
        if not count[:-1].any():
            raise ValueError("norm_scale reads the gains of batch norms, but none follows a channel that can go")
        return (total / count.clamp_min(1))[:-1], count[:-1] > 0

    def _protected(self, scores: Tensor, alive: Tensor) -> Tensor:
        """The best group of each axis of which all could go: `compact` keeps one channel, too."""
        protected = torch.zeros(self.count, dtype=torch.bool)
        for groups in (groups for axes in self.members.values() for groups in axes.values()):
            living = groups[alive[groups]]
            if len(living) and int(groups.min()) >= 0:
                protected[living[scores[living].abs().argmax()]] = True
        return protected


def _gains(walk: Walk, numbered: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Groups of the entries of each gain of a batch norm, by the first name of the parameter."""
    found = {}
    for stored in walk.tensors:
        is_norm = isinstance(stored.owner(walk.model), nn.modules.batchnorm._BatchNorm)
        if is_norm and stored.axes and stored.names[0].endswith("weight"):
            found[stored.names[0]] = numbered(stored.axes[0])
    return found


def _notes(stays: Mapping[int, str], produced: Container[int]) -> tuple[str, ...]:
    """How many channels stay, for each reason."""
    reasons = Counter(why for root, why in stays.items() if root in produced).most_common()
    stay = {True: "channel stays: it reaches", False: "channels stay: they reach"}
    return tuple(f"{count:,} {stay[count == 1]} {why}" for why, count in reasons)
