"""Many members of one architecture, trained together in the fastest way."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from palmette.compression.flops import flops_per_image
from palmette.errors import first_line
from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.data_parallel import DataParallelTraining, WorkerGroup
from palmette.training.loop import Score, Training, evaluate, evaluate_all, training_mode
from palmette.training.members import Member, stackable
from palmette.training.recipe import Recipe

STREAMS = 4  # more gain little on an H200 and take memory
CHEAP_FLOPS = 1_000_000  # per image; up to these, stacking pays on a CPU


class Fleet:
    """Members of one architecture, each trained as if it were alone.

    `stackable` members are one tensor and train in one pass; on a CPU only if they are small. Other members train
    one after another on a CPU, and in a few parallel streams on a GPU.

    Args:
        check: first compare a stacked step with the steps of each member alone.
        stack_single: stack a single member, too: on a CPU with one thread it then reaches the same weights, bit
            for bit, as in a larger fleet, and takes up to twice as long.
    """

    def __init__(
        self,
        members: Sequence[Member],
        images: Images,
        recipe: Recipe,
        *,
        stack: bool = True,
        check: bool = False,
        stack_single: bool = False,
        workers: WorkerGroup | None = None,
    ) -> None:
        self.recipe, self._notes = recipe, list[str]()
        models = [member.model for member in members]
        self.device = next(models[0].parameters()).device
        several = len(members) > 1 or (stack_single and self.device.type == "cpu")
        self.stacked = stack and several and workers is None and stackable(models)
        if self.stacked and self.device.type == "cpu":
            self.stacked = flops_per_image(models[0], shape=images.shape) <= CHEAP_FLOPS
        if self.stacked and check and (why := _difference(members, images, recipe)) is not None:
            self._notes.append(f"these networks cannot be stacked and train one by one: {why}")
            self.stacked = False
        parts = [list(members)] if self.stacked else [[member] for member in members]
        self.trainings: list[Training] = (
            [Training(part, images, recipe, stacked=self.stacked) for part in parts]
            if workers is None
            else [DataParallelTraining(member, images, recipe, workers) for member in members]
        )
        draws = any(isinstance(module, nn.modules.dropout._DropoutNd) for module in models[0].modules())
        streams = 1 if self.device.type == "cpu" or draws else min(STREAMS, len(self.trainings))
        self._streams = [torch.cuda.Stream(self.device) for _ in range(streams)] if streams > 1 else []

    @property
    def notes(self) -> list[str]:
        """Notes for the user, complete after the first epoch."""
        notes = [*self._notes, *(note for training in self.trainings for note in training.notes)]
        return list(dict.fromkeys(notes))

    def epoch(self, number: int, *, learning_rate: float | None = None) -> list[Score]:
        """Train for one epoch, counted from 0; return each member's mean score during it."""
        scores: list[Score] = []
        at_once = max(1, len(self._streams))
        with training_mode(self.recipe.precision, self.device):
            for first in range(0, len(self.trainings), at_once):
                part = self.trainings[first : first + at_once]
                left = {training: training.begin(number, learning_rate=learning_rate) for training in part}
                for stream in self._streams:
                    stream.wait_stream(torch.cuda.current_stream(self.device))
                while any(left.values()):
                    for place, training in enumerate(part):
                        if left[training]:
                            with self._stream(place):
                                left[training] = training.advance(left[training])
                for stream in self._streams:
                    torch.cuda.current_stream(self.device).wait_stream(stream)
                scores += [score for training in part for score in training.finish()]
        return scores

    def _stream(self, place: int) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._streams[place]) if self._streams else contextlib.nullcontext()

    def evaluate(self, images: Tensor, labels: Tensor, prepare: Preparation) -> list[Score]:
        """Score of each member in the recipe's precision."""
        return [
            score
            for training in self.trainings
            for score in evaluate_all(training.network, images, labels, prepare, precision=self.recipe.precision)
        ]


def _difference(members: Sequence[Member], images: Images, recipe: Recipe) -> str | None:
    """Difference of a stacked step of copies of the members from steps alone; None if there is none.

    A user's model may keep results in attributes, or use operations that cannot be stacked.
    """
    few = images.first(train=8, test=8)
    step = replace(recipe, batch=8, compile=False)
    together, alone = (
        [
            replace(m, model=(model := copy.deepcopy(m.model)), optimizer=step.make_optimizer(model.parameters()))
            for m in members
        ]
        for _ in range(2)
    )
    prepare = Preparation(images, device=images.train_images.device)
    test = (few.train_images, few.train_labels, prepare)
    try:
        training = Training(together, few, step, stacked=True)
        training.epoch(0)
        scores = evaluate_all(training.network, *test)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # user code may raise anything
        return first_line(error)
    tolerance = {"float32": 1e-3, "tf32": 1e-2, "bfloat16": 1e-1}[recipe.precision]
    for one, other, score in zip(together, alone, scores, strict=True):
        Training([other], few, step).epoch(0)
        if abs(score.loss - evaluate(other.model, *test).loss) > tolerance * (1 + abs(score.loss)):
            return "their scores differ between stacked and single training"
        for (name, ours), theirs in zip(one.model.named_buffers(), other.model.buffers(), strict=True):
            if not torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
                return f"the buffer {name!r} differs between stacked and single training"
    return None
