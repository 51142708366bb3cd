"""Resume a run of `prune_and_retrain` in its folder, if it belongs to the same model and settings."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from palmette.errors import MaskMismatch, RunDamaged
from palmette.pruning.masks import Masks, check_match
from palmette.studies.experiment import OwnExperiment
from palmette.studies.extending import goes_on, longer
from palmette.studies.folder import RunDir
from palmette.studies.record import Record, experiment_of, records_of
from palmette.studies.trainers.function_trainer import FunctionRun
from palmette.studies.trainers.snapshots import mend_good, read_good


def resumed(run: FunctionRun, rundir: RunDir, say: Callable[[str], None]) -> bool:
    """Restore the saved state, or a finished run, of the folder; return whether there was one."""
    run.spec = replace(run.spec, initial=digest(run.model.state_dict()))
    _claim(rundir, run, say)
    rundir.failure.unlink(missing_ok=True)
    records = records_of(rundir, resuming=True)
    more = goes_on(records, run.spec.rounds)
    rundir.check_masks(records, needed=more)
    if not more:
        mend_good(rundir)
        good = read_good(rundir)
        _check_fits(run, rundir, good["state_dict"], good["pruner"])
        run.record = Record.from_json(records[-1])
        return True
    if (found := rundir.load_checkpoint()) is not None:
        state = found[1]
        _check_fits(run, rundir, {name: state["model"][name] for name in state["names"]}, state["pruner"])
        run.restore(state)
        return True
    if records:
        raise RunDamaged(f"{str(rundir.path)!r} has records but no state to resume from; remove it to start again")
    return False


def digest(state: Mapping[str, Any]) -> str:
    """Hash of all tensors of a `state_dict`, in eight characters."""
    found = hashlib.sha256()
    for name, value in state.items():
        if isinstance(value, Tensor):
            plain: Any = value.detach().cpu().contiguous().reshape(-1)
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(plain.view(torch.uint8).numpy())
    return found.hexdigest()[:8]


def _claim(rundir: RunDir, run: FunctionRun, say: Callable[[str], None]) -> None:
    """Write the settings to a new folder, or check that an existing one has the same or fewer rounds."""
    where = repr(str(rundir.path))
    if rundir.settings.exists():
        raise RunDamaged(
            f"{where} holds a run of an earlier version, which cannot be resumed; give another folder"
        )
    if not (rundir.experiment.exists() or rundir.records_file.exists()):
        _begin(rundir, run)
        return
    there = experiment_of(rundir) if rundir.experiment.exists() else None
    if not isinstance(there, OwnExperiment):
        raise RunDamaged(f"{where} holds another kind of run; give another folder")
    was, now, records = there.settings(), run.spec.settings(), rundir.records(resuming=True)
    # The class of a model may be renamed; its weights are checked instead.
    differ = [name for name in now if name not in ("run", "model", "initial") and was[name] != now[name]]
    elsewhere = there.initial not in ("", run.spec.initial)
    if elsewhere and differ in ([], ["rounds"]) and (records or not there.trained):
        _check_same(there, run, rundir, records, say)
    if differ == ["rounds"] and was["rounds"] < now["rounds"] and records:
        ends = not goes_on(records, now["rounds"])  # by another reason: more rounds would change nothing
        if ends or rundir.checkpoint_numbers():
            run.spec = replace(run.spec, run=there.run, initial=there.initial)
            if not ends:
                rundir.write_text(rundir.experiment.name, longer(rundir, run.spec))
            return
    if differ or (elsewhere and not records and there.trained):
        if not records:  # nothing is lost: a call with a wrong setting can be corrected
            rundir.finish()
            _begin(rundir, run)
            return
        one, other = (", ".join(f"{name}={of[name]!r}" for name in differ) for of in (was, now))
        raise RunDamaged(
            f"{where} holds a run with {one}, not {other}; resume with the old settings, or give another folder"
        )
    run.spec = replace(run.spec, run=there.run, initial=there.initial)


def _begin(rundir: RunDir, run: FunctionRun) -> None:
    """Write the settings of a run that starts here."""
    run.spec = replace(run.spec, run=secrets.token_hex(4))
    rundir.write_text(rundir.experiment.name, run.spec.to_toml())


def _check_same(
    there: OwnExperiment, run: FunctionRun, rundir: RunDir, records: Sequence[Any], say: Callable[[str], None]
) -> None:
    """Raise if a run that started from other weights would answer for this model; say if it only resumes."""
    one, other = (spec.model.removeprefix("own:") for spec in (there, run.spec))
    whose = (
        f"{str(rundir.path)!r} holds a run of {one} from the weights {there.initial}, not of {other} from "
        f"{run.spec.initial}"
    )
    ended = bool(records) and records[-1]["stopped"] is not None
    if ended:
        good = read_good(rundir)
        _check_fits(run, rundir, good["state_dict"], good["pruner"])
        if digest(good["state_dict"]) == run.spec.initial:  # the model that the run returned
            return
    if ended or there.trained:
        found = f"; {str(rundir.good)!r} has the network that it found" if ended else ""
        raise RunDamaged(f"{whose}; pass the model as it was then, or give another folder{found}")
    say(f"{whose}; it resumes with its own")


def _check_fits(run: FunctionRun, rundir: RunDir, saved: Mapping[str, Any], pruner: Mapping[str, Any]) -> None:
    """Raise unless a saved state belongs to this model and prunes the same weights."""
    where = repr(str(rundir.path))
    now = {name: value for name, value in run.model.state_dict().items() if isinstance(value, Tensor)}
    then = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
    try:
        check_match(then, {name: value.shape for name, value in now.items()}, f"the weights in {where}")
    except MaskMismatch as error:
        raise MaskMismatch(f"{error}. Pass the model that the run started with, or another folder") from None
    pruned, weights = list(Masks.from_state_dict(pruner["masks"])), list(run.weights)
    if pruned != weights:
        raise RunDamaged(
            f"{where} holds a run that prunes {_named(pruned)}, not {_named(weights)}; give the same include and "
            "exclude, or another folder"
        )


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
