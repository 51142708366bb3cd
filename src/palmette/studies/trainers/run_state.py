"""State of a run in memory: network, masks, history and progress; saved in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from palmette.errors import RunDamaged, first_line
from palmette.pruning.masks import Masks
from palmette.pruning.methods import Method
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, Subject
from palmette.pruning.stopping import RoundSummary, StopRule, why_stop
from palmette.pruning.targets import target_of
from palmette.pruning.tolerance import Estimate
from palmette.pruning.weights import Weight, parameters_by_name, uncompiled
from palmette.studies.extending import goes_on
from palmette.studies.folder import RunDir
from palmette.studies.record import AnyExperiment, Record, records_of, value_of
from palmette.studies.search import Attempt, Step, attempts_of, bracket, budget_to, next_step, numbers_of
from palmette.studies.status import all_done, number_of
from palmette.studies.trainers.copying import check_plain, copied
from palmette.studies.trainers.snapshots import Snapshots
from palmette.training.loop import Score


class RunState:
    """Round, epoch, model, pruner and records of a run. Anything missing in `state` follows from the spec.

    The folder `rundir` must be locked; None writes nothing. Copies of weights are on `storage`, by default the
    device of the model.
    """

    from_seed = False
    """Whether the initial weights follow from the spec and are not saved in checkpoints."""
    train = Score(math.nan, math.nan)
    """Score of the last epoch, if epochs are known."""
    diverged = False  # the training of this round of a search
    method: Method | None = None
    """Method whose saliency is built for every cut; None if the pruner has a function."""

    def __init__(
        self,
        spec: AnyExperiment,
        pruner: Pruner,
        *,
        rules: Sequence[StopRule],
        rundir: RunDir | None,
        storage: torch.device | None = None,
    ) -> None:
        self.spec, self.pruner, self.rules, self.rundir, self.storage = spec, pruner, rules, rundir, storage
        self.model, self.rewind = uncompiled(pruner.model), spec.rewinding
        if rundir is not None:
            check_plain(self.model.state_dict())
        self.start = self.snapshot() if self.rewind.goes_back else None
        self.dense: dict[str, Any] | None = None  # w_0, if it ranks the weights
        self.round, self.epoch = 0, 0
        self.record: Record | None = None  # of the last round
        self.history: list[RoundSummary] = []  # of a search, without rejected rounds
        self.snapshots = Snapshots(rundir)
        self.tolerance = spec.allowed_loss
        self.attempts: list[Attempt] = []
        self.step: Step | None = None  # that led to this round; None without a search

    @property
    def stopped(self) -> str | None:
        """Reason why the run ended; None if it has not."""
        return None if self.record is None else self.record.stopped

    @property
    def train_scores(self) -> Mapping[str, float | None]:
        """Scores of the last epoch for the record."""
        return asdict(self.train)

    @property
    def network(self) -> nn.Module:
        """Model that is trained for this run."""
        return self.model

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Prunable weights of the model."""
        return self.pruner.weights

    @property
    def is_finite(self) -> bool:
        """Whether all prunable weights are finite."""
        parameters = parameters_by_name(self.network)
        return all(bool(parameters[name].isfinite().all()) for name in self.pruner.masks)

    def search_record(self) -> dict[str, Any] | None:
        """Origin of the network of this round, and the bracket after it; None without a search."""
        if self.tolerance is None:
            return None
        return numbers_of(self.attempts, self.tolerance)

    @property
    def may_diverge(self) -> bool:
        """Whether a network that diverges is only a bad one: a retrained network of a search."""
        return self.step is not None

    def discard(self) -> None:
        """Replace a diverged network by the one that training started from; it will be judged bad."""
        assert self.step is not None
        self.put_back(self.snapshots.network(self.step.start), self.pruner.masks)
        self.diverged = True

    def judge(self, scores: Mapping[str, float | None] | None) -> bool | None:
        """Judge the trained network by its score, and choose the next step; None without a search."""
        if self.tolerance is None:
            return None
        found = scores if scores is not None else self.train_scores
        if (value := math.nan if self.diverged else value_of(found)) is None:
            raise ValueError("a search needs a score: pass evaluate, or let train return a number")
        masks, step = self.pruner.masks, self.step or Step(0)
        attempt = Attempt(
            round=self.round,
            kept=masks.kept,
            total=masks.total,
            score=Estimate(value, found.get("error")),
            start=step.start if self.round else None,
            repeats=step.repeats,
        )
        self.attempts.append(attempt)
        self.diverged = False
        ends = bracket(self.attempts, self.tolerance)
        if ends.best == self.round:
            self.snapshots.keep(self.whole(value))
        self.step = self._next_step()
        return attempt in ends.good.attempts

    def _next_step(self, *, narrow: bool = False) -> Step:
        assert self.tolerance is not None
        rounds, target = self.spec.rounds, target_of(self.pruner.budget)
        return next_step(self.attempts, self.tolerance, rounds=rounds, target=target, narrow=narrow)

    def whole(self, score: float | None) -> dict[str, Any]:
        """Snapshot of the trained network with its masks."""
        values, names = self.snapshot(), self.model.state_dict().keys()
        return {
            "round": self.round,
            "score": score,
            "state_dict": {name: values[name] for name in names},
            "buffers": {name: value for name, value in values.items() if name not in names},
            "pruner": self.pruner.state_dict(),
        }

    def good_snapshot(self) -> Mapping[str, Any]:
        """Snapshot of the best good network so far."""
        assert self.tolerance is not None
        return self.snapshots.network(bracket(self.attempts, self.tolerance).best)

    def put_back(self, snapshot: Mapping[str, Any], masks: Masks | None = None) -> None:
        """Load a snapshot, with its masks or others."""
        self.load({**snapshot["buffers"], **snapshot["state_dict"]})
        pruner = snapshot["pruner"] if masks is None else {**snapshot["pruner"], "masks": masks.state_dict()}
        self.pruner.load_state_dict(pruner)

    def cut(self) -> dict[str, Any]:
        """Write the masks, cut and count; then load the pruned dense network if it ranks the weights."""
        if self.rundir is not None or self.step is not None:
            self.snapshots.keep_masks(self.round, self.pruner.masks)
        if self.method is not None and self.method.of_dense and self.dense is None:
            self.dense = copied(self.model.state_dict())
        if self.step is not None and self.step.start != self.round:
            self.put_back(self.snapshots.network(self.step.start))
        before = self._cut_by_step()
        after = self.pruner.masks
        if self.dense is not None:
            self._trained = copied(self.model.state_dict())
            self.model.load_state_dict(self.dense)
            after.apply_(self.weights)
        layers = {name: int(before[name].sum()) - int(after[name].sum()) for name in self.weights}
        return {"weights": sum(layers.values()), "layers": layers}

    def _cut_by_step(self) -> Masks:
        """Cut the network of the step, or end the search where no cut is possible; return the masks before."""
        before = self.pruner.masks
        self.pruner.saliency = self.saliency()
        self._cut()
        if self.step is not None and self.step.density is not None and self.pruner.masks.kept == before.kept:
            self.step = self._next_step(narrow=True)
            self.put_back(self.snapshots.network(self.step.start))
            before = self.pruner.masks
            self._cut()
        return before

    def _cut(self) -> None:
        """Cut as the budget says or, in a search, as its step says."""
        step, budget = self.step, None
        if step is not None and step.repeats is not None:
            self.put_back(self.snapshots.network(step.start), self.snapshots.masks(step.repeats))
            return
        if step is not None and step.density is not None:
            masks, usual, channels = self.pruner.masks, self.pruner.budget, self.pruner.channels
            if channels is None:
                after = 0 if target_of(usual) else self.pruner.plan()[0].kept
                budget = budget_to(step.density, masks.kept, masks.total, usual, after)
            else:
                budget = channels.share_to(step.density, self.pruner.plan)
        if step is None or step.stop is None:
            self.pruner.apply(*self.pruner.plan(budget))

    def saliency(self) -> Saliency:
        """Saliency for the next cut."""
        if self.method is None:
            return self.pruner.saliency
        return self.method.build_saliency(self.subject())

    def subject(self) -> Subject:
        """Input of the saliency's builder."""
        dense = None if self.dense is None else {name: self.dense[name] for name in self.weights}
        return Subject(self.model, dense)

    def add_record(self, record: Record) -> None:
        """Add the differences to the record of a round, and the record to the history."""
        if self.dense is not None:
            self.model.load_state_dict(self._trained)
            del self._trained
        scores, index = record.test, record.retrained["pq_index"]
        if self.step is not None and self.step.start != record.round:  # another network was cut
            scores, index = {}, None
        elif self.dense is not None and self.record is not None:  # w_0 before this cut, not w_t
            known = self.record.cut["weights"] > 0  # else the search was extended after that record
            scores, index = (self.record.pruned["test"], self.record.pruned["pq_index"]) if known else ({}, None)
        test, now = record.pruned["test"], record.pruned["pq_index"]
        pruned = {
            "test": test,
            **{name: record.pruned[name] for name in ("validation",) if name in record.pruned},
            **{name: record.pruned[name] for name in ("kept", "density", "pq_index", "gini_index")},
            "accuracy_difference": _difference(value_of(test), value_of(scores)),
            "pq_index_difference": _difference(now, index),
        }
        self.record = replace(record, pruned=pruned, masks=self.snapshots.masks_digest)
        self.summary = record.summary()
        if self.step is None:
            self.summary = replace(self.summary, index=self.pruner.decisions[-1].index)
        if record.in_history:
            self.history.append(self.summary)

    def decide(self) -> None:
        """Stop, or start the next round."""
        assert self.record is not None
        stopped = None if self.step is None else self.step.stop
        if stopped is None:
            rejected = self.record.good is False  # stop rules read good rounds only
            stopped = why_stop(() if rejected else self.rules, [self.summary] if rejected else self.history)
        if stopped is None and self.round >= self.spec.rounds:
            stopped = all_done(self.spec.rounds)
        self.record = replace(self.record, stopped=stopped)
        if stopped is not None and self.tolerance is not None:
            self.snapshots.answer(self.good_snapshot())
        if stopped is None:
            self.round += 1
            self.begin_round()

    def begin_round(self) -> None:
        """Rewind weights and buffers to the start of training, or keep them, by the rewind of the spec."""
        self.epoch = 0
        if self.start is not None:
            self.load(self.start)
            self.pruner.masks.apply_(self.weights)

    def snapshot(self) -> dict[str, Any]:
        """Copy of `state_dict` and of non-persistent buffers."""
        model = self.network
        found: dict[str, Any] = copied({**dict(model.named_buffers()), **model.state_dict()}, self.storage)
        return found

    def load(self, values: Mapping[str, Any]) -> None:
        """Load a `snapshot`."""
        try:
            self.model.load_state_dict({name: values[name] for name in self.model.state_dict()})
        except (KeyError, RuntimeError) as error:
            why = f"does not fit the model; has the model changed? Give another folder ({first_line(error)})"
            raise RunDamaged(f"the saved state of {self.spec.id} {why}") from error
        for name, buffer in self.model.named_buffers():
            if name in values and values[name].shape == buffer.shape:  # else a cache of the forward pass
                buffer.copy_(values[name])

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, as tensors and plain values; includes the last record, not yet on disk."""
        return {
            "round": self.round,
            "epoch": self.epoch,
            "model": None if self.is_fresh else self.snapshot(),
            "pruner": self.pruner.state_dict(),
            "start": self.start if self.rewind.kind == "epoch" or not self.from_seed else None,
            "dense": self.dense,
            "step": None if self.step is None else asdict(self.step),
            "record": None if self.record is None else self.record.to_json(),
        }

    @property
    def is_fresh(self) -> bool:
        """Whether the next weights follow from seed and masks: a checkpoint of an MLP is 30 times smaller."""
        return self.from_seed and self.rewind.kind == "init" and (not self.epoch or self.stopped is not None)

    def save(self, company: Iterable[str]) -> None:
        """Write a checkpoint; `company` has the ids of all runs that are saved together."""
        if self.rundir is not None:
            number = number_of(self.spec.epochs, self.round, self.epoch + (self.stopped is not None))
            self.rundir.save_checkpoint(number, {"company": sorted(company), **self.state()})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `save` wrote, and write the last record if it is missing on disk."""
        assert self.rundir is not None
        self.round, self.epoch = state["round"], state["epoch"]
        if state["model"] is not None:
            self.load(state["model"])
        self.pruner.load_state_dict(state["pruner"])
        self.dense, self.start = state["dense"], state["start"] or self.start
        records, last = records_of(self.rundir, resuming=True), state["record"]
        self.record = None if last is None else Record.from_json(last)
        more = self.stopped is not None and goes_on([last], self.spec.rounds)
        if last is not None and not more and len(records) >= last["round"]:
            self.rundir.check_masks([last], needed=True)  # written before; the record speaks of them
            self.rundir.append_record(last)
            records = records_of(self.rundir)
        if len(records) < self.round:
            where = str(self.rundir.path)
            raise RunDamaged(f"{str(self.rundir.records_file)!r} lacks rounds; remove {where!r} to start again")
        # An older state than the last is resumed if that is damaged: later records are of rounds to repeat.
        past = records[: 0 if self.record is None else self.record.round + 1]
        read = [Record.from_json(record) for record in past]
        summaries = [record.summary() for record in read if record.in_history]
        if (step := state.get("step")) is None:
            summaries = [replace(s, index=d.index) for s, d in zip(summaries, self.pruner.decisions, strict=False)]
        else:
            self.step, self.attempts = Step(**step), attempts_of(past)
        self.history = summaries
        if more:  # it ended because its number of rounds was reached, which has grown since
            self.summary = read[-1].summary()
            if self.step is not None:
                self.step = self._next_step()
                self.put_back(self.snapshots.network(self.step.start))
                self.summary = replace(self.summary, cut=self._cut_by_step().kept - self.pruner.masks.kept)
                self.history[-1:] = [self.summary] if read[-1].in_history else self.history[-1:]
            self.decide()
            past[-1]["stopped"] = self.stopped
            self.rundir.rewrite_records(records)


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before
