"""Time left of a command that trains."""

from __future__ import annotations

import time
from collections.abc import Sequence

from palmette.studies.experiment import Experiment
from palmette.studies.status import Standing, epochs_before, epochs_of


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


def units(experiment: Experiment, rounds: int, epoch: int | None = None) -> int:
    """Units of work of `rounds` rounds, and of the next up to an epoch."""
    more = 0 if epoch is None else epoch - epochs_of(experiment, rounds).start
    return epochs_before(experiment, rounds) + rounds + more
