"""`palmette report`: records -> one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.errors import RunDamaged
from palmette.reports.words import counted, size

if TYPE_CHECKING:
    from palmette.reports.tables import Run
    from palmette.studies.config import Experiment
    from palmette.studies.rundir import RunDir


@click.command()
@click.argument("folders", metavar="RUNS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option("--title", default="", help="Of the page; the models and data sets by default.")
def report(folders: tuple[Path, ...], out: Path, title: str) -> None:
    """Make one HTML page of the runs in the folders RUNS, at any depth.

    It has charts over rounds, the trade-off, layers, p–q maps, phases, settings and a verdict. It opens from disk
    and needs no network. A run that is damaged, or has no finished round, is named on the page and left out.
    """
    from palmette.reports.own_runs import told_apart
    from palmette.reports.page import page
    from palmette.studies.rundir import find_runs, write_whole

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"-o must be an HTML file, such as report.html, got {str(out)!r}")
    found = find_runs(*folders)
    if not found:
        raise ValueError(f"no run in {', '.join(repr(str(folder)) for folder in folders)}")
    read, damage = _read(found)
    if damage and not read:
        raise RunDamaged("no run can be read; " + "; ".join(damage))
    own = told_apart(read)
    runs, alike = [(own.get(path, e), records) for path, (e, records) in read.items()], _alike(own)
    content = page(runs, title=title, notices=[*damage, *alike]).encode()
    write_whole(out, content)
    for sentence in (*damage, *alike):
        click.echo(f"palmette: {sentence}", err=True)
    count = len({experiment.id for experiment, _ in runs})  # a copy is no second run
    click.echo(f"{out}: {counted(count, 'run')}, {size(len(content))}")


def _alike(own: Mapping[Path, Experiment]) -> list[str]:
    """Sentences that say which runs of `prune_and_retrain` count as seeds of one another."""
    groups: dict[Experiment, dict[int, Path]] = {}
    for path, experiment in own.items():
        groups.setdefault(replace(experiment, seed=0), {}).setdefault(experiment.seed, path)
    return [
        f"{', '.join(repr(str(path)) for path in seeds.values())} have the same settings: they count as so many "
        "seeds of one method"
        for seeds in groups.values()
        if len(seeds) > 1
    ]


def _read(found: Sequence[RunDir]) -> tuple[dict[Path, Run], list[str]]:
    """What can be read, and sentences about what cannot."""
    from palmette.reports.comparison import without_a_round
    from palmette.studies.records import records_of
    from palmette.studies.standing import experiment_of

    runs: dict[Path, Run] = {}
    damage, empty = [], []
    for rundir in found:
        try:
            records = records_of(rundir)
            if any(record["test"]["accuracy"] is None for record in records):
                name = repr(str(rundir.path))
                damage.append(f"left out: {name} has no test accuracy; prune_and_retrain takes a function `test`")
            elif records:
                runs[rundir.path] = (experiment_of(rundir), records)
            else:
                empty.append(rundir.path.name)
        except RunDamaged as error:
            damage.append(f"left out: {error}")
    return runs, damage + ([without_a_round(empty)] if runs and empty else [])
