"""`palmette data`: which data sets are here, and how to get the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

_FOLDER = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Look here first, and download to here. Else $PALMETTE_DATA, then the platform's cache folder.",
)


class _Sets(click.Group):
    """With the way to a set whose name stands where a command is expected."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and not ctx.resilient_parsing:  # which is that of a shell that completes a line
            way = f"`palmette data` lists all sets, `palmette data get {cmd_name}` downloads it"
            ctx.fail(f"no command {cmd_name!r}; {way}")
        return found


@click.group(cls=_Sets, invoke_without_command=True)
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print the list for a program.")
@click.pass_context
def data(ctx: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """Which data sets are here? With `get NAME`: download one.

    Lists every set that palmette knows, where it was found, its shape and the SHA-256 of its contents.
    """
    ctx.obj = data_dir
    if ctx.invoked_subcommand is not None:
        return
    rows = _listed(data_dir)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _show(rows)


@data.command("get")
@click.argument("name")
@_FOLDER
@click.pass_context
def get(ctx: click.Context, name: str, data_dir: Path | None) -> None:
    """Download the data set NAME from its authors.

    An interrupted download goes on where it stopped; the file counts only when its checksum is right.
    """
    from palmette.training.data import canonical
    from palmette.training.data import load as load_images
    from palmette.training.data.download import REMOTES
    from palmette.training.data.download import get as download

    known = canonical(name) or name
    folder = data_dir or ctx.obj
    if known == "digits":
        click.echo("digits come with palmette: nothing to download")
        return
    if known not in REMOTES:
        raise click.UsageError(f"no data set to download is called {name!r}; there are {', '.join(REMOTES)}")
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        where = download(known, folder=folder, progress=progress)
    try:
        with Console(stderr=True).status(f"reading {known}"):
            images = load_images(known, folder=where)
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"{error}; remove {str(where)!r} and get it again") from error
    click.echo(f"{images!r} in {where}")


def _listed(folder: Path | None) -> list[dict[str, Any]]:
    from rich.console import Console

    from palmette.training.data import DATA

    rows = []
    # Pictures are decoded the first time, which takes its while: only a terminal gets to see the name.
    with Console(stderr=True).status("") as status:
        for name in DATA:
            status.update(f"reading {name}")
            rows.append(_row(name, folder))
    return rows


def _row(name: str, folder: Path | None) -> dict[str, Any]:
    from palmette.training.data import DATA, SHA256

    try:
        images = DATA[name](folder)
    except FileNotFoundError as error:
        return {"name": name, "found": None, "problem": str(error)}
    except (ValueError, ImportError, OSError) as error:
        return {"name": name, "found": "unreadable", "problem": str(error)}
    sha256 = images.sha256()
    return {
        "name": name,
        "found": images.source,
        "train": len(images.train_images),
        "test": len(images.test_images),
        "shape": list(images.shape),
        "classes": images.classes,
        "sha256": sha256,
        "official": sha256 == SHA256[name],
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    # In a file or a pipe nobody's window sets the width, and paths stay in one piece.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("data set", "train", "test", "shape", "classes", "SHA-256", "where"):
        right = title in ("train", "test", "classes")
        table.add_column(title, justify="right" if right else "left", overflow="fold", no_wrap=title != "where")
    verdicts = {True: " ok", False: " differs"}
    for row in rows:
        if "sha256" not in row:
            table.add_row(row["name"], "", "", "", "", "", row["found"] or "not found")
            continue
        shape = "×".join(str(n) for n in row["shape"])
        digest = row["sha256"][:12] + verdicts[row["official"]]
        counts = f"{row['train']:,}", f"{row['test']:,}"
        table.add_row(row["name"], *counts, shape, str(row["classes"]), digest, row["found"])
    console.print(table)
    console.print(
        "\nok: images and labels are those of the official release. `palmette data --json` has all digits."
    )
    for row in rows:
        if "problem" in row:
            console.print(f"\n{row['problem']}", soft_wrap=True)
