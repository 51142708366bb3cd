"""`palmette run`: train, prune, retrain; then a table and a figure."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import click

from palmette.cli.display.dry_run import show_plan
from palmette.cli.display.live import Display, Lines, Live
from palmette.cli.options import (
    PATH,
    GroupedCommand,
    checked,
    device_named,
    experiments,
    place_options,
    process_count,
    setting_options,
)
from palmette.errors import RunBusy, RunDamaged, RunInterrupted
from palmette.reports.words import counted, size
from palmette.studies.experiment import Experiment
from palmette.studies.settings import slug

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.cli.display.watch import Watch
    from palmette.reports.tables import Run
    from palmette.studies.running import Outcomes
    from palmette.studies.status import Standing
    from palmette.training.data.images import Images

_TIMED = 4  # networks, to tell how long many take


@click.command(cls=GroupedCommand, params=list(setting_options()))
@click.argument("file", required=False, type=PATH, metavar="[EXPERIMENT.toml]")
@place_options
@click.option("--nproc", metavar="N", help="How many processes train each network together. [default: 1]")
@click.option("--tensorboard", is_flag=True, help="Write the numbers for TensorBoard too, next to the records.")
@click.option("--dry-run", is_flag=True, help="Show what would be run and how long it takes; write nothing.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    file: Path | None,
    out: Path,
    data_dir: str | None,
    device: str | None,
    fleet: int | None,
    nproc: str | None,
    tensorboard: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Train a network, prune it, train it again: how far does it go?

    With --tolerance, a search finds the smallest density whose retrained network is that close to the dense one on
    held-out images. Without it, every run makes all its rounds, as in the paper.

    Without arguments: an MLP on the bundled handwritten digits, pruned by SAP (p, q = 0.5, 1 and
    1, 2), Lottery Ticket and One Shot with three seeds each, in about a minute on two CPU cores. Every default
    is the paper's (Diao et al. 2023), but for fewer epochs on these digits, which are small.

    \b
      palmette run --data FashionMNIST --epochs 20 --seeds 0
      palmette run --tolerance 0.01
      palmette run --model mymodels:net --data pictures/ --dry-run

    With EXPERIMENT.toml: the one run that the file describes; flags override it, --seeds makes several of it.

    Each run has its own folder. The same command again resumes, and does not repeat finished runs; more --rounds
    continue copies of them. A terminal shows a live table; anything else gets one line of JSON per round.
    """
    planned = experiments(file, {name: value for name, value in given.items() if value is not None})
    arguments = ctx.meta["palmette.arguments"]
    where = device_named(device)
    count = process_count(nproc, where, fleet, planned)
    command = Command(planned, out, data_dir, where, tensorboard, fleet, arguments, count)
    images = command.check()
    if dry_run:
        command.show_plan(images)
        return
    ctx.exit(command.run())


