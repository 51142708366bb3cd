"""Prune and retrain a real ResNet-20 with learning-rate rewinding, as Renda et al. 2020 did.

    PYTHONPATH=src python docs/run_renda.py WEIGHTS CIFAR10 [--out runs/renda] [--methods lottery-ticket,sap]
        [--seeds 0] [--epochs 182] [--rounds 10] [--device cuda]

WEIGHTS is resnet20-12fca82f.th (Idelbayev, pytorch_resnet_cifar10), CIFAR10 a folder with the official files. It
needs torch, numpy and safetensors. Ended at any moment, it goes on with the round that was under way. What is on
record lies in docs/renda, and docs/make_renda.py makes the page of it.

Learning-rate rewinding goes back to where the schedule has --epochs left. The cost is rounds × epochs: 10 × 182 =
1,820 epochs a run, of 391 steps each; on an H200 an epoch takes 0.7 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import palmette as pm
from palmette.pruning.budgets import Budget
from palmette.studies.folder import RunDir
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.loop import Training, evaluate
from palmette.training.members import Member
from palmette.training.models.cifar_resnet import CifarResNet
from palmette.training.recipe import Recipe

MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, with which the network was trained
METHODS: dict[str, tuple[str, Budget]] = {
    "lottery-ticket": ("a fifth of what is left", pm.FixedRatio(0.2)),
    "sap": ("SAP (p=0.5, q=1)", pm.Sap()),
    "sap-1-2": ("SAP (p=1, q=2)", pm.Sap(p=1, q=2)),
}
RENDA_DENSITY = 0.107  # where they report accuracies


def renda_recipe(device: str) -> Recipe:
    """That of Renda et al. for ResNet-20: learning rate 0.1, a tenth after half and after three quarters."""
    on_gpu = device.startswith("cuda")
    return Recipe(
        epochs=182,
        batch=128,
        learning_rate=0.1,
        momentum=0.9,
        nesterov=False,
        weight_decay=2e-4,
        schedule="step",
        clip=None,
        precision="bfloat16" if on_gpu else "float32",
        compile=on_gpu,
    )


def resnet20(weights: Path) -> CifarResNet:
    """The trained network."""
    model = CifarResNet(3, 10, blocks=3)
    state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    return model


def ladder(
    model: CifarResNet,
    images: Images,
    folder: Path,
    *,
    budget: Budget,
    recipe: Recipe,
    epochs: int,
    rounds: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Cut and retrain round by round, with the last `epochs` of the schedule; the records.

    Without scores nothing is searched, and the last network is returned: the test images are only reported.
    """
    images = dataclasses.replace(images, mean=MEAN, sd=SD)
    prepare = Preparation(images, device=device)
    test_images, test_labels = images.test_images.to(device), images.test_labels.to(device)

    def train(model: CifarResNet) -> None:
        # Drawn, because the random numbers of a round come back when it is resumed, and a counter would not.
        round = int(torch.randint(2**31, ()))
        masks = pm.Masks({name: weight.tensor != 0 for name, weight in pm.prunable(model).items()})
        optimizer = recipe.make_optimizer(model.parameters())
        training = Training([Member(model, optimizer, seed, round, masks)], images, recipe)
        began = time.monotonic()
        for done, epoch in enumerate(range(recipe.epochs - epochs, recipe.epochs), 1):
            (score,) = training.epoch(epoch)
            if done % 20 == 0 or done == epochs:
                each = (time.monotonic() - began) / done
                print(f"  epoch {epoch + 1}: loss {score.loss:.4f}, {each:.2f} s per epoch", flush=True)

    def test(model: CifarResNet) -> float:
        return evaluate(model, test_images, test_labels, prepare).accuracy

    torch.manual_seed(seed)
    pm.prune_and_retrain(
        model.to(device),
        train,
        test=test,
        budget=budget,
        stop=pm.AtDensity(RENDA_DENSITY + 0.001),
        rounds=rounds,
        trained=True,
        folder=folder,
        say=lambda line: print(line, flush=True),
    )
    return RunDir(folder).records()


def about(folder: Path, method: str, seed: int, epochs: int, device: str) -> None:
    """What the records do not say; of a run that was finished before, it is there."""
    if (folder / "about.json").exists():
        return
    where = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    known = {
        "method": method,
        "seed": seed,
        "epochs": epochs,
        "hardware": where,
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "precision": renda_recipe(device).precision,
        "date": datetime.date.today().isoformat(),
    }
    (folder / "about.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/renda"))
    parser.add_argument("--methods", default="lottery-ticket,sap", help=", ".join(METHODS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epochs", type=int, default=182)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    images = load("CIFAR10", folder=given.cifar10)
    for method in given.methods.split(","):
        for seed in map(int, given.seeds.split(",")):
            folder = given.out / f"{method}-e{given.epochs}-s{seed}"
            print(folder, flush=True)
            ladder(
                resnet20(given.weights),
                images,
                folder,
                budget=METHODS[method][1],
                recipe=renda_recipe(given.device),
                epochs=given.epochs,
                rounds=given.rounds,
                seed=seed,
                device=given.device,
            )
            about(folder, METHODS[method][0], seed, given.epochs, given.device)


if __name__ == "__main__":
    main()
