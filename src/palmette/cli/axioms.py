"""`palmette axioms`: which sparsity measures have which of the six properties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from palmette.cli.display.printing import JSON, console_of_stdout, print_text
from palmette.measures.hurley_rickard import published
from palmette.words import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.measures.axioms import Verdict
    from palmette.measures.classic import Measure

_Verdicts = Mapping[str, "Verdict"]
_CITED = "Hurley and Rickard 2009, Table III"


class _HyphenatedNames(click.Command):
    """Command whose argument may begin with a hyphen, as the measure -lp does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = {*args} & {*self.get_help_option_names(ctx)}
        flags = [a for a in args if a == "--json"]
        names = [a for a in args if a not in ("--", "--json")]
        return super().parse_args(ctx, args if asks_for_help else [*flags, "--", *names])


@click.command(cls=_HyphenatedNames)
@click.argument("measure", required=False)
@JSON
def axioms(measure: str | None, as_json: bool) -> None:
    """Test which sparsity measures have which of the six properties.

    Searches for counterexamples to each property of each measure, and marks differences from the table of Hurley
    and Rickard (2009). With a MEASURE: its verdicts, with each counterexample in full.
    """
    from palmette.measures.axioms import check
    from palmette.measures.classic import MEASURES

    if measure is not None and measure not in MEASURES:
        hint = did_you_mean(measure, MEASURES)
        raise click.UsageError(f"no measure is called {measure!r}; there are {', '.join(MEASURES)}{hint}")
    chosen = [m for name, m in MEASURES.items() if measure in (None, name)]
    verdicts = {m.name: check(m) for m in chosen}
    if as_json:
        plain = {
            name: {
                key: {"holds": v.holds, "published": published(name, key), "said": str(v)} for key, v in of.items()
            }
            for name, of in verdicts.items()
        }
        click.echo(json.dumps(plain, indent=1))
        return
    console = console_of_stdout()
    if measure is None:
        _print_table(console, chosen, verdicts)
    else:
        _print_one(console, chosen[0], verdicts[measure])


def _differs(name: str, verdict: Verdict) -> bool:
    return published(name, verdict.key) not in (None, verdict.holds)


def _marks(console: Console) -> tuple[str, str]:
    return ("✓", "✗") if console.encoding.startswith("utf") else ("yes", "no")


def _print_table(console: Console, measures: list[Measure], verdicts: Mapping[str, _Verdicts]) -> None:
    from rich.table import Table
    from rich.text import Text

    from palmette.measures.axioms import PROPERTIES

    yes, no = _marks(console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("measure", no_wrap=True)
    for key, what in PROPERTIES.items():
        table.add_column(f"{key}\n{what.name}", justify="center")
    for m in measures:
        cells = []
        for verdict in verdicts[m.name].values():
            mark = (yes, "green") if verdict.holds else (no, "red")
            # Blanks in place of the mark keep the column aligned.
            cells.append(Text.assemble("  ", mark, (" !" if _differs(m.name, verdict) else "  ", "bold yellow")))
        table.add_row(m.name, *cells)
    console.print(table)
    print_text(console, f"\n{yes} not refuted by any trial   {no} refuted by a counterexample")
    print_text(console, f"! differs from {_CITED} (explained in docs/axioms.md):")
    differing = Table(box=None, show_header=False, pad_edge=False)
    for m in measures:
        for verdict in verdicts[m.name].values():
            if _differs(m.name, verdict):
                here = f"published {no}, here {yes}" if verdict.holds else f"published {yes}, here {no}"
                differing.add_row(f"  {m.name}", verdict.key, Text(f"{here}: {verdict}"))
    console.print(differing)
    console.print("\nFor a measure S of a vector w:")
    statements = Table(box=None, show_header=False, pad_edge=False)
    for key, what in PROPERTIES.items():
        statements.add_row(f"  {key}", what.name, Text(what.statement))
    console.print(statements)
    with_parameters = [f"{m.name} ({_parameters(m)})" for m in measures if m.parameters]
    print_text(console, f"\nParameters: {', '.join(with_parameters)}.")
    print_text(console, "`palmette axioms MEASURE` shows the counterexamples of one measure.")


def _print_one(console: Console, m: Measure, verdicts: _Verdicts) -> None:
    from rich.table import Table
    from rich.text import Text

    from palmette.measures.axioms import PROPERTIES

    yes, no = _marks(console)
    direction = "larger is sparser" if m.sparser_is_larger else "larger is denser, as published"
    parameters = f"; {_parameters(m)}" if m.parameters else ""
    print_text(console, f"{m.name}: {m.range}, {direction}{parameters}\n{m.source}\n")
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, verdict in verdicts.items():
        mark = Text(yes, "green") if verdict.holds else Text(no, "red")
        said = Text(str(verdict))
        if _differs(m.name, verdict):
            said.append(f"\n! {_CITED}, says {'no' if verdict.holds else 'yes'}", "bold yellow")
        table.add_row(key, PROPERTIES[key].name, mark, said)
    console.print(table)


def _parameters(m: Measure) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in m.parameters.items())
