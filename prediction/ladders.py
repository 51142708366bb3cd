"""`python -m prediction FOLDER`: run the ladders, measure the dense networks, and write two tables.

A ladder is a Lottery Ticket run that ends when 3 points of held-out accuracy are lost. Interrupt at any time, the
same command resumes. `ladders.csv` has a row for each round, `dense.csv` one for each dense network.
"""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.running import fleets, run_together
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.data.split import validation_split, with_label_noise
from palmette.training.fleet import Fleet
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.models.building import Shape, initialise_
from prediction.features import of_network

SEEDS = (0, 1)
SETTINGS = ("data", "model", "seed", "epochs", "weight_decay", "label_noise")
STOP = "accuracy-drops:0.03"


def _mlp(hidden: Sequence[int], *, shape: Shape, classes: int) -> nn.Module:
    widths = [shape[0] * shape[1] * shape[2], *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(widths, hidden, strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return initialise_(nn.Sequential(*layers, nn.Linear(widths[-1], classes)))


def _cnn(widths: Sequence[int], *, shape: Shape, classes: int) -> nn.Module:
    layers, channels = list[nn.Module](), shape[0]
    for number, width in enumerate(widths):
        layers += [nn.MaxPool2d(2)] if number and min(shape[1:]) >> number else []
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return initialise_(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)))


# Half and twice the width, and twice the depth, of the models of the paper.
mlp_half = partial(_mlp, (64, 128))
mlp_twice = partial(_mlp, (256, 512))
mlp_deep = partial(_mlp, (128, 128, 256, 256))
cnn_half = partial(_cnn, (32, 64, 128, 256))
cnn_small = partial(_cnn, (16, 32, 64, 128))
cnn_flat = partial(_cnn, (64, 128))


def _own(*names: str) -> list[str]:
    return [f"{__name__}:{name}" for name in names]


FAMILIES: dict[str, list[str]] = {
    "linear": ["linear"],
    "mlp": ["mlp", *_own("mlp_half", "mlp_twice", "mlp_deep")],
    "cnn": ["cnn", *_own("cnn_half", "cnn_small", "cnn_flat")],
    "resnet": ["resnet20"],
    "transformer": ["transformer"],
}
"""Architecture -> its models."""


def experiments() -> list[Experiment]:
    """All ladders; those of one network are rewound to its initial and to its trained weights."""
    common: dict[str, Any] = {"method": "lottery-ticket", "rounds": 30, "stop": STOP, "precision": "bfloat16"}
    return [
        Experiment(data=data, model=model, **recipe, rewind=rewind, seed=seed, **common)
        for data in ("digits", "FashionMNIST", "CIFAR10")
        for family, models in FAMILIES.items()
        for model in models
        for recipe in _recipes(data, family)
        for rewind, seed in product(("learning-rate", "init"), SEEDS)
    ]


def _recipes(data: str, family: str) -> Iterator[dict[str, Any]]:
    """The paper's recipe and changes of it; fewer of them where a round is long."""
    usual = {"epochs": 20, "weight_decay": 5e-4, "label_noise": 0.0}
    if data == "digits" or family in ("linear", "mlp"):
        for decay, noise in product((0.0, 5e-4, 5e-3), (0.0, 0.2)):
            yield usual | {"weight_decay": decay, "label_noise": noise}
    elif family == "cnn":
        yield usual
        yield from (usual | {"epochs": 5} | change for change in ({"weight_decay": 0.0}, {"weight_decay": 5e-3}))
        yield usual | {"epochs": 5, "label_noise": 0.2}
    yield usual | {"epochs": 5}


def run(folder: Path, *, device: str, processes: int, only: str = "") -> int:
    """Run all fleets, the longest first, in several processes that share a GPU; return how many failed."""
    failed = 0
    work = fleets(e for e in experiments() if only in f"{e.data}-{e.model}")
    work.sort(key=lambda f: -f[0].epochs * _cost(f[0]))
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=4) as pool:
        for fleet, error in pool.imap_unordered(partial(_run_fleet, folder, device), work):
            failed += bool(error)
            print(f"{fleet[0].id} and {len(fleet) - 1} more{error}", flush=True)
    return failed


