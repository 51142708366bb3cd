"""State of a run in memory: network, masks, history and progress; saved in checkpoints."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import RunDamaged, first_line
from palmette.pruning.methods import Method
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, Subject
from palmette.pruning.stopping import RoundSummary, StopRule, why_stop
from palmette.pruning.weights import Weight, parameters_by_name, uncompiled
from palmette.studies.folder import RunDir
from palmette.studies.record import AnyExperiment, Record, records_of, value_of
from palmette.studies.status import all_done, number_of
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
        self.history: list[RoundSummary] = []

    @property
    def stopped(self) -> str | None:
        """Why the run ended; None if it has not."""
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

    def cut(self) -> dict[str, Any]:
        """Write the masks, cut and count; then load the pruned dense network if it ranks the weights."""
        before = self.pruner.masks
        if self.rundir is not None:
            self.rundir.save_masks(self.round, before)
        if self.method is not None and self.method.of_dense and self.dense is None:
            self.dense = copied(self.model.state_dict())
        self.pruner.saliency = self.saliency()
        decision, after = self.pruner.step(), self.pruner.masks
        if self.dense is not None:
            self._trained = copied(self.model.state_dict())
            self.model.load_state_dict(self.dense)
            after.apply_(self.weights)
        layers = {name: int(before[name].sum()) - int(after[name].sum()) for name in self.weights}
        return {"weights": decision.cut, "layers": layers}

    def saliency(self) -> Saliency:
        """Saliency for the next cut."""
        if self.method is None:
            return self.pruner.saliency
        dense = None if self.dense is None else {name: self.dense[name] for name in self.weights}
        return self.method.build_saliency(Subject(self.model, dense, self.inputs))

    def inputs(self) -> Sequence[Tensor]:
        """Batches of training inputs, for a saliency that reads them; none if they are unknown."""
        return ()

    def add_record(self, record: Record) -> None:
        """Add the differences to the record of a round, and the record to the history."""
        if self.dense is not None:
            self.model.load_state_dict(self._trained)
            del self._trained
        scores, index = record.test, record.retrained["pq_index"]
        if self.dense is not None and self.record is not None:  # w_0 before this cut, not w_t
            scores, index = self.record.pruned["test"], self.record.pruned["pq_index"]
        test, now = record.pruned["test"], record.pruned["pq_index"]
        pruned = {
            "test": test,
            **{name: record.pruned[name] for name in ("kept", "density", "pq_index", "gini_index")},
            "accuracy_difference": _difference(value_of(test), value_of(scores)),
            "pq_index_difference": _difference(now, index),
        }
        self.record = replace(record, pruned=pruned)
        self.history.append(replace(record.summary(), index=self.pruner.decisions[-1].index))

    def decide(self, good: bool | None) -> None:
        """Record whether the network is `good`, and stop or start the next round."""
        assert self.record is not None
        stopped = why_stop(self.rules, self.history)
        if stopped is None and self.round >= self.spec.rounds:
            stopped = all_done(self.spec.rounds)
        self.record = replace(self.record, good=good, stopped=stopped)
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
            raise RunDamaged(
                f"the saved state of {self.spec.id} does not fit the model; has the model changed? Give "
                f"another folder ({first_line(error)})"
            ) from error
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
            "record": None if self.record is None else self.record.to_json(),
        }

    @property
    def is_fresh(self) -> bool:
        """Whether weights follow from seed and masks, which makes a checkpoint of an MLP 30 times smaller."""
        return self.from_seed and self.rewind.kind == "init" and not self.epoch and self.stopped is None

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
        if state["record"] is not None:
            self.record = Record.from_json(state["record"])
            self.rundir.append_record(state["record"])
        records = records_of(self.rundir)
        if len(records) < self.round:
            raise RunDamaged(
                f"{str(self.rundir.records_file)!r} lacks rounds; remove {str(self.rundir.path)!r} to start again"
            )
        self.history = [
            replace(Record.from_json(record).summary(), index=decision.index)
            for record, decision in zip(records, self.pruner.decisions, strict=False)
        ]


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def copied(values: Any, device: torch.device | None = None) -> Any:
    """Copy without shared memory: a slice of a stack would keep, and save, the whole stack."""
    if isinstance(values, Tensor):
        return values.detach().to(device or values.device, copy=True, memory_format=torch.contiguous_format)
    if isinstance(values, Mapping):
        return {key: copied(value, device) for key, value in values.items()}
    return [copied(value, device) for value in values] if isinstance(values, list) else copy.deepcopy(values)


def check_plain(state: Mapping[str, object]) -> None:
    """Raise, before any training, if a model's `get_extra_state` cannot be saved in a checkpoint."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            continue
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:  # pickling may raise anything
            raise TypeError(
                f"the model's {name!r} could not be read back to resume from: only tensors and plain "
                f"values can, and its {type(value).__name__} is, or holds, something else. Give only these in "
                "get_extra_state"
            ) from error
