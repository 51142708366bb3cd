"""`palmette run`: train, prune, retrain; then a table and a figure."""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import click

from palmette.cli.display.dry_run import show_plan
from palmette.cli.display.lines import JsonLines, Lines
from palmette.cli.display.live import Display, Live
from palmette.cli.display.printing import console_of_stdout, is_terminal, print_text, say
from palmette.cli.display.watch import Watch, by_reason, why_not
from palmette.cli.options import (
    PATH,
    GroupedCommand,
    check_processes,
    checked,
    device_named,
    experiments,
    place_options,
    setting_options,
)
from palmette.errors import RunBusy, RunDamaged, RunInterrupted
from palmette.files import write_whole
from palmette.reports.limits import answer, how_far
from palmette.reports.tables import Run, as_table, as_text, summary
from palmette.studies.experiment import Experiment
from palmette.studies.extending import start_from_shorter
from palmette.studies.folder import RunDir
from palmette.studies.settings import slug
from palmette.studies.status import Standing, standing_or_damage
from palmette.words import counted, size

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.integrations.ray.driver import OnRay
    from palmette.training.data.images import Images


@click.command(cls=GroupedCommand, params=list(setting_options()))
@click.argument("file", required=False, type=PATH, metavar="[EXPERIMENT.toml]")
@place_options
@click.option(
    "--nproc", type=click.IntRange(1), default=1, metavar="N", help="Processes per network. [default: 1]"
)
@click.option("--tensorboard", is_flag=True, help="Write the numbers for TensorBoard too, next to the records.")
def run(file: Path | None, nproc: int, tensorboard: bool, place: dict[str, Any], **given: Any) -> None:
    """Train, prune and retrain a network: how far can it be pruned?

    With --tolerance, a search finds the smallest density whose retrained network is that close to the dense one on
    held-out images. Without it, every run makes all its rounds, as in the paper.

    Without arguments: an MLP on the bundled handwritten digits, pruned by SAP (at two pairs of p and q), Lottery
    Ticket and One Shot with three seeds each, in about a minute on two CPU cores. Every default is the paper's
    (Diao et al. 2023), except for fewer epochs on these small digits.

    \b
      palmette run --data FashionMNIST --epochs 20 --seeds 0
      palmette run --tolerance 0.01
      palmette run --model mymodels:net --data pictures/ --dry-run

    With EXPERIMENT.toml: the run that the file describes. Flags override its settings; --seeds repeats it.

    Each run has its own folder. The same command resumes interrupted runs and skips finished ones; with more
    --rounds it continues copies of them. A terminal shows a live table, a pipe one line per round.
    """
    planned = experiments(file, {name: value for name, value in given.items() if value is not None})
    place["device"] = device_named(place["device"])
    check_processes(nproc, place["device"], place["fleet"], planned)
    Command(planned, **place, tensorboard=tensorboard, nproc=nproc).start()


