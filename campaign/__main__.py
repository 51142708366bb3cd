"""Run the campaign, or what is missing of it, and print the table; see docs/trust.md."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from campaign import table
from campaign.ledger import Ledger, Row

# Modules with a ROWS tuple, in the order of the table.
MODULES: tuple[str, ...] = ("kills", "power", "damage", "fuzz", "optimizers", "values", "overlap")


def rows() -> dict[str, Row]:
    """All rows by name."""
    found = [row for module in MODULES for row in importlib.import_module(f"campaign.{module}").ROWS]
    return {row.name: row for row in found}


@click.command()
@click.argument("names", nargs=-1, metavar="[ROW]...")
@click.option("--seed", default=0, show_default=True, help="Seed of all choices.")
@click.option("--sample", type=click.IntRange(min=1), help="Cases per row, evenly spread, instead of all.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/campaign"), show_default=True)
@click.option("--table", "only_table", is_flag=True, help="Print the table of what is on disk, run nothing.")
@click.option(
    "--page", type=click.Path(path_type=Path), help="Also write the table between its marks on this page."
)
def main(
    names: tuple[str, ...], seed: int, sample: int | None, folder: Path, only_table: bool, page: Path | None
) -> None:
    """Attack palmette. Interrupt at any time; the same command resumes. Exits with 1 if anything was lost."""
    every = rows()
    if unknown := [name for name in names if name not in every]:
        raise click.BadParameter(f"{', '.join(unknown)}: no such row; the rows are {', '.join(every)}")
    ledgers = [Ledger(folder, every[name], seed) for name in names or every]
    if not only_table:
        for ledger in ledgers:
            for case, result in ledger.run(sample=sample):
                click.echo(f"{ledger.row.name} {case}: {result.tried} tried, {len(result.lost)} lost")
    click.echo(f"\n{table.table(ledgers)}", nl=False)
    if page is not None:
        table.write(page, ledgers)
    lost = [f"{ledger.row.name} {line}" for ledger in ledgers for line in ledger.tally().lost]
    for line in lost:
        click.echo(line, err=True)
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
