"""`palmette axioms`: which sparsity measures keep which of the six properties."""

from __future__ import annotations

import click


@click.command()
def axioms() -> None:
    """Which sparsity measures keep which of the six properties?"""
    raise click.ClickException("to come")
