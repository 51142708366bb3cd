"""`palmette sweep --status`: how far a sweep has come, from its run folders alone, by anyone at any time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.cli.run import standing_in
from palmette.reports.words import duration

if TYPE_CHECKING:
    from palmette.studies.rundir import RunDir
    from palmette.studies.standing import Standing

_ORDER = ("finished", "running", "interrupted", "new", "failed")


def show_status(file: Path, out: Path) -> None:
    """Of the runs of a grid in `out`, or of all runs in a folder; a line of JSON where it is piped."""
    from palmette.reports.comparison import in_words

    found = _found(file, out)
    standings, states = list(found.values()), [_state(rundir, s) for rundir, s in found.items()]
    counts = Counter(state for state, _ in states)
    done, left = sum(s.epochs_done for s in standings), sum(s.epochs_left for s in standings)
    speed = sum(_speed(rundir) for rundir, s in found.items() if s.state == "running")
    seconds = left / speed if speed else None
    owners = sorted({s.owner for s in standings if s.owner})
    names = in_words([s.experiment for s in standings])
    if not sys.stdout.isatty():
        runs = [
            {"run": s.experiment.id, "method": name, "seed": s.experiment.seed, "state": state, "rounds": s.rounds}
            | {"epochs_done": s.epochs_done, "epochs_left": s.epochs_left, "why": why}
            for s, name, (state, why) in zip(standings, names, states, strict=True)
        ]
        whole = {"epochs_done": done, "epochs_left": left, "seconds_left": seconds, "owners": owners}
        click.echo(json.dumps({"runs": runs, "states": counts, **whole}))
        return
    told = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
    click.echo(f"{len(standings)} runs: {told}")
    where = f" by {len(owners)} processes" if len(owners) > 1 else ""
    time = "" if seconds is None else f", about {duration(seconds)} left{where}"
    click.echo(f"{done / max(1, done + left):.0%} of all epochs{time}")
    _show_groups(standings, names, [state for state, _ in states])
    for s, (_, why) in zip(standings, states, strict=True):
        if why:
            click.echo(f"  {s.experiment.id}: {why}")


def _show_groups(standings: Sequence[Standing], names: Sequence[str], states: Sequence[str]) -> None:
    """A line for each method: of how many runs how many are finished, and the rounds of those that are not."""
    width = max(len(name) for name in names)
    for group in dict.fromkeys(names):
        members = [(s, state) for s, state, name in zip(standings, states, names, strict=True) if name == group]
        finished = sum(state == "finished" for _, state in members)
        rounds = [s.rounds for s, state in members if state != "finished"]
        whole = 1 + max(s.experiment.rounds for s, _ in members)
        least, most = min(rounds, default=0), max(rounds, default=0)
        some = f"{least}" if least == most else f"{least} to {most}"
        under = f", others have {some} of {whole} rounds" if most else ""
        click.echo(f"  {group:{width}}  {finished} of {len(members)} finished{under}")


def _found(file: Path, out: Path) -> dict[RunDir, Standing]:
    from palmette.studies.rundir import RunDir, find_runs
    from palmette.studies.standing import experiment_of, standing
    from palmette.studies.sweep import read

    if not file.is_dir():
        return {RunDir(out / experiment.id): standing_in(out, experiment) for experiment in read(file)}
    found = {rundir: standing(rundir, experiment_of(rundir)) for rundir in find_runs(file)}
    if not found:
        raise FileNotFoundError(f"no run in {str(file)!r}; `palmette sweep GRID.toml` starts some")
    return found


def _state(rundir: RunDir, standing: Standing) -> tuple[str, str]:
    """In a word, and why it is not finished, if that is known."""
    if standing.state in ("interrupted", "new") and rundir.failure.exists():
        why = rundir.failure.read_text(encoding="utf-8").strip()
        return "failed", why.removeprefix(standing.experiment.id).lstrip()
    return standing.state, ""


def _speed(rundir: RunDir) -> float:
    """Epochs of a run in a second: of its last round, or 0 before there is one."""
    timings = rundir.timings()
    if not timings:
        return 0.0
    last = timings[-1]
    return float(last["epochs"]) / max(1e-9, float(last["seconds"]) * float(last["members"]))
