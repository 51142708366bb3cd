"""t = 0 … T: rewind, train, measure, record, prune. Starting again is resuming."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.errors import NotFinite, RunDamaged, RunInterrupted
from palmette.pruning.masks import Masks
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import magnitude_of
from palmette.pruning.weights import prunable
from palmette.studies.config import Experiment
from palmette.studies.records import index_map, measured
from palmette.studies.rundir import RunDir
from palmette.studies.standing import epochs_of, number_of
from palmette.training.data import load, validation_split
from palmette.training.data.augment import Preparation
from palmette.training.loop import Score, Training, evaluate
from palmette.training.models import build


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an epoch; `train` is the score of that epoch."""

    round: int
    epoch: int
    epochs: int
    train: Score
    density: float


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    data_folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    save_every: int = 10,
    watch: Callable[[Progress], None] = lambda progress: None,
    recorded: Callable[[Mapping[str, Any]], None] = lambda record: None,
    interrupted: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
) -> RunDir:
    """Run `experiment` in `folder`, or go on where it was left, until its rounds are done or a rule stops it.

    A record is on disk before the next round starts, and a state every few epochs. On a CPU, an interrupted run
    that is started again ends with the same records, byte for byte, as one that was not.

    Args:
        experiment: what to do; a folder belongs to one experiment.
        folder: where records, masks and states go.
        data_folder: where the data set is looked for first.
        device: where to train.
        save_every: epochs between two states.
        watch: called after each epoch.
        recorded: called with the record of each round, when it is on disk.
        interrupted: asked after each epoch; when it says so, the state is saved and `RunInterrupted` raised.
        say: given a sentence when something was amiss and put right.

    Diao et al. 2023, Algorithm 1; Lottery Ticket and One Shot as in Section 4.1.
    """
    rundir = RunDir(folder, say=say)
    with rundir.lock():
        _claim(rundir, experiment)
        records = rundir.records()
        if not records or records[-1]["stopped"] is None:
            place = (data_folder, torch.device(device))
            _Run(experiment, rundir, *place, save_every, watch, recorded, interrupted).go_on()
        rundir.finish()
    return rundir


def _claim(rundir: RunDir, experiment: Experiment) -> None:
    """Write down what is run here, or check that it is the same."""
    if not rundir.experiment.exists():
        rundir.write_text(rundir.experiment.name, experiment.to_toml())
        return
    there = Experiment.from_toml(rundir.experiment)
    if there != experiment:
        raise RunDamaged(
            f"{str(rundir.path)!r} holds the run {there.id}, not {experiment.id}; give another folder, "
            "or remove that one"
        )


