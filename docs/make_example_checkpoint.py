"""Script that made `digits-mlp.safetensors`: the paper's MLP on the UCI digits, with the paper's recipe."""

from __future__ import annotations

from safetensors.torch import save_file

from palmette.cli.measure import EXAMPLE
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.loop import Training, evaluate
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.recipe import Recipe


def main() -> None:
    """Train for 200 epochs and write the bundled checkpoint."""
    digits, recipe = load("digits"), Recipe()
    model = build("mlp", shape=digits.shape, classes=digits.classes)
    training = Training([Member(model, recipe.make_optimizer(model.parameters()), seed=0)], digits, recipe)
    for epoch in range(recipe.epochs):
        training.epoch(epoch)
    score = evaluate(model, digits.test_images, digits.test_labels, Preparation(digits))
    save_file(
        model.state_dict(),
        EXAMPLE,
        {"about": f"MLP 64-128-256-10 on the UCI digits, 200 epochs, test accuracy {score.accuracy:.4f}"},
    )
    print(f"test accuracy {score.accuracy:.4f}")


if __name__ == "__main__":
    main()
