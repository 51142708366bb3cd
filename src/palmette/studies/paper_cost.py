"""Cost estimate of the paper's figures, in a few seconds and without their data sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from palmette.compression.flops import flops_per_image
from palmette.studies.cost import Cost, cost
from palmette.studies.experiment import Experiment
from palmette.studies.running import fleets
from palmette.studies.scheduler import kind
from palmette.studies.status import Standing
from palmette.training.data import load
from palmette.training.data.images import Images
from palmette.training.models import MODELS, build

_SECONDS = 0.2  # minimum training time to measure
_TOGETHER = 4  # networks timed together


@dataclass(frozen=True)
class DataSize:
    """Size of a data set."""

    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int = 10_000
    augment: bool = True


SETS = {
    "FashionMNIST": DataSize((1, 28, 28), 10, 60_000, augment=False),
    "CIFAR10": DataSize((3, 32, 32), 10, 50_000),
    "CIFAR100": DataSize((3, 32, 32), 100, 50_000),
    "TinyImageNet": DataSize((3, 64, 64), 200, 100_000),
}
"""The data sets of the paper."""


@dataclass
class Clock:
    """Estimates how long runs take on a device; each kind of run is timed once.

    Small models are timed on black images. A large model, which would take minutes on a CPU, is estimated from the
    time of the CNN (on a GPU: of ResNet18, which uses it better) scaled by FLOPs.
    """

    device: str
    fleet: int | None = None
    data_folder: str | None = None
    _timed: dict[object, Cost] = field(default_factory=dict)

    def seconds(self, standings: Iterable[Standing]) -> float:
        """Remaining seconds, if no run ends early."""
        left = {s.experiment: s for s in standings if s.state != "finished"}
        total = 0.0
        for fleet in fleets(left):
            spent = self._cost(fleet[0], min(_TOGETHER, self.fleet or _TOGETHER, len(fleet)))
            total += spent.seconds(left[e] for e in fleet)
        return total

    def _cost(self, experiment: Experiment, members: int) -> Cost:
        plain = replace(experiment, compile=False)  # compiling would take longer than timing
        key = (kind(plain), members)
        if key not in self._timed:
            self._timed[key] = self._measured(plain, members)
        return self._timed[key]

    def _measured(self, experiment: Experiment, members: int) -> Cost:
        on_cpu, size = torch.device(self.device).type == "cpu", self._size(experiment.data)
        if experiment.model in ("linear", "mlp") or (experiment.model in ("cnn", "resnet18") and not on_cpu):
            return cost(experiment, _black(size), device=self.device, members=members, seconds=_SECONDS)
        if experiment.model == "cnn":
            few = replace(size, train=min(50, size.train), test=min(100, size.test))
            found = cost(replace(experiment, batch=50), _black(few), device=self.device, seconds=_SECONDS)
            return _scaled(found, size.train / few.train, size.test / few.test)
        model = "cnn" if on_cpu else "resnet18"
        reference = Experiment(data="CIFAR10", model=model, precision=experiment.precision)
        known, there = self._cost(reference, members), SETS["CIFAR10"]
        more = _flops(experiment.model, size) / _flops(model, there)
        return _scaled(known, more * size.train / there.train, more * size.test / there.test)

    def _size(self, data: str) -> DataSize:
        """Size of one of the paper's data sets, or of another one on this machine."""
        if data in SETS:
            return SETS[data]
        images = load(data, folder=self.data_folder)
        return DataSize(
            images.shape, images.classes, len(images.train_images), len(images.test_images), images.augment
        )


def shape_of(model: str, size: DataSize) -> nn.Module:
    """Model for counting parameters and FLOPs; those of `MODELS` are on the meta device and take no memory.

    >>> sum(p.numel() for p in shape_of("resnet50", SETS["TinyImageNet"]).parameters())
    23902472
    """
    if model not in MODELS:
        return build(model, shape=size.shape, classes=size.classes)
    with torch.device("meta"):
        return MODELS[model](shape=size.shape, classes=size.classes)


def _flops(model: str, size: DataSize) -> int:
    return flops_per_image(shape_of(model, size), shape=size.shape)


def _black(size: DataSize) -> Images:
    """Black images, expanded from one so that they take no memory."""

    def images(count: int) -> torch.Tensor:
        return torch.zeros(1, *size.shape, dtype=torch.uint8).expand(count, *size.shape)

    def labels(count: int) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64).expand(count)

    usual = (0.5,) * size.shape[0]
    parts = (images(size.train), labels(size.train), images(size.test), labels(size.test))
    return Images(*parts, classes=size.classes, name="black", mean=usual, sd=usual, augment=size.augment)


def _scaled(known: Cost, epoch: float, round: float) -> Cost:
    return replace(
        known,
        seconds_per_epoch=known.seconds_per_epoch * epoch,
        seconds_per_round=known.seconds_per_round * round,
    )
