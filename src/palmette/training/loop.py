"""Train and evaluate one model. Everything lies on the device; nothing waits for it within an epoch."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from palmette.training.data.augment import Preparation, Shifts
from palmette.training.data.images import Images
from palmette.training.graphs import captured
from palmette.training.models.building import evaluating
from palmette.training.order import mixed, random_bits, random_order
from palmette.training.recipe import Precision, Recipe, set_learning_rate

_UNREPEATABLE = r"(\S+) does not have a deterministic implementation"


@dataclass(frozen=True)
class Score:
    """Mean cross entropy and the fraction that is classified right."""

    loss: float
    accuracy: float


class Training:
    """One model in training, epoch by epoch, on data that lies beside it.

    The order of the images and their augmentation in an epoch follow from the seed, the round and the epoch alone,
    and are the same on every device. So two methods with one seed see the same, and whoever resumes needs no more
    than the weights, the state of the optimizer and the number of the epoch.

    On a CUDA device a step is recorded as a graph when the first epoch begins, with the masks that are held then.

    Args:
        model: on the device where it is to be trained.
        optimizer: of its parameters, from the recipe.
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
        if self.device.type == "cuda":
            # Convolutions are twice as fast.
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward = torch.compile(model) if recipe.compile else model
        self._prepare = Preparation(images, device=self.device)
        self._images = images.train_images.to(self.device)
        self._labels = images.train_labels.to(self.device)
        # What a step reads and writes stays where it is, as a graph wants it.
        self._order = torch.zeros_like(self._labels)
        self._bits = torch.zeros_like(self._labels) if images.augment else None
        self._place = torch.zeros((), dtype=torch.int64, device=self.device)
        self._ahead = torch.arange(recipe.batch, device=self.device)
        self._totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._whole_step: Callable[[], None] = functools.partial(self._step, recipe.batch)
        self._is_recorded = False
        self.unrepeatable: set[str] = set()  # operations whose result may differ from run to run

    def epoch(self, number: int, *, learning_rate: float | None = None) -> Score:
        """Train for one epoch, counted from 0, and give the mean of its batches' scores while it went on.

        Args:
            number: decides the order of the data and, through the recipe, the learning rate.
            learning_rate: in place of the recipe's.
        """
        set_learning_rate(
            self.optimizer, self.recipe.learning_rate_at(number) if learning_rate is None else learning_rate
        )
        count, key = len(self._labels), mixed(self.seed, self.round, number)
        self._order.copy_(random_order([key], count, device=self.device)[0])
        if self._bits is not None:
            self._bits.copy_(random_bits([mixed(key, 1)], count, device=self.device)[0])
        self.model.train()
        whole, rest = divmod(count, self.recipe.batch)
        devices = [self.device] if self.device.type == "cuda" else []
        with (
            arithmetic(self.recipe.precision, self.device),
            torch.random.fork_rng(devices),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", message=_UNREPEATABLE)
            if self.device.type == "cuda" and whole and not self._is_recorded:
                self._record()
                self._is_recorded = True
            torch.manual_seed(mixed(key, 2))  # of a model that draws numbers itself
            self._place.zero_()
            self._totals.zero_()
            for _ in range(whole):
                self._whole_step()
            if rest:
                self._step(rest)
        loss, right = (self._totals / count).tolist()
        return Score(loss, right)

    def _record(self) -> None:
        """Make a step of a whole batch a graph, and learn whether it comes out the same each time."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._whole_step = captured(self._whole_step, self._changing, device=self.device)
        for warning in caught:
            if found := re.match(_UNREPEATABLE, str(warning.message)):
                self.unrepeatable.add(found[1])
            else:
                warnings.warn(warning.message, stacklevel=3)

    def _changing(self) -> Iterator[Tensor]:
        yield from (self._place, self._totals, *self.model.parameters(), *self.model.buffers())
        for known in self.optimizer.state.values():
            yield from (value for value in known.values() if isinstance(value, Tensor))

    def _step(self, size: int) -> None:
        where = self._place + self._ahead[:size]
        batch = self._order[where]
        labels = self._labels[batch]
        shifts = None if self._bits is None else Shifts.drawn_from(self._bits[where])
        self.optimizer.zero_grad()
        with autocast(self.recipe.precision, self.device):
            scores = self._forward(self._prepare(self._images[batch], shifts))
        smoothing = self.recipe.label_smoothing
        loss = functional.cross_entropy(scores.float(), labels, label_smoothing=smoothing)
        loss.backward()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        right = (scores.detach().argmax(1) == labels).sum()
        self._totals += torch.stack((loss.detach() * size, right))
        self._place += size


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
def arithmetic(name: Precision, device: torch.device) -> Iterator[None]:
    """float32 products as they are written, or rounded to TF32 where the recipe says so; then as it was.

    On a GPU, also the algorithms whose result is the same each time, wherever torch has them; they are not slower.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by `use_deterministic_algorithms`
    cudnn = torch.backends.cudnn
    filling: Any = torch.utils.deterministic
    products = torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory
    mode = torch.get_deterministic_debug_mode()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = name == "tf32", True, False
    filling.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory = before
        torch.set_deterministic_debug_mode(mode)
