"""Compare what makes a network prunable: no penalty, weight decay, an l1 penalty, or the PQ Index as a penalty.

    PYTHONPATH=src python docs/make_penalty.py [--data FashionMNIST CIFAR10] [--model mlp] [--epochs 4]
        [--seeds 0 1 2 3] [--out results/penalty/runs.csv] [--data-dir FOLDER]

Each network is trained, then pruned by 30 % a round with learning-rate rewinding, always with its penalty. The
file gets a row for each round; the same command goes on where it was stopped. Then the table of
results/penalty/README.md is written. See results/penalty/PLAN.md.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import product
from pathlib import Path

import numpy as np
import torch
from marks import renewed
from prediction.predict import crossing
from torch import Tensor, nn
from torch.nn import functional

import palmette as pm
from palmette.pruning.weights import prunable
from palmette.reports.statistics import Difference, MeanSd
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.data.split import validation_split
from palmette.training.loop import evaluate
from palmette.training.models import build

ARMS = {
    "none": (0.0,),
    "weight decay": (5e-4, 5e-3),
    "l1": (1e-5, 1e-4),
    "PQ Index": (0.01, 0.1, 1.0),
}
"""Penalty -> strengths."""
RATIO, ROUNDS, LOST = 0.3, 20, 0.03
BATCH, RATE, HELD_OUT, LOSS = 250, 0.1, 5000, 0.01


@dataclass(frozen=True)
class Row:
    """A round of a network; `headroom` is the largest cut of the dense one within a point, in scope global."""

    data: str
    model: str
    penalty: str
    strength: float
    seed: int
    round: int
    density: float
    validation: float
    test: float
    index: float
    headroom: float


def penalty_of(model: nn.Module, penalty: str, strength: float) -> Callable[[], Tensor] | None:
    """The term to add to the loss of a batch; weight decay is the optimizer's."""
    if penalty == "PQ Index":
        return pm.PQPenalty(model, strength=strength)
    weights = [weight.tensor for weight in prunable(model).values()]
    if penalty == "l1":
        return lambda: strength * torch.stack([w.abs().sum() for w in weights]).sum()
    return None


