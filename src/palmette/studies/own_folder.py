"""The folder of a run whose training is the user's own: what is run in it, what is good, what others read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from palmette.errors import MaskMismatch, RunDamaged
from palmette.pruning.budgets import FixedRatio, Sap
from palmette.pruning.masks import check_match
from palmette.pruning.pruner import Pruner
from palmette.pruning.stopping import AtDensity, IndexTurnsUp, SmallCut, StopRule
from palmette.pruning.weights import uncompiled
from palmette.studies.experiment import OWN_DATA, Experiment
from palmette.studies.folder import RunDir
from palmette.studies.run_state import check_plain
from palmette.training.rewinding import Rewind

Score = Callable[[Any], float]


@dataclass(frozen=True)
class Wanted:
    """What `prune_and_retrain` was asked for, beside its `Pruner`, checked; see there."""

    train: Callable[[Any], object]
    evaluate: Score | None
    test: Score | None
    rewind: Rewind
    stop: tuple[StopRule, ...]
    rounds: int
    tolerance: float | None
    trained: bool

    def settings(self, pruner: Pruner) -> dict[str, Any]:
        """All that a folder must agree with, as plain values that are the same in every process."""
        return {
            "budget": _described(pruner.budget),
            "scope": pruner.scope,
            "saliency": _described(pruner.saliency),
            "rewind": str(self.rewind),
            "stop": [_described(rule) for rule in self.stop],
            "rounds": self.rounds,
            "evaluate": self.evaluate is not None,
            "tolerance": self.tolerance,
            "trained": self.trained,
            "test": self.test is not None,
        }

    def experiment(self, pruner: Pruner) -> Experiment | None:
        """What `palmette table` and `palmette report` take the run for; None if its budget is none of theirs.

        Data and recipe are the user's own, and unknown: the data is called "own data", and there are no epochs
        to count.
        """
        budget = pruner.budget
        if type(budget) is Sap:
            method = {"method": "sap", **asdict(budget)}
        elif type(budget) is FixedRatio:
            method = {"method": "lottery-ticket", "ratio": budget.ratio}
        else:
            return None
        rules = [text for rule in self.stop if (text := _rule(rule)) is not None]
        tolerance = 0.01 if self.tolerance is None else self.tolerance
        if self.evaluate is not None and tolerance <= 1:
            rules.append(f"accuracy-drops:{tolerance}")
        return Experiment(
            data=OWN_DATA,
            model=f"own:{type(uncompiled(pruner.model)).__name__}",
            scope=pruner.scope,
            rewind=str(self.rewind),
            stop=",".join(rules),
            rounds=self.rounds,
            epochs=0,
            **method,
        )


def _described(thing: object) -> str:
    name = getattr(thing, "__qualname__", None)
    return name if isinstance(name, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _rule(rule: StopRule) -> str | None:
    if isinstance(rule, IndexTurnsUp):
        return f"index-turns-up:{rule.patience}"
    if isinstance(rule, SmallCut):
        return f"small-cut:{float(rule.below)}"
    return f"density:{float(rule.density)}" if isinstance(rule, AtDensity) else None


def claim(rundir: RunDir, pruner: Pruner, wanted: Wanted) -> None:
    """Write down what is run here, or check that it is the same model and the same settings."""
    state = uncompiled(pruner.model).state_dict()
    check_plain(state)
    tensors = {name: list(v.shape) for name, v in state.items() if isinstance(v, Tensor)}
    settings, weights, experiment = wanted.settings(pruner), list(pruner.weights), wanted.experiment(pruner)
    if rundir.settings.exists():
        _check_same(rundir, settings, tensors, weights)
    elif rundir.experiment.exists() or rundir.records_file.exists():
        raise RunDamaged(f"{str(rundir.path)!r} holds another kind of run; give another folder")
    else:
        now = {"settings": settings, "tensors": tensors, "weights": weights}
        rundir.write_text(rundir.settings.name, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    if experiment is not None and not rundir.experiment.exists():
        rundir.write_text(rundir.experiment.name, experiment.to_toml())


def _check_same(
    rundir: RunDir, settings: Mapping[str, Any], tensors: Mapping[str, list[int]], weights: Sequence[str]
) -> None:
    file, where = rundir.settings, repr(str(rundir.path))
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        shapes = {name: torch.empty(shape, device="meta") for name, shape in there["tensors"].items()}
        was, pruned = dict(there["settings"]), list(there["weights"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDamaged(
            f"{str(file)!r} is damaged: {error!r}; give another folder, or remove that one"
        ) from error
    try:
        check_match(shapes, {n: torch.Size(s) for n, s in tensors.items()}, f"the weights in {where}")
    except MaskMismatch as error:
        raise MaskMismatch(f"{error}. Give the model that the run was begun with, or another folder") from None
    if differ := [name for name in {**was, **settings} if was.get(name) != settings.get(name)]:
        one, other = (", ".join(f"{name}={of.get(name)!r}" for name in differ) for of in (was, settings))
        raise RunDamaged(
            f"{where} holds a run with {one}, not {other}; go on with the old settings, or give another folder"
        )
    if pruned != weights:
        raise RunDamaged(
            f"{where} holds a run that prunes {_named(pruned)}, not {_named(weights)}; give the same include and "
            "exclude, or another folder"
        )


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


def write_good(rundir: RunDir, good: Mapping[str, Any]) -> None:
    """The last good model: `torch.load` gives it, and its weights are under "state_dict"."""
    buffer = io.BytesIO()
    torch.save(dict(good), buffer)
    rundir.write_bytes(rundir.good.name, buffer.getbuffer())


def read_good(rundir: RunDir) -> dict[str, Any]:
    """What `write_good` wrote, on the CPU."""
    file = rundir.good
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
        return {name: found[name] for name in ("round", "score", "state_dict", "buffers", "pruner")}
    except Exception as error:  # whatever comes of bytes that are not what was written
        damaged = "it is damaged, or holds more than tensors and plain values"
        why = (isinstance(error, OSError) and error.strerror) or damaged
        raise RunDamaged(
            f"the last good model, {str(file)!r}, cannot be read: {why}; remove {str(rundir.path)!r} to begin "
            "again"
        ) from error
