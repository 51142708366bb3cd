"""`palmette report`: one HTML page from the records of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from palmette.cli.display.printing import say
from palmette.cli.options import FILE, PATH
from palmette.files import write_whole
from palmette.reports.reading import whole_runs
from palmette.reports.tables import Run
from palmette.studies.experiment import OwnExperiment
from palmette.words import counted, size


@click.command()
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=PATH)
@click.option("-o", "--out", type=FILE, default=Path("report.html"), show_default=True, help="The file to write.")
@click.option("--title", default="", help="Title of the page. [default: model and data set]")
def report(folders: tuple[Path, ...], out: Path, title: str) -> None:
    """Write one HTML page about all runs in folders.

    FOLDER is `runs` by default; folders are searched at any depth. The page has a verdict, charts over rounds, the
    trade-off, phases, layers, p–q maps and settings; it opens from disk and needs no network. Runs that are
    damaged or have no finished round are named on the page and left out. A run in two of the folders is refused,
    because it would count twice.
    """
    from palmette.reports.html.page import page

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"-o must be an HTML file, such as report.html, got {str(out)!r}")
    found, left_out = whole_runs(folders or (Path("runs"),))
    runs, notices = list(found.values()), [*left_out, *_same_settings(found)]
    content = page(runs, title=title, notices=notices).encode()
    write_whole(out, content)
    for sentence in notices:
        say(sentence)
    click.echo(f"{out}: {counted(len(runs), 'run')}, {size(len(content))}")


def _same_settings(runs: Mapping[Path, Run]) -> list[str]:
    """One sentence per group of `prune_and_retrain` runs that count as seeds of one method."""
    groups: dict[OwnExperiment, dict[int, Path]] = {}
    for path, (experiment, _) in runs.items():
        if isinstance(experiment, OwnExperiment):
            settings = replace(experiment, seed=0, run="", initial="")
            groups.setdefault(settings, {}).setdefault(experiment.seed, path)
    return [
        f"{', '.join(repr(str(path)) for path in seeds.values())} have the same settings: they count as "
        "seeds of one method"
        for seeds in groups.values()
        if len(seeds) > 1
    ]
