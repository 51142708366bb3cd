"""Many members of one architecture, trained together in whichever way is fastest."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from palmette.training.data.augment import Preparation
from palmette.training.data.images import Images
from palmette.training.loop import Score, Training, evaluate_all, training_mode
from palmette.training.members import Member, stackable
from palmette.training.recipe import Precision, Recipe

SIDE_BY_SIDE = 4  # streams; more gain little on an H200, and take memory


class Fleet:
    """Members of one architecture, each of which trains as if it were alone.

    Those that are `stackable` are one tensor and train in one pass. Others, with convolutions, keep a CPU busy one
    after another, and a GPU side by side, a few at once.

    Args:
        members: on one device.
        images: the data set.
        recipe: how to train.
    """

    def __init__(self, members: Sequence[Member], images: Images, recipe: Recipe) -> None:
        self.recipe, self.stacked = recipe, len(members) > 1 and stackable(members[0].model)
        self._notes: list[str] = []
        if self.stacked:
            try:
                self.trainings = [Training(members, images, recipe)]
                self.trainings[0].check()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a model of a user's own may do anything
                why = str(error).strip().split("\n")[0]
                self._notes.append(f"these networks cannot be stacked, and train one by one: {why}")
                self.stacked = False
        if not self.stacked:
            self.trainings = [Training([member], images, recipe) for member in members]
        self.device = self.trainings[0].device
        streams = min(SIDE_BY_SIDE, len(self.trainings)) if self.device.type == "cuda" else 1
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

    def evaluate(
        self, images: Tensor, labels: Tensor, prepare: Preparation, *, precision: Precision = "float32"
    ) -> list[Score]:
        """The score of each member, as `palmette.training.loop.evaluate` gives it."""
        return [
            score
            for training in self.trainings
            for score in evaluate_all(training.network, images, labels, prepare, precision=precision)
        ]
