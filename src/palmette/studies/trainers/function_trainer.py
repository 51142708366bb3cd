"""Training by the user's function."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from palmette.errors import NotFinite, ParameterGone
from palmette.measures.parameters import as_number, is_number
from palmette.pruning.tolerance import Estimate
from palmette.pruning.weights import evaluating, parameters_by_name, uncompiled
from palmette.studies.engine import Scores
from palmette.studies.experiment import OwnExperiment
from palmette.studies.record import value_of
from palmette.studies.trainers.auto_hold import AutoHold
from palmette.studies.trainers.randomness import random_state, set_random_state
from palmette.studies.trainers.run_state import RunState


def as_scores(score: float | None) -> dict[str, float | None]:
    """Scores of a record from the result of a function; also the accuracy if it is in [0, 1]."""
    return {"loss": None, "accuracy": score if score is not None and 0 <= score <= 1 else None, "score": score}


class FunctionRun(RunState):
    """Run of a model that the user's function trains."""

    spec: OwnExperiment
    train_scores: Mapping[str, float | None] = as_scores(None)
    default_tolerance = False
    """Whether the tolerance is the default, which is for scores in [0, 1]."""
    rates: dict[str, float] | None = None
    """Learning rates of the last step of round 0, for "fine-tune"."""

    def judge(self, scores: Mapping[str, float | None] | None) -> bool | None:
        """Judge the network by its score; without a search, the last trained network is the answer."""
        if self.tolerance is not None:
            return super().judge(scores)
        self.snapshots.answer(self.whole(value_of(scores)))
        return None

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, including random states, since the function may draw numbers."""
        names = list(self.model.state_dict())
        return super().state() | {"names": names, "rates": self.rates, "random": random_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `save` wrote."""
        super().restore(state)
        self.rates = state["rates"]
        set_random_state(state["random"])


