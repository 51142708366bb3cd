"""Cost estimate of experiments before they run, and of the paper's figures without their data sets."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from palmette.compression.flops import flops_per_image
from palmette.pruning.budgets import FixedRatio
from palmette.pruning.channels.groups import example_of
from palmette.pruning.pruner import Pruner
from palmette.pruning.targets import target_of
from palmette.studies.experiment import Experiment
from palmette.studies.measurements import index_maps, measured
from palmette.studies.running import fleets
from palmette.studies.scheduler import kind
from palmette.studies.status import Standing
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.data.split import validation_split
from palmette.training.fleet import Fleet
from palmette.training.loop import evaluate
from palmette.training.members import Member
from palmette.training.models import MODELS, build
from palmette.training.models.building import Shape

_BATCHES = 8
_SECONDS = 0.2  # minimum training time that a `Clock` measures when it is `rough`
_TOGETHER = 4  # networks that it times together


@dataclass(frozen=True)
class Cost:
    """Cost of one network on the device where it was timed; its share, if several were timed together."""

    parameters: int
    prunable: int  # weights
    flops_per_image: int  # of a dense forward pass; training takes about three times as much
    images: int  # per epoch
    seconds_per_epoch: float  # of training, extrapolated from a few steps
    seconds_per_round: float  # to test and measure
    members: int  # timed together

    def seconds(self, standings: Iterable[Standing]) -> float:
        """Remaining seconds of runs of such networks, if none ends early."""
        return sum(
            s.epochs_left * self.seconds_per_epoch + s.rounds_left * self.seconds_per_round for s in standings
        )


def cost(
    experiment: Experiment,
    images: Images,
    *,
    device: torch.device | str = "cpu",
    members: int = 1,
    seconds: float = 1.0,
) -> Cost:
    """Estimate from a few steps on a part of `images`, at least so many `seconds`, one test and one measurement.

    Fewer than `members` networks are timed together if they do not fit into memory or cannot train in parallel.
    """
    if count := experiment.validation_images(len(images.train_images)):
        images = validation_split(images, count=count)[0]
    device = torch.device(device)
    model = build(experiment.model, shape=images.shape, classes=images.classes, seed=experiment.seed)
    flops = flops_per_image(copy.deepcopy(model), shape=images.shape)
    model.to(device)
    # A search cuts a fraction that its scores choose.
    budget = FixedRatio() if target_of(experiment.budget) else experiment.budget
    inputs = example_of(experiment.scope, images.shape, device)
    pruner = Pruner(model, budget=budget, scope=experiment.scope, inputs=inputs)

    part = images.first(train=_BATCHES * experiment.batch, test=1000)
    members, per_epoch = _timed(experiment, part, model, members, seconds)

    prepare = Preparation(images, device=device)
    began = time.perf_counter()
    evaluate(model, part.test_images, part.test_labels, prepare)
    tested = time.perf_counter() - began
    for _ in range(2):  # retrained and pruned
        measured([pruner.weights], [pruner.masks])
    index_maps([pruner.weights], [pruner.masks])
    pruner.step()
    rest = time.perf_counter() - began - tested
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        prunable=pruner.masks.total,
        flops_per_image=flops,
        images=len(images.train_images),
        seconds_per_epoch=per_epoch * len(images.train_images) / len(part.train_images),
        seconds_per_round=2 * tested * len(images.test_images) / len(part.test_images) + rest,
        members=members,
    )


def _timed(
    experiment: Experiment, part: Images, model: nn.Module, members: int, seconds: float
) -> tuple[int, float]:
    """Number of networks timed together, and seconds of an epoch per network; trains `model`."""
    try:
        fleet = _fleet(experiment, part, [model, *(copy.deepcopy(model) for _ in range(1, members))])
        if fleet.device.type == "cpu" and len(fleet.trainings) > 1:  # a CPU trains one after another
            fleet = _fleet(experiment, part, [model])
            members = 1
        fleet.epoch(0)  # warm-up: allocations and kernel selection
        taken: list[float] = []
        while sum(taken) < seconds or (len(taken) < 3 and sum(taken) < 10 * seconds):
            began = time.perf_counter()
            fleet.epoch(0)
            taken.append(time.perf_counter() - began)
    except torch.OutOfMemoryError:
        if members == 1:
            raise
        return _timed(experiment, part, model, members // 2, seconds)
    # The median is robust to brief stalls of the machine.
    return members, statistics.median(taken) / members


def _fleet(experiment: Experiment, part: Images, models: Sequence[nn.Module]) -> Fleet:
    recipe = replace(experiment.recipe, learning_rate=1e-9)  # weights must not diverge
    members = [Member(m, recipe.make_optimizer(m.parameters()), experiment.seed) for m in models]
    return Fleet(members, part, recipe, check=experiment.model not in MODELS)


@functools.cache
def epoch_flops(data: str, model: str, data_folder: str | None) -> float:
    """Forward FLOPs of an epoch; 1 if data are missing or the FLOPs of a model cannot be counted."""
    try:
        images = load(data, folder=data_folder)
        network = build(model, shape=images.shape, classes=images.classes)
        return float(max(1, flops_per_image(network, shape=images.shape)) * len(images.train_images))
    except Exception:  # a user's model may raise anything
        return 1.0


def _black(name: str, shape: Shape, classes: int, train: int, *, augment: bool = True) -> Images:
    """Black images in the size of a data set, expanded from one so that they take no memory."""
    images = torch.zeros(1, *shape, dtype=torch.uint8).expand(train, *shape)
    labels = torch.zeros(1, dtype=torch.int64).expand(train)
    parts, usual = (images, labels, images[:10_000], labels[:10_000]), (0.5,) * shape[0]
    return Images(*parts, classes=classes, name=name, mean=usual, sd=usual, augment=augment)


SETS = {
    "FashionMNIST": _black("FashionMNIST", (1, 28, 28), 10, 60_000, augment=False),
    "CIFAR10": _black("CIFAR10", (3, 32, 32), 10, 50_000),
    "CIFAR100": _black("CIFAR100", (3, 32, 32), 100, 50_000),
    "TinyImageNet": _black("TinyImageNet", (3, 64, 64), 200, 100_000),
}
"""The data sets of the paper: their sizes."""


@dataclass
class Clock:
    """Estimates how long runs take on a device; each kind of run is timed once.

    A `rough` estimate times small models on black images instead of the paper's data sets. A large model, which
    would take minutes on a CPU, is estimated from the time of the CNN (on a GPU: of ResNet18, which uses it
    better) scaled by FLOPs.
    """

    device: str
    fleet: int | None = None
    data_folder: str | None = None
    rough: bool = False
    _timed: dict[object, Cost] = field(default_factory=dict)

    def costs(self, standings: Iterable[Standing]) -> list[tuple[list[Standing], Cost]]:
        """Unfinished runs, fleet by fleet, and the cost of one network of the fleet."""
        left = {s.experiment: s for s in standings if s.state != "finished"}
        together = min(_TOGETHER, self.fleet or _TOGETHER)
        return [([left[e] for e in f], self._cost(f[0], min(together, len(f)))) for f in fleets(left)]

    def seconds(self, standings: Iterable[Standing]) -> float:
        """Remaining seconds, if no run ends early."""
        return sum(one.seconds(fleet) for fleet, one in self.costs(standings))

    def _cost(self, experiment: Experiment, members: int) -> Cost:
        key = (kind(experiment), members)
        if key not in self._timed:
            self._timed[key] = (self._roughly if self.rough else self._measured)(experiment, members)
        return self._timed[key]

    def _measured(self, experiment: Experiment, members: int) -> Cost:
        images = load(experiment.data, folder=self.data_folder)
        return cost(experiment, images, device=self.device, members=members)

    def _roughly(self, experiment: Experiment, members: int) -> Cost:
        experiment = replace(experiment, compile=False)  # compiling would take longer than timing
        data, on_cpu = experiment.data, torch.device(self.device).type == "cpu"
        images = SETS[data] if data in SETS else load(data, folder=self.data_folder)
        if experiment.model in ("linear", "mlp") or (experiment.model in ("cnn", "resnet18") and not on_cpu):
            return cost(experiment, images, device=self.device, members=members, seconds=_SECONDS)
        if experiment.model == "cnn":
            few = images.first(train=50, test=100)
            found = cost(replace(experiment, batch=50), few, device=self.device, seconds=_SECONDS)
            return _scaled(found, images, few)
        model = "cnn" if on_cpu else "resnet18"
        reference = Experiment(data="CIFAR10", model=model, precision=experiment.precision)
        known, there = self._cost(reference, members), SETS["CIFAR10"]
        return _scaled(known, images, there, _flops(experiment.model, images) / _flops(model, there))


def shape_of(model: str, images: Images) -> nn.Module:
    """Model for counting parameters and FLOPs; those of `MODELS` are on the meta device and take no memory.

    >>> sum(p.numel() for p in shape_of("resnet50", SETS["TinyImageNet"]).parameters())
    23902472
    """
    if model not in MODELS:
        return build(model, shape=images.shape, classes=images.classes)
    with torch.device("meta"):
        return MODELS[model](shape=images.shape, classes=images.classes)


def _flops(model: str, images: Images) -> int:
    return flops_per_image(shape_of(model, images), shape=images.shape)


def _scaled(known: Cost, images: Images, timed: Images, factor: float = 1.0) -> Cost:
    epoch = known.seconds_per_epoch * factor * len(images.train_images) / len(timed.train_images)
    round = known.seconds_per_round * factor * len(images.test_images) / len(timed.test_images)
    return replace(known, seconds_per_epoch=epoch, seconds_per_round=round)
