"""Many members of one architecture, trained together in whichever way is fastest."""

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
from palmette.training.data_parallel import SharedTraining, Team
from palmette.training.loop import Score, Training, evaluate, evaluate_all, training_mode
from palmette.training.members import Member, stackable
from palmette.training.recipe import Recipe

SIDE_BY_SIDE = 4  # streams; more gain little on an H200, and take memory
CHEAP = 1_000_000  # FLOPs per image, up to which stacking pays on a CPU: more keep it busy one by one


class Fleet:
    """Members of one architecture, each of which trains as if it were alone.

    Those that are `stackable` are one tensor and train in one pass, on a CPU if they are cheap. Others keep a CPU
    busy one after another, and a GPU side by side, a few at once.

    Args:
        members: on one device.
        images: the data set.
        recipe: how to train.
        stack: whether they may be stacked.
        check: whether to try first that each does the same together with the others as alone.
        company: whether one by itself is trained as among others: on a CPU with one thread it then comes to the
            same weights, to the last bit, and takes up to twice as long.
        team: processes that train each of them together.
    """

    def __init__(
        self,
        members: Sequence[Member],
        images: Images,
        recipe: Recipe,
        *,
        stack: bool = True,
        check: bool = False,
        company: bool = False,
        team: Team | None = None,
    ) -> None:
        self.recipe, self._notes = recipe, list[str]()
        models = [member.model for member in members]
        self.device = next(models[0].parameters()).device
        several = len(members) > 1 or (company and self.device.type == "cpu")
        self.stacked = stack and several and team is None and stackable(models)
        if self.stacked and self.device.type == "cpu":
            self.stacked = flops_per_image(models[0], shape=images.shape) <= CHEAP
        if self.stacked and check and (why := _difference(members, images, recipe)) is not None:
            self._notes.append(f"these networks cannot be stacked, and train one by one: {why}")
            self.stacked = False
        parts = [list(members)] if self.stacked else [[member] for member in members]
        self.trainings: list[Training] = (
            [Training(part, images, recipe, stacked=self.stacked) for part in parts]
            if team is None
            else [SharedTraining(member, images, recipe, team) for member in members]
        )
        draws = any(isinstance(module, nn.modules.dropout._DropoutNd) for module in models[0].modules())
        streams = 1 if self.device.type == "cpu" or draws else min(SIDE_BY_SIDE, len(self.trainings))
        self._streams = [torch.cuda.Stream(self.device) for _ in range(streams)] if streams > 1 else []

    @property
    def notes(self) -> list[str]:
        """What a user should know, complete after the first epoch."""
        return list(
            dict.fromkeys([*self._notes, *(note for training in self.trainings for note in training.notes)])
        )

    def epoch(self, number: int, *, learning_rate: float | None = None) -> list[Score]:
        """Train for one epoch, counted from 0; the score of each member while it went on."""
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
        """The score of each member in the recipe's precision, as `palmette.training.loop.evaluate` gives it."""
        return [
            score
            for training in self.trainings
            for score in evaluate_all(training.network, images, labels, prepare, precision=self.recipe.precision)
        ]


def _difference(members: Sequence[Member], images: Images, recipe: Recipe) -> str | None:
    """What copies of the members do differently in one pass than alone, in one step; None if nothing.

    A model of a user's own may do anything: keep a result in an attribute, or what cannot be done for many.
    """
    few = replace(images, train_images=images.train_images[:8], train_labels=images.train_labels[:8])
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
    except Exception as error:  # whatever it may be
        return first_line(error)
    most = {"float32": 1e-3, "tf32": 1e-2, "bfloat16": 1e-1}[recipe.precision]
    for one, other, score in zip(together, alone, scores, strict=True):
        Training([other], few, step).epoch(0)
        if abs(score.loss - evaluate(other.model, *test).loss) > most * (1 + abs(score.loss)):
            return "they give other scores together than alone"
        buffers = zip(one.model.named_buffers(), other.model.buffers(), strict=True)
        for (name, ours), theirs in buffers:
            if not torch.allclose(ours.double(), theirs.double(), rtol=most, atol=most, equal_nan=True):
                return f"the buffer {name!r} becomes another together than alone"
    return None