@dataclass
class Command:
    """One call of `palmette run`."""

    word: ClassVar = "run"
    planned: Sequence[Experiment]
    out: Path
    data_dir: str | None
    device: str
    tensorboard: bool
    fleet: int | None
    arguments: Sequence[str]
    nproc: int = 1
    stem: str = ""
    problems: dict[str, Exception] = field(default_factory=dict)
    signal: int = 0
    trained: bool = False
    images: Images | None = None

    def check(self) -> Images:
        """Raise if any run could not start; return the data set."""
        self.images = checked(self.planned, self.out, self.data_dir, tensorboard=self.tensorboard)
        return self.images

    def standings(self) -> list[Standing]:
        """State of each run; one with a damaged folder counts as not begun."""
        from palmette.studies.folder import RunDir
        from palmette.studies.status import standing_or_damage

        return [standing_or_damage(RunDir(e.folder_in(self.out)), e) for e in self.planned]

    def timed(self, fleet: Sequence[Experiment]) -> int:
        """How many networks of a fleet are timed for an estimate of its cost."""
        return min(_TIMED, self.fleet or _TIMED, len(fleet))

    def show_plan(self, images: Images) -> None:
        """Print the runs and their cost, estimated from a few networks of the first fleet."""
        from palmette.studies.cost import cost
        from palmette.studies.running import fleets

        standings = self.standings()
        left = [s.experiment for s in standings if s.state != "finished"]
        members = self.timed(fleets(left)[0]) if left else 1
        costs = cost(self.planned[0], images, device=self.device, members=members)
        show_plan(standings, costs, self.device, self.out)

    def run(self) -> int:
        """Run everything, fleet by fleet, and print the results; return the exit code."""
        from rich.console import Console

        from palmette.studies.extending import start_from_shorter

        console, live = Console(highlight=False, markup=False), sys.stdout.isatty()
        start_from_shorter(self.planned, self.out, say=lambda text: click.echo(f"palmette: {text}", err=True))
        standings, names = self.standings(), self.names()
        if live:
            self._greet(console)
        display: Display = Live(standings, names, console) if live else Lines(standings, names)
        with self._signals(display):
            self._train(display)
            finished = [s.experiment.id for s in self.standings() if s.state == "finished"]
            self.problems = {n: e for n, e in self.problems.items() if n not in finished}  # by another process
            ended = self.signal if len(finished) < len(self.planned) else 0
            try:
                if ended:
                    self._say_how_to_resume()
                else:
                    self._conclude(console, live)
            finally:
                if live:
                    self._tell_what_failed()
        if ended:
            return 128 + ended
        return max((2 if isinstance(e, RunBusy | RunDamaged) else 1 for e in self.problems.values()), default=0)

    def names(self) -> list[str]:
        """Name of each run, without its seed."""
        return [e.label for e in self.planned]

    def _train(self, display: Display) -> None:
        """Train all runs to their end, or until a signal."""
        from palmette.cli.display.watch import Watch

        watch = Watch(self, display)
        # KeyboardInterrupt is the second Ctrl-C; the files on disk are complete.
        with display, suppress(RunInterrupted, KeyboardInterrupt):
            for outcomes in self.outcomes(watch):
                self.problems |= {path.name: why for path, why in outcomes.items() if isinstance(why, Exception)}
        watch.tell_of_busy()
        self.trained = True

    def outcomes(self, watch: Watch) -> Iterator[Outcomes]:
        """Train fleet by fleet; yield how the runs of each ended."""
        from palmette.studies.running import fleets, run_together
        from palmette.training.data_parallel import worker_group

        with worker_group(self.nproc, self.device) as workers:
            for fleet in fleets(self.planned):
                if self.signal:
                    break
                yield run_together(
                    {e.folder_in(self.out): e for e in fleet},
                    images=self.images,
                    data_folder=self.data_dir,
                    device=self.device if workers is None else workers.device,
                    size=self.fleet if workers is None else 1,
                    observer=watch,
                    workers=workers,
                )

    @contextmanager
    def _signals(self, display: Display) -> Iterator[None]:
        """End after the epoch on the first Ctrl-C, SIGTERM or SIGHUP, at once on the second.

        After training the first is ignored: table and figure take a moment.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self.signal:
                raise KeyboardInterrupt
            self.signal = number
            if not self.trained:
                display.ending("ending after this epoch; Ctrl-C again ends at once, and saves nothing")

        kinds = [kind for name in ("SIGINT", "SIGTERM", "SIGHUP") if (kind := getattr(signal, name, None))]
        before = [signal.signal(kind, handle) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)

    def _say_how_to_resume(self) -> None:
        standings = self.standings()
        done = sum(s.state == "finished" for s in standings)
        epochs, left = sum(s.epochs_done for s in standings), sum(s.epochs_left for s in standings)
        finished = f"{done} of {counted(len(standings), 'run')} finished"
        share = f"{finished}, {epochs / max(1, epochs + left):.0%} of all epochs"
        click.echo(f"palmette: ended; {share}. The same command resumes from here:\n  {self.again()}", err=True)

    def again(self, *more: str) -> str:
        """The command line, with more arguments."""
        return shlex.join(["palmette", self.word, *self.arguments, *more])

    def _greet(self, console: Console) -> None:
        first, runs = self.planned[0], counted(len(self.planned), "run")
        epochs = "epochs" if len({e.epochs for e in self.planned}) > 1 else counted(first.epochs, "epoch")
        what = f"{first.model} on {first.data}, round 0 and {first.rounds} of pruning with {epochs} each"
        where = self.device if self.nproc == 1 else f"{self.device} by {self.nproc} processes"
        console.print(f"{what}: {runs} on {where} into {self.out}\n", soft_wrap=True)

    def _conclude(self, console: Console, live: bool) -> None:
        """Write and print the results."""
        from palmette.cli.display.watch import why_not
        from palmette.reports.limits import how_far
        from palmette.reports.tables import NOTES, as_table, summary, why_stopped
        from palmette.studies.folder import RunDir

        states = {s.experiment.id: s.state for s in self.standings()}
        named = [(n, e) for n, e in zip(self.names(), self.planned, strict=True) if states[e.id] == "finished"]
        names, runs = [name for name, _ in named], [(e, RunDir(e.folder_in(self.out)).records()) for _, e in named]
        rows, far = summary(runs, names), how_far(runs, names)
        files = self.files(rows, runs)
        there = [run for e in self.planned if (run := RunDir(e.folder_in(self.out))).path.is_dir()]
        kept = sum(run.size() for run in there)
        if not live:
            problems = {name: why_not(name, why) for name, why in self.problems.items()}
            last = {"finished": len(runs), "runs": states, "problems": problems, "bytes": kept}
            last |= {name: file and str(file) for name, file in files.items()}
            click.echo(json.dumps(last | {"how_far": far, "summary": rows}, allow_nan=False))
            return
        if not runs:
            return
        console.print(as_table(rows))
        console.print(f"\n{why_stopped(rows)}\n{NOTES}\n", style="dim")
        console.print("\n".join(["How far?", *(f"  {line}" for line in far), ""]), soft_wrap=True)
        for name, file in files.items():
            console.print(f"{name:7} {file or 'none'}", soft_wrap=True)
        held = counted(len(there), "folder")
        console.print(f"runs    {self.out}{os.sep}, {size(kept)} in {held}\n", soft_wrap=True)
        self._suggest(console)

    def _tell_what_failed(self) -> None:
        """Print failures by reason; runs in use by other commands are named already."""
        from palmette.cli.display.watch import by_reason, why_not

        failed = [
            (name, e.seed, why_not(e.id, why))
            for name, e in zip(self.names(), self.planned, strict=True)
            if (why := self.problems.get(e.id)) is not None and not isinstance(why, RunBusy)
        ]
        if failed:
            ids = f"`palmette show {shlex.quote(str(self.out))}` has their ids"
            click.echo(f"not finished: {len(failed)} of {counted(len(self.planned), 'run')}; {ids}", err=True)
        for line in by_reason(failed):
            click.echo(f"  {line}", err=True)

    def files(self, rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> dict[str, Path | None]:
        """Write table and figure of all finished runs; return their paths."""
        return {"table": self._write_table(rows, runs), "figure": self._draw(runs)}

    def _write_table(self, rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> Path | None:
        from palmette.files import write_whole
        from palmette.reports.tables import as_text

        return write_whole(self._name(".txt"), as_text(rows, runs).encode()) if runs else None

    def _name(self, suffix: str) -> Path:
        """Path of a result that no other command in the same folder has."""
        first = self.planned[0]
        stem = slug(self.stem) if self.stem else f"{slug(first.data)}-{slug(first.model)}"
        digest = hashlib.sha256("\n".join(sorted(e.id for e in self.planned)).encode()).hexdigest()[:8]
        return self.out / f"{stem}-{digest}{suffix}"

    def _draw(self, runs: Sequence[Run]) -> Path | None:
        from palmette.files import write_whole
        from palmette.reports.figures import as_file, draw

        if not runs:
            return None
        first, seeds = self.planned[0], len({e.seed for e, _ in runs})
        many = f"{seeds} seeds" if first.tolerance else f"mean of {seeds} seeds, band of one standard deviation"
        over = many if seeds > 1 else f"seed {first.seed}"
        caption = f"{first.model} on {first.data}, {counted(first.epochs, 'epoch')} per round; {over}"
        try:
            figure = draw(runs, caption=caption)
        except ImportError as error:
            click.echo(f"palmette: {error}", err=True)
            return None
        return write_whole(self._name(".png"), as_file(figure, "png"))

    def _ideas(self) -> list[tuple[str, str]]:
        """Commands to try next, and what each is for."""
        first, folder = self.planned[0], shlex.quote(str(self.out))
        ideas = [
            (f"palmette show {folder}", "every run here, and round by round"),
            (f"palmette report {folder}", "one page of charts, report.html"),
        ]
        if not first.tolerance:
            ideas += [("palmette run --tolerance 0.01", "search for the smallest density within a point of dense")]
        if first.data == "digits":
            ideas.append(("palmette data", "larger data sets, for `palmette run --data NAME`: which are here?"))
        return ideas

    def _suggest(self, console: Console) -> None:
        ideas = self._ideas()
        width = max(len(command) for command, _ in ideas)
        fits = all(4 + width + len(why) <= console.width for _, why in ideas)
        console.print("What next?", style="bold")
        for command, why in ideas:
            console.print(f"  {command:{width}}  {why}" if fits else f"  {command}\n      {why}", soft_wrap=True)
