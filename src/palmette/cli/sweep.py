"""`palmette sweep`: run all experiments of a grid, and list failures at the end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from palmette.cli.options import PATH, RememberingCommand, device_named, place_options
from palmette.cli.run import Command
from palmette.cli.sweep_status import show_status
from palmette.reports.words import counted, duration
from palmette.studies.experiment import Experiment

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.cli.display.watch import Watch
    from palmette.integrations.ray.driver import OnRay
    from palmette.reports.tables import Run
    from palmette.studies.running import Outcomes


@click.command(cls=RememberingCommand)
@click.argument("file", type=PATH, metavar="GRID.toml|FOLDER")
@place_options
@click.option("--engine", type=click.Choice(["here", "ray"]), default="here", help="Where. [default: here]")
@click.option("--address", metavar="auto|HOST:PORT", help="The Ray cluster. [default: one is started here]")
@click.option("--status", is_flag=True, help="Show the progress of the runs of GRID.toml, or of all in a FOLDER.")
@click.option("--dry-run", is_flag=True, help="Show what would be run and how long it takes; write nothing.")
@click.pass_context
def sweep(
    ctx: click.Context,
    file: Path,
    out: Path,
    data_dir: str | None,
    device: str | None,
    fleet: int | None,
    engine: str,
    address: str | None,
    status: bool,
    dry_run: bool,
) -> None:
    """Run all experiments of a grid: every combination of its values.

    \b
      [base]                                # what all share
      data = "FashionMNIST"
      epochs = 20
      [axes]                                # every combination of these
      seed = "0..3"
      method = ["sap", "lottery-ticket"]
      scope = ["neuron", "global"]
      eta = [0, 0.1]                        # of sap; lottery-ticket does without

    Tables [[variants]] have settings that go together. All is checked before the first run begins. The same
    command again resumes; a run that fails does not stop the others, and is named at the end.
    `palmette table` compares the results.

    With --engine ray the fleets are split over all workers of a Ray cluster. In another terminal, --status shows
    the progress of a sweep, with either engine.
    """
    from palmette.studies.sweep import read

    if status:
        show_status(file, out)
        return
    if file.is_dir():
        raise ValueError(f"{str(file)!r} is a folder: add --status to see how far its runs are, or name a grid")
    if address is not None and engine != "ray":
        raise ValueError("--address belongs to --engine ray")
    planned, arguments = read(file), ctx.meta["palmette.arguments"]
    with _engine(engine, address) as on_ray:
        where = device_named(device) if on_ray is None else on_ray.device(device)
        command = Sweep(planned, out, data_dir, where, False, fleet, arguments, stem=file.stem, engine=on_ray)
        command.check_all()
        if dry_run:
            device_named(where)  # timing needs the device on this machine
            command.show_plans()
            return
        ctx.exit(command.run())


def _engine(name: str, address: str | None) -> AbstractContextManager[OnRay | None]:
    if name == "here":
        return nullcontext()
    from palmette.integrations.ray.driver import OnRay

    return OnRay(address)


@dataclass
class Sweep(Command):
    """One call of `palmette sweep`: as `palmette run`, for runs of any data and models."""

    word: ClassVar = "sweep"
    engine: OnRay | None = None

    def check_all(self) -> None:
        """Raise if any run could not start."""
        kinds: dict[Hashable, list[Experiment]] = {}
        for e in self.planned:
            kinds.setdefault((e.data, e.model, e.validation_images(2**60)), []).append(e)
        for experiments in kinds.values():  # one after another: all data sets together may be too large
            replace(self, planned=experiments).check()

    def show_plans(self) -> None:
        """Print the runs and their cost; each kind of training is timed."""
        from palmette.studies.cost import Cost, cost
        from palmette.studies.running import fleets
        from palmette.studies.scheduler import kind
        from palmette.training.data import load

        standings = {s.experiment: s for s in self.standings()}
        timed: dict[object, Cost] = {}
        plans: list[dict[str, Any]] = []
        for fleet in fleets(e for e, s in standings.items() if s.state != "finished"):
            first, members = fleet[0], self.timed(fleet)
            key = (kind(first), members)
            if key not in timed:
                images = load(first.data, folder=self.data_dir)
                timed[key] = cost(first, images, device=self.device, members=members)
            epochs = sum(standings[e].epochs_left for e in fleet)
            seconds = timed[key].seconds(standings[e] for e in fleet)
            plans.append(
                {"data": first.data, "model": first.model, "runs": len(fleet), "model_epochs": epochs}
                | {"seconds": seconds, "parameters": timed[key].parameters}
            )
        whole = {name: sum(plan[name] for plan in plans) for name in ("model_epochs", "seconds")}
        whole["seconds"] /= max(1, self._workers())
        if not sys.stdout.isatty():
            runs = [
                {"run": e.id, "seed": e.seed, "state": s.state, "rounds": s.rounds} for e, s in standings.items()
            ]
            click.echo(json.dumps({"runs": runs, "fleets": plans, "device": self.device, **whole}))
            return
        for name, s in zip(self.names(), standings.values(), strict=True):
            click.echo(f"{s.state:12} seed {s.experiment.seed:<3} {name}")
        click.echo()
        for plan in plans:
            together = " together" if plan["runs"] > 1 else ""
            click.echo(
                f"{plan['model']} on {plan['data']}: {counted(plan['runs'], 'run')}{together}, "
                f"{counted(plan['model_epochs'], 'model-epoch')}, about {duration(plan['seconds'])}"
            )
        wait = f"about {duration(whole['seconds'])} on {self._where()}"
        click.echo(f"to wait: {wait}, from a few steps; nothing was written")

    def names(self) -> list[str]:
        """Name of each run, without its seed: the method, and the settings that vary in the grid."""
        from palmette.reports.comparison import names_among

        return names_among(self.planned)

    def outcomes(self, watch: Watch) -> Iterator[Outcomes]:
        """Train all fleets; one that fails does not stop the others."""
        from palmette.studies.sweep import here, run

        yield run(
            self.planned,
            self.out,
            data_folder=self.data_dir,
            device=self.device,
            size=self.fleet,
            observer=watch,
            engine=self.engine or here,
        )

    def _greet(self, console: Console) -> None:
        from palmette.studies.running import fleets

        what = f"{counted(len(self.planned), 'run')} in {counted(len(fleets(self.planned)), 'fleet')}"
        console.print(f"{what} on {self._where()} into {self.out}\n", soft_wrap=True)

    def _workers(self) -> int:
        return 1 if self.engine is None else self.engine.workers(self.device)

    def _where(self) -> str:
        if self.engine is None:
            return self.device
        return f"{counted(self._workers(), 'worker')} of Ray with {self.device}"

    def files(self, rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> dict[str, Path | None]:
        """Write the table; a grid may be too large for one figure."""
        return {"table": self._write_table(rows, runs)}

    def _ideas(self) -> list[tuple[str, str]]:
        folder = shlex.quote(str(self.out))
        return [
            (f"palmette table {folder}", "every round; with --at 0.5,0.2 at equal density"),
            (f"palmette report {folder}", "one page of charts, report.html"),
        ]
