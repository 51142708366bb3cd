"""The command line. One file per command; torch is imported inside them, so that help is instant."""

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
    """Commands whose errors are one sentence and exit code 2, never a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read the output has enough: click ends in silence
            raise
        except (Exception, KeyboardInterrupt) as error:
            if _is_interrupt(error):
                click.echo("palmette: ended by Ctrl-C; what is on disk is whole", err=True)
                sys.exit(130)
            if isinstance(error, PalmetteError | ValueError | TypeError | OSError | ImportError):
                click.echo(f"palmette: {error}", err=True)
                sys.exit(2)
            raise


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it is Ctrl-C, or came of it: an import that is ended may say that a part of it is missing."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="palmette")
def main() -> None:
    """How far can a neural network be pruned? Measure it with the PQ Index, and prune it there."""


for command in (run, show, measure, prune, data, axioms, sweep, table, report, paper, unpack, bench):
    main.add_command(command)
