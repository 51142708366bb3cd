"""Train and evaluate. Everything lies on the device; nothing waits for it within an epoch."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from palmette.errors import first_line
from palmette.measures.cuda_sums import triton_is_there
from palmette.pruning.weights import evaluating
from palmette.training.data.augment import PADDING, Preparation, Shifts
from palmette.training.data.images import Images
from palmette.training.gpu import steps as fused
from palmette.training.gpu.graphs import captured
from palmette.training.members import Alone, Member, Network, Stacked
from palmette.training.order import mixed, random_bits, random_order
from palmette.training.recipe import Precision, Recipe

_MOST_STEPS = 8  # in one graph; recording takes longer with each
_SMALL = 1_000_000  # parameters of a network whose steps are so short that it matters
_TESTED_AT_ONCE = 1000  # images
_FEW_PIXELS = 1 << 28  # a gibibyte as floats
_UNREPEATABLE = r"(\S+) does not have a deterministic implementation"


@dataclass(frozen=True)
class Score:
    """Mean cross entropy and the fraction that is classified right."""

    loss: float
    accuracy: float


class Training:
    """Members in training, epoch by epoch, on data that lies beside them.

    The order of the images and their augmentation in an epoch follow from the member's seed, the round and the
    epoch alone, and are the same on every device. So two methods with one seed see the same, a member does not
    notice who else is trained, and whoever resumes needs no more than the weights, the state of the optimizer and
    the number of the epoch.

    On a CUDA device a step is recorded as a graph when the first epoch begins.

    Args:
        members: one network, or several that are `stackable`, all on one device.
        images: the data set.
        recipe: how to train.
        stacked: whether a single network, too, is a stack.
    """

    def __init__(
        self, members: Sequence[Member], images: Images, recipe: Recipe, *, stacked: bool = False
    ) -> None:
        self.members, self.recipe = tuple(members), recipe
        check_last_batch(members[0].model, images, recipe)
        stacked = stacked or len(members) > 1
        self.network: Network = Stacked(members, recipe) if stacked else Alone(members[0], recipe)
        self.device = self.network.device
        self._prepare = Preparation(images, device=self.device)
        self._images = images.train_images.to(self.device)
        self._labels = images.train_labels.to(self.device)
        # As floats they are four times as large, but need not be prepared in each step.
        small = self.device.type == "cpu" and not images.augment and images.train_images.numel() <= _FEW_PIXELS
        self._floats = images.train_floats if small else None
        # What a step reads and writes stays where it is, as a graph wants it.
        self._order = self._labels.new_zeros(len(members), len(self._labels))
        self._bits = torch.zeros_like(self._order) if images.augment else None
        self._place = torch.zeros((), dtype=torch.int64, device=self.device)
        self._ahead = torch.arange(min(recipe.batch, len(self._labels)), device=self.device)
        self._totals = torch.zeros(2, len(members), dtype=torch.float64, device=self.device)
        self._fused = self.device.type == "cuda" and triton_is_there()
        pixels = torch.arange(256, dtype=torch.uint8, device=self.device).view(256, 1, 1, 1)
        table = self._prepare(pixels.expand(-1, images.shape[0], 1, 1)).view(256, -1).T.contiguous()
        self._table = table.bfloat16() if recipe.precision == "bfloat16" else table
        self._steps: Callable[[], None] = functools.partial(self._step, recipe.batch)
        self._steps_at_once, self._is_recorded = 1, False
        self.notes = self.network.notes  # what a user should know, complete after the first epoch

    def epoch(self, number: int, *, learning_rate: float | None = None) -> list[Score]:
        """Train for one epoch, counted from 0, and give the mean of each member's scores while it went on.

        Args:
            number: decides the order of the data and, through the recipe, the learning rate.
            learning_rate: in place of the recipe's.
        """
        with training_mode(self.recipe.precision, self.device):
            left = self.begin(number, learning_rate=learning_rate)
            while left:
                left = self.advance(left)
            return self.finish()

    def begin(self, number: int, *, learning_rate: float | None = None) -> int:
        """Make ready for an epoch; how many images it has. Within `training_mode`, as what follows."""
        rate = self.recipe.learning_rate_at(number) if learning_rate is None else learning_rate
        self.network.set_learning_rate(rate)
        count = self._order.shape[1]
        keys = [mixed(member.seed, member.round, number) for member in self.members]
        self._order.copy_(random_order(keys, count, device=self.device))
        if self._bits is not None:
            self._bits.copy_(random_bits([mixed(key, 1) for key in keys], count, device=self.device))
        for model in self.network.models:
            if not model.training:
                model.train()
        if self.device.type == "cuda" and count >= self.recipe.batch and not self._is_recorded:
            small = sum(p.numel() for p in self.members[0].model.parameters()) < _SMALL
            most = _MOST_STEPS if small else 1
            self._record(max(n for n in range(1, most + 1) if count // self.recipe.batch % n == 0))
        torch.manual_seed(mixed(keys[0], 2))  # of a model that draws numbers itself
        self._place.zero_()
        self._totals.zero_()
        return count

    def advance(self, left: int) -> int:
        """Train with the next images; how many of the epoch are left."""
        if left < self.recipe.batch:
            self._step(left)
            return 0
        self._steps()
        return left - self.recipe.batch * self._steps_at_once

    def finish(self) -> list[Score]:
        """The mean of each member's scores while the epoch went on."""
        return [Score(loss, right) for loss, right in (self._totals / self._order.shape[1]).T.tolist()]

    def _record(self, repeats: int) -> None:
        """Make steps of a whole batch a graph, and learn whether they come out the same each time."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._steps, self._steps_at_once, problem = captured(
                self._steps, self._changing, device=self.device, repeats=repeats
            )
        self._is_recorded = True
        if problem is not None:
            self.notes.append(
                f"a step cannot be recorded as a CUDA graph, and is launched anew each time: {problem}"
            )
        for operation in sorted({m[1] for w in caught if (m := re.match(_UNREPEATABLE, str(w.message)))}):
            self.notes.append(
                f"{operation} has no deterministic version on this device: a run that is interrupted and resumed "
                "may differ in its last digits from one that is not"
            )

    def _changing(self) -> Iterator[Tensor]:
        yield from (self._place, self._totals, *self.network.changing())

    def _step(self, size: int) -> None:
        pixels, answers = self._batch(size)
        with autocast(self.recipe.precision, self.device):
            scores = self.network.scores(pixels)
        self.network.learn(scores, self._slopes(scores, answers))
        self._place += size

    def _batch(self, size: int) -> tuple[Tensor, Tensor]:
        """The next images of each member, M×B×C×H×W, and their labels."""
        if self._fused:
            return fused.prepare(
                self._images,
                self._labels,
                self._order,
                self._bits,
                self._place,
                self._table,
                batch=size,
                padding=PADDING,
                channels_last=len(self.members) == 1,
            )
        where: Tensor | slice = self._place + self._ahead[:size]
        if self.device.type == "cpu":  # where no graph forbids to know the place
            where = slice(int(self._place), int(self._place) + size)
        batch = self._order[:, where]
        chosen = batch.flatten()
        if self._floats is not None:
            pixels = self._floats.index_select(0, chosen)
        else:
            shifts = None if self._bits is None else Shifts.drawn_from(self._bits[:, where].flatten())
            pixels = self._prepare(self._images.index_select(0, chosen), shifts)
        return pixels.unflatten(0, batch.shape), self._labels.index_select(0, chosen).view_as(batch)

    @torch.no_grad()
    def _slopes(self, scores: Tensor, answers: Tensor) -> Tensor:
        r"""The gradient of each member's mean loss; sums of losses and of right answers go to the totals.

        With label smoothing :math:`\epsilon` the target :math:`y` is :math:`1 - \epsilon` for the answer, and
        :math:`\epsilon / K` more for each of the :math:`K` classes; the gradient is :math:`(softmax - y) / B`.
        """
        smoothing, size, classes = self.recipe.label_smoothing, answers.shape[1], scores.shape[2]
        if self._fused:
            return fused.add_losses(scores, answers, self._totals, smoothing=smoothing)
        logarithms = scores.float().log_softmax(2)
        of_answers = logarithms.gather(2, answers[:, :, None])[:, :, 0]
        losses = -(1 - smoothing) * of_answers - smoothing * logarithms.mean(2)
        right = scores.argmax(2) == answers
        self._totals += torch.stack((losses.sum(1), right.sum(1)))
        slopes = logarithms.exp_().sub_(smoothing / classes)
        less = torch.full_like(of_answers, smoothing - 1)[:, :, None]
        return slopes.scatter_add_(2, answers[:, :, None], less).div_(size).to(scores.dtype)


def check_device(device: torch.device | str) -> None:
    """Raise unless it is really here, and networks can be trained on it."""
    try:
        if str(device).partition(":")[0] not in ("cpu", "cuda", "mps", "xpu"):
            raise ValueError("networks are trained on cpu, cuda, mps or xpu")
        torch.empty(1, device=device)
    except Exception as error:  # torch raises whatever it likes
        raise ValueError(f"device {str(device)!r} cannot be used: {first_line(error)}") from error


def check_last_batch(model: nn.Module, images: Images, recipe: Recipe) -> None:
    """Raise if the last batch of an epoch is one image, of which batch norm has one value per channel to train on.

    That is tried out: a map of many pixels has many values of one image, and a norm may be frozen.
    """
    count, batch = len(images.train_labels), recipe.batch
    if not recipe.epochs or (batch > 1 and count % batch != 1):
        return
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            copy.deepcopy(model).train()(torch.zeros(1, *images.shape, device=device))
    except Exception as error:  # all else is for training to say
        if "more than 1 value per channel" not in str(error):
            return
        other = next((size for size in range(batch + 1, count + 1) if count % size != 1), None)
        raise ValueError(
            f"the model has batch norm, which cannot train on one image at a time, and batch={batch} of {count} "
            "training images leaves one for the last batch; "
            + (f"batch={other} does not" if other else "more images are needed")
        ) from None


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    prepare: Preparation,
) -> Score:
    """The score of `model` in evaluation mode on uint8 `images`, which are moved to where it is in batches."""
    device = next(model.parameters()).device
    return _evaluated([model], lambda x: model(x[0])[None], device, images, labels, prepare, "float32")[0]


def evaluate_all(
    network: Network,
    images: Tensor,
    labels: Tensor,
    prepare: Preparation,
    *,
    precision: Precision = "float32",
) -> list[Score]:
    """The score of each member, as `evaluate` gives it."""
    return _evaluated(network.models, network.scores, network.device, images, labels, prepare, precision)


@torch.no_grad()
def _evaluated(
    models: Sequence[nn.Module],
    scores_of: Callable[[Tensor], Tensor],
    device: torch.device,
    images: Tensor,
    labels: Tensor,
    prepare: Preparation,
    precision: Precision,
) -> list[Score]:
    totals = torch.zeros(2, len(models), dtype=torch.float64, device=device)
    with contextlib.ExitStack() as modes, autocast(precision, device):
        for model in models:
            modes.enter_context(evaluating(model))
        for part, answers in zip(images.split(_TESTED_AT_ONCE), labels.split(_TESTED_AT_ONCE), strict=True):
            pixels, answers = prepare(part.to(device)), answers.to(device)
            scores = scores_of(pixels.expand(len(models), *pixels.shape)).float()
            each = functional.cross_entropy(scores.flatten(0, 1), answers.repeat(len(models)), reduction="none")
            totals[0] += each.view(len(models), -1).sum(1)
            totals[1] += (scores.argmax(2) == answers).sum(1)
    return [Score(loss, right) for loss, right in (totals / len(images)).T.tolist()]


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 where the recipe says so."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def training_mode(name: Precision, device: torch.device) -> Iterator[None]:
    """The recipe's arithmetic; whatever is drawn or warned of in it, nobody else notices."""
    devices = [device] if device.type == "cuda" else []
    with arithmetic(name, device), torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_UNREPEATABLE)
        yield


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