class _Run:
    """A run in memory. What a checkpoint must hold is what `_state` says; all else follows from the experiment."""

    def __init__(
        self,
        experiment: Experiment,
        rundir: RunDir,
        data_folder: str | Path | None,
        device: torch.device,
        save_every: int,
        watch: Callable[[Progress], None],
        recorded: Callable[[Mapping[str, Any]], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.experiment, self.rundir, self.save_every = experiment, rundir, save_every
        self.watch, self.recorded, self.interrupted = watch, recorded, interrupted
        self.recipe, self.rewind = experiment.recipe, experiment.rewinding
        images = load(experiment.data, folder=data_folder)
        self.validation: tuple[Tensor, Tensor] | None = None
        if experiment.validation:
            images, *held_out = validation_split(images, seed=experiment.seed, count=experiment.validation)
            self.validation = (held_out[0], held_out[1])
        self.images = images
        self.prepare = Preparation(images, device=device)
        self.model = build(experiment.model, shape=images.shape, classes=images.classes, seed=experiment.seed).to(
            device
        )
        self.weights = prunable(self.model)
        self.pruner = Pruner(self.model, budget=experiment.budget, scope=experiment.scope, stop=experiment.rules)
        self.start = copy.deepcopy(self.model.state_dict())  # what a round goes back to
        self.dense: dict[str, Tensor] | None = None  # w_0, for One Shot
        self.optimizer = self.recipe.make_optimizer(self.model.parameters())
        self.pruner.hold(self.optimizer)
        self.round, self.epoch, self.train = 0, 0, Score(float("nan"), float("nan"))

    def go_on(self) -> None:
        """From the newest state, or from the beginning, to the end."""
        if (found := self.rundir.load_checkpoint()) is not None:
            self._restore(found[1])
        while True:
            began, first = time.perf_counter(), self.epoch
            self._train()
            trained = time.perf_counter() - began
            record = self._prune()
            self.rundir.append_record(record)
            self.rundir.append_timing(
                {
                    "round": self.round,
                    "seconds": time.perf_counter() - began,
                    "epochs": self.epoch - first,
                    "images_per_second": (self.epoch - first) * len(self.images.train_images) / max(trained, 1e-9),
                }
            )
            self.recorded(record)
            if record["stopped"] is not None:
                return
            self._rewind()
            self._save()
            self._end_if_asked()

    def _train(self) -> None:
        training = Training(
            self.model,
            self.optimizer,
            self.images,
            self.recipe,
            seed=self.experiment.seed,
            round=self.round,
        )
        for epoch in range(self.epoch, epochs_of(self.experiment, self.round).stop):
            rate = self.rewind.learning_rate_at(self.recipe, epoch) if self.round else None
            self.train = training.epoch(epoch, learning_rate=rate)
            self.epoch = epoch + 1
            if not math.isfinite(self.train.loss):
                raise NotFinite(
                    f"{self.experiment.id} diverged: its training loss is {self.train.loss} in epoch {self.epoch} "
                    f"of round {self.round}; a smaller learning rate, clipping or a warm-up may help"
                )
            if self.round == 0 and self.rewind.kind == "epoch" and self.epoch == self.rewind.to:
                self.start = copy.deepcopy(self.model.state_dict())
            if self.epoch % self.save_every == 0 or self.epoch == self.recipe.epochs:
                self._save()
            self.watch(Progress(self.round, self.epoch, self.recipe.epochs, self.train, self.pruner.density))
            self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self.interrupted():
            self._save()
            raise RunInterrupted(
                f"{self.experiment.id} was ended in round {self.round} after {self.epoch} of {self.recipe.epochs} "
                "epochs; its state is saved"
            )

    def _prune(self) -> dict[str, Any]:
        """Measure w_t ⊙ m_t, cut, measure w_t ⊙ m_{t+1}; One Shot cuts and measures w_0 in place of w_t."""
        one_shot = self.experiment.method == "one-shot"
        if one_shot and self.dense is None:
            self.dense = copy.deepcopy(self.model.state_dict())
        if self.dense is not None:
            self.pruner.saliency = magnitude_of({name: self.dense[name] for name in self.weights})
        before = self.pruner.masks
        test = self._score()
        validation = None if self.validation is None else _plain(self._score(*self.validation))
        retrained = measured(self.weights, before)
        reference = (test, retrained) if self.dense is None else self._of_dense(before)
        spectrum = index_map(self.weights, before)
        self.rundir.save_masks(self.round, before)
        decision = self.pruner.step()
        after = self.pruner.masks
        cut, pruned = (
            (self._score(), measured(self.weights, after)) if self.dense is None else self._of_dense(after)
        )
        stopped = self.pruner.stopped or None
        if self.round >= self.experiment.rounds:
            stopped = stopped or f"{self.experiment.rounds} rounds are done"
        return {
            "round": self.round,
            "train": _plain(self.train),
            "test": _plain(test),
            "validation": validation,
            "retrained": retrained,
            "pruned": {
                "test": _plain(cut),
                **{name: pruned[name] for name in ("kept", "density", "pq_index", "gini_index")},
                "accuracy_difference": cut.accuracy - reference[0].accuracy,
                "pq_index_difference": _difference(pruned["pq_index"], reference[1]["pq_index"]),
            },
            "cut": {
                "weights": decision.cut,
                "layers": {n: int(before[n].sum()) - int(after[n].sum()) for n in self.weights},
            },
            "index_map": spectrum,
            "stopped": stopped,
        }

    def _score(self, images: Tensor | None = None, labels: Tensor | None = None) -> Score:
        images = self.images.test_images if images is None else images
        labels = self.images.test_labels if labels is None else labels
        return evaluate(self.model, images, labels, self.prepare, precision=self.recipe.precision)

    def _of_dense(self, masks: Masks) -> tuple[Score, dict[str, Any]]:
        """The score and the measures of w_0 under `masks`; the model is as it was afterwards."""
        assert self.dense is not None
        now = copy.deepcopy(self.model.state_dict())
        try:
            self.model.load_state_dict(self.dense)
            masks.apply_(self.weights)
            return self._score(), measured(self.weights, masks)
        finally:
            self.model.load_state_dict(now)

    def _rewind(self) -> None:
        """To the beginning of the next round: weights and buffers go back or stay, the optimizer is new."""
        self.round += 1
        self.epoch = epochs_of(self.experiment, self.round).start
        if self.rewind.goes_back:
            self.pruner.rewind(self.start)
        self.optimizer = self.recipe.make_optimizer(self.model.parameters())
        self.pruner.hold(self.optimizer)

    def _save(self) -> None:
        self.rundir.save_checkpoint(number_of(self.experiment, self.round, self.epoch), self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "epoch": self.epoch,
            "train": (self.train.loss, self.train.accuracy),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "start": self.start if self.rewind.kind == "epoch" else None,
            "dense": self.dense,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.round, self.epoch, self.train = state["round"], state["epoch"], Score(*state["train"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])
        self.dense = state["dense"]
        self.start = state["start"] or self.start


def _plain(score: Score) -> dict[str, float]:
    return {"loss": score.loss, "accuracy": score.accuracy}


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
