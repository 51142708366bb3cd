"""The folder of a run whose training is the user's own: what is run in it, what is good, what others read."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import MaskMismatch, RunDamaged
from palmette.pruning.budgets import FixedRatio, Sap
from palmette.pruning.masks import check_match
from palmette.pruning.pruner import Pruner
from palmette.pruning.stopping import AtDensity, IndexTurnsUp, SmallCut, StopRule
from palmette.pruning.weights import uncompiled
from palmette.studies.config import Experiment
from palmette.studies.rundir import RunDir

SETTINGS = "settings.json"
GOOD = "good.pt"


def described(thing: object) -> str:
    """A setting in words that are the same in every process."""
    name = getattr(thing, "__qualname__", None)
    return name if isinstance(name, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def experiment_for(
    pruner: Pruner, *, rewind: str, stop: Sequence[StopRule], rounds: int, tolerance: float | None
) -> Experiment | None:
    """What `palmette table` and `palmette report` take the run for; None where its budget is none of theirs.

    Data and recipe are the user's own, and unknown: the data is called "own", and there are no epochs to count.
    """
    budget = pruner.budget
    if type(budget) is Sap:
        numbers = {name: getattr(budget, name) for name in ("p", "q", "eta", "gamma", "beta")}
        method = {"method": "sap", **numbers}
    elif type(budget) is FixedRatio:
        method = {"method": "lottery-ticket", "ratio": budget.ratio}
    else:
        return None
    rules = [text for rule in stop if (text := _rule(rule)) is not None]
    if tolerance is not None and tolerance <= 1:
        rules.append(f"accuracy-drops:{tolerance}")
    return Experiment(
        data="own",
        model=f"own:{type(uncompiled(pruner.model)).__name__}",
        scope=pruner.scope,
        rewind=rewind,
        stop=",".join(rules),
        rounds=rounds,
        epochs=0,
        **method,
    )


def _rule(rule: StopRule) -> str | None:
    if isinstance(rule, IndexTurnsUp):
        return f"index-turns-up:{rule.patience}"
    if isinstance(rule, SmallCut):
        return f"small-cut:{rule.below}"
    return f"density:{rule.density}" if isinstance(rule, AtDensity) else None


def claim(
    rundir: RunDir,
    settings: Mapping[str, Any],
    model: nn.Module,
    weights: Mapping[str, Tensor],
    at: Experiment | None,
) -> None:
    """Write down what is run here, or check that it is the same model and the same settings.

    Args:
        settings: of the run, as plain values.
        model: whose tensors must fit what is saved.
        weights: those that are pruned.
        at: what other commands take it for.
    """
    file = rundir.path / SETTINGS
    tensors = {n: list(v.shape) for n, v in uncompiled(model).state_dict().items() if isinstance(v, Tensor)}
    now: dict[str, Any] = {"settings": dict(settings), "tensors": tensors, "weights": list(weights)}
    if not file.exists():
        if rundir.experiment.exists() or rundir.records_file.exists():
            raise RunDamaged(f"{str(rundir.path)!r} holds another kind of run; give another folder")
        if at is not None:
            rundir.write_text(rundir.experiment.name, at.to_toml())
        rundir.write_text(SETTINGS, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
        return
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        shapes = {name: torch.empty(shape, device="meta") for name, shape in there["tensors"].items()}
        other = [
            n for n in {**there["settings"], **settings} if there["settings"].get(n) != now["settings"].get(n)
        ]
        pruned = list(there["weights"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDamaged(
            f"{str(file)!r} is damaged: {error!r}; give another folder, or remove that one"
        ) from error
    try:
        check_match(shapes, {n: torch.Size(s) for n, s in tensors.items()}, f"the weights in {str(rundir.path)!r}")
    except MaskMismatch as error:
        raise MaskMismatch(f"{error}. Give the model that the run was begun with, or another folder") from None
    if other:
        was = ", ".join(f"{name}={there['settings'].get(name)!r}" for name in other)
        got = ", ".join(f"{name}={now['settings'].get(name)!r}" for name in other)
        raise RunDamaged(
            f"{str(rundir.path)!r} holds a run with {was}, not {got}; go on with the old settings, or give "
            "another folder"
        )
    if pruned != list(weights):
        raise RunDamaged(
            f"{str(rundir.path)!r} holds a run that prunes {_named(pruned)}, not {_named(list(weights))}; give "
            "the same include and exclude, or another folder"
        )


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


def write_good(rundir: RunDir, good: Mapping[str, Any]) -> None:
    """The last good model: `torch.load` gives it, and its weights are under "state_dict"."""
    buffer = io.BytesIO()
    torch.save(dict(good), buffer)
    rundir.write_bytes(GOOD, buffer.getbuffer())


def read_good(rundir: RunDir) -> dict[str, Any]:
    """What `write_good` wrote, on the CPU."""
    file = rundir.path / GOOD
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
        return dict(found)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise RunDamaged(
            f"the last good model, {str(file)!r}, cannot be read: {error}; remove {str(rundir.path)!r} to begin "
            "again"
        ) from error
