"""`--dry-run`: what would be run, and its estimated cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.display.printing import console_of_stdout, plain_table, print_text
from palmette.reports.words import counted, duration

if TYPE_CHECKING:
    from palmette.cli.run import Command

_TIMED = 4  # networks, to tell how long many take


def show_plan(command: Command) -> None:
    """Print the runs of a command and what each fleet costs; each kind of training is timed."""
    from palmette.studies.cost import Cost, cost
    from palmette.studies.running import fleets
    from palmette.studies.scheduler import kind
    from palmette.training.data import load

    standings = {s.experiment: s for s in command.standings()}
    timed: dict[object, Cost] = {}
    plans: list[dict[str, Any]] = []
    for fleet in fleets(e for e, s in standings.items() if s.state != "finished"):
        first, members = fleet[0], min(_TIMED, command.fleet or _TIMED, len(fleet))
        key = (kind(first), members)
        if key not in timed:
            images = command.images or load(first.data, folder=command.data_dir)
            timed[key] = cost(first, images, device=command.device, members=members)
        one, epochs = timed[key], sum(standings[e].epochs_left for e in fleet)
        plans.append(
            {"data": first.data, "model": first.model, "runs": len(fleet), "model_epochs": epochs}
            | {"flops": 3 * one.flops_per_image * one.images * epochs}  # forward once, backward twice
            | {"seconds": one.seconds(standings[e] for e in fleet), **vars(one)}
        )
    whole = {name: sum(plan[name] for plan in plans) for name in ("model_epochs", "seconds")}
    whole["seconds"] /= max(1, command.workers())
    if command.as_json:
        runs = [{"run": e.id, "seed": e.seed, "state": s.state, "rounds": s.rounds} for e, s in standings.items()]
        click.echo(json.dumps({"runs": runs, "fleets": plans, "device": command.device, **whole}))
        return
    console, table = console_of_stdout(), plain_table("state", "seed", "method", words=("state", "method"))
    for name, s in zip(command.names(), standings.values(), strict=True):
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
