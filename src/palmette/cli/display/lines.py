"""Output of commands that train where there is no terminal: a line per round, or JSON on request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from palmette.cli.display.pace import Pace, units
from palmette.cli.display.printing import say
from palmette.errors import NotWritten
from palmette.studies.observer import Progress
from palmette.studies.status import Standing
from palmette.words import duration, in_percent, measured


class Lines:
    """Display for logs: a line of text per round."""

    def __init__(self, standings: Sequence[Standing], names: Sequence[str]) -> None:
        self.standings, self.pace = standings, Pace(standings, names)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def epoch(self, run: int, progress: Progress) -> None:
        """Count the epoch."""
        self.pace.reach(run, units(self.standings[run].experiment, progress.round, progress.epoch))

    def recorded(self, run: int, record: Mapping[str, Any]) -> None:
        """Print a line."""
        self.pace.reach(run, units(self.standings[run].experiment, record["round"] + 1))
        self.show(run, record, self.pace.seconds_left)

    def show(self, run: int, record: Mapping[str, Any], left: float | None) -> None:
        """Print a round, and the seconds left of the command."""
        experiment, retrained = self.standings[run].experiment, record["retrained"]
        density = in_percent(retrained["density"], retrained["density"])
        text = (
            f"{self.name(run)}: round {record['round']}/{experiment.rounds}, "
            f"density {density}%, test {record['test']['accuracy']:.1%}, "
            f"PQ Index {measured(retrained['pq_index'])}"
        )
        click.echo(f"{text}; {record['stopped']}" if record["stopped"] else f"{text}; {duration(left or 0)} left")

    def name(self, run: int) -> str:
        """Name and seed of a run."""
        return f"{self.pace.names[run]}, seed {self.standings[run].experiment.seed}"

    def fail(self, run: int, said: str) -> None:
        """Print the reason to stderr, with name and id of the run."""
        say(f"{self.name(run)} ({self.standings[run].experiment.id}): {said}")

    def end(self, run: int, said: str) -> None:
        """Count the run as over."""
        self.pace.end(run)

    def ending(self, said: str) -> None:
        """Print to stderr, past Python's buffers: this is called from a signal handler."""
        os.write(2, f"palmette: {said}\n".encode())


class JsonLines(Lines):
    """Display for programs: a line of JSON per round."""

    def show(self, run: int, record: Mapping[str, Any], left: float | None) -> None:
        """Print a round, and the seconds left of the command."""
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
        try:
            click.echo(json.dumps(plain))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NotWritten(f"standard output cannot be written: {error.strerror}; runs resume") from error