def _cost(e: Experiment) -> float:
    """Rough time of an epoch compared with a linear model."""
    family = next(name for name, models in FAMILIES.items() if e.model in models)
    cost = {"linear": 1, "mlp": 2, "cnn": 10, "resnet": 40, "transformer": 30}[family]
    return cost * (0.1 if e.data == "digits" else 1)


def _run_fleet(folder: Path, device: str, fleet: list[Experiment]) -> tuple[list[Experiment], str]:
    """Run a fleet; return it, and the error if it failed."""
    torch.set_num_threads(1)
    try:
        run_together({e.folder_in(folder): e for e in fleet}, device=device, company=True)
        measure_dense(folder, fleet, device=device)
    except Exception as error:  # the others go on
        return fleet, f": {type(error).__name__}: {error}"
    return fleet, ""


def measure_dense(folder: Path, fleet: Sequence[Experiment], *, device: str) -> None:
    """Train the dense networks of a fleet again and write their features; the rewinds of a seed share one."""
    dense = {replace(e, rewind="init", rounds=0, stop="").id: e for e in fleet}
    missing = {name: e for name, e in dense.items() if not (folder / f"{name}.csv").exists()}
    if not missing:
        return
    first = fleet[0]
    images = load(first.data)
    images, held_out, labels = validation_split(images, count=first.validation_images(len(images.train_images)))
    images = with_label_noise(images, first.label_noise)
    images = replace(
        images, train_images=images.train_images.to(device), train_labels=images.train_labels.to(device)
    )
    models = [
        build(e.model, shape=images.shape, classes=images.classes, seed=e.seed).to(device)
        for e in missing.values()
    ]
    recipe, prepare = first.recipe, Preparation(images, device=images.train_images.device)
    members = [
        Member(model, recipe.make_optimizer(model.parameters()), e.seed)
        for model, e in zip(models, missing.values(), strict=True)
    ]
    trained = Fleet(members, images, recipe)
    scores = [trained.epoch(t) for t in range(recipe.epochs)][-1]
    for (name, e), model, score in zip(missing.items(), models, scores, strict=True):
        found = of_network(model, images, (held_out, labels), score=score, prepare=prepare)
        _write(folder / f"{name}.csv", [settings(e) | found])


def settings(e: Experiment) -> dict[str, Any]:
    """Settings that name a network."""
    family = next(name for name, models in FAMILIES.items() if e.model in models)
    return {"family": family} | {name: getattr(e, name) for name in SETTINGS}


def rounds_of(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each round of each finished ladder."""
    for e in experiments():
        run = RunDir(e.folder_in(folder))
        records = run.records() if run.path.exists() else []
        if not records or records[-1]["stopped"] is None:
            continue
        for record in records:
            numbers = record["retrained"]
            yield settings(e) | {
                "rewind": e.rewind,
                "round": record["round"],
                "total": numbers["total"],
                "kept": numbers["kept"],
                "test_accuracy": record["test"]["accuracy"],
                "validation_accuracy": record["validation"]["accuracy"],
                "train_accuracy": record["train"]["accuracy"],
                "train_loss": record["train"]["loss"],
                "pq_index": numbers["pq_index"],
                "gini_index": numbers["gini_index"],
            }


def tables(folder: Path) -> None:
    """Write `ladders.csv` and `dense.csv`."""
    _write(folder / "ladders.csv", list(rounds_of(folder)))
    dense = [
        row for file in sorted(folder.glob("*-s*.csv")) for row in csv.DictReader(file.open(encoding="utf-8"))
    ]
    _write(folder / "dense.csv", dense)


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    partial_file = path.with_suffix(".partial")
    with partial_file.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    partial_file.replace(path)
