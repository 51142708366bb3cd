"""Live table of commands that train, in a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palmette.cli.display.lines import Lines
from palmette.cli.display.pace import Pace, units
from palmette.cli.display.printing import fitted, width_of
from palmette.studies.experiment import Experiment
from palmette.studies.observer import Progress
from palmette.studies.status import Standing
from palmette.words import counted, duration, in_percent, measured

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_TITLES = {
    "method": "method",
    "seed": "seed",
    "round": "round",
    "density": "density",
    "test": "test",
    "index": "PQ Index",
}
_SPARE = (("index",), ("density",))  # left out, in this order, on a narrow terminal
_STATE, _LEAST_STATE = len("epoch 200/200, train 100%"), len("epoch 200/200…")


class Live:
    """A table of the runs and a progress bar with the time left.

    The numbers of a row are those of its last finished round; the state tells of the round in training.
    """

    def __init__(self, standings: Sequence[Standing], names: Sequence[str], console: Console) -> None:
        from rich.live import Live as RichLive

        self.standings, self.pace = standings, Pace(standings, names)
        self.running, self.console = set[int](), console
        self.rows = [self._first_row(s, name) for s, name in zip(standings, names, strict=True)]
        self.footer = "Ctrl-C stops at a clean point; the same command resumes from there."
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
        """Show the epoch."""
        self.pace.reach(run, units(self.standings[run].experiment, progress.round, progress.epoch))
        self.running.add(run)
        share = f"{progress.train.accuracy:.0%}"
        self.rows[run]["state"] = f"epoch {progress.epoch}/{progress.epochs}, train {share}"

    def recorded(self, run: int, record: Mapping[str, Any]) -> None:
        """Show the numbers of the round."""
        self.pace.reach(run, units(self.standings[run].experiment, record["round"] + 1))
        self.rows[run] |= _numbers(record, self.standings[run].experiment) | {"state": ""}

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
        table.add_column("", no_wrap=True, width=left_over)
        height = max(5, min(len(self.rows), self.console.size.height - 8))
        first = max(0, min(min(self.running, default=0) - 1, len(self.rows) - height))
        for i in range(first, min(len(self.rows), first + height)):
            style = "bold cyan" if i in self.running else ""
            row = self.rows[i] | {"method": _end_of(self.rows[i]["method"], longest)}
            state = textwrap.shorten(row["state"], left_over, placeholder="…", break_on_hyphens=False)
            table.add_row(*(row.get(cell, "") for cell in columns), state, style=style)
        left, over = self.pace.seconds_left, self.pace.left.count(0)
        bar = Table.grid(padding=(0, 1))
        said = f"{self.pace.fraction:4.0%}, {over} of {counted(len(self.rows), 'run')} done"
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
        columns = {cell: [title, *(row.get(cell, "") for row in self.rows)] for cell, title in _TITLES.items()}
        shown = fitted(columns, width - _STATE, _SPARE)
        longest, needed = max(map(len, shown["method"])), width_of(shown)
        excess = max(0, min(needed - width + _LEAST_STATE, longest - 9))
        return list(shown), longest - excess, max(1, width - needed + excess)


Display = Lines | Live
"""Either receives the events of the runs; `ending` is called from a signal handler."""


def _end_of(name: str, longest: int) -> str:
    """A name, or the last words of a long one, where names differ.

    >>> _end_of("SAP (p=0.5, q=1), learning_rate=0.1", 20)
    '…learning_rate=0.1'
    """
    if len(name) <= longest:
        return name
    end = name[len(name) - longest + 1 :]
    return f"…{end.partition(' ')[2] or end}"


def _numbers(record: Mapping[str, Any], experiment: Experiment) -> dict[str, str]:
    """Cells of a row after a round."""
    density = record["retrained"]["density"]
    return {
        "round": f"{record['round']}/{experiment.rounds}",
        "test": f"{record['test']['accuracy']:.1%}",
        "density": f"{in_percent(density, density)}%",
        "index": measured(record["retrained"]["pq_index"]),
    }


def in_short(stopped: str) -> str:
    """Reason why a run is over; "done" after the last round.

    >>> in_short("30 rounds are done"), in_short("1 round is done"), in_short("nothing is left to cut")
    ('done', 'done', 'nothing is left to cut')
    """
    return "done" if re.fullmatch("[0-9]+ rounds? (is|are) done", stopped) else stopped
