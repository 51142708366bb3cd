"""`palmette sweep --status`: how far a sweep has come, from its run folders alone, by anyone at any time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.errors import RunDamaged
from palmette.reports.words import counted, duration

if TYPE_CHECKING:
    from palmette.studies.config import Experiment
    from palmette.studies.rundir import RunDir
    from palmette.studies.standing import Standing

_ORDER = ("finished", "running", "interrupted", "new", "failed", "damaged")


@dataclass(frozen=True)
class _Run:
    """Where a run stands, one of `_ORDER`, and why it is not finished, if that is known."""

    rundir: RunDir
    standing: Standing
    state: str
    why: str


def show_status(file: Path, out: Path) -> None:
    """Of the runs of a grid in `out`, or of all runs in a folder; a line of JSON where it is piped."""
    from palmette.reports.comparison import names_among

    runs = _found(file, out)
    standings, counts = [run.standing for run in runs], Counter(run.state for run in runs)
    done, left = sum(s.epochs_done for s in standings), sum(s.epochs_left for s in standings)
    speed = sum(_speed(run.rundir) for run in runs if run.state == "running")
    seconds = left / speed if speed else None
    owners = sorted({s.owner for s in standings if s.owner})
    names = names_among([s.experiment for s in standings])
    if not sys.stdout.isatty():
        told = [
            {"run": s.experiment.id, "method": name, "seed": s.experiment.seed, "state": run.state}
            | {"rounds": s.rounds, "epochs_done": s.epochs_done, "epochs_left": s.epochs_left, "why": run.why}
            for run, s, name in zip(runs, standings, names, strict=True)
        ]
        whole = {"epochs_done": done, "epochs_left": left, "seconds_left": seconds, "owners": owners}
        click.echo(json.dumps({"runs": told, "states": counts, **whole}))
        return
    states = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
    click.echo(f"{counted(len(runs), 'run')}: {states}")
    where = f" by {len(owners)} processes" if len(owners) > 1 else ""
    time = "" if seconds is None else f", about {duration(seconds)} left{where}"
    click.echo(f"{done / max(1, done + left):.0%} of all epochs{time}")
    _show_groups(runs, names)
    for run in runs:
        if run.why:
            click.echo(f"  {run.standing.experiment.id}: {run.why}")


def _show_groups(runs: Sequence[_Run], names: Sequence[str]) -> None:
    """A line for each method: of how many runs how many are finished, and the rounds of those that are not."""
    width = max(len(name) for name in names)
    for group in dict.fromkeys(names):
        members = [run for run, name in zip(runs, names, strict=True) if name == group]
        rounds = [run.standing.rounds for run in members if run.state != "finished"]
        whole = 1 + max(run.standing.experiment.rounds for run in members)
        least, most = min(rounds, default=0), max(rounds, default=0)
        some = f"{least}" if least == most else f"{least} to {most}"
        under = f", others have {some} of {whole} rounds" if most else ""
        click.echo(f"  {group:{width}}  {len(members) - len(rounds)} of {len(members)} finished{under}")


def _found(file: Path, out: Path) -> list[_Run]:
    from palmette.studies.rundir import RunDir, find_runs
    from palmette.studies.standing import experiment_of
    from palmette.studies.sweep import read

    if not file.exists():
        raise FileNotFoundError(f"neither a grid nor a folder of runs at {str(file)!r}")
    if not file.is_dir():
        return [_run(RunDir(out / experiment.id), experiment) for experiment in read(file)]
    found = []
    for rundir in find_runs(file):
        try:
            found.append(_run(rundir, experiment_of(rundir)))
        except RunDamaged as error:
            click.echo(f"palmette: {error}", err=True)
    if not found:
        raise FileNotFoundError(f"no run in {str(file)!r}; `palmette sweep GRID.toml` starts some")
    return found


def _run(rundir: RunDir, experiment: Experiment) -> _Run:
    from palmette.studies.standing import Standing, standing

    try:
        now = standing(rundir, experiment)
    except RunDamaged as error:
        return _Run(rundir, Standing(experiment), "damaged", str(error))
    if now.state in ("interrupted", "new"):
        with suppress(FileNotFoundError):
            why = rundir.failure.read_text(encoding="utf-8").strip()
            return _Run(rundir, now, "failed", why.removeprefix(experiment.id).lstrip())
    return _Run(rundir, now, now.state, "")


def _speed(rundir: RunDir) -> float:
    """Epochs of a run in a second: of its last round, or 0 before there is one."""
    with suppress(RunDamaged, IndexError):
        last = rundir.timings()[-1]
        return float(last["epochs"]) / max(1e-9, float(last["seconds"]) * float(last["members"]))
    return 0.0
