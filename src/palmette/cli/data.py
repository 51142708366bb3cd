"""`palmette data`: list the data sets, and download one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.display.printing import JSON, console_of_stdout, is_terminal, plain_table, print_text
from palmette.cli.options import PATH
from palmette.training.data import DATA_SETS, canonical
from palmette.training.data import load as load_images

if TYPE_CHECKING:
    from palmette.training.data.data_set import DataSet

_FOLDER = click.option(
    "--data-dir",
    type=PATH,
    help="Folder to search first and to download to.  [default: $PALMETTE_DATA, or the platform's cache folder]",
)


class _Sets(click.Group):
    """Command group that explains itself if given the name of a data set in place of a command."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and canonical(cmd_name) and not ctx.resilient_parsing:  # as in shell completion
            ctx.fail(f"no command {cmd_name!r}; `palmette data get {cmd_name}` downloads a data set")
        return found


@click.group(cls=_Sets, invoke_without_command=True)
@_FOLDER
@JSON
@click.pass_context
def data(ctx: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """List the data sets, or download one.

    Lists every known data set: where it was found, its shape and the SHA-256 of its contents. `palmette data get
    NAME` downloads one.
    """
    ctx.obj = data_dir
    if ctx.invoked_subcommand is not None:
        return
    from rich.console import Console

    rows = []
    # Decoding pictures for the first time is slow; the name is shown on terminals only.
    with Console(stderr=True).status("") as status:
        for name, data_set in DATA_SETS.items():
            status.update(f"reading {name}")
            rows.append(_row(data_set, data_dir))
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

    An interrupted download resumes. A file is kept only if its checksum is right.
    """
    from rich import progress as bars
    from rich.console import Console

    from palmette.training.data.download import get as download

    known = canonical(name)
    if known is not None and not DATA_SETS[known].folders:
        click.echo(f"{known} is bundled with palmette: nothing to download")
        return
    kinds = bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn()
    columns = bars.TextColumn("{task.description}"), *kinds
    tasks: dict[str, Any] = {}
    console = Console(stderr=True)
    with bars.Progress(*columns, console=console, disable=not is_terminal(sys.stderr)) as bar:

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        where = download(name, folder=data_dir or ctx.obj, progress=progress)
    try:
        with console.status(f"reading {known}"):
            images = load_images(name, folder=where)
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"{error}; remove {str(where)!r} and download it again") from error
    click.echo(f"{images!r} in {where}")


def _row(data_set: DataSet, folder: Path | None) -> dict[str, Any]:
    try:
        images = data_set.load(folder)
    except (ValueError, ImportError, OSError) as error:
        found = None if isinstance(error, FileNotFoundError) else "unreadable"
        return {"name": data_set.name, "found": found, "problem": str(error)}
    sha256 = images.sha256()
    return {
        "name": data_set.name,
        "found": images.source,
        "train": len(images.train_images),
        "test": len(images.test_images),
        "shape": list(images.shape),
        "classes": images.classes,
        "sha256": sha256,
        "official": sha256 == data_set.sha256 if data_set.sha256 else None,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    console = console_of_stdout()
    verdicts = {True: " ok", False: " differs", None: ""}
    table = plain_table(
        "data set", "train", "test", "shape", "classes", "SHA-256", "where", words=("data set", "shape", "where")
    )
    for row in rows:
        if "sha256" not in row:
            table.add_row(row["name"], "", "", "", "", "", row["found"] or "not found")
            continue
        shape = "×".join(str(n) for n in row["shape"])
        digest = row["sha256"][:12] + verdicts[row["official"]]
        counts = f"{row['train']:,}", f"{row['test']:,}"
        found = "see below" if os.sep in row["found"] else row["found"]  # a path gets a line of its own
        table.add_row(row["name"], *counts, shape, str(row["classes"]), digest, found)
    console.print(table)
    for row in rows:
        if os.sep in (row["found"] or ""):
            console.print(f"\n{row['name']} is in {row['found']}", soft_wrap=True)
    ok = "ok: images and labels equal the official release."
    print_text(console, f"\n{ok} `palmette data --json` prints whole digests.")
    for row in rows:
        if row["found"] == "unreadable":
            print_text(console, f"\n{row['problem']}")
    if missing := [row["name"] for row in rows if row["found"] is None]:
        ways = "`palmette data get NAME` downloads one, `palmette data --json` tells where each was looked for."
        print_text(console, f"\nNot found: {', '.join(missing)}. {ways}")
