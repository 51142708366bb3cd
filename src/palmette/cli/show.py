"""`palmette show`: what a run is, and where it stands."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.live import duration, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from palmette.studies.rundir import RunDir


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it for a program.")
def show(folder: Path, as_json: bool) -> None:
    """What is the run in the folder RUN, and where does it stand?

    RUN may also be a folder of runs, such as `runs`: then each is a line. Reading disturbs no process that is
    running one of them.
    """
    from palmette.studies.rundir import find_runs

    runs = find_runs(folder)
    if not runs:
        raise ValueError(f"{str(folder)!r} is not the folder of a run, and has none in it")
    found = [_read(run) for run in runs]
    if as_json:
        alone = runs[0].path == folder
        click.echo(json.dumps(found[0] if alone else found, indent=1, allow_nan=False))
        return
    from rich.console import Console

    # In a file or a pipe nobody's window sets the width.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
    if runs[0].path == folder:
        _print_one(console, found[0])
    else:
        _print_many(console, found)


def _read(run: RunDir) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from palmette.studies.records import flattened
    from palmette.studies.standing import standing

    now = standing(run)
    experiment = now.experiment
    return {
        "run": experiment.id,
        "folder": str(run.path),
        "state": now.state,
        "owner": now.owner,
        "stopped": now.stopped,
        "failure": run.failure.read_text().strip() if run.failure.exists() else None,
        "settings": experiment.differences(),
        "rounds": experiment.rounds,
        "epochs": experiment.epochs,
        "rounds_done": now.rounds,
        "epoch": now.epoch,
        "seconds": sum(timing["seconds"] for timing in run.timings()),
        "bytes": run.size(),
        "go_on": None if now.stopped is not None else _how_to_go_on(run, experiment.id),
        "records": [flattened(record) for record in run.records()],
    }


def _how_to_go_on(run: RunDir, name: str) -> str:
    file, parent = os.path.relpath(run.experiment), os.path.relpath(run.path.parent)
    command = shlex.join(["palmette", "run", file, *(["--out", parent] if parent != "runs" else [])])
    renamed = run.path.resolve().name != name
    return (
        f"mv {shlex.quote(str(run.path))} {shlex.quote(str(run.path.with_name(name)))} && …"
        if renamed
        else command
    )


def _where(found: Mapping[str, Any]) -> str:
    """The state in words."""
    if found["state"] == "finished":
        return f"finished: {found['stopped']}"
    place = (
        f"round {found['rounds_done']} of {found['rounds']}, {found['epoch']} of {found['epochs']} epochs saved"
    )
    if found["state"] == "running":
        return f"running, {place}, by {found['owner']}"
    return f"interrupted, {place}" if found["state"] == "interrupted" else "new: nothing is saved yet"


def _print_one(console: Console, found: Mapping[str, Any]) -> None:
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in found["settings"].items())
    facts = {
        "settings": f"{settings or 'all'}{'; all others' if settings else ''} as `palmette run --help` gives them",
        "state": found["failure"] or _where(found),
        "time": duration(found["seconds"]),
        "disk": size(found["bytes"]),
        "go on": found["go_on"],
    }
    console.print(found["run"], style="bold", soft_wrap=True)
    for name, text in facts.items():
        if text is not None:
            console.print(f"{name:<9} {text}", soft_wrap=True)
    if not found["records"]:
        return
    table = _table("round", "accuracy", "train", "density", "kept", "PQ Index", "Gini", "dead neurons", "cut next")
    for r in found["records"]:
        accuracies = (_percent(r["test_accuracy"]), _percent(r["train_accuracy"]))
        measures = (_index(r["pq_index"]), _index(r["gini_index"]))
        counts = (f"{r['dead_neurons']:,}", f"{r['cut_weights']:,}")
        table.add_row(
            str(r["round"]), *accuracies, _percent(r["density"], 2), f"{r['kept']:,}", *measures, *counts
        )
    console.print()
    console.print(table)


def _print_many(console: Console, found: list[dict[str, Any]]) -> None:
    table = _table("round", "accuracy", "density", "PQ Index", "disk", first="run")
    table.add_column("state", overflow="fold")
    for one in found:
        last = one["records"][-1] if one["records"] else None
        numbers = ("", "", "")
        if last is not None:
            numbers = (_percent(last["test_accuracy"]), _percent(last["density"], 2), _index(last["pq_index"]))
        rounds = f"{max(0, one['rounds_done'] - 1)}/{one['rounds']}"
        state = one["failure"] or (one["state"] if one["state"] != "finished" else one["stopped"])
        table.add_row(one["run"], rounds, *numbers, size(one["bytes"]), state)
    console.print(table)
    states = [one["state"] for one in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    total = size(sum(one["bytes"] for one in found))
    console.print(
        f"\n{counts}; {total}. `palmette show {found[0]['folder']}` shows one round by round.", soft_wrap=True
    )


def _table(*titles: str, first: str | None = None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    if first is not None:
        table.add_column(first, overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _percent(value: float | None, digits: int = 1) -> str:
    return "none" if value is None else f"{value:.{digits}%}"


def _index(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
