"""Output of `palmette run` while it trains: a live table on a terminal, else a line of JSON per round."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from palmette.reports.words import counted, duration, measured
from palmette.studies.experiment import Experiment

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from palmette.studies.engine import Progress
    from palmette.studies.status import Standing


_TITLES = {
    "method": "method",
    "seed": "seed",
    "round": "round",
    "epoch": "epoch",
    "training": "train",
    "test": "test",
    "density": "density",
    "index": "PQ Index",
}
_SPARE = ("training", "epoch", "density")  # left out, in this order, on a narrow terminal
_STATE = len("diverged…")


class Pace:
    """Estimate of the time left, from the speed of this command alone.

    The unit of work is an epoch; measuring at the end of a round counts as one. A run that ends early shortens the
    estimate for other runs of its method.
    """

    def __init__(self, standings: Sequence[Standing], names: Sequence[str]) -> None:
        self.names = list(names)
        self.left = [s.epochs_left + s.rounds_left for s in standings]
        self.done = [s.epochs_done + s.rounds for s in standings]
        self.worked, self.began = 0, time.monotonic()
        self._begun: set[int] = set()

    def reach(self, run: int, done: int) -> None:
        """Note how many units of a run are done; some may not have been reported one by one."""
        new = max(0, done - self.done[run])
        self._begun.add(run)
        self.worked += new
        self.done[run] += new
        self.left[run] = max(0, self.left[run] - new)

    def end(self, run: int) -> None:
        """Note that a run is over, perhaps early."""
        if self.left[run] and self.worked:
            for other, name in enumerate(self.names):
                if name == self.names[run] and other not in self._begun and self.left[other]:
                    self.left[other] = max(1, min(self.left[other], self.done[run] - self.done[other]))
        self.left[run] = 0

    @property
    def fraction(self) -> float:
        """Fraction of all work that is done."""
        return sum(self.done) / max(1, sum(self.done) + sum(self.left))

    @property
    def seconds_left(self) -> float | None:
        """Seconds left; None before any work is done."""
        if not self.worked:
            return None
        return (time.monotonic() - self.began) / self.worked * sum(self.left)


class Lines:
    """Display for programs: a line of JSON per round."""

    def __init__(self, standings: Sequence[Standing], names: Sequence[str]) -> None:
        self.standings, self.pace = standings, Pace(standings, names)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def epoch(self, run: int, progress: Progress) -> None:
        """Count the epoch."""
        self.pace.reach(run, _units(self.standings[run].experiment, progress.round, progress.epoch))

    def recorded(self, run: int, record: Mapping[str, Any]) -> None:
        """Print a line."""
        self.pace.reach(run, _units(self.standings[run].experiment, record["round"] + 1))
        left = self.pace.seconds_left
        retrained, experiment = record["retrained"], self.standings[run].experiment
        line = {
            "run": experiment.id,
            "method": self.pace.names[run],
            "seed": experiment.seed,
            "round": record["round"],
            "accuracy": record["test"]["accuracy"],
            "train_accuracy": record["train"]["accuracy"],
            **{name: retrained[name] for name in ("density", "kept", "pq_index", "gini_index", "dead_neurons")},
            "cut": record["cut"]["weights"],
            "stopped": record["stopped"],
            "seconds_left": None if left is None else round(left, 1),
        }
        # JSON has no NaN, the score of an untrained network (no epochs).
        plain = json.loads(json.dumps(line), parse_constant=lambda _: None)
        click.echo(json.dumps(plain))

    def fail(self, run: int, said: str) -> None:
        """Print the reason to stderr, with name and id of the run."""
        experiment = self.standings[run].experiment
        name = f"{self.pace.names[run]}, seed {experiment.seed} ({experiment.id})"
        click.echo(f"palmette: {name}: {said}", err=True)

    def end(self, run: int, said: str) -> None:
        """Count the run as over."""
        self.pace.end(run)

    def ending(self, said: str) -> None:
        """Print to stderr, past Python's buffers: this is called from a signal handler."""
        os.write(2, f"palmette: {said}\n".encode())


