"""`Pruner`: cuts a model step by step, and holds the masks during any training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import NotHeld, ParameterGone
from palmette.pruning.budgets import Budget, FixedRatio, check_budget
from palmette.pruning.channels.groups import ChannelGroups, check_inputs
from palmette.pruning.choosing.coverage import coverage, shown, surprises
from palmette.pruning.choosing.names import gain_of
from palmette.pruning.choosing.torch_prune import from_torch_prune
from palmette.pruning.choosing.values import check_changeable
from palmette.pruning.choosing.zeros import as_zeros, masks_of_zeros, zeros_warning
from palmette.pruning.cut import prune, regrow
from palmette.pruning.decision import Decision, packed, unpacked
from palmette.pruning.holding import Holder, in_words
from palmette.pruning.masks import Masks, check_match
from palmette.pruning.methods import Method, Scope, Zeros, check_fits, check_scope, usual_budget
from palmette.pruning.restoring import load_earlier_
from palmette.pruning.saliency import DenseMagnitude, Saliency, combined, copies, made_for, magnitude, ranking
from palmette.pruning.scopes import check_widths
from palmette.pruning.sources.sharding import added, check_whole, is_sharded, placed_like
from palmette.pruning.stopping import DEFAULT_RULES, RoundSummary, StopRule, as_rules, why_stop
from palmette.pruning.tolerance import Estimate
from palmette.pruning.weights import (
    Weight,
    parameters_by_name,
    sorted_out,
    tensors_of,
    uncompiled,
)


class Pruner:
    """Prune a model step by step, and keep pruned weights at zero.

    If several Pruners share weights, the masks of the one that last called `hold` apply. A copy (`copy.deepcopy`,
    pickle) has its own copy of the model and holds the masks there. PyTorch does not copy the hooks of an
    optimizer, so call `hold` again for a copied one.

    Args:
        model: any module, pruned in place; `state_dict` keys and the forward pass do not change. A model pruned by
            `torch.nn.utils.prune` is converted first (`from_torch_prune`).
        method: a key of `METHODS` or a `Method`; sets `budget` and, unless given, `saliency`.
        budget: how many weights to prune in a step; `Sap()` by default.
        scope: "neuron", "layer" or "global" (default): the unit within which weights are ranked. In scope "n:m",
            such as "2:4", n of every m neighbours along the inputs remain, which sets the budget. In scope
            "channel", whole channels are cut, which `compact` can remove.
        saliency: how much each weight matters, by default its magnitude. A function of a name and a weight, its
            path ``"module:function"``, a `PerCut`, or "dense-magnitude": the magnitude just before the first step,
            which the Pruner copies and saves in `state_dict`. Train the dense model first.
        include, exclude: patterns of parameter names, see `palmette.pruning.weights.prunable`. Frozen weights are
            left out with a warning. `left_out` gives the reason for every parameter that is not pruned.
        masks: initial masks, such as `Masks.load(path)`; by default all weights are kept, except `zeros`.
        zeros: "pruned" (default): without `masks`, if more than 1 % of a weight is exactly zero, but not all of
            it, its zeros stay pruned, with a warning. "count": zeros are weights like any other.
        stop: rules that end the loop, see `palmette.pruning.stopping`; by default when the score given to `step`
            is more than 0.01 below that of the first step. A step that cuts nothing always ends the loop.
        hold: an optimizer to `hold` from the start.
        inputs: example inputs of the model, as `compact` takes them, for scope "channel"; `channels` then has the
            groups, and notes on channels that cannot be pruned.

    >>> import palmette as pm
    >>> model = nn.Linear(4, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[3.0, -4.0, 0.0, 0.0]]))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> pruner = pm.Pruner(model, budget=pm.Sap(p=1, q=2), hold=optimizer, zeros="count")
    >>> print(pruner.step())
    Sap(p=1, q=2, eta=0.0, gamma=1.0, beta=0.9), scope global
            units  kept  PQ Index  to keep  cut           density
    global      1     4    0.3000      2.0    2  1.0000 -> 0.5000
    >>> pruner.density
    0.5
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        method: Method | str | None = None,
        budget: Budget | None = None,
        scope: Scope = "global",
        saliency: Saliency | str = magnitude,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        masks: Mapping[str, Tensor] | None = None,
        zeros: Zeros = "pruned",
        stop: StopRule | Sequence[StopRule] = DEFAULT_RULES,
        hold: torch.optim.Optimizer | None = None,
        inputs: Any = None,
    ) -> None:
        check_scope(scope, also=("channel", "n:m"))
        check_inputs(scope, inputs)
        self.model = model
        budget, saliency = combined(method, budget, saliency)
        self.budget = usual_budget(scope) if budget is None else budget
        check_budget(self.budget)
        check_fits(self.budget, scope)
        self.scope = scope
        self.saliency = ranking(saliency, dense=DenseMagnitude())
        self.rules = as_rules(stop)
        self.decisions: list[Decision] = []
        as_zeros(zeros)
        # May raise, so call it before any change.
        chosen, self.left_out = sorted_out(model, include=include, exclude=exclude, also=masks or ())
        for sentence in surprises(sum(w.tensor.numel() for w in chosen.values()), self.left_out):
            warnings.warn(f"Pruner: {sentence}", stacklevel=2)
        check_widths(chosen, scope)
        for name, weight in chosen.items():
            check_changeable(name, weight.tensor)
        check_whole({n: w.tensor for n, w in chosen.items() if w.gain is not None}, "Pruner, under weight norm,")
        found = from_torch_prune(model)
        self._layouts = {n: (w.transposed, w.groups, w.stacked) for n, w in chosen.items()}
        self._gains = {n: gain_of(n) for n, w in chosen.items() if w.gain is not None}
        self._masks = Masks.ones_like(self._tensors())
        self.channels = None if inputs is None else ChannelGroups.of(model, inputs, self._weights)
        if found:
            self._set(self._fitted(Masks({n: found.get(n, m) for n, m in self._masks.items()}), "the masks"))
            if others := [n for n in found if n not in self._masks]:
                warnings.warn(
                    f"torch.nn.utils.prune had pruned {', '.join(others)} too; their zeros are not held, since "
                    "this Pruner does not prune them",
                    stacklevel=2,
                )
        if masks is not None:
            self._set(self._masks & self._fitted(Masks(masks), "the masks"))
        elif zeros == "pruned" and (zero := masks_of_zeros({n: w for n, w in chosen.items() if n not in found})):
            self._set(Masks({**self._masks, **zero}))
            said = zeros_warning(chosen, list(zero), self._masks.total - self._masks.kept)
            warnings.warn(said, stacklevel=2)
        if hold is not None:
            self.hold(hold)

    def __repr__(self) -> str:
        """Scope and density, how many parameters are covered, and why others are left out."""
        head = f"Pruner of {type(uncompiled(self.model)).__name__}, scope {self.scope}, density {self.density:.4f}"
        return f"{head}\n{coverage(self._masks.total, self.left_out)}"

    @property
    def masks(self) -> Masks:
        """Current masks."""
        return self._masks

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Prunable weights by name; raises `ParameterGone` if the model has replaced one."""
        self._check_still_there()
        return self._weights

    @property
    def density(self) -> float:
        """Fraction of the prunable weights that is kept."""
        return self._masks.density

    @property
    def stopped(self) -> str:
        """Why the loop should end; empty, and so false, while it should continue.

        Raises ValueError if the default `stop` has no scores to decide by.
        """
        return why_stop(self.rules, self._history() or [RoundSummary(round=0, density=self.density)]) or ""

    def _history(self) -> list[RoundSummary]:
        return [decision.summary(step) for step, decision in enumerate(self.decisions, start=1)]

    def _ends_with(self, score: float) -> bool:
        now = RoundSummary(round=len(self.decisions), density=self.density, validation=score)
        return why_stop(self.rules, [*self._history(), now]) is not None

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep pruned weights at zero after every step of `optimizer`.

        Call it for each optimizer that updates the model, and again when one is replaced or copied.
        """
        self._check_still_there()
        if not any(p.requires_grad for p in parameters_by_name(self.model).values()):
            raise ValueError(
                "hold needs a model that is trained, but all of its parameters are frozen (requires_grad=False); "
                "unfreeze those to train, then make a new Pruner, which leaves frozen ones out"
            )
        self._holder.hold(optimizer)

    def step(self, score: float | Tensor | None = None, *, budget: Budget | None = None) -> Decision:
        """Measure, cut, and hold the new masks; an error leaves all as it was. Warns of layers without weights.

        Args:
            score: score of the model before this cut, such as its accuracy on held-out data; the default `stop`
                compares it with that of the first step. If it ends the loop, nothing is cut.
            budget: how many weights to prune in this step only.
        """
        self._check_still_there()
        value = None if score is None else Estimate.of(score, "score").value
        if value is not None and not math.isfinite(value):
            raise ValueError(f"score must be a finite number, such as an accuracy, got score={score!r}")
        if value is not None and self._ends_with(value):
            budget = FixedRatio(0.0)  # keep the model as it was trained
        masks, decision = self.plan(budget)
        if said := self._what_came_back():  # the cut ignores them and sets them to zero again
            warnings.warn(said, stacklevel=2)
        if empty := [n for n, kept in masks.counts.items() if kept == 0 < self._masks.counts[n]]:
            warnings.warn(
                f"no weight is left in {shown(empty)}: outputs are constant; exclude it, or cut less", stacklevel=2
            )
        self.apply(masks, decision if value is None else replace(decision, score=value))
        return self.decisions[-1]

    def regrow(self, share: float, *, by: Saliency | str) -> int:
        """Prune a fraction of the kept weights, restore equally many others at zero, and return how many are new.

        Args:
            share: fraction of the kept weights of each unit to prune, those of the smallest saliency.
            by: scores of the pruned weights, of which the largest are restored: `Gradients.magnitude` (RigL, Evci
                et al. 2020) or ``lambda name, weight: torch.rand_like(weight)`` (SET, Mocanu et al. 2018).
        """
        self._check_still_there()
        if self.channels is not None:
            raise ValueError("scope 'channel' prunes whole channels, which do not come back")
        before = self._masks
        saliency, by = (made_for(one, self.model) for one in (self.saliency, ranking(by)))
        self._set(regrow(self._weights, before, scope=self.scope, share=share, by=by, saliency=saliency))
        return self._masks.kept - (self._masks & before).kept

    def plan(self, budget: Budget | None = None) -> tuple[Masks, Decision]:
        """Return what `step` would cut, without cutting; `apply` makes the cut."""
        self._check_still_there()
        budget = self.budget if budget is None else budget
        saliency = made_for(self.saliency, self.model)
        if self.channels is not None:
            gains = parameters_by_name(self.model)
            return self.channels.cut(self._weights, self._masks, gains, budget=budget, saliency=saliency)
        return prune(self._weights, self._masks, scope=self.scope, budget=budget, saliency=saliency)

    def apply(self, masks: Masks, decision: Decision) -> None:
        """Make a cut that `plan` gave, without the warnings of `step`."""
        self._check_still_there()
        if isinstance(self.saliency, DenseMagnitude):
            self.saliency.keep(self._weights)
        self._set(masks)
        self.decisions.append(decision)

    def check(self) -> None:
        """Raise `NotHeld` unless every pruned weight is zero; call it before saving."""
        self._check_still_there()
        if said := self._what_came_back():
            raise NotHeld(said)

    def rewind(self, state: Mapping[str, Tensor]) -> None:
        """Load `state`, an earlier `model.state_dict()`, buffers included, and set pruned weights to zero.

        To rewind to the initial weights, take ``start = copy.deepcopy(model.state_dict())`` before training.
        """
        self._check_still_there()
        load_earlier_(self.model, state)
        self._masks.apply_(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Masks (one bit per weight), decisions, and the dense weights of "dense-magnitude"; no settings.

        For `torch.save` and `torch.distributed.checkpoint`; masks of sharded weights are sharded too, one byte
        per weight.
        """
        # As one value: `torch.distributed.checkpoint` reads into the state of a Pruner that has none yet.
        state = {"masks": self._masks.state_dict(), "decisions": packed(self.decisions)}
        if isinstance(self.saliency, DenseMagnitude):
            state["dense"] = self.saliency.dense or copies(self._weights)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; the model's pruned weights become zero."""
        self._check_still_there()
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict takes the result of state_dict, got {type(state).__name__}")
        if missing := {"masks", "decisions"} - state.keys():
            raise ValueError(f"load_state_dict takes the result of state_dict, got one without {sorted(missing)}")
        masks = self._fitted(Masks.from_state_dict(state["masks"]), "the masks of this state")
        decisions = unpacked(state["decisions"])
        if isinstance(self.saliency, DenseMagnitude):
            dense = state.get("dense") if decisions else None
            if dense is not None:
                check_match(dense, {n: w.shape for n, w in self._tensors().items()}, "the dense weights")
            self.saliency.dense = dense
        self._set(masks)
        self.decisions = decisions

    def _fitted(self, masks: Masks, what: str) -> Masks:
        """Masks on the devices of their weights; raise if names or shapes differ."""
        check_match(masks, {n: w.shape for n, w in self._tensors().items()}, what)
        return Masks({n: placed_like(masks[n], w, n) for n, w in self._tensors().items()})

    def _set(self, masks: Masks) -> None:
        if any(map(is_sharded, masks.values())):
            _ = masks.counts  # a collective: count now, so that a single process can read it later
        self._holder.set_masks_(masks.of_parameters(self._weights)[1])
        self._masks = masks

    def _tensors(self) -> dict[str, Tensor]:
        return tensors_of(self._weights)

    def _what_came_back(self) -> str:
        """How many pruned weights are not zero on all processes, in words; empty if none is."""
        parameters, masks = self._masks.of_parameters(self._weights)
        here = self._holder.back()
        return in_words(added({n: here.get(n, torch.zeros(())) for n in masks}, parameters))

    def _check_still_there(self) -> None:
        there = parameters_by_name(self.model)
        for name, weight in self._weights.items():
            shape = self._masks[name].shape
            if name not in there:
                what = "is no longer part of the model"
            elif there[name] is not weight.tensor:
                what = "was replaced by another parameter"
            elif weight.shape != shape:
                what = f"has the shape {tuple(weight.shape)} now, not {tuple(shape)}"
            else:
                continue
            raise ParameterGone(
                f"the pruned parameter {name!r} {what}; make a new Pruner for the current model "
                "(and load this one's state_dict() if the masks still fit)"
            )

    # A copy holds the masks of its own model, and no optimizer. Weights are looked up lazily: a model that has its
    # Pruner as an attribute is incomplete while it is being copied.

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_weights", "_holder")}

    @cached_property
    def _weights(self) -> dict[str, Weight]:
        parameters = parameters_by_name(self.model)
        if gone := [n for n in self._layouts if n not in parameters]:
            raise ParameterGone(f"the pruned parameter {gone[0]!r} is no longer part of the model")
        gains = {n: parameters.get(gain) for n, gain in self._gains.items()}
        return {n: Weight(parameters[n], *layout, gains.get(n)) for n, layout in self._layouts.items()}

    @cached_property
    def _holder(self) -> Holder:
        parameters, masks = self._masks.of_parameters(self._weights)
        holder = Holder(parameters)
        holder.set_masks_(masks)
        return holder
