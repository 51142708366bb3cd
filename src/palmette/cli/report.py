"""`palmette report`: records -> one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.reports.words import counted, size

if TYPE_CHECKING:
    from palmette.reports.tables import Run
    from palmette.studies.experiment import Experiment


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
    and needs no network. A run that is damaged, or has no finished round, is named on the page and left out. One
    run in two of the folders is refused, since it would count twice.
    """
    from palmette.files import write_whole
    from palmette.reports.html.page import page
    from palmette.reports.reading import whole_runs

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"-o must be an HTML file, such as report.html, got {str(out)!r}")
    found, left_out = whole_runs(folders)
    runs, notices = list(found.values()), [*left_out, *_alike(found)]
    content = page(runs, title=title, notices=notices).encode()
    write_whole(out, content)
    for sentence in notices:
        click.echo(f"palmette: {sentence}", err=True)
    click.echo(f"{out}: {counted(len(runs), 'run')}, {size(len(content))}")


def _alike(runs: Mapping[Path, Run]) -> list[str]:
    """Sentences that say which runs of `prune_and_retrain` count as seeds of one another."""
    from palmette.studies.experiment import OWN_DATA

    groups: dict[Experiment, dict[int, Path]] = {}
    for path, (experiment, _) in runs.items():
        if experiment.data == OWN_DATA:
            groups.setdefault(replace(experiment, seed=0), {}).setdefault(experiment.seed, path)
    return [
        f"{', '.join(repr(str(path)) for path in seeds.values())} have the same settings: they count as so many "
        "seeds of one method"
        for seeds in groups.values()
        if len(seeds) > 1
    ]
