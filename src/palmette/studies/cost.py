"""Cost estimate of an experiment before it runs."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from palmette.compression.flops import flops_per_image
from palmette.pruning.pruner import Pruner
from palmette.studies.experiment import Experiment
from palmette.studies.measurements import index_maps, measured
from palmette.studies.status import Standing
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.data.split import validation_split
from palmette.training.fleet import Fleet
from palmette.training.loop import evaluate
from palmette.training.members import Member
from palmette.training.models import MODELS, build

_BATCHES = 8


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
    """Estimate from a few steps on a part of `images`, one test and one measurement.

    Args:
        images: data set of the experiment.
        members: networks to time together; fewer if they do not fit into memory or cannot train in parallel.
        seconds: minimum training time to measure.
    """
    if count := experiment.validation_images(len(images.train_images)):
        images = validation_split(images, seed=experiment.seed, count=count)[0]
    device = torch.device(device)
    model = build(experiment.model, shape=images.shape, classes=images.classes, seed=experiment.seed)
    flops = flops_per_image(copy.deepcopy(model), shape=images.shape)
    model.to(device)
    pruner = Pruner(model, budget=experiment.budget, scope=experiment.scope)

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
