"""Training by the user's function, with the last good model."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import NotFinite, ParameterGone, RunDamaged
from palmette.pruning.optimizers import AutoHold
from palmette.pruning.stopping import IndexTurnsUp, ScoreDrops
from palmette.pruning.weights import evaluating, tensors_of, uncompiled
from palmette.studies.engine import Scores
from palmette.studies.experiment import OwnExperiment
from palmette.studies.folder import RunDir
from palmette.studies.trainers.randomness import random_state, set_random_state
from palmette.studies.trainers.run_state import RunState


def as_scores(score: float | None) -> dict[str, float | None]:
    """Scores of a record from the result of a function; also the accuracy if it is in [0, 1]."""
    return {"loss": None, "accuracy": score if score is not None and 0 <= score <= 1 else None, "score": score}


class FunctionRun(RunState):
    """Run of a model that the user's function trains."""

    spec: OwnExperiment
    train_scores = as_scores(None)
    rates: dict[str, float] | None = None
    """Learning rates of the last step of round 0, for "fine-tune"."""

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, including random states, since the function may draw numbers."""
        names = list(self.model.state_dict())
        return super().state() | {"names": names, "rates": self.rates, "random": random_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `save` wrote."""
        if "state_dict" in state:  # written before all runs had one format
            start = state["start"] and {**state["start"][1], **state["start"][0]}
            model = {**state["buffers"], **state["state_dict"]}
            state = {**state, "epoch": 0, "model": model, "start": start, "dense": None}
        super().restore(state)
        self.rates = state["rates"]
        set_random_state(state["random"])


class FunctionTrainer:
    """Calls the user's functions, and keeps the last good model.

    Args:
        train, evaluate, test: as for `prune_and_retrain`.
        drops: rule for scores that are not good; None without `evaluate`.
    """

    timing: Mapping[str, float | None] = {"epochs": 0, "images_per_second": None}

    def __init__(
        self,
        run: FunctionRun,
        train: Callable[[Any], object],
        evaluate: Callable[[Any], float] | None,
        test: Callable[[Any], float] | None,
        drops: ScoreDrops | None,
    ) -> None:
        self.run, self.model, self.functions = run, run.pruner.model, {"evaluate": evaluate, "test": test}
        self.function, self.drops, self.trained = train, drops, run.spec.trained
        self.met = AutoHold(run.pruner)
        self.modes = {module: module.training for module in self.model.modules()}
        self._whole: dict[str, Any] = {}  # model of the round before its cut
        self._good: dict[str, Any] | None = None

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
        """Result of `evaluate`; None without it."""
        score = self._score("evaluate")
        if self.run.round == 0 and score is not None:
            if not math.isfinite(score):
                raise ValueError(f"evaluate must return a finite number for the dense network, got {score}")
            self._check_scale(score)
        values, names = self.run.snapshot(), self.run.model.state_dict().keys()
        self._whole = {
            "round": self.run.round,
            "score": score,
            "state_dict": {name: values[name] for name in names},
            "buffers": {name: value for name, value in values.items() if name not in names},
            "pruner": self.run.pruner.state_dict(),
        }
        return [None if score is None else as_scores(score)]

    def test(self, runs: Sequence[FunctionRun]) -> list[Scores]:
        """Result of `test`."""
        return [as_scores(self._score("test"))]

    def judge(self, run: FunctionRun) -> bool:
        """Whether the network is good, by its score or its index; keeps a good network."""
        history = run.history
        if self.drops is not None:
            good = self.drops(history) is None
        else:
            patience = next(filter(None, (getattr(rule, "patience", None) for rule in run.rules)), None)
            turns_up = IndexTurnsUp(patience or IndexTurnsUp.patience)
            rises = any(a.index < b.index for a, b in itertools.pairwise(history[-2:]))
            good = not (rises or any(turns_up(history[: n + 1]) for n in range(len(history))))
        if good:
            self._good = self._whole
            if run.rundir is not None:
                torch.save(self._whole, buffer := io.BytesIO())
                run.rundir.write_bytes(run.rundir.good.name, buffer.getbuffer())
        return good

    def divergence(self, run: FunctionRun) -> NotFinite:
        """Error for a run whose weights are not finite; restores the last good model."""
        back = f" The model is restored to that of round {self.put_back()['round']}." if run.round else ""
        return NotFinite(
            f"training diverged in round {run.round}: not all weights are finite. A smaller learning rate, "
            f"clipping or a warm-up may help.{back}"
        )

    def put_back(self) -> dict[str, Any]:
        """Restore the last good model."""
        if self._good is None:
            assert self.run.rundir is not None  # round 0 is always good, so a resumed run has a file
            self._good = read_good(self.run.rundir)
        self.run.load({**self._good["buffers"], **self._good["state_dict"]})
        self.run.pruner.load_state_dict(self._good["pruner"])
        return self._good

    def set_modes(self) -> None:
        """Set every module to its original mode."""
        for module, training in self.modes.items():
            module.training = training

    def _call(self) -> None:
        run, before = self.run, self._sums()
        self.set_modes()
        tunes = run.rewind.kind == "fine-tune"
        with self.met.round(run.rates if run.round else None, note=tunes and run.round == 0):
            returned = self.function(self.model)
        if isinstance(returned, nn.Module) and uncompiled(returned) is not run.model:
            raise ValueError(
                f"train must train the given model in place, and not return another ({type(returned).__name__})"
            )
        try:
            after = self._sums()
        except ParameterGone as error:
            what = str(error).partition(";")[0]
            raise ParameterGone(
                f"{what}, by train. It must change the values of the model's parameters, not replace "
                "them: add or replace layers before prune_and_retrain is called"
            ) from None
        if before == after and run.round == self.trained:  # later rounds may have nothing left to learn
            raise ValueError(
                "train left every weight unchanged. It must train the given model in place: does it train a copy, "
                "was its optimizer made for another model, or is the learning rate 0? If the model is already "
                "trained, pass trained=True"
            )
        if run.round == 0:
            run.rates = self.met.rates

    def _sums(self) -> list[float]:
        """Sums of the weights and their squares, to detect training."""
        values = [weight.detach().double() for weight in tensors_of(self.run.weights).values()]
        return [float(sums) for v in values for sums in (v.sum(), v.square().sum())]

    def _check_scale(self, score: float | None) -> None:
        if score is not None and self.run.spec.tolerance is None and not 0 <= score <= 1:
            raise ValueError(
                f"evaluate returned {score:g}, which is not an accuracy in [0, 1]: set the largest drop below the "
                "dense network, such as tolerance=1.0 for accuracy in percent. Larger must be better, so "
                "return minus the loss, not the loss"
            )

    def _score(self, name: str) -> float | None:
        if (function := self.functions[name]) is None:
            return None
        with evaluating(self.model):
            value: Any = function(self.model)
        try:
            return float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{name} must return one number, larger is better, got {value!r}") from None


def read_good(rundir: RunDir) -> dict[str, Any]:
    """Last good model of a folder, on the CPU; its weights are under "state_dict"."""
    file = rundir.good
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
        return {name: found[name] for name in ("round", "score", "state_dict", "buffers", "pruner")}
    except Exception as error:  # damaged bytes may raise anything
        damaged = "it is damaged, or holds more than tensors and plain values"
        why = (isinstance(error, OSError) and error.strerror) or damaged
        raise RunDamaged(
            f"the last good model, {str(file)!r}, cannot be read: {why}; remove {str(rundir.path)!r} to start "
            "again"
        ) from error
