"""Training of a fleet: many networks of one architecture, in step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import NotFinite, RunDamaged
from palmette.pruning.channels.groups import example_of
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, Subject
from palmette.studies.engine import Scores, Trainer
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.status import epochs_of
from palmette.studies.trainers.copying import copied
from palmette.studies.trainers.run_state import RunState
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.data_parallel import WorkerGroup
from palmette.training.fleet import Fleet
from palmette.training.loop import Score, training_mode
from palmette.training.members import Member
from palmette.training.models import MODELS, build
from palmette.training.random_streams import mix

CALIBRATION_IMAGES = 512
"""Number of training images for saliencies that need inputs or gradients."""


class FleetRun(RunState):
    """One network of a fleet, on the device of `images`; `data` is a hash of the data set."""

    from_seed = True
    followed: FleetRun | None = None
    """Run with the same network so far, which is trained instead of this one until `part`."""

    def __init__(self, experiment: Experiment, rundir: RunDir, images: Images, data: str) -> None:
        model = build(experiment.model, shape=images.shape, classes=images.classes, seed=experiment.seed)
        model = model.to(images.train_images.device)
        budget, scope = experiment.budget, experiment.scope
        inputs = example_of(scope, images.shape, images.train_images.device)
        pruner = Pruner(model, budget=budget, scope=scope, stop=(), zeros="count", inputs=inputs)
        super().__init__(experiment, pruner, rules=experiment.rules, rundir=rundir)
        self.method, self._images = experiment.pruning, images
        self.experiment, self.recipe, self.data = experiment, experiment.recipe, data
        self.optimizer = self.recipe.make_optimizer(self.model.parameters())

    @property
    def trained(self) -> FleetRun:
        """Run whose network is trained: this one, or the one that it follows."""
        return self.followed or self

    @property
    def network(self) -> nn.Module:
        """Model that is trained for this run."""
        return self.trained.model

    def saliency(self) -> Saliency:
        """Saliency for the next cut, the same when resumed."""
        device = self._images.train_images.device
        with training_mode(self.recipe.precision, device):
            torch.manual_seed(mix(self.experiment.seed, self.round, CALIBRATION_IMAGES))  # dropout draws numbers
            return super().saliency()

    def subject(self) -> Subject:
        """Input of the saliency's builder, with data."""
        return replace(super().subject(), at_start=self.at_start, samples=self.samples)

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """Weights that the next round starts from, with the masks before the cut."""
        now, epoch = self.snapshot(), self.epoch
        try:
            super().begin_round()
            yield
        finally:
            self.load(now)
            self.epoch = epoch

    def samples(self) -> tuple[Tensor, Tensor]:
        """Prepared training images and their classes, for a saliency that needs them."""
        images = self._images.train_images[:CALIBRATION_IMAGES]
        prepared = Preparation(self._images, device=images.device)(images)
        return prepared, self._images.train_labels[:CALIBRATION_IMAGES]

    def after_epoch(self, train: Score) -> None:
        """Count an epoch; keep its weights if later rounds rewind to it."""
        self.epoch, self.train = self.epoch + 1, train
        if self.round == 0 and self.rewind.kind == "epoch" and self.epoch == self.rewind.to:
            self.start = self.snapshot()

    def part(self) -> None:
        """Copy the network of the followed run, and train it separately from now on."""
        if self.followed is not None:
            self.load(self.snapshot())
            self.optimizer.load_state_dict(copied(self.followed.optimizer.state_dict()))
            self.followed = None

    def begin_round(self) -> None:
        """Rewind and create a new optimizer."""
        super().begin_round()
        self.epoch = epochs_of(self.experiment, self.round).start
        self.optimizer = self.recipe.make_optimizer(self.model.parameters())

    def state(self) -> dict[str, Any]:
        """State for a checkpoint."""
        state = super().state() | {"data": self.data, "train": astuple(self.train), "optimizer": None}
        if not self.is_fresh and self.stopped is None:
            state["optimizer"] = copied(self.trained.optimizer.state_dict())
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `save` wrote."""
        if state["data"] != self.data:
            raise RunDamaged(
                f"the data set {self.experiment.data!r} is no longer the one that {self.experiment.id} started "
                "with; use another folder, or restore the old data"
            )
        super().restore(state)
        self.train = Score(*state["train"])
        if state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])


class FleetTrainer(Trainer):
    """Trains many networks of one architecture in step, epoch by epoch.

    Args:
        images: the data set, on the device of the networks.
        held_out: images and labels for validation, or None.
        company: whether a single network trains like a member of a larger fleet.
        workers: number of processes that train each network.
        say: receives each note for the user once.
    """

    def __init__(
        self,
        images: Images,
        held_out: Sequence[Tensor] | None,
        *,
        company: bool,
        workers: WorkerGroup | None,
        say: Callable[[str], None],
    ) -> None:
        self.images, self.held_out, self.company, self.workers, self.say = images, held_out, company, workers, say
        self.prepare = Preparation(images, device=images.train_images.device)
        self.timing = {}
        self._stack, self._checked, self._said = True, False, set[str]()
        self._fleet: Fleet | None = None
        self._runs: list[FleetRun] = []  # in the order of the fleet

    def train(self, runs: Sequence[FleetRun]) -> Iterator[None]:
        """Train a round; yield after every epoch."""
        self.release()
        began, first = time.monotonic(), runs[0]
        epochs = range(first.epoch, epochs_of(first.experiment, first.round).stop)
        if first.round == 0:  # dense networks of one seed are equal: train one of them
            of_seed: dict[int, FleetRun] = {}
            for run in runs:
                first_of_seed = of_seed.setdefault(run.experiment.seed, run)
                run.followed = None if first_of_seed is run else first_of_seed
        members = list(dict.fromkeys(run.trained for run in runs))
        fleet = self._made(members)
        for epoch in epochs:
            rate = first.rewind.learning_rate_at(first.recipe, epoch) if first.round else None
            scores = fleet.epoch(epoch, learning_rate=rate)
            self._say_notes(fleet)
            by_member = dict(zip(members, scores, strict=True))
            for run in runs:
                run.after_epoch(by_member[run.trained])
            yield
        images = len(members) * len(epochs) * len(self.images.train_images)
        speed = images / max(time.monotonic() - began, 1e-9)  # of all members together
        self.timing = {"epochs": len(epochs), "images_per_second": speed}
        if len(members) < len(runs):
            del fleet
            for run in runs:
                run.part()
            fleet = self._made(runs)  # from here on they differ
        self._fleet, self._runs = fleet, list(runs)

    def validate(self, runs: Sequence[FleetRun]) -> list[Scores | None]:
        """Scores on the held-out images, for a search with their standard error; None without such images."""
        if not self.held_out:
            return [None] * len(runs)
        scores, count = self._scores(runs, *self.held_out), len(self.held_out[1])
        return [
            score if run.tolerance is None else {**score, "error": _standard_error(score["accuracy"], count)}
            for run, score in zip(runs, scores, strict=True)
        ]

    def test(self, runs: Sequence[FleetRun]) -> list[Scores]:
        """Scores on the test images."""
        return self._scores(runs, self.images.test_images, self.images.test_labels)

    def divergence(self, run: FleetRun) -> NotFinite:
        """Error for a run whose loss or weights are not finite."""
        weights = "" if run.is_finite else ", and not all weights are finite"
        return NotFinite(
            f"{run.experiment.id} diverged: its training loss is {run.train.loss} in epoch {run.epoch} "
            f"of round {run.round}{weights}; a smaller learning rate, clipping or a warm-up may help"
        )

    def release(self) -> None:
        """Drop the references to all networks."""
        self._fleet, self._runs = None, []

    def _made(self, runs: Sequence[FleetRun]) -> Fleet:
        fleet = Fleet(
            [Member(r.model, r.optimizer, r.experiment.seed, r.round, r.pruner.masks) for r in runs],
            self.images,
            runs[0].recipe,
            stack=self._stack,
            check=not self._checked and runs[0].experiment.model not in MODELS,
            stack_single=self.company,
            workers=self.workers,
        )
        if len(runs) > 1:
            self._stack, self._checked = fleet.stacked, True
        return fleet

    def _scores(self, runs: Sequence[FleetRun], images: Tensor, labels: Tensor) -> list[Scores]:
        assert self._fleet is not None
        found = dict(zip(self._runs, self._fleet.evaluate(images, labels, self.prepare), strict=True))
        return [asdict(found[run]) for run in runs]

    def _say_notes(self, fleet: Fleet) -> None:
        for note in fleet.notes:
            if note not in self._said:
                self._said.add(note)
                self.say(note)


def _standard_error(accuracy: float | None, count: int) -> float:
    """Standard error of an accuracy on `count` images."""
    if accuracy is None:
        return math.nan
    share = (accuracy * count + 1) / (count + 2)  # Laplace's rule: all of a few images right is no proof
    return math.sqrt(share * (1 - share) / count)
