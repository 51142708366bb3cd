"""`palmette measure`: how compressible are these weights?"""

from __future__ import annotations

import click


@click.command()
@click.argument("path")
def measure(path: str) -> None:
    """How compressible are the weights in PATH?"""
    raise click.ClickException("to come")
