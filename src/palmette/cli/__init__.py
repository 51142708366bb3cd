"""Command line: one file per command. Commands import torch when they run, so that help is instant."""

from __future__ import annotations

import sys

import click

from palmette import __version__
from palmette.cli.axioms import axioms
from palmette.cli.bench import bench
from palmette.cli.data import data
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


class _Group(click.Group):
    """Command group that prints expected errors as one sentence with exit code 2, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader closed the pipe: click exits silently
            raise
        except (Exception, KeyboardInterrupt) as error:
            if _is_interrupt(error):
                click.echo("palmette: stopped by Ctrl-C; files on disk are complete", err=True)
                sys.exit(130)
            if isinstance(error, PalmetteError | ValueError | TypeError | OSError | ImportError):
                click.echo(f"palmette: {error}", err=True)
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


for command in (run, show, measure, prune, data, axioms, sweep, table, report, paper, unpack, bench):
    main.add_command(command)