class Live:
    """Display for a terminal: a table of the runs, and a progress bar with the time left."""

    def __init__(self, standings: Sequence[Standing], names: Sequence[str], console: Console) -> None:
        from rich.live import Live as RichLive

        self.standings, self.pace = standings, Pace(standings, names)
        self.running, self.console = set[int](), console
        self.rows = [self._first_row(s, name) for s, name in zip(standings, names, strict=True)]
        self.footer = "Ctrl-C ends it at a clean point; the same command resumes from there."
        self._live = RichLive(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def _first_row(self, s: Standing, name: str) -> dict[str, str]:
        state = {"new": "", "interrupted": f"{counted(s.rounds, 'round')} done", "running": f"in use by {s.owner}"}
        said = in_short(s.stopped) if s.stopped is not None else state.get(s.state, s.state)
        numbers = {} if s.last is None else _numbers(s.last, s.experiment)
        return {"method": name, "seed": str(s.experiment.seed), "state": said} | numbers

    def __enter__(self) -> Live:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def epoch(self, run: int, progress: Progress) -> None:
        """Update the row of a run."""
        self.pace.reach(run, _units(self.standings[run].experiment, progress.round, progress.epoch))
        self.running.add(run)
        rounds = self.standings[run].experiment.rounds
        self.rows[run] |= {
            "round": f"{progress.round}/{rounds}",
            "epoch": f"{progress.epoch}/{progress.epochs}",
            "training": f"{progress.train.accuracy:.1%}",
            "density": f"{progress.density:.1%}",
            "state": "training",
        }

    def recorded(self, run: int, record: Mapping[str, Any]) -> None:
        """Show the numbers of the round."""
        self.pace.reach(run, _units(self.standings[run].experiment, record["round"] + 1))
        self.rows[run] |= _numbers(record, self.standings[run].experiment)

    def fail(self, run: int, said: str) -> None:
        """Do nothing: the row shows the failure, and all failures are listed at the end."""

    def end(self, run: int, said: str) -> None:
        """Show how the run ended."""
        self.pace.end(run)
        self.running.discard(run)
        self.rows[run]["state"] = in_short(said)

    def ending(self, said: str) -> None:
        """Show a message below the bar."""
        self.footer = said

    def render(self) -> RenderableType:
        """The rows of runs in training, as many as fit, and the bar."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        columns, longest, left_over = self._columns(self.console.width)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        for cell in columns:
            table.add_column(_TITLES[cell], justify="left" if cell == "method" else "right", no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=left_over)
        columns.append("state")
        height = max(5, min(len(self.rows), self.console.size.height - 8))
        first = max(0, min(min(self.running, default=0) - 1, len(self.rows) - height))
        for i in range(first, min(len(self.rows), first + height)):
            style = "bold cyan" if i in self.running else ""
            row = self.rows[i] | {"method": _end_of(self.rows[i]["method"], longest)}
            table.add_row(*(row.get(cell, "") for cell in columns), style=style)
        left, over = self.pace.seconds_left, self.pace.left.count(0)
        bar = Table.grid(padding=(0, 1))
        said = f"{self.pace.fraction:4.0%}, {over} of {counted(len(self.rows), 'run')} over"
        if over < len(self.rows):
            said += ", measuring the speed" if left is None else f", about {duration(left)} left"
        width = max(5, min(30, self.console.width - len(said) - 2))
        bar.add_row(ProgressBar(total=1, completed=self.pace.fraction, width=width), said)
        below = max(0, len(self.rows) - first - height)
        more = f"no room for {counted(first + below, 'run')}: {first} above, {below} below"
        hidden = more if first + below else ""
        return Group(table, Text(hidden, style="dim"), bar, Text(self.footer, style="dim"))

    def _columns(self, width: int) -> tuple[list[str], int, int]:
        """Columns that fit without cutting a number; the widths left for names and for the state."""
        widths = {
            cell: 1 + max(len(title), *(len(row.get(cell, "")) for row in self.rows))
            for cell, title in _TITLES.items()
        }
        room = width - _STATE
        for cell in _SPARE:
            if sum(widths.values()) > room:
                del widths[cell]
        widths["method"] -= max(0, min(sum(widths.values()) - room, widths["method"] - 1 - _STATE))
        return list(widths), widths["method"] - 1, max(1, width - sum(widths.values()))


Display = Lines | Live
"""Either receives the events of the runs; `ending` is called from a signal handler."""


def _end_of(name: str, longest: int) -> str:
    """A name, or the end of a long one, where names differ.

    >>> _end_of("SAP (p=0.5, q=1), learning_rate=0.1", 20)
    '…, learning_rate=0.1'
    """
    return name if len(name) <= longest else f"…{name[len(name) - longest + 1 :]}"


def _numbers(record: Mapping[str, Any], experiment: Experiment) -> dict[str, str]:
    """Cells of a row after a round."""
    return {
        "round": f"{record['round']}/{experiment.rounds}",
        "test": f"{record['test']['accuracy']:.1%}",
        "density": f"{record['retrained']['density']:.1%}",
        "index": measured(record["retrained"]["pq_index"]),
    }


def in_short(stopped: str) -> str:
    """Why a run is over; "done" after the last round.

    >>> in_short("30 rounds are done"), in_short("1 round is done"), in_short("nothing is left to cut")
    ('done', 'done', 'nothing is left to cut')
    """
    return "done" if re.fullmatch("[0-9]+ rounds? (is|are) done", stopped) else stopped


def _units(experiment: Experiment, rounds: int, epoch: int | None = None) -> int:
    """Units of work of `rounds` rounds, and of the next up to an epoch."""
    from palmette.studies.status import epochs_before, epochs_of

    more = 0 if epoch is None else epoch - epochs_of(experiment, rounds).start
    return epochs_before(experiment, rounds) + rounds + more
