"""`palmette sweep --status`: progress of a sweep, read from its run folders."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.cli.display.printing import console_of_stdout, plain_table, print_text, say
from palmette.cli.display.watch import by_reason
from palmette.errors import RunDamaged
from palmette.reports.comparison import names_among
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.record import experiment_of
from palmette.studies.status import Standing, standing_or_damage
from palmette.words import counted, duration

if TYPE_CHECKING:
    from rich.table import Table


_ORDER = ("finished", "running", "interrupted", "new", "failed", "damaged")


def show_status(file: Path, out: Path, *, as_json: bool) -> None:
    """Print the progress of a grid in `out`, or of all runs in a folder."""
    runs = _found(file, out)
    standings = [s for _, s in runs]
    counts, whys = Counter(s.state for s in standings), [_why(s) for s in standings]
    done, left = sum(s.epochs_done for s in standings), sum(s.epochs_left for s in standings)
    speed = sum(_speed(rundir) for rundir, s in runs if s.state == "running")
    seconds = left / speed if speed else None
    owners = sorted({s.owner for s in standings if s.owner})
    names = names_among([s.experiment for s in standings])
    if as_json:
        told = [
            {"run": s.experiment.id, "folder": str(run.path), "method": name, "seed": s.experiment.seed}
            | {"state": s.state, "rounds": s.rounds, "epochs_done": s.epochs_done, "epochs_left": s.epochs_left}
            | {"why": why, "sealed": s.sealed}
            for (run, s), name, why in zip(runs, names, whys, strict=True)
        ]
        whole = {"epochs_done": done, "epochs_left": left, "seconds_left": seconds, "owners": owners}
        click.echo(json.dumps({"runs": told, "states": counts, **whole}))
        return
    console = console_of_stdout()
    states = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
    if unsealed := sum(not s.sealed for s in standings):
        states += f"; {unsealed} unsealed"
    print_text(console, f"{counted(len(runs), 'run')}: {states}")
    where = f" by {len(owners)} processes" if len(owners) > 1 else ""
    time = "" if seconds is None else f", about {duration(seconds)} left{where}"
    print_text(console, f"{done / max(1, done + left):.0%} of all epochs{time}")
    console.print(_groups(standings, names))
    failed = [(name, s.experiment.seed, why) for name, s, why in zip(names, standings, whys, strict=True) if why]
    if failed:
        folder = shlex.quote(str(file if file.is_dir() else out))
        print_text(console, f"not finished, and why; `palmette show {folder}` has their ids:")
    for line in by_reason(failed):
        print_text(console, line, indent="  ")


def _why(s: Standing) -> str:
    """Reason why a run is not finished, if it is known."""
    return (s.damage or s.failure or "").removeprefix(s.experiment.id).lstrip()


def _groups(standings: Sequence[Standing], names: Sequence[str]) -> Table:
    """A row per method: how many runs are finished, and the rounds of the others."""
    table = plain_table("  method", "finished", "rounds of others", words=("  method",))
    for group in dict.fromkeys(names):
        members = [s for s, name in zip(standings, names, strict=True) if name == group]
        rounds = [s.rounds for s in members if s.state != "finished"]
        whole = 1 + max(s.experiment.rounds for s in members)
        least, most = min(rounds, default=0), max(rounds, default=0)
        some = f"{least}" if least == most else f"{least} to {most}"
        under = f"{some} of {whole}" if most else ""
        table.add_row(f"  {group}", f"{len(members) - len(rounds)} of {len(members)}", under)
    return table


def _found(file: Path, out: Path) -> list[tuple[RunDir, Standing]]:
    from palmette.studies.sweep import read

    if not file.exists():
        raise FileNotFoundError(f"neither a grid nor a folder of runs at {str(file)!r}")
    if not file.is_dir():
        return [(run := RunDir(e.folder_in(out)), standing_or_damage(run, e)) for e in read(file)]
    found = []
    for run in find_runs(file):
        try:
            found.append((run, standing_or_damage(run, experiment_of(run))))
        except RunDamaged as error:
            say(error)
    if not found:
        raise FileNotFoundError(f"no run in {str(file)!r}; `palmette sweep GRID.toml` starts some")
    return found


def _speed(rundir: RunDir) -> float:
    """Epochs per second of a run in its last round; 0 before the first."""
    with suppress(RunDamaged, IndexError):
        last = rundir.timings()[-1]
        return float(last["epochs"]) / max(1e-9, float(last["seconds"]) * float(last["members"]))
    return 0.0
