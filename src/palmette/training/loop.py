"""Train and evaluate one model. Everything lies on the device; nothing waits for it within an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.models.building import evaluating
from palmette.training.recipe import Precision, Recipe


@dataclass(frozen=True)
class Score:
    """Mean cross entropy and the fraction that is classified right."""

    loss: float
    accuracy: float


class Training:
    """One model in training, epoch by epoch, on data that lies beside it.

    The order of the images and their augmentation in an epoch follow from the seed, the round and the epoch alone.
    So two methods with one seed see the same, and whoever resumes needs no more than the weights, the state of
    the optimizer and the number of the epoch.

    Args:
        model: on the device where it is to be trained.
        optimizer: of its parameters; its learning rate is set from the recipe.
        images: the data set.
        recipe: how to train.
        seed: of the data order.
        round: of pruning, :math:`t`; each has an order of its own.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        images: Images,
        recipe: Recipe,
        *,
        seed: int,
        round: int = 0,
    ) -> None:
        self.device = next(model.parameters()).device
        self.model = model
        self.optimizer = optimizer
        self.recipe = recipe
        self.seed, self.round = seed, round
        self._forward = torch.compile(model) if recipe.compile else model
        self._prepare = Preparation(images, device=self.device)
        self._images = images.train_images.to(self.device)
        self._labels = images.train_labels.to(self.device)

    def epoch(self, number: int, *, learning_rate: float | None = None) -> Score:
        """Train for one epoch, counted from 0, and give the mean of its batches' scores while it went on.

        Args:
            number: decides the order of the data and, through the recipe, the learning rate.
            learning_rate: in place of the recipe's.
        """
        rate = self.recipe.learning_rate_at(number) if learning_rate is None else learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        generator = torch.Generator(self.device).manual_seed(_mixed(self.seed, self.round, number))
        order = torch.randperm(len(self._images), generator=generator, device=self.device)
        totals = torch.zeros(2, device=self.device, dtype=torch.float64)
        self.model.train()
        with precision(self.recipe.precision, self.device):
            for batch in order.split(self.recipe.batch):
                totals += self._step(batch, generator)
        loss, right = (totals / len(order)).tolist()
        return Score(loss, right)

    def _step(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        labels = self._labels[batch]
        self.optimizer.zero_grad()
        with autocast(self.recipe.precision, self.device):
            scores = self._forward(self._prepare(self._images[batch], generator))
        smoothing = self.recipe.label_smoothing
        loss = functional.cross_entropy(scores.float(), labels, label_smoothing=smoothing)
        loss.backward()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        right = (scores.detach().argmax(1) == labels).sum()
        return torch.stack((loss.detach() * len(batch), right)).double()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    prepare: Preparation,
    *,
    batch: int = 1000,
    precision: Precision = "float32",
) -> Score:
    """The score of `model` in evaluation mode on uint8 `images`, which are moved to where it is in batches."""
    device = next(model.parameters()).device
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    with evaluating(model), autocast(precision, device):
        for part, answers in zip(images.split(batch), labels.split(batch), strict=True):
            answers = answers.to(device)
            scores = model(prepare(part.to(device))).float()
            totals[0] += functional.cross_entropy(scores, answers, reduction="sum")
            totals[1] += (scores.argmax(1) == answers).sum()
    loss, right = (totals / len(images)).tolist()
    return Score(loss, right)


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 where the recipe says so."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """float32 products as they are written, or rounded to TF32 where the recipe says so; then as it was."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _mixed(*numbers: int) -> int:
    """One seed from several numbers, so that neighbours share nothing (SplitMix64's finaliser)."""
    state = 0
    for number in numbers:
        state = (state + 0x9E3779B97F4A7C15 + number) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state % 2**63
