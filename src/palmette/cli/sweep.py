"""`palmette sweep`: run all experiments of a grid, and list failures at the end."""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from palmette.cli.options import PATH, RememberingCommand, checked, device_named, place_options
from palmette.cli.run import Command
from palmette.cli.sweep_status import show_status
from palmette.reports.comparison import names_among
from palmette.reports.tables import Run
from palmette.studies.experiment import Experiment
from palmette.words import counted

if TYPE_CHECKING:
    from palmette.integrations.ray.driver import OnRay


@click.command(cls=RememberingCommand)
@click.argument("file", type=PATH, metavar="GRID.toml|FOLDER")
@place_options
@click.option(
    "--engine",
    type=click.Choice(["here", "ray"]),
    default="here",
    help="Train here, or on a Ray cluster. [default: here]",
)
@click.option("--address", metavar="auto|HOST:PORT", help="The Ray cluster. [default: one is started here]")
@click.option("--status", is_flag=True, help="Show the progress of the runs of GRID.toml, or of all in a FOLDER.")
def sweep(file: Path, engine: str, address: str | None, status: bool, place: dict[str, Any]) -> None:
    """Run all experiments of a grid: every combination of its values.

    \b
      [base]                                # what all share
      data = "FashionMNIST"
      epochs = 20
      [axes]                                # every combination of these
      seed = "0..3"
      method = ["sap", "lottery-ticket"]
      scope = ["neuron", "global"]
      eta = [0, 0.1]                        # of sap; lottery-ticket has none

    Tables [[variants]] hold settings that belong together. Everything is checked before the first run starts. The
    same command resumes; a run that fails does not stop the others and is listed at the end.

    With --engine ray, fleets are distributed over the workers of a Ray cluster. --status in another terminal shows
    the progress of a sweep with either engine.
    """
    from palmette.studies.sweep import read

    if status:
        show_status(file, place["out"], as_json=place["as_json"])
        return
    if file.is_dir():
        raise ValueError(f"{str(file)!r} is a folder: add --status for the progress of its runs, or name a grid")
    if address is not None and engine != "ray":
        raise ValueError("--address needs --engine ray")
    planned = read(file)
    with _engine(engine, address) as on_ray:
        device = place["device"]
        place["device"] = device_named(device) if on_ray is None else on_ray.device(device)
        Sweep(planned, **place, stem=file.stem, engine=on_ray).start()


def _engine(name: str, address: str | None) -> AbstractContextManager[OnRay | None]:
    if name == "here":
        return nullcontext()
    from palmette.integrations.ray.driver import OnRay

    return OnRay(address)


@dataclass
class Sweep(Command):
    """One call of `palmette sweep`: as `palmette run`, for runs of any data and models."""

    word: ClassVar = "sweep"

    def check(self) -> None:
        """Raise if any run could not start."""
        kinds: dict[Hashable, list[Experiment]] = {}
        for e in self.planned:
            kinds.setdefault((e.data, e.model, e.validation_images(2**60)), []).append(e)
        for experiments in kinds.values():  # one after another: all data sets together may be too large
            checked(experiments, self.out, self.data_dir, tensorboard=False)

    def names(self) -> list[str]:
        """Name of each run, without its seed: the method, and the settings that vary in the grid."""
        return names_among(self.planned)

    def _greeting(self) -> str:
        from palmette.studies.running import fleets

        what = f"{counted(len(self.planned), 'run')} in {counted(len(fleets(self.planned)), 'fleet')}"
        return f"{what} on {self.where()} into {self.out}"

    def workers(self) -> int:
        """Number of fleets that train at once."""
        return 1 if self.engine is None else self.engine.workers(self.device)

    def where(self) -> str:
        """Device or workers, for people."""
        if self.engine is None:
            return self.device
        return f"{counted(self.workers(), 'worker')} of Ray with {self.device}"

    def files(
        self, rows: Sequence[dict[str, Any]], runs: Sequence[Run], far: Sequence[str]
    ) -> dict[str, Path | None]:
        """Write the table; a grid may be too large for one figure."""
        return {"table": self._write_table(rows, runs, far)}

    def _ideas(self) -> list[tuple[str, str]]:
        folder = shlex.quote(str(self.out))
        return [
            (f"palmette table {folder}", "every round; with --at 0.5,0.2 at equal density"),
            (f"palmette report {folder}", "one page of charts, report.html"),
        ]
