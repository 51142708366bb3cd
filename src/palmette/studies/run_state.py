"""One run in memory: its network, its masks and where it stands; what it does at the end of a round."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from palmette.errors import RunDamaged, first_line
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import magnitude_of
from palmette.pruning.stopping import AccuracyDrops, AtDensity
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.record import after_cut
from palmette.studies.status import all_done, epochs_of, number_of
from palmette.training.data import Images
from palmette.training.loop import Score
from palmette.training.members import Member
from palmette.training.models import build


class RunState:
    """What a checkpoint must hold is what `save` writes; all else follows from the experiment.

    Args:
        experiment: what is run.
        rundir: its folder, which is locked.
        images: the data set, where the network is to be.
        data: a hash of it.
    """

    def __init__(self, experiment: Experiment, rundir: RunDir, images: Images, data: str) -> None:
        self.experiment, self.rundir, self.data = experiment, rundir, data
        self.recipe, self.rewind = experiment.recipe, experiment.rewinding
        model = build(experiment.model, shape=images.shape, classes=images.classes, seed=experiment.seed)
        self.model = model.to(images.train_images.device)
        self._followed: RunState | None = None  # whose network is trained in the place of this one
        # The others are about networks that are trained; see `_why_stop`.
        rules = [rule for rule in experiment.rules if not isinstance(rule, AtDensity | AccuracyDrops)]
        self.pruner = Pruner(self.model, budget=experiment.budget, scope=experiment.scope, stop=rules)
        self.weights = self.pruner.weights
        check_plain(self.model.state_dict())
        self.start = self._weights_and_buffers()  # what a round goes back to
        self.dense: dict[str, Tensor] | None = None  # w_0, for One Shot
        self.optimizer = self.recipe.make_optimizer(self.model.parameters())
        self.round, self.epoch, self.train = 0, 0, Score(float("nan"), float("nan"))
        self.record: dict[str, Any] | None = None  # of the round before
        self._half: dict[str, Any] = {}  # of the record of this round
        self._now: dict[str, Tensor] | None = None  # w_t, while w_0 is in its place

    @property
    def stopped(self) -> str | None:
        """Why it is over; None when it is not."""
        return None if self.record is None else self.record["stopped"]

    @property
    def epochs(self) -> range:
        """Of the round, those that are still to be trained."""
        return range(self.epoch, epochs_of(self.experiment, self.round).stop)

    @property
    def trained(self) -> RunState:
        """The run whose network is trained: this one, or the one that it follows."""
        return self._followed or self

    def member(self) -> Member:
        """As it is trained."""
        return Member(self.model, self.optimizer, self.experiment.seed, self.round, self.pruner.masks)

    def learning_rate_at(self, epoch: int) -> float | None:
        """None where it is the recipe's."""
        return self.rewind.learning_rate_at(self.recipe, epoch) if self.round else None

    def after_epoch(self, train: Score) -> None:
        """One more epoch is trained."""
        self.epoch, self.train = self.epoch + 1, train
        if self.round == 0 and self.rewind.kind == "epoch" and self.epoch == self.rewind.to:
            self.start = self._weights_and_buffers()

    def follow(self, other: RunState) -> None:
        """Leave the training to another run, which is the same so far, until `part`."""
        self._followed = other if other is not self else None

    def part(self) -> None:
        """Become what the run is that was followed, and be trained from here on."""
        if self._followed is not None:
            self._load(self._weights_and_buffers())
            self.optimizer.load_state_dict(_own(self._followed.optimizer.state_dict()))
            self._followed = None

    def cut(self, numbers: Mapping[str, Any]) -> None:
        """Cut the network, One Shot by the magnitudes of w_0 in place of w_t.

        Args:
            numbers: what is known of w_t ⊙ m_t; the record of the round begins with them.
        """
        if self.experiment.method == "one-shot" and self.dense is None:
            self.dense = _own(self.model.state_dict())
        if self.dense is not None:
            self.pruner.saliency = magnitude_of({name: self.dense[name] for name in self.weights})
        before = self.pruner.masks
        self.rundir.save_masks(self.round, before)
        decision = self.pruner.step()
        after = self.pruner.masks
        layers = {n: int(before[n].sum()) - int(after[n].sum()) for n in self.weights}
        self._half = {**numbers, "cut": {"weights": decision.cut, "layers": layers}}
        if self.dense is not None:
            self._now = _own(self.model.state_dict())
            self.model.load_state_dict(self.dense)
            after.apply_(self.weights)

    def end_round(self, test: Score, pruned: Mapping[str, Any]) -> None:
        """Complete the record, and go to the beginning of the next round.

        Args:
            test, pruned: what is known of w_t ⊙ m_{t+1}, for One Shot of w_0 ⊙ m_{t+1}.
        """
        if self._now is not None:
            self.model.load_state_dict(self._now)
            self._now = None
        accuracy, index = self._half["test"]["accuracy"], self._half["retrained"]["pq_index"]
        if self.experiment.method == "one-shot" and self.record is not None:  # w_0 before this cut, not w_t
            accuracy, index = self.record["pruned"]["test"]["accuracy"], self.record["pruned"]["pq_index"]
        after = after_cut(pruned, plain(test), index=index, difference=test.accuracy - accuracy)
        half, stopped = dict(self._half), self._why_stop()
        last = {name: half.pop(name) for name in ("cut", "index_map")}
        self.record = {**half, "pruned": after, **last, "stopped": stopped}
        if stopped is None:
            self._rewind()

    def _why_stop(self) -> str | None:
        density = self._half["retrained"]["density"]
        for rule in self.experiment.rules:
            reason = None
            if isinstance(rule, AtDensity):
                reason = rule.of(density)
            elif isinstance(rule, AccuracyDrops) and self.round:
                dense, now = (r["validation"]["accuracy"] for r in (self.rundir.records()[0], self._half))
                reason = rule.of(dense, now)
            if reason is not None:
                return reason
        if self.round >= self.experiment.rounds:
            return self.pruner.stopped or all_done(self.experiment.rounds)
        return self.pruner.stopped or None

    def _rewind(self) -> None:
        """To the beginning of the next round: weights and buffers go back or stay, the optimizer is new."""
        self.round += 1
        self.epoch = epochs_of(self.experiment, self.round).start
        if self.rewind.goes_back:
            self._load(self.start)
            self.pruner.masks.apply_(self.weights)
        self.optimizer = self.recipe.make_optimizer(self.model.parameters())

    def _weights_and_buffers(self) -> dict[str, Tensor]:
        """A copy of all of them, as trained, those buffers too that are no part of `state_dict`."""
        model = self.trained.model
        found: dict[str, Tensor] = _own({**dict(model.named_buffers()), **model.state_dict()})
        return found

    def _load(self, values: Mapping[str, Tensor]) -> None:
        own = self.model.state_dict()
        try:
            self.model.load_state_dict({name: values[name] for name in own})
            for name, buffer in self.model.named_buffers():
                buffer.copy_(values[name])
        except (KeyError, RuntimeError) as error:
            raise RunDamaged(
                f"the saved state of {self.experiment.id} does not fit the model; was that changed since? Give "
                f"another folder ({first_line(error)})"
            ) from error

    @property
    def is_finite(self) -> bool:
        """Whether all weights are numbers."""
        return all(bool(weight.tensor.isfinite().all()) for weight in self.trained.weights.values())

    def save(self, company: Iterable[str]) -> None:
        """The state goes to disk, and with it the last record: it may be appended again, but never differently.

        Args:
            company: the ids of the runs that are saved at the same moment, this one among them.
        """
        # At the beginning of a round, weights follow from seed and masks: of an MLP, a thirtieth of the bytes.
        fresh = self.rewind.kind == "init" and not self.epoch and self.stopped is None
        state = {
            "company": sorted(company),
            "data": self.data,
            "round": self.round,
            "epoch": self.epoch,
            "train": (self.train.loss, self.train.accuracy),
            "model": None if fresh else self._weights_and_buffers(),
            "optimizer": None if fresh else _own(self.trained.optimizer.state_dict()),
            "pruner": self.pruner.state_dict(),
            "start": self.start if self.rewind.kind == "epoch" else None,
            "dense": self.dense,
            "record": self.record,
        }
        self.rundir.save_checkpoint(number_of(self.experiment, self.round, self.epoch + bool(self.stopped)), state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `save` wrote."""
        self.round, self.epoch, self.train = state["round"], state["epoch"], Score(*state["train"])
        if state["data"] != self.data:
            raise RunDamaged(
                f"the data set {self.experiment.data!r} is no longer the one that {self.experiment.id} was begun "
                "with; give another folder, or bring the old data back"
            )
        if state["model"] is not None:
            self._load(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])
        self.dense, self.record = state["dense"], state["record"]
        self.start = state["start"] or self.start


def _own(values: Any) -> Any:
    """The same with tensors of its own: a slice of a stack would be copied and saved with all of the stack."""
    if isinstance(values, Tensor):
        return values.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(values, Mapping):
        return {key: _own(value) for key, value in values.items()}
    return [_own(value) for value in values] if isinstance(values, list) else values


def check_plain(state: Mapping[str, object]) -> None:
    """Raise, before anything is trained, if a model's `get_extra_state` gives what could not be read back."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            continue
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:  # whatever comes of an object that cannot be pickled
            raise TypeError(
                f"the model's {name!r} could not be read back to go on from: only tensors and plain "
                f"values can, and its {type(value).__name__} is, or holds, something else. Give only these in "
                "get_extra_state"
            ) from error


def plain(score: Score) -> dict[str, float]:
    """As it stands in a record."""
    return {"loss": score.loss, "accuracy": score.accuracy}
