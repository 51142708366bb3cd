"""Observer of the runs of a command: display, TensorBoard, interruption."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from palmette.cli.display.printing import say
from palmette.errors import RunBusy, RunDamaged, in_words
from palmette.integrations.tensorboard import Events
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer, Progress

if TYPE_CHECKING:
    from palmette.cli.display.live import Display
    from palmette.cli.run import Command


class Watch(Observer):
    """Passes events of the runs to the display, and the interruption of the command to the runs."""

    def __init__(self, command: Command, display: Display) -> None:
        self.command, self.display = command, display
        self.number = {experiment.id: number for number, experiment in enumerate(command.planned)}
        self.events: dict[str, Events] = {}
        self.busy: list[Experiment] = []

    def epoch(self, experiment: Experiment, progress: Progress) -> None:
        """An epoch is trained."""
        self.report_busy()
        self.display.epoch(self.number[experiment.id], progress)

    def recorded(self, experiment: Experiment, record: Mapping[str, Any]) -> None:
        """A round is over, and its record is on disk."""
        self.display.recorded(self.number[experiment.id], record)
        if experiment.id in self.events:
            self.events[experiment.id].add(record)
        else:
            self._events_of(experiment)

    def ended(self, experiment: Experiment, outcome: str | Exception) -> None:
        """A run is over, or has failed; `outcome` is the reason."""
        if isinstance(outcome, Exception):
            self.command.problems[experiment.id] = outcome
        if isinstance(outcome, RunBusy):
            self.busy.append(experiment)
            said = f"in use by {self._owner(experiment)}"
        elif isinstance(outcome, Exception):
            said = why_not(experiment.id, outcome)
            self.display.fail(self.number[experiment.id], said)
            said = f"damaged: {said}" if isinstance(outcome, RunDamaged) else said
        else:
            said = outcome
            self._events_of(experiment)
        if experiment.id in self.events:
            self.events.pop(experiment.id).close()
        self.display.end(self.number[experiment.id], said)

    def report_busy(self) -> None:
        """Say which runs other processes use, in one sentence for all."""
        if not self.busy:
            return
        owners = ", ".join(dict.fromkeys(map(self._owner, self.busy)))
        first, count = self.busy[0].id, len(self.busy)
        which = f"the run {first} is" if count == 1 else f"{count} runs, such as {first}, are"
        self.busy.clear()
        say(
            f"{which} in use by {owners}. Wait until it ends, or stop it, and repeat the command; or choose "
            "another folder with --out."
        )

    def _owner(self, experiment: Experiment) -> str:
        return RunDir(experiment.folder_in(self.command.out)).owner() or "another process"

    def _events_of(self, experiment: Experiment) -> None:
        """Write all records so far for TensorBoard."""
        if self.command.tensorboard and experiment.id not in self.events:
            self.events[experiment.id] = Events(RunDir(experiment.folder_in(self.command.out)))

    def interrupts(self) -> bool:
        """Whether the command is to end."""
        return bool(self.command.signal)


def why_not(name: str, error: Exception) -> str:
    """Reason why a run is not finished, in a line without its name."""
    return in_words(error).removeprefix(name).lstrip(" :")


def by_reason(failed: Iterable[tuple[str, int, str]]) -> list[str]:
    """A line per reason for which runs are not finished, with the names and seeds of these runs.

    >>> by_reason([("SAP", 0, "diverged"), ("One Shot", 0, "no room"), ("SAP", 1, "diverged")])
    ['SAP, seeds 0, 1: diverged', 'One Shot, seed 0: no room']
    """
    reasons: dict[str, dict[str, list[int]]] = {}
    for name, seed, why in failed:
        reasons.setdefault(why, {}).setdefault(name, []).append(seed)
    lines = []
    for why, names in reasons.items():
        runs = (f"{name}, seed{'s' * (len(s) > 1)} {', '.join(map(str, s))}" for name, s in names.items())
        lines.append(f"{'; '.join(runs)}: {why}")
    return lines
