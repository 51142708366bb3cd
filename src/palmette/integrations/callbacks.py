"""Base class of callbacks for training libraries: cuts at given steps or epochs, and a state to resume from."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import MaskMismatch
from palmette.measures.parameters import is_number
from palmette.pruning.budgets import Budget
from palmette.pruning.masks import Masks
from palmette.pruning.methods import Scope
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, magnitude
from palmette.pruning.stopping import StopRule
from palmette.pruning.weights import as_patterns


class Cutting:
    """Base class that cuts a model at given steps or epochs of a training loop of another library.

    Args:
        steps: optimizer steps after which to cut, such as ``range(500, 3001, 500)``.
        epochs: in place of `steps`, epochs after which to cut, such as ``[1, 2, 3]``.
        budget: number of weights to cut; `Sap()` by default.
        scope, saliency, include, exclude, masks: as for `Pruner`.
        stop: rules that end the cutting, such as `AtDensity(0.1)`, while training continues. A cut that removes
            nothing ends it too.
        say: receives a line per cut; None for silence.
    """

    def __init__(
        self,
        *,
        steps: Iterable[int] | None = None,
        epochs: Iterable[int] | None = None,
        budget: Budget | None = None,
        scope: Scope = "global",
        saliency: Saliency = magnitude,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        masks: Mapping[str, Tensor] | None = None,
        stop: StopRule | Sequence[StopRule] = (),
        say: Callable[[str], None] | None = print,
    ) -> None:
        if (steps is None) == (epochs is None):
            raise ValueError(
                "say either after which steps to cut, such as steps=range(500, 3001, 500), or after which epochs, "
                f"such as epochs=[1, 2, 3]; got steps={steps!r}, epochs={epochs!r}"
            )
        self._steps = frozenset() if steps is None else _numbers("steps", steps)
        self._epochs = frozenset() if epochs is None else _numbers("epochs", epochs)
        patterns, unwanted = as_patterns(include, exclude)
        self._settings: dict[str, Any] = {"budget": budget, "scope": scope, "saliency": saliency, "stop": stop}
        # Raises now, not when training begins, if a setting is wrong.
        Pruner(nn.Linear(1, 1), **self._settings)
        self._settings |= {"include": patterns, "exclude": unwanted}
        self._masks = None if masks is None else Masks(masks)
        if say is not None and not callable(say):
            raise TypeError(f"say must be a function that is given a line, or None for silence, got {say!r}")
        self._say = say or (lambda _: None)
        self._made: Pruner | None = None
        self._done: list[str] = []  # such as "step 500" or "epoch 2"
        self._seen = 0  # the last step

    @property
    def pruner(self) -> Pruner:
        """The pruner that holds the masks; its `decisions` say what was cut and why."""
        if self._made is None:
            raise RuntimeError("there is no Pruner before training has begun")
        return self._made

    def _begin(self, model: nn.Module, state: Mapping[str, Any] | None, step: int) -> None:
        """Make the pruner of `model`; `state` is the result of `_state` in a checkpoint to resume from."""
        self._seen = step
        if self._made is None or self._made.model is not model:
            self._made = Pruner(model, masks=self._masks, **self._settings)
            self._done = []
        if state is None:
            return
        try:
            self._made.load_state_dict(state["pruner"])
        except MaskMismatch as error:
            raise MaskMismatch(
                f"the checkpoint of step {step} cannot be resumed: {error}. Resume with the model, include and "
                "exclude that it was saved with, or start afresh without resuming"
            ) from None
        self._done = list(state["done"])

    def _hold(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Hold the masks in all optimizers that update a pruned weight."""
        pruned = {id(weight.tensor) for weight in self.pruner.weights.values()}
        held = [o for o in optimizers if any(id(p) in pruned for g in o.param_groups for p in g["params"])]
        for optimizer in held:
            self.pruner.hold(optimizer)
        if not held:
            warnings.warn(
                "no optimizer updates a weight that is pruned: all of them are frozen, or the optimizer was made "
                "for another model, or before the model's parameters were replaced",
                stacklevel=3,
            )

    def _cut_if_due(self, step: int, epoch: int | None, *, tell: bool = True) -> bool:
        """Cut if one is due after `step` or, at the end of an epoch, after `epoch`; return whether it was."""
        # Lightning counts the steps of each optimizer, and so more than one in a batch.
        due = [f"step {n}" for n in sorted(self._steps) if self._seen < n <= step]
        due += [f"epoch {epoch}"] if epoch in self._epochs else []
        due = [name for name in due if name not in self._done]
        self._seen = step
        if not due or self.pruner.stopped != "":
            return False
        decision = self.pruner.step()
        self._done += due
        if tell:
            share = decision.cut / max(1, decision.kept_before)
            self._say(
                f"palmette: after {due[-1]} the cut takes {share:.1%} of what was kept, "
                f"{decision.density_after:.1%} of the weights remain (PQ Index before: {decision.index:.4f})"
            )
            if why := self.pruner.stopped:
                self._say(f"palmette: no more cuts, because {why}")
        return True

    def _state(self) -> dict[str, Any]:
        """State for a checkpoint: tensors and plain values."""
        return {"pruner": self.pruner.state_dict(), "done": list(self._done)}

    def _end(self) -> None:
        """Warn about cuts that were not made, unless a rule ended them."""
        wanted = [f"epoch {n}" for n in sorted(self._epochs)] + [f"step {n}" for n in sorted(self._steps)]
        missed = [name for name in wanted if name not in self._done]
        if missed and not self.pruner.stopped:
            names = f"{', '.join(missed[:6])}{', …' if len(missed) > 6 else ''}"
            warnings.warn(
                f"training ended without the cuts after {names}: it did not come so far, or began after them. "
                "Train longer, or cut earlier",
                stacklevel=3,
            )


def _numbers(name: str, given: Any) -> frozenset[int]:
    numbers = [given] if is_number(given) else given
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise TypeError(f"{name} must be whole numbers such as [1, 2, 3], got {given!r}")
    found = list(numbers)
    if not found or not all(is_number(n, whole=True) and n >= 1 for n in found):
        raise ValueError(f"{name} must be whole numbers of at least 1, such as [1, 2, 3], got {given!r}")
    return frozenset(found)
