"""`palmette run --dry-run`: print what would be run, and its estimated cost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.reports.words import counted, duration

if TYPE_CHECKING:
    from palmette.studies.cost import Cost
    from palmette.studies.status import Standing


def show_plan(standings: Sequence[Standing], cost: Cost, device: str, out: Path) -> None:
    """Print the runs and their cost: a table on a terminal, else one line of JSON."""
    epochs = sum(s.epochs_left for s in standings)
    seconds = cost.seconds(standings)
    flops = 3 * cost.flops_per_image * cost.images * epochs  # forward once, backward twice
    if not sys.stdout.isatty():
        runs = [
            {"run": s.experiment.id, "seed": s.experiment.seed, "state": s.state, "rounds": s.rounds}
            for s in standings
        ]
        plan = {"device": device, "model_epochs": epochs, "seconds": seconds, "flops": flops}
        click.echo(json.dumps({"runs": runs, **plan, **vars(cost)}))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("method", "seed", "state", "run"):
        table.add_column(title, justify="right" if title == "seed" else "left", overflow="fold")
    for s in standings:
        state = f"in round {s.rounds}/{s.experiment.rounds}" if s.state == "interrupted" else s.state
        table.add_row(s.experiment.label, str(s.experiment.seed), state, s.experiment.id)
    console.print(table)
    first = standings[0].experiment
    speed = f"{cost.images / cost.seconds_per_epoch:,.0f} images per second"
    timed, less = "a few steps", "less if runs end early"
    if cost.members > 1:
        timed = f"a few steps of {cost.members} networks that train together"
        less = "less if more of them do, or if runs end early"
    elif len(standings) > 1:
        timed, less = "a few steps of one network", "less if several train together, or if runs end early"
    console.print(
        f"\n{first.model} on {first.data}: {cost.parameters:,} parameters, {cost.prunable:,} of them prunable, "
        f"{cost.flops_per_image:,} FLOPs per image\n"
        f"to train: {counted(epochs, 'model-epoch')} of {cost.images:,} images, {flops:.2g} FLOPs\n"
        f"to wait: about {duration(seconds)} on {device}, an estimate from {timed} ({speed}); {less}\n"
        f"to write: folders in {out}{os.sep}; nothing was written now"
    )
