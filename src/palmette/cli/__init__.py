"""Command line: one file per command. Commands import torch when they run, so that help is instant."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from palmette import __version__
from palmette.cli.axioms import axioms
from palmette.cli.bench import bench
from palmette.cli.data import data
from palmette.cli.display.help import WholeWords
from palmette.cli.display.printing import say
from palmette.cli.measure import measure
from palmette.cli.paper import paper
from palmette.cli.prune import prune
from palmette.cli.report import report
from palmette.cli.run import run
from palmette.cli.show import show
from palmette.cli.sweep import sweep
from palmette.cli.table import table
from palmette.cli.unpack import unpack
from palmette.errors import PalmetteError

GROUPS: dict[str, Sequence[click.Command]] = {
    "Train, prune, retrain": (run, sweep, paper, data),
    "Look at runs": (show, table, report),
    "Checkpoints and models": (measure, prune, unpack, bench),
    "Measures": (axioms,),
}


class _Context(click.Context):
    formatter_class = WholeWords


class _Group(click.Group):
    """Command group that prints expected errors as one sentence with exit code 2, without a traceback."""

    context_class = _Context

    def main(self, *args: Any, **options: Any) -> Any:
        """Run it; characters that stdout cannot encode are escaped, as Python does on stderr."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        return super().main(*args, **options)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, group by group."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(str(c.name), c.get_short_help_str(limit=100)) for c in commands])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader closed the pipe: click exits silently
            raise
        except (Exception, KeyboardInterrupt) as error:
            if _is_interrupt(error):
                say("stopped by Ctrl-C; files on disk are complete")
                sys.exit(130)
            if isinstance(error, PalmetteError | ValueError | TypeError | OSError | ImportError):
                say(error)
                sys.exit(2)
            raise


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is or was caused by Ctrl-C: an interrupted import may raise ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="palmette")
def main() -> None:
    """Prune PyTorch models step by step, and find out how far each can go."""


for group in GROUPS.values():
    for command in group:
        command.context_class = _Context
        main.add_command(command)