class FunctionTrainer:
    """Calls the user's functions.

    Args:
        train, evaluate, test: as for `prune_and_retrain`.
    """

    timing: Mapping[str, float | None] = {"epochs": 0, "images_per_second": None}

    def __init__(
        self,
        run: FunctionRun,
        train: Callable[[Any], object],
        evaluate: Callable[[Any], object] | None,
        test: Callable[[Any], object] | None,
    ) -> None:
        self.run, self.model, self.functions = run, run.pruner.model, {"evaluate": evaluate, "test": test}
        self.function, self.trained = train, run.spec.trained
        self.met = AutoHold(run.pruner)
        self.modes = {module: module.training for module in self.model.modules()}
        self._after: dict[int, list[float]] = {}  # sums of the weights after each training in this process

    def try_out(self) -> None:
        """Call the functions once, so that an unusable result raises before the first training."""
        if not self.trained:
            self._score("test")
            self._check_scale(self._score("evaluate"))

    def train(self, runs: Sequence[FunctionRun]) -> Iterator[None]:
        """Call the user's function, whose epochs are unknown."""
        if self.run.round or not self.trained:
            self._call()
        self.run.pruner.masks.apply_(self.run.weights)
        yield from ()

    def validate(self, runs: Sequence[FunctionRun]) -> list[Scores | None]:
        """Result of `evaluate`, with its standard error if it returns several numbers; None without it."""
        score = self._score("evaluate")
        if score is None:
            return [None]
        if not self.run.attempts:
            self._check_scale(score)
        error = {} if score.error is None else {"error": score.error}
        return [{**as_scores(score.value), **error}]

    def test(self, runs: Sequence[FunctionRun]) -> list[Scores]:
        """Result of `test`."""
        score = self._score("test")
        return [as_scores(None if score is None else score.value)]

    def divergence(self, run: FunctionRun) -> NotFinite:
        """Error for a run whose weights are not finite; restores the last good model."""
        back = ""
        if run.round:
            good = run.snapshots.returned() if run.tolerance is None else run.good_snapshot()
            run.put_back(good)
            back = f" The model is restored to that of round {good['round']}."
        return NotFinite(
            f"training diverged in round {run.round}: not all weights are finite. A smaller learning rate, "
            f"clipping or a warm-up may help.{back}"
        )

    def set_modes(self) -> None:
        """Set every module to its original mode."""
        for module, training in self.modes.items():
            module.training = training

    def _call(self) -> None:
        run, before, known = self.run, self._sums(), parameters_by_name(self.model)
        self.set_modes()
        self.model.zero_grad()  # gradients of a network that was left behind
        tunes = run.rewind.kind == "fine-tune"
        with self.met.round(run.rates if run.round else None, note=tunes and run.round == 0):
            returned = self.function(self.model)
        if isinstance(returned, nn.Module) and uncompiled(returned) is not run.model:
            raise ValueError(
                f"train must train the given model in place, and not return another ({type(returned).__name__})"
            )
        after = self._sums_after(known)
        if before == after and run.round == self.trained:  # later rounds may have nothing left to learn
            raise ValueError(
                "train left every parameter unchanged. It must train the given model in place: does it train a "
                "copy, was its optimizer made for another model, or is the learning rate 0? If the model is "
                "already trained, pass trained=True"
            )
        if run.round == 0:
            run.rates = self.met.rates
        self._after[run.round] = after
        if run.step is not None and run.step.repeats is not None and after == self._after.get(run.step.repeats):
            warnings.warn(
                "train gave the same network twice, so training it once more confirms nothing; does it set the "
                "random seed?",
                stacklevel=2,
            )
        self._note_score(returned)

    def _sums_after(self, known: Container[str]) -> list[float]:
        """Sums after a training; raise if the model has lost or replaced a pruned parameter, or has a new one."""
        try:
            if new := [name for name in parameters_by_name(self.model) if name not in known]:
                raise ParameterGone(f"the parameter {new[0]!r} was added")
            return self._sums()
        except ParameterGone as error:
            what = str(error).partition(";")[0]
            raise ParameterGone(
                f"{what}, by train. It must change the values of the model's parameters, not replace "
                "them: add or replace layers before prune_and_retrain is called"
            ) from None

    def _note_score(self, returned: object) -> None:
        """Record a number that `train` returns as the score on the training data."""
        run = self.run
        number = returned.item() if isinstance(returned, Tensor) and returned.numel() == 1 else returned
        if is_number(number) and not isinstance(number, bool):
            run.train_scores = as_scores(as_number(number))
        if run.tolerance is not None and self.functions["evaluate"] is None:
            if (score := run.train_scores["score"]) is None:
                raise ValueError(
                    "there is no score of the model: pass evaluate, let train return a score on the training "
                    "data, or say when to stop, such as stop=AtDensity(0.1)"
                )
            self._check_scale(Estimate(score))

    def _sums(self) -> list[float]:
        """Sums of the parameters and their squares, to detect training, which may leave frozen weights alone."""
        _ = self.run.weights  # raises if one is gone
        every = parameters_by_name(self.model).values()
        values = [p.detach().double() for p in every if p.is_floating_point()]
        return [float(sums) for v in values for sums in (v.sum(), v.square().sum())]

    def _check_scale(self, score: Estimate | None) -> None:
        if score is None or self.run.tolerance is None:
            return
        name = "train" if self.functions["evaluate"] is None else "evaluate"
        if not math.isfinite(score.value):
            raise ValueError(f"{name} must return a finite number for the dense network, got {score.value}")
        if self.run.default_tolerance and not 0 <= score.value <= 1:
            raise ValueError(
                f"{name} returned {score.value:g}, which is not an accuracy in [0, 1]: set the largest loss of "
                "score, such as tolerance=1.0 for accuracy in percent, or tolerance='5%' with maximize=False for "
                "a loss"
            )
        self.run.tolerance.allowed(score, score)  # raises if it needs a standard error

    def _score(self, name: str) -> Estimate | None:
        if (function := self.functions[name]) is None:
            return None
        with evaluating(self.model):
            return Estimate.of(function(self.model), name)