def rounds(
    data: str, name: str, penalty: str, strength: float, seed: int, *, epochs: int, folder: str | None
) -> Iterator[Row]:
    """Train, then prune and retrain until 3 points of held-out accuracy are lost."""
    images = load(data, folder=folder)
    images, held_out, answers = validation_split(images, count=min(HELD_OUT, len(images.train_images) // 6))
    prepare = Preparation(images, device=images.train_images.device)
    x, y = prepare(images.train_images), images.train_labels
    model = build(name, shape=images.shape, classes=images.classes, seed=seed)
    extra = penalty_of(model, penalty, strength)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(RATIO), scope="global", zeros="count")
    generator = torch.Generator().manual_seed(seed)

    def train() -> None:
        decay = strength if penalty == "weight decay" else 0.0
        optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=decay)
        steps = epochs * (len(x) // BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        pruner.hold(optimizer)
        model.train()
        for _ in range(epochs):
            for batch in torch.randperm(len(x), generator=generator).split(BATCH)[: len(x) // BATCH]:
                loss = functional.cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                (loss if extra is None else loss + extra()).backward()
                optimizer.step()
                schedule.step()

    headroom, dense = float("nan"), None
    for t in range(ROUNDS + 1):
        if t:
            pruner.step()
        train()
        validation = evaluate(model, held_out, answers, prepare).accuracy
        test = evaluate(model, images.test_images, images.test_labels, prepare).accuracy
        if dense is None:
            dense = validation
            report = pm.how_compressible(
                model,
                evaluate=lambda m: evaluate(m, held_out, answers, prepare).accuracy,
                tolerance=0.01,
                scopes=["global"],
            )
            headroom = report.headroom[0].share
        kept = torch.cat([w.tensor.detach().flatten() for w in prunable(model).values()])
        index = float(pm.pq_index(kept[kept != 0], p=0.5, q=1))
        yield Row(data, name, penalty, strength, seed, t, pruner.density, validation, test, index, headroom)
        if dense - validation > LOST:
            return


Ladders = dict[tuple[str, float], list[list[Row]]]
"""(penalty, strength) -> the rounds of each seed."""


def ladders_of(rows: Sequence[Row]) -> dict[str, Ladders]:
    """Rounds by network, penalty, strength and seed."""
    found: dict[str, Ladders] = {}
    for row in rows:
        seeds = found.setdefault(f"{row.data} {row.model}", {}).setdefault((row.penalty, row.strength), [])
        if row.round == 0:
            seeds.append([])
        seeds[-1].append(row)
    return found


def limit(ladder: Sequence[Row], least: float, score: str) -> float:
    """Log density at which `score` falls below `least` for good; 0 if it always is, the last if it never is."""
    lost = np.array([least - getattr(row, score) for row in ladder])
    if (lost > 1e-9).all():
        return 0.0
    found = crossing(np.array([row.density for row in ladder]), lost, 0.0)
    return math.log(ladder[-1].density) if math.isnan(found) else found


def limits(ladders: Ladders, score: str) -> dict[tuple[str, float], list[float]]:
    """Log limit of each seed, at a point below the mean dense score without a penalty."""
    dense = MeanSd.of(getattr(seed[0], score) for seed in ladders["none", 0.0]).mean
    return {arm: [limit(seed, dense - LOSS, score) for seed in seeds] for arm, seeds in ladders.items()}


def chosen(ladders: Ladders) -> list[tuple[str, float]]:
    """Each penalty with the strength whose mean limit on held-out images is smallest."""
    found = {arm: MeanSd.of(seeds).mean for arm, seeds in limits(ladders, "validation").items()}
    return [(p, min(strengths, key=lambda s: found[p, s])) for p, strengths in ARMS.items()]


def table(rows: Sequence[Row]) -> str:
    """A line for each network and penalty, at the chosen strength."""
    lines = [
        "| network | penalty | strength | dense accuracy | its index | largest cut without retraining | limit "
        "| ratio of PQ Index's limit |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for network, ladders in ladders_of(rows).items():
        found, arms = limits(ladders, "test"), chosen(ladders)
        for arm in arms:
            dense = [seed[0] for seed in ladders[arm]]
            test, index, cut = (
                MeanSd.of(getattr(r, n) for r in dense).mean for n in ("test", "index", "headroom")
            )
            ratio = Difference.between(found[arms[-1]], found[arm])
            interval = "to".join(f" {math.exp(x):.2f} " for x in (ratio.low, ratio.high)).strip()
            beside = "" if arm == arms[-1] else f"{math.exp(ratio.mean):.2f} ({interval})"
            lines.append(
                f"| {network} | {arm[0]} | {arm[1]:g} | {100 * test:.1f} % | {index:.3f} | {100 * cut:.0f} % "
                f"| {100 * math.exp(MeanSd.of(found[arm]).mean):.2f} % | {beside} |"
            )
    return "\n".join(lines) + "\n"


def read(file: Path) -> list[Row]:
    """Rows of the file."""
    kinds: dict[str, Callable[[str], object]] = {"str": str, "int": int, "float": float}
    with file.open(encoding="utf-8", newline="") as handle:
        return [
            Row(*(kinds[str(field.type)](row[field.name]) for field in fields(Row)))  # type: ignore[arg-type]
            for row in csv.DictReader(handle)
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", default=["FashionMNIST", "CIFAR10"])
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("results/penalty/runs.csv"))
    parser.add_argument("--data-dir")
    asked = parser.parse_args(arguments)
    done = {astuple(row)[:5] for row in read(asked.out)} if asked.out.exists() else set()
    every = product(asked.data, asked.seeds, ((p, s) for p, strengths in ARMS.items() for s in strengths))
    for data, seed, (penalty, strength) in every:
        arm = (data, asked.model, penalty, strength, seed)
        if arm in done:
            continue
        ladder = list(rounds(*arm, epochs=asked.epochs, folder=asked.data_dir))
        new = not asked.out.exists()
        with asked.out.open("a", encoding="utf-8", newline="") as file:  # a whole run at once
            csv.writer(file).writerows([[f.name for f in fields(Row)]] * new + [astuple(row) for row in ladder])
        print(*arm, len(ladder), round(ladder[-1].density, 4), flush=True)
    if (page := asked.out.with_name("README.md")).exists():
        text = renewed(page.read_text(encoding="utf-8"), "penalties", table(read(asked.out)), "make_penalty.py")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
