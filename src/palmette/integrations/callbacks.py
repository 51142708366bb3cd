"""Base class of callbacks for training libraries: cuts at given steps or epochs, judged by validation or loss."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import MaskMismatch, NotHeld
from palmette.integrations.judging import Judge
from palmette.measures.parameters import is_number
from palmette.pruning.budgets import Budget
from palmette.pruning.choosing.patterns import as_patterns
from palmette.pruning.masks import Masks
from palmette.pruning.methods import Method, Scope, Zeros, pattern_of
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import DenseMagnitude, Saliency, magnitude
from palmette.pruning.sources.sharding import is_sharded
from palmette.pruning.stopping import AccuracyDrops, ScoreDrops, StopRule
from palmette.pruning.tolerance import Tolerance
from palmette.pruning.weights import uncompiled


class Cutting:
    """Base class that cuts a model at given steps or epochs of a training loop of another library.

    A cut is made before the step that follows, after the library has evaluated and saved. The network is judged
    before the next cut, and at the end of training: by the last validation metric since the last cut or, without
    one, by the training loss over the second half of the steps since then. If the score is worse than that before
    the first cut by more than the tolerance, the weights and masks before the last cut are restored from a CPU
    copy, which checkpoints have too; no more cuts are made, and training continues with the same optimizer state.

    Args:
        steps: optimizer steps after which to cut, such as ``range(500, 3001, 500)``.
        epochs: in place of `steps`, epochs after which to cut, such as ``[1, 2, 3]``.
        monitor: name of the validation metric; by default the validation loss of the library.
        maximize: whether larger values of `monitor` are better; required unless its name ends with "loss".
        tolerance: how much worse than before the first cut the score may be: 0.05 (points) or ``"5%"`` (of the
            score). By default 0.05 for losses, the training loss included, and 0.01 for scores to maximize.
            ``math.inf`` judges nothing and keeps no copy. A training loss 0.05 above the dense one was the right
            place to stop in 70 % of 303 runs on record, all image classifiers (299 with 10 classes), retrained in
            full after each cut.
        method: a key of `METHODS` or a `Method`, as for `Pruner`.
        budget: number of weights to cut; `Sap()` by default.
        saliency: as for `Pruner`, but not "dense-magnitude".
        scope, include, exclude, masks: as for `Pruner`.
        stop: rules that end the cutting as well, such as `AtDensity(0.1)`, while training continues. A cut that
            removes nothing ends it too. Without a validation metric and a loss, only these rules end it.
        say: receives a line per cut; None for silence.
    """

    def __init__(
        self,
        *,
        steps: Iterable[int] | None = None,
        epochs: Iterable[int] | None = None,
        monitor: str | None = None,
        maximize: bool | None = None,
        tolerance: Tolerance | float | str | None = None,
        method: Method | str | None = None,
        budget: Budget | None = None,
        scope: Scope = "global",
        saliency: Saliency | str = magnitude,
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
        if scope == "channel":
            raise ValueError(
                "a callback has no example inputs to find channels with: cut with "
                'pm.Pruner(model, scope="channel", inputs=example) before training, and give its masks as masks='
            )
        self._settings: dict[str, Any] = {"method": method, "budget": budget, "saliency": saliency}
        self._settings |= {"scope": scope, "stop": stop}
        # Raises now, not when training begins, if a setting is wrong.
        probe = Pruner(nn.Linear((pattern_of(scope) or (1, 1))[1], 1), **self._settings)
        if isinstance(probe.saliency, DenseMagnitude):
            raise ValueError(
                "saliency 'dense-magnitude' needs the dense weights, which a callback does not save in its "
                "checkpoints; pass saliency=pm.magnitude_of(pm.prunable(model)) of the model before this training"
            )
        if scored := [rule for rule in probe.rules if isinstance(rule, ScoreDrops | AccuracyDrops)]:
            raise ValueError(f"a callback compares scores by monitor and tolerance, not by stop={scored[0]!r}")
        self._judge = Judge(monitor, maximize, tolerance)
        self._settings |= {"include": patterns, "exclude": unwanted}
        self._masks = None if masks is None else Masks(masks)
        if say is not None and not callable(say):
            raise TypeError(f"say must be a function that takes a line, or None for silence, got {say!r}")
        self._say = say or (lambda _: None)
        self._made: Pruner | None = None
        self._done: list[str] = []  # such as "step 500" or "epoch 2"
        self._due: list[str] = []  # cuts to make before the next step
        self._seen = 0  # the last step
        self._cut_at = 0  # the last step before the last cut
        self._ended = ""  # why the judge ended the cuts
        self._kept: dict[str, Any] | None = None  # the last good network

    @property
    def pruner(self) -> Pruner:
        """The pruner that holds the masks; its `decisions` say what was cut and why."""
        if self._made is None:
            raise RuntimeError("there is no Pruner before training has begun")
        return self._made

    def _begin(self, model: nn.Module, state: Mapping[str, Any] | None, step: int) -> None:
        """Make the pruner of `model`; `state` is the result of `_state` in a checkpoint to resume from."""
        if any(map(is_sharded, model.parameters())):
            raise sharded_by("this training")
        self._seen = self._cut_at = step
        self._due = []
        self._judge.restart()
        if self._made is None or self._made.model is not model:
            earlier: Zeros = "pruned" if state is None else "count"  # the state has the masks
            self._made = Pruner(model, masks=self._masks, zeros=earlier, **self._settings)
            self._judge.load(None)
            self._done, self._ended, self._kept = [], "", None
        if state is None:
            return
        try:
            self._made.load_state_dict(state["pruner"])
        except MaskMismatch as error:
            raise MaskMismatch(
                f"the checkpoint of step {step} cannot be resumed: {error}. Resume with the model, include and "
                "exclude that it was saved with, or start afresh without resuming"
            ) from None
        # Checkpoints of earlier versions have no scores.
        self._done, self._due, self._kept = list(state["done"]), list(state.get("due", ())), None
        self._cut_at, self._ended = state.get("cut_at", step), state.get("ended", "")
        self._judge.load(state.get("judge"))

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

    def _note_due(self, step: int, epoch: int | None) -> bool:
        """Note the cuts due after `step` or, at the end of an epoch, after `epoch`; return whether any are."""
        # Lightning counts the steps of each optimizer, and so more than one in a batch.
        due = [f"step {n}" for n in sorted(self._steps) if self._seen < n <= step]
        due += [f"epoch {epoch}"] if epoch in self._epochs else []
        self._seen = step
        self._due += [name for name in due if name not in (*self._done, *self._due)]
        return bool(self._due)

    def _cut_if_due(self, *, verbose: bool = True, agree: Callable[[float], float] = float) -> bool:
        """Judge the network before a step, and cut if a cut is due; return whether the network has changed.

        Args:
            verbose: whether this process reports.
            agree: mean of a score over all processes.
        """
        due, self._due = self._due, []
        if not due or self._ended:
            return False
        say, first = self._say if verbose else _silent, self._judge.dense is None
        score, good = "", False
        if not self._judge.off:
            verdict = self._judge.verdict(agree)
            if verdict.good is False:
                self._restore(f"after {due[-1]} {verdict.text}", say)
                return True
            if first:
                say(f"palmette: {self._judge.rule()}")
            score, good = f"; {verdict.text or 'not judged'}", verdict.good is True
        if self.pruner.stopped != "":
            return False
        if good:
            self._keep(due[-1])
        decision = self.pruner.step()
        self._judge.restart()
        self._cut_at = self._seen
        self._done += due
        share = decision.cut / max(1, decision.kept_before)
        say(
            f"palmette: after {due[-1]} the cut takes {share:.1%} of what was kept, {decision.density_after:.1%} "
            f"of the weights remain (PQ Index before: {decision.index:.4f}{score})"
        )
        if why := self.pruner.stopped:
            say(f"palmette: no more cuts, because {why}")
        return True

    def _judge_at_end(
        self, *, verbose: bool = True, agree: Callable[[float], float] = float, restore: bool = True
    ) -> bool:
        """Judge the network at the end of training; return whether an earlier one was restored.

        Args:
            verbose, agree: as for `_cut_if_due`.
            restore: whether an earlier network may replace this one.
        """
        if self._judge.off or not self._judge.dense or not self._done:  # nothing to compare, or nothing was cut
            return False
        verdict, say = self._judge.verdict(agree), self._say if verbose else _silent
        if verdict.good is False and restore and self._kept is not None:
            self._restore(f"at the end of training {verdict.text}", say)
            return True
        if verdict.good is False:
            reason = "no better network is kept" if restore else "the training library has chosen this network"
            warnings.warn(f"at the end of training {verdict.text}; {reason}", stacklevel=3)
        elif verdict.good is None:
            say("palmette: at the end of training no score since the last cut is known: the network is not judged")
        return False

    def _keep(self, place: str) -> None:
        """Keep a copy of the network on the CPU; one at a time."""
        self._kept = None  # frees memory for the next
        copies = {name: value.detach().to("cpu", copy=True) for name, value in self._values().items()}
        self._kept = {"id": uuid.uuid4().hex, "place": place, "pruner": self.pruner.state_dict(), "values": copies}

    def _restore(self, why: str, say: Callable[[str], None]) -> None:
        """End the cuts with the network that is kept."""
        self._ended = why
        self._judge.restart()
        if self._kept is None:
            warnings.warn(f"{why}: no more cuts are made; no better network is kept", stacklevel=3)
            return
        self.pruner.load_state_dict(self._kept["pruner"])
        with torch.no_grad():
            for name, value in self._values().items():
                value.copy_(self._kept["values"][name])
        say(
            f"palmette: {why}: the weights before the cut after {self._kept['place']}, "
            f"{self.pruner.density:.1%} of them, are restored, and no more cuts are made"
        )
        self._kept = None

    def _values(self) -> dict[str, Tensor]:
        """Parameters and buffers, shared ones once."""
        model = uncompiled(self.pruner.model)
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def _state(self) -> dict[str, Any]:
        """State for a checkpoint, without the network that is kept: tensors and plain values."""
        return {"pruner": self.pruner.state_dict(), **self._progress()}

    def _progress(self) -> dict[str, Any]:
        """Plain part of the state; it changes in every step."""
        return {
            "done": list(self._done),
            "due": list(self._due),
            "cut_at": self._cut_at,
            "ended": self._ended,
            "judge": self._judge.state(),
        }

    def _check(self) -> None:
        """Warn if pruned weights are no longer zero, without ending the training."""
        try:
            self.pruner.check()
        except NotHeld as error:
            warnings.warn(str(error), stacklevel=3)

    def _end(self) -> None:
        """Warn about pruned weights that came back, and about cuts not made, unless a rule ended them."""
        self._check()
        wanted = [f"epoch {n}" for n in sorted(self._epochs)] + [f"step {n}" for n in sorted(self._steps)]
        missed = [name for name in wanted if name not in self._done]
        if missed and not self.pruner.stopped and not self._ended:
            names = f"{', '.join(missed[:6])}{', …' if len(missed) > 6 else ''}"
            warnings.warn(
                f"training ended without the cuts after {names}: it ended before them or started after "
                "them. Train longer, or cut earlier",
                stacklevel=3,
            )


def sharded_by(setting: str) -> ValueError:
    """Error about a `setting` of a library that shards the weights."""
    return ValueError(
        f"PalmetteCallback holds masks of whole parameters, and {setting} shards them; train with one "
        "process or DDP, or in your own loop after fully_shard (FSDP2), where "
        "pm.Pruner(model, hold=optimizer) holds them"
    )


def _silent(line: str) -> None:
    """Print nothing."""


def _numbers(name: str, given: Any) -> frozenset[int]:
    numbers = [given] if is_number(given) else given
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise TypeError(f"{name} must be whole numbers such as [1, 2, 3], got {given!r}")
    found = list(numbers)
    if not found or not all(is_number(n, whole=True) and n >= 1 for n in found):
        raise ValueError(f"{name} must be whole numbers of at least 1, such as [1, 2, 3], got {given!r}")
    return frozenset(found)
