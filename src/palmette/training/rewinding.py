"""Start of a round: the initial weights, those of an epoch, or those that the last round ended with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from palmette.training.recipe import Recipe

Kind = Literal["init", "epoch", "learning-rate", "fine-tune"]


@dataclass(frozen=True)
class Rewind:
    """Weights and schedule after each cut. `Rewind.parse` reads it as it is written.

    Args:
        kind: "init": the initial weights, the whole schedule (the paper; Frankle and Carbin 2019). "epoch": the
            weights of round 0 after `to` epochs, the schedule from there on (Frankle et al. 2020).
            "learning-rate": the weights stay, the schedule starts again (Renda et al. 2020). "fine-tune": the
            weights stay, all epochs at the schedule's last learning rate (Han et al. 2015).
        to: number of epochs of round 0 that the weights were trained for, for "epoch".

    >>> Rewind.parse("epoch:5")
    Rewind(kind='epoch', to=5)
    >>> Rewind.parse("epoch:5").epochs(8)
    range(5, 8)
    """

    kind: Kind = "init"
    to: int = 0

    @staticmethod
    def parse(text: str) -> Rewind:
        """Parse "init", "epoch:k", "learning-rate" or "fine-tune"."""
        if text in get_args(Kind) and text != "epoch":
            return Rewind(cast(Kind, text))
        kind, _, number = text.partition(":")
        if kind == "epoch" and number.isdecimal():
            return Rewind("epoch", int(number))
        raise ValueError(f"rewind must be init, epoch:k, learning-rate or fine-tune, got {text!r}")

    def __str__(self) -> str:
        return f"epoch:{self.to}" if self.kind == "epoch" else self.kind

    def check(self, recipe: Recipe) -> None:
        """Raise unless the recipe has the epoch that is rewound to."""
        if self.to > recipe.epochs:
            raise ValueError(f"rewind={self} needs a recipe of at least {self.to} epochs, got {recipe.epochs}")

    @property
    def goes_back(self) -> bool:
        """Whether a round starts from weights and buffers that were saved in round 0."""
        return self.kind in ("init", "epoch")

    def epochs(self, first: int) -> range:
        """The epochs of a round after the first, which trains for so many."""
        return range(self.to, first)

    def learning_rate_at(self, recipe: Recipe, epoch: int) -> float:
        """Learning rate of an epoch of a round after the first."""
        return recipe.learning_rate_at(recipe.epochs - 1 if self.kind == "fine-tune" else epoch)