@dataclass
class Command:
    """One call of `palmette run`."""

    word: ClassVar = "run"
    planned: Sequence[Experiment]
    out: Path
    data_dir: str | None
    device: str
    fleet: int | None
    as_json: bool
    dry_run: bool
    arguments: Sequence[str]
    tensorboard: bool = False
    nproc: int = 1
    stem: str = ""
    engine: OnRay | None = None
    problems: dict[str, Exception] = field(default_factory=dict)
    signal: int = 0
    trained: bool = False
    images: Images | None = None

    def start(self) -> None:
        """Check everything, then show the plan, or run it and exit."""
        self.check()
        if self.dry_run:
            show_plan(self)
        else:
            sys.exit(self.run())

    def check(self) -> None:
        """Load the data set; raise if any run could not start."""
        self.images = checked(self.planned, self.out, self.data_dir, tensorboard=self.tensorboard)

    def standings(self) -> list[Standing]:
        """State of each run; one with a damaged folder counts as not begun."""
        return [standing_or_damage(RunDir(e.folder_in(self.out)), e) for e in self.planned]

    def run(self) -> int:
        """Run everything, fleet by fleet, and print the results; return the exit code."""
        console, live = console_of_stdout(), is_terminal(sys.stdout) and not self.as_json
        start_from_shorter(self.planned, self.out, say=say)
        standings, names = self.standings(), self.names()
        if live:
            print_text(console, f"{self._greeting()}\n")
        kind = partial(Live, console=console) if live else JsonLines if self.as_json else Lines
        display: Display = kind(standings, names)
        with self._signals(display):
            self._train(display)
            finished = [s.experiment.id for s in self.standings() if s.state == "finished"]
            self.problems = {n: e for n, e in self.problems.items() if n not in finished}  # by another process
            ended = self.signal if len(finished) < len(self.planned) else 0
            if live:
                self._print_failures()
            if ended:
                self._say_how_to_resume()
                return 128 + ended
            self._conclude(console)
        return max((2 if isinstance(e, RunBusy | RunDamaged) else 1 for e in self.problems.values()), default=0)

    def names(self) -> list[str]:
        """Name of each run, without its seed."""
        return [e.label for e in self.planned]

    def _train(self, display: Display) -> None:
        """Train all runs to their end, or until a signal."""
        watch = Watch(self, display)
        # KeyboardInterrupt is the second Ctrl-C; the files on disk are complete.
        with display, suppress(RunInterrupted, KeyboardInterrupt):
            self._outcomes(watch)
        watch.report_busy()
        self.trained = True

    def _outcomes(self, watch: Watch) -> None:
        """Train all fleets; `watch` is told how each run ends."""
        from palmette.studies.sweep import here, run
        from palmette.training.data_parallel import worker_group

        with worker_group(self.nproc, self.device) as workers:
            run(
                self.planned,
                self.out,
                data_folder=self.data_dir,
                device=self.device if workers is None else workers.device,
                size=self.fleet if workers is None else 1,
                observer=watch,
                engine=self.engine or partial(here, images=self.images, workers=workers),
            )

    @contextmanager
    def _signals(self, display: Display) -> Iterator[None]:
        """End after the epoch on the first Ctrl-C, SIGTERM or SIGHUP, at once on the second.

        After training the first is ignored: table and figure take a moment. Signals that the process was started
        to ignore, as by nohup, stay ignored.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self.signal:
                raise KeyboardInterrupt
            self.signal = number
            if not self.trained:
                display.ending("stopping after this epoch; Ctrl-C again stops at once, and saves nothing")

        found = [kind for name in ("SIGINT", "SIGTERM", "SIGHUP") if (kind := getattr(signal, name, None))]
        kinds = [kind for kind in found if signal.getsignal(kind) is not signal.SIG_IGN]
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
        command = shlex.join(["palmette", self.word, *self.arguments])
        say(f"stopped; {share}. The same command resumes from here:\n  {command}")

    def _greeting(self) -> str:
        first, runs = self.planned[0], counted(len(self.planned), "run")
        epochs = "epochs" if len({e.epochs for e in self.planned}) > 1 else counted(first.epochs, "epoch")
        what = f"{first.model} on {first.data}, {counted(first.rounds, 'cut')}, {epochs} per round"
        return f"{what}: {runs} on {self.where()} into {self.out}"

    def where(self) -> str:
        """Device and processes, for people."""
        return self.device if self.nproc == 1 else f"{self.device} by {self.nproc} processes"

    def workers(self) -> int:
        """Number of fleets that train at once."""
        return 1

    def _conclude(self, console: Console) -> None:
        """Write and print the results; the answer comes last."""
        states = {s.experiment.id: s.state for s in self.standings()}
        named = [(n, e) for n, e in zip(self.names(), self.planned, strict=True) if states[e.id] == "finished"]
        names, runs = [name for name, _ in named], [(e, RunDir(e.folder_in(self.out)).records()) for _, e in named]
        rows, far = summary(runs, names), how_far(runs, names)
        files = self.files(rows, runs, far)
        there = [run for e in self.planned if (run := RunDir(e.folder_in(self.out))).path.is_dir()]
        kept = sum(run.size() for run in there)
        if self.as_json:
            problems = {name: why_not(name, why) for name, why in self.problems.items()}
            last = {"finished": len(runs), "runs": states, "problems": problems, "bytes": kept}
            last |= {name: file and str(file) for name, file in files.items()}
            click.echo(json.dumps(last | {"how_far": far, "summary": rows}, allow_nan=False))
        elif runs:
            console.print(as_table(rows))
            print_text(console, "In percent, ± sd over seeds; the table's file explains the columns.\n", "dim")
            for name, file in files.items():
                console.print(f"{name:7} {file or 'none'}", soft_wrap=True)
            console.print()
            ideas = [(f"palmette show {shlex.quote(str(self.out))}", f"all runs, {size(kept)}"), *self._ideas()]
            width = max(len(command) for command, _ in ideas)
            for command, why in ideas:
                console.print(f"{command:{width}}  {why}", style="dim")
            console.print()
            print_text(console, answer(runs, names), "bold")

    def _print_failures(self) -> None:
        """Print failures by reason; runs in use by other commands are named already."""
        failed = [
            (name, e.seed, why_not(e.id, why))
            for name, e in zip(self.names(), self.planned, strict=True)
            if (why := self.problems.get(e.id)) is not None and not isinstance(why, RunBusy)
        ]
        if failed:
            ids = f"`palmette show {shlex.quote(str(self.out))}` has their ids"
            say(f"not finished: {len(failed)} of {counted(len(self.planned), 'run')}; {ids}")
        for line in by_reason(failed):
            say(line, indent="  ")

    def files(
        self, rows: Sequence[dict[str, Any]], runs: Sequence[Run], far: Sequence[str]
    ) -> dict[str, Path | None]:
        """Write table and figure of all finished runs; return their paths."""
        return {"table": self._write_table(rows, runs, far), "figure": self._draw(runs)}

    def _write_table(self, rows: Sequence[dict[str, Any]], runs: Sequence[Run], far: Sequence[str]) -> Path | None:

        return write_whole(self._name(".txt"), as_text(rows, runs, far).encode()) if runs else None

    def _name(self, suffix: str) -> Path:
        """Path of a result that no other command in the same folder has."""
        first = self.planned[0]
        stem = slug(self.stem) if self.stem else f"{slug(first.data)}-{slug(first.model)}"
        digest = hashlib.sha256("\n".join(sorted(e.id for e in self.planned)).encode()).hexdigest()[:8]
        return self.out / f"{stem}-{digest}{suffix}"

    def _draw(self, runs: Sequence[Run]) -> Path | None:
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
            say(error)
            return None
        return write_whole(self._name(".png"), as_file(figure, "png"))

    def _ideas(self) -> list[tuple[str, str]]:
        """Commands to try next, and what each is for."""
        ideas = [(f"palmette report {shlex.quote(str(self.out))}", "one page of charts, report.html")]
        if not self.planned[0].tolerance:
            ideas.append(("palmette run --tolerance 0.01", "search for the smallest good density"))
        return ideas
