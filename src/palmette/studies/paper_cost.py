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
from palmette.training.models.building import Shape

_SECONDS = 0.2  # minimum training time to measure
_TOGETHER = 4  # networks timed together


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
