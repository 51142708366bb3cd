"""Train and evaluate, with all data on the device and without synchronisation within an epoch."""

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
from palmette.training.data.augment import PADDING, Preparation
from palmette.training.data.images import Images
from palmette.training.gpu import steps as fused
from palmette.training.gpu.graphs import captured
from palmette.training.members import Member, Network, Single, Stacked
from palmette.training.random_streams import mix, random_bits, random_order
from palmette.training.recipe import Precision, Recipe

_MAX_STEPS = 8  # in one CUDA graph; more take longer to capture
_SMALL = 1_000_000  # parameters, below which the pause between two graphs matters
_TEST_BATCH = 1000  # images
_FEW_PIXELS = 1 << 28  # one gibibyte as floats
_NONDETERMINISTIC = r"(\S+) does not have a deterministic implementation"


@dataclass(frozen=True)
class Score:
    """Mean cross entropy and accuracy, a fraction."""

    loss: float
    accuracy: float


class Training:
    """Members in training, epoch by epoch, with the data on their device.

    Order and augmentation of the images depend only on the member's seed, the round and the epoch, and are the
    same on every device. Two methods with one seed see the same images, a member trains the same in any fleet, and
    resuming needs only the weights, the optimizer state and the number of the epoch.

    Several members must be `stackable` and on one device; `stacked` stacks a single one, too. On a CUDA device,
    the first epoch captures a step as a CUDA graph.
    """

    def __init__(
        self, members: Sequence[Member], images: Images, recipe: Recipe, *, stacked: bool = False
    ) -> None:
        self.members, self.recipe = tuple(members), recipe
        check_last_batch(members[0].model, images, recipe)
        stacked = stacked or len(members) > 1
        self.network: Network = Stacked(members, recipe) if stacked else Single(members[0], recipe)
        self.device = self.network.device
        self._prepare = Preparation(images, device=self.device)
        self._images = images.train_images.to(self.device)
        self._labels = images.train_labels.to(self.device)
        # Floats take four times the memory, but need no preparation in each step.
        small = self.device.type == "cpu" and not images.augment and images.train_images.numel() <= _FEW_PIXELS
        self._floats = images.train_floats if small else None
        # A CUDA graph needs tensors at fixed addresses.
        self._order = self._labels.new_zeros(len(members), len(self._labels))
        self._bits = torch.zeros_like(self._order) if images.augment else None
        self._position = torch.zeros((), dtype=torch.int64, device=self.device)
        self._offsets = torch.arange(min(recipe.batch, len(self._labels)), device=self.device)
        self._totals = torch.zeros(2, len(members), dtype=torch.float64, device=self.device)
        self._fused = self.device.type == "cuda" and triton_is_there()
        pixels = torch.arange(256, dtype=torch.uint8, device=self.device).view(256, 1, 1, 1)
        table = self._prepare(pixels.expand(-1, images.shape[0], 1, 1)).view(256, -1).T.contiguous()
        self._table = table.bfloat16() if recipe.precision == "bfloat16" else table
        self._steps: Callable[[], None] = functools.partial(self._step, recipe.batch)
        self._steps_per_call, self._is_captured = 1, False
        self.notes = self.network.notes  # for the user; complete after the first epoch

    def epoch(self, number: int, *, learning_rate: float | None = None) -> list[Score]:
        """Train for one epoch, counted from 0; return each member's mean score during it."""
        with training_mode(self.recipe.precision, self.device):
            left = self.begin(number, learning_rate=learning_rate)
            while left:
                left = self.advance(left)
            return self.finish()

    def begin(self, number: int, *, learning_rate: float | None = None) -> int:
        """Prepare an epoch and return its number of images. Call this and the rest within `training_mode`."""
        rate = self.recipe.learning_rate_at(number) if learning_rate is None else learning_rate
        self.network.set_learning_rate(rate)
        count = self._order.shape[1]
        keys = [mix(member.seed, member.round, number) for member in self.members]
        self._order.copy_(random_order(keys, count, device=self.device))
        if self._bits is not None:
            self._bits.copy_(random_bits([mix(key, 1) for key in keys], count, device=self.device))
        for model in self.network.models:
            if not model.training:
                model.train()
        if self.device.type == "cuda" and count >= self.recipe.batch and not self._is_captured:
            small = sum(p.numel() for p in self.members[0].model.parameters()) < _SMALL
            limit = _MAX_STEPS if small else 1
            self._capture(max(n for n in range(1, limit + 1) if count // self.recipe.batch % n == 0))
        torch.manual_seed(mix(keys[0], 2))  # for models that draw numbers, as dropout does
        self._position.zero_()
        self._totals.zero_()
        return count

    def advance(self, left: int) -> int:
        """Train on the next images and return how many of the epoch are left."""
        if left < self.recipe.batch:
            self._step(left)
            return 0
        self._steps()
        return left - self.recipe.batch * self._steps_per_call

    def finish(self) -> list[Score]:
        """Each member's mean score during the epoch."""
        return [Score(loss, right) for loss, right in (self._totals / self._order.shape[1]).T.tolist()]

    def _capture(self, repeats: int) -> None:
        """Capture steps of a whole batch as a CUDA graph, and note operations that are not deterministic."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._steps, self._steps_per_call, problem = captured(
                self._steps,
                lambda: (self._position, self._totals, *self.network.state_tensors()),
                device=self.device,
                repeats=repeats,
            )
        self._is_captured = True
        if problem is not None:
            self.notes.append(f"a step cannot be captured as a CUDA graph and runs without one: {problem}")
        for operation in sorted({m[1] for w in caught if (m := re.match(_NONDETERMINISTIC, str(w.message)))}):
            self.notes.append(
                f"{operation} has no deterministic version on this device: a resumed run may differ in its last "
                "digits from an uninterrupted one"
            )

    def _step(self, size: int) -> None:
        pixels, answers = self._batch(size)
        with autocast(self.recipe.precision, self.device):
            scores = self.network.scores(pixels)
        self.network.learn(scores, self._loss_gradients(scores, answers))
        self._position += size

    def _batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Next images of each member, M×B×C×H×W, and their labels."""
        if self._fused:
            data = (self._images, self._labels, self._order, self._bits, self._position, self._table)
            channels_last = len(self.members) == 1
            return fused.prepare(*data, batch=size, padding=PADDING, channels_last=channels_last)
        where: Tensor | slice = self._position + self._offsets[:size]
        if self.device.type == "cpu":  # a slice is faster; a CUDA graph cannot read the position
            where = slice(int(self._position), int(self._position) + size)
        batch = self._order[:, where]
        chosen = batch.flatten()
        if self._floats is not None:
            pixels = self._floats.index_select(0, chosen)
        else:
            bits = None if self._bits is None else self._bits[:, where].flatten()
            pixels = self._prepare(self._images.index_select(0, chosen), bits)
        return pixels.unflatten(0, batch.shape), self._labels.index_select(0, chosen).view_as(batch)

    @torch.no_grad()
    def _loss_gradients(self, scores: Tensor, answers: Tensor) -> Tensor:
        r"""Gradient of each member's mean loss; adds the losses and the number of right answers to the totals.

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
        gradients = logarithms.exp_().sub_(smoothing / classes)
        smaller = torch.full_like(of_answers, smoothing - 1)[:, :, None]
        return gradients.scatter_add_(2, answers[:, :, None], smaller).div_(size).to(scores.dtype)


def check_device(device: torch.device | str) -> None:
    """Raise unless the device is available and networks can train on it."""
    try:
        if str(device).partition(":")[0] not in ("cpu", "cuda", "mps", "xpu"):
            raise ValueError("networks train on cpu, cuda, mps or xpu")
        torch.empty(1, device=device)
    except Exception as error:  # torch raises errors of many types
        raise ValueError(f"device {str(device)!r} cannot be used: {first_line(error)}") from error


def check_last_batch(model: nn.Module, images: Images, recipe: Recipe) -> None:
    """Raise if the last batch of an epoch is one image and the model's batch norm cannot train on it.

    A forward pass decides: feature maps have many values per image, and a norm may be frozen.
    """
    count, batch = len(images.train_labels), recipe.batch
    if not recipe.epochs or (batch > 1 and count % batch != 1):
        return
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            copy.deepcopy(model).train()(torch.zeros(1, *images.shape, device=device))
    except Exception as error:  # training reports all other errors
        if "more than 1 value per channel" not in str(error):
            return
        other = next((size for size in range(batch + 1, count + 1) if count % size != 1), None)
        raise ValueError(
            f"the model has batch norm, which cannot train on one image at a time, and batch={batch} of {count} "
            "training images leaves one for the last batch; "
            + (f"batch={other} does not" if other else "more images are needed")
        ) from None


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, prepare: Preparation) -> Score:
    """Score of `model` in evaluation mode on uint8 `images`, which are moved to its device in batches."""
    return _evaluated([model], lambda x: model(x[0])[None], images, labels, prepare, "float32")[0]


def evaluate_all(
    network: Network, images: Tensor, labels: Tensor, prepare: Preparation, *, precision: Precision = "float32"
) -> list[Score]:
    """Score of each member, as `evaluate` computes it."""
    return _evaluated(network.models, network.scores, images, labels, prepare, precision)


@torch.no_grad()
def _evaluated(
    models: Sequence[nn.Module],
    scores_of: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    prepare: Preparation,
    precision: Precision,
) -> list[Score]:
    device = next(models[0].parameters()).device
    totals = torch.zeros(2, len(models), dtype=torch.float64, device=device)
    with contextlib.ExitStack() as modes, autocast(precision, device):
        for model in models:
            modes.enter_context(evaluating(model))
        for part, answers in zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True):
            pixels, answers = prepare(part.to(device)), answers.to(device)
            scores = scores_of(pixels.expand(len(models), *pixels.shape)).float()
            each = functional.cross_entropy(scores.flatten(0, 1), answers.repeat(len(models)), reduction="none")
            totals[0] += each.view(len(models), -1).sum(1)
            totals[1] += (scores.argmax(2) == answers).sum(1)
    return [Score(loss, right) for loss, right in (totals / len(images)).T.tolist()]


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast to bfloat16 if that is the recipe's precision."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def training_mode(name: Precision, device: torch.device) -> Iterator[None]:
    """Use the recipe's arithmetic, and isolate random generators and warnings."""
    devices = [device] if device.type == "cuda" else []
    with arithmetic(name, device), torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NONDETERMINISTIC)
        yield


@contextlib.contextmanager
def arithmetic(name: Precision, device: torch.device) -> Iterator[None]:
    """Compute matrix products in float32, or in TF32 if the recipe says so, within this context.

    On a GPU, also use deterministic algorithms wherever torch has them; they are not slower.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by `use_deterministic_algorithms`
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
