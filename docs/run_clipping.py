"""Measure why the order of clipping and masking matters: whose gradients make up the norm, round by round.

    PYTHONPATH=src python docs/run_clipping.py FashionMNIST cnn --epochs 20 [--rounds 30] [--ratio 0.2] [--seeds 0]
        [--out clipping.csv] [--data-dir FOLDER] [--device cuda]

Lottery Ticket in both orders. At five epochs of each round `PROBES` batches give the norm of the gradient over all
weights and over kept weights alone. Each order divides the gradient by its norm where that is more than 1.
"""

from __future__ import annotations

import argparse
import copy
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import palmette as pm
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.loop import Training, evaluate
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.recipe import ClipOver, Recipe

PROBES = 20  # batches


@dataclass(frozen=True)
class Probe:
    """Gradients of one network at one moment; all but the first five are means over batches."""

    clip_over: ClipOver
    seed: int
    round: int
    density: float
    epoch: int
    norm: float  # of the gradient over all weights
    kept_norm: float
    pruned_share: float  # of the squared norm
    step: float  # what clipping multiplies the gradient by in the run's own order
    other_step: float  # and in the other order
    accuracy: float  # on the training batches


def probe(
    model: nn.Module, masks: pm.Masks, batches: Sequence[tuple[Tensor, Tensor]], clip: float
) -> dict[str, float]:
    """Means over batches of the norms, the pruned share of the squared norm, and the factors of both orders."""
    found = dict.fromkeys(("norm", "kept_norm", "pruned_share", "kept", "all", "accuracy"), 0.0)
    parameters = dict(model.named_parameters())
    for x, y in batches:
        scores = model(x)
        gradients = torch.autograd.grad(functional.cross_entropy(scores, y), list(parameters.values()))
        squares = dict.fromkeys(("all", "kept"), 0.0)
        for name, g in zip(parameters, gradients, strict=True):
            squares["all"] += float(g.square().sum(dtype=torch.float64))
            kept = g[masks[name].to(g.device)] if name in masks else g
            squares["kept"] += float(kept.square().sum(dtype=torch.float64))
        norms = {order: square**0.5 for order, square in squares.items()}
        values = {
            "norm": norms["all"],
            "kept_norm": norms["kept"],
            "pruned_share": 1 - squares["kept"] / squares["all"],
            "accuracy": float((scores.argmax(1) == y).float().mean()),
            **{order: min(1.0, clip / norm) if norm else 1.0 for order, norm in norms.items()},
        }
        for name, value in values.items():
            found[name] += value / len(batches)
    return found


def ladder(
    images: Images, model: nn.Module, recipe: Recipe, *, rounds: int, ratio: float, seed: int, device: str
) -> Iterator[Probe]:
    """Lottery Ticket with rewinding to the initial weights."""
    prepare = Preparation(images, device=device)
    chosen = torch.randperm(len(images.train_images), generator=torch.Generator().manual_seed(seed))
    parts = chosen[: PROBES * recipe.batch].split(recipe.batch)
    batches = [(prepare(images.train_images[p].to(device)), images.train_labels[p].to(device)) for p in parts]
    start = copy.deepcopy(model.state_dict())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(ratio), stop=[])
    moments = {recipe.epochs * k // 4 for k in range(4)} | {recipe.epochs - 1}
    for t in range(rounds + 1):
        pruner.rewind(start)
        training = Training(
            [Member(model, recipe.make_optimizer(model.parameters()), seed, t, pruner.masks)], images, recipe
        )
        for epoch in range(recipe.epochs):
            training.epoch(epoch)
            if epoch in moments:
                found = probe(model, pruner.masks, batches, recipe.clip or float("inf"))
                steps = {order: found.pop(order) for order in ("kept", "all")}
                own = steps.pop(recipe.clip_over)
                (other,) = steps.values()
                yield Probe(recipe.clip_over, seed, t, pruner.density, epoch, step=own, other_step=other, **found)
        score = evaluate(model, images.test_images.to(device), images.test_labels.to(device), prepare)
        print(
            f"{recipe.clip_over}, seed {seed}, round {t}: density {pruner.density:.2%}, test {score.accuracy:.1%}",
            flush=True,
        )
        pruner.step()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ratio", type=float, default=0.2)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=Path("clipping.csv"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    images = load(given.data, folder=given.data_dir)
    with open(given.out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(f.name for f in fields(Probe))
        for seed in map(int, given.seeds.split(",")):
            for order in ("kept", "all"):
                torch.manual_seed(seed)
                network = build(given.model, shape=images.shape, classes=images.classes).to(given.device)
                precision = "bfloat16" if given.device.startswith("cuda") else "float32"
                recipe = Recipe(epochs=given.epochs, clip_over=order, precision=precision)
                settings = {"rounds": given.rounds, "ratio": given.ratio, "seed": seed, "device": given.device}
                for found in ladder(images, network, recipe, **settings):
                    table.writerow(f"{v:.4g}" if isinstance(v, float) else v for v in vars(found).values())
                    file.flush()


if __name__ == "__main__":
    main()
