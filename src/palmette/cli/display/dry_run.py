"""`--dry-run`: what would be run, and its estimated cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.display.printing import console_of_stdout, plain_table, print_text
from palmette.cli.options import device_named
from palmette.words import counted, duration

if TYPE_CHECKING:
    from palmette.cli.run import Command


def show_plan(command: Command) -> None:
    """Print the runs of a command and what each fleet costs; each kind of training is timed."""
    from palmette.studies.cost import Clock

    device_named(command.device)  # a cluster may have another
    standings = command.standings()
    plans: list[dict[str, Any]] = []
    for fleet, one in Clock(command.device, command.fleet, command.data_dir).costs(standings):
        first, epochs = fleet[0].experiment, sum(s.epochs_left for s in fleet)
        plans.append(
            {"data": first.data, "model": first.model, "runs": len(fleet), "model_epochs": epochs}
            | {"flops": 3 * one.flops_per_image * one.images * epochs}  # forward once, backward twice
            | {"seconds": one.seconds(fleet), **vars(one)}
        )
    whole = {name: sum(plan[name] for plan in plans) for name in ("model_epochs", "seconds")}
    whole["seconds"] /= max(1, command.workers())
    if command.as_json:
        of = [(s.experiment, s) for s in standings]
        runs = [{"run": e.id, "seed": e.seed, "state": s.state, "rounds": s.rounds} for e, s in of]
        click.echo(json.dumps({"runs": runs, "fleets": plans, "device": command.device, **whole}))
        return
    console, table = console_of_stdout(), plain_table("state", "seed", "method", words=("state", "method"))
    for name, s in zip(command.names(), standings, strict=True):
        table.add_row(s.state, str(s.experiment.seed), name)
    console.print(table)
    console.print()
    for plan in plans:
        print_text(
            console,
            f"{plan['model']} on {plan['data']}, {plan['parameters']:,} parameters: {counted(plan['runs'], 'run')}"
            f"{' together' if plan['runs'] > 1 else ''}, {counted(plan['model_epochs'], 'model-epoch')} of "
            f"{plan['images']:,} images, {plan['flops']:.2g} FLOPs, about {duration(plan['seconds'])}",
        )
    time = f"about {duration(whole['seconds'])} on {command.where()}, estimated from a few steps"
    print_text(console, f"time: {time}; less if runs end early. Nothing was written.")
