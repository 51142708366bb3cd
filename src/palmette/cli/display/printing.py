"""Output of all commands: a console for tables, text that wraps between words, messages on stderr."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
Columns: TypeAlias = Mapping[str, Sequence[str]]
"""Cells by title."""
_READABLE = 100  # columns, for sentences
_PIPE = 160  # columns of what is no terminal: enough for most tables


def console_of_stdout() -> Console:
    """Console as wide as the terminal, or as $COLUMNS says; wide elsewhere."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    return console if _has_width(console) else Console(highlight=False, markup=False, emoji=False, width=_PIPE)


def _has_width(console: Console) -> bool:
    return console.is_terminal or "COLUMNS" in os.environ


def wrapped(text: str, width: int, indent: str = "") -> str:
    r"""Text broken between words; a line that begins with a space, such as a command to copy, stays whole.

    >>> wrapped("ended; resume with\n  palmette run --seeds 0..1", 12)
    'ended;\nresume with\n  palmette run --seeds 0..1'
    """
    lines = []
    for line in text.split("\n"):
        parts = textwrap.wrap(
            line, width, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        lines += [line] if line.startswith(" ") else parts or [""]
    return "\n".join(lines)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; None if it was closed before the start."""
    return stream is not None and stream.isatty()


def print_text(console: Console, text: str, style: str = "", indent: str = "") -> None:
    """Print sentences, wrapped for reading in a terminal."""
    width = min(console.width, _READABLE) if _has_width(console) else sys.maxsize
    console.print(wrapped(text, width, indent), style=style, soft_wrap=True)


def say(text: object, indent: str = "") -> None:
    """Print a message to stderr, or with an indent a line of one, wrapped in a terminal."""
    width = min(shutil.get_terminal_size().columns, _READABLE) if is_terminal(sys.stderr) else sys.maxsize
    click.echo(wrapped(str(text) if indent else f"palmette: {text}", width, indent), err=True)


def printable(text: str) -> str:
    """Text with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plain_table(
    *titles: str, words: Container[str] = (), rows: Iterable[Iterable[str]] = (), gap: int = 1
) -> Table:
    """Table without lines: columns of `words` fold where there is no room, all others are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))  # 80 columns are enough
    for title in titles:
        if title in words:
            table.add_column(title, overflow="fold")
        else:
            table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def width_of(columns: Columns, gap: int = 1) -> int:
    """Width of columns side by side, each followed by a gap."""
    return sum(gap + max(map(len, (title, *cells))) for title, cells in columns.items())


def fitted(
    columns: Columns, width: int, spare: Iterable[Container[str]], gap: int = 1
) -> dict[str, Sequence[str]]:
    """The columns without those groups of `spare` ones, the first first, for which a width has no room.

    >>> fitted({"run": ["a"], "size": ["1 MB"], "seed": ["0"]}, 10, [["size"], ["seed"]])
    {'run': ['a'], 'seed': ['0']}
    """
    for group in spare:
        if width_of(columns, gap) > width:
            columns = {title: cells for title, cells in columns.items() if title not in group}
    return dict(columns)
