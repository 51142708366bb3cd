"""`palmette table`: compare the methods of runs as Markdown, LaTeX, CSV or Parquet."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.cli.display.printing import JSON, console_of_stdout, is_terminal, plain_table, print_text, say
from palmette.cli.options import PATH
from palmette.errors import extra
from palmette.files import write_whole
from palmette.reports.comparison import WORDS, as_latex, as_markdown, cells, compare, notes, read
from palmette.words import counted

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".md", ".csv", ".tex", ".parquet")


@click.command()
@click.argument("runs", nargs=-1, metavar="[FOLDER]...", type=PATH)
@click.option("--baseline", metavar="METHOD", help="Show differences from it at equal density.")
@click.option("--at", metavar="DENSITY,…", help="Compare at densities such as 0.5,0.1. [default: every round]")
@click.option("-o", "--out", metavar="FILE", type=PATH, help=f"File to write: {', '.join(SUFFIXES)}.")
@JSON
def table(runs: tuple[Path, ...], baseline: str | None, at: str | None, out: Path | None, as_json: bool) -> None:
    """Compare the methods of all runs in folders.

    FOLDER is `runs` by default. Each method has the mean, standard deviation and number of its runs. With --at,
    methods are compared at equal density, interpolated between rounds at most 1.5 times apart. With --baseline,
    each is compared with another method of the same data, model, scope and training at the densities that it
    reached itself, with Welch's 95 % confidence interval of the difference.

    \b
      palmette table
      palmette table --at 0.5,0.2,0.1 --baseline lottery-ticket
      palmette table runs other/runs --at 0.1 -o table.tex

    Runs that are damaged or have no finished round are named and left out. METHOD is sap, lottery-ticket or
    one-shot, or a name from the table. A terminal shows an aligned table, a pipe gets Markdown. Markdown and LaTeX
    are in percent; JSON, CSV and Parquet have fractions in full precision.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise ValueError(f"-o must end in one of {', '.join(SUFFIXES)}, got {str(out)!r}")
    found = read(runs or (Path("runs"),), say=say)
    frame = compare(found, at=None if at is None else densities(at), baseline=baseline)
    if out is not None:
        write_whole(out, written(frame, out.suffix))
    if as_json:
        click.echo(frame.to_json(orient="records", indent=1))
    elif out is not None:
        click.echo(f"{out}: {counted(len(frame), 'row')}")
    elif is_terminal(sys.stdout):
        console, (titles, rows) = console_of_stdout(), cells(frame)
        console.print(plain_table(*titles, words=WORDS, rows=rows))
        print_text(console, f"\n{notes(frame)}", "dim")
    else:
        click.echo(as_markdown(frame), nl=False)


def densities(text: str) -> list[float]:
    """Parse the densities of --at.

    >>> densities("0.5, 0.1")
    [0.5, 0.1]
    """
    found = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            found.append(float("nan"))
        if not 0 < found[-1] <= 1:
            raise ValueError(
                f"--at must be densities above 0 and at most 1, such as 0.5,0.1, got {part!r} in {text!r}"
            )
    return found


def written(frame: pd.DataFrame, suffix: str) -> bytes:
    """Encode the frame of `compare` for a file with one of `SUFFIXES`."""
    if suffix == ".parquet":
        buffer = io.BytesIO()
        with extra("parquet", "a .parquet file needs pyarrow"):
            frame.to_parquet(buffer, index=False)
        return buffer.getvalue()
    if suffix == ".csv":
        text: str = frame.to_csv(index=False, lineterminator="\n")
    else:
        text = as_latex(frame) if suffix == ".tex" else as_markdown(frame)
    return text.encode()
