"""Scheduler of a sweep: fleets are split into batches, one per worker, and split again for idle workers.

The scheduler is independent of machines: an engine asks for batches when workers are free, and reports results.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from palmette.studies.experiment import Experiment
from palmette.studies.status import epochs_before

TRIES = 3
"""Failures of a run without a new round in between before it is set aside."""
TOGETHER = {"linear": 4, "mlp": 4, "transformer": 4}
"""Smallest batch of stacked models: fewer networks at once are hardly faster than one."""


@dataclass(eq=False)
class Batch:
    """Runs that one worker trains together."""

    number: int
    runs: Mapping[Path, Experiment]
    least: int  # runs in a part of the batch
    not_before: float  # on the clock of the engine


@dataclass
class Schedule:
    """Waiting batches and batches in training; fleets are split so that all workers have work."""

    fleets: Sequence[Mapping[Path, Experiment]]
    workers: int
    size: int | None = None  # runs per batch, which is then never split; None to choose
    rounds: dict[Path, int] = field(default_factory=dict)  # that each run has finished
    guess: Mapping[object, float] = field(
        default_factory=dict
    )  # of `cost`, in any unit, until `seconds` are known

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Batch]] = []
        self._later: list[Batch] = []
        self.training: dict[int, Batch] = {}
        self.asked: set[int] = set()
        self._some_may_share = True
        self.failures: dict[Path, int] = {}
        self.seconds: dict[object, float] = {}  # per epoch of one network, by kind
        for part in self._parts():
            self._wait(part)

    def _parts(self) -> Iterator[Mapping[Path, Experiment]]:
        """Equal parts of each fleet, in proportion to its share of the work."""
        fleets = [fleet for fleet in self.fleets if fleet]
        if self.size is not None:
            for fleet in fleets:
                runs = list(fleet.items())
                yield from (dict(runs[i : i + self.size]) for i in range(0, len(runs), self.size))
            return
        parts = [1] * len(fleets)
        work = [(-self.work(fleet), i) for i, fleet in enumerate(fleets)]
        heapq.heapify(work)
        for _ in range(self.workers - len(fleets)):
            while work and parts[work[0][1]] >= len(fleets[work[0][1]]) // _fewest(fleets[work[0][1]]):
                heapq.heappop(work)
            if not work:
                break
            _, i = work[0]
            parts[i] += 1
            heapq.heapreplace(work, (-self.work(fleets[i]) / parts[i], i))
        for fleet, count in zip(fleets, parts, strict=True):
            yield from divided(fleet, count)

    def work(self, runs: Mapping[Path, Experiment]) -> float:
        """Remaining work: in seconds if at least one kind is measured, else in the unit of the guess."""
        first = next(iter(runs.values()))
        left = sum(
            epochs_before(e, e.rounds + 1) - epochs_before(e, self.rounds.get(folder, 0))
            for folder, e in runs.items()
        )
        return self.cost(kind(first)) * left

    def cost(self, of: object) -> float:
        """Cost of an epoch of one network: measured, or extrapolated from measured kinds."""
        ratios = [seconds / self.guess.get(known, 1.0) for known, seconds in self.seconds.items()]
        scale = sum(ratios) / len(ratios) if ratios else 1.0
        return self.seconds.get(of, scale * self.guess.get(of, 1.0))

    def next(self, now: float = 0.0) -> Batch | None:
        """Pop the batch with the most remaining work and mark it as in training; None if none is ready."""
        for batch in [batch for batch in self._later if batch.not_before <= now]:
            self._later.remove(batch)
            heapq.heappush(self._waiting, (-self.work(batch.runs), batch.number, batch))
        if not self._waiting:
            return None
        batch = heapq.heappop(self._waiting)[2]
        self.training[batch.number] = batch
        self._some_may_share = True
        return batch

    def reached(self, folder: Path, rounds: int) -> None:
        """Update the number of finished rounds of a run."""
        self.rounds[folder] = rounds
        self.failures.pop(folder, None)

    def to_share(self, idle: int) -> list[Batch]:
        """Batches to return after this round and split, since `idle` workers have no work."""
        wanted = idle - len(self.asked)
        if wanted <= 0 or self._waiting or self._later or not self._some_may_share:
            return []
        able = [
            batch
            for batch in self.training.values()
            if batch.number not in self.asked
            and len(batch.runs) >= 2 * batch.least
            and any(e.rounds - self.rounds.get(folder, 0) >= 1 for folder, e in batch.runs.items())
        ]
        chosen = heapq.nlargest(wanted, able, key=lambda batch: (self.work(batch.runs), -batch.number))
        self._some_may_share = len(able) > len(chosen)  # until another batch starts
        self.asked |= {batch.number for batch in chosen}
        return chosen

    def given_back(self, batch: Batch, left: Mapping[Path, Experiment], *, idle: int = 0, at: float = 0.0) -> None:
        """Take back a batch whose runs `left` resume no earlier than `at`; split it for idle workers."""
        self._landed(batch)
        if not left:
            return
        for part in divided(left, max(1, min(1 + idle, len(left) // batch.least))):
            self._wait(part, at)

    def failed(self, batch: Batch, left: Mapping[Path, Experiment]) -> list[Path]:
        """Take back a batch that was lost or raised an error; return the runs to set aside.

        The run at fault is unknown, so all are retried together once, then in halves: a run that is set aside has
        failed three times, the last time alone.
        """
        self._landed(batch)
        if not left:
            return []
        for folder in left:
            self.failures[folder] = self.failures.get(folder, 0) + 1
        most = max(self.failures[folder] for folder in left)
        if len(left) == 1 and most >= TRIES:
            return list(left)
        for part in divided(left, 2 if most > 1 else 1):
            self._wait(part)
        return []

    def _landed(self, batch: Batch) -> None:
        del self.training[batch.number]
        self.asked.discard(batch.number)

    def _wait(self, runs: Mapping[Path, Experiment], at: float = 0.0) -> None:
        least = _fewest(runs) if self.size is None else len(runs)
        batch = Batch(next(self._numbers), runs, least, at)
        if at:
            self._later.append(batch)
        else:
            heapq.heappush(self._waiting, (-self.work(runs), batch.number, batch))

    def __bool__(self) -> bool:
        return bool(self._waiting or self._later or self.training)


def _fewest(runs: Mapping[Path, Experiment]) -> int:
    """Smallest batch for runs of this kind."""
    return TOGETHER.get(next(iter(runs.values())).model, 1)


def kind(experiment: Experiment) -> object:
    """Key of runs whose epochs take about the same time."""
    e = experiment
    return (e.data, e.model, e.batch, e.optimizer, e.precision, e.compile)


def divided(runs: Mapping[Path, Experiment], parts: int) -> Iterable[dict[Path, Experiment]]:
    """Split `runs` into at most `parts` parts whose sizes differ by one at most.

    >>> [len(part) for part in divided({Path(f"{i}"): Experiment(seed=i) for i in range(96)}, 7)]
    [14, 14, 14, 14, 14, 13, 13]
    """
    items, start = list(runs.items()), 0
    parts = min(parts, len(items))
    for i in range(parts):
        size = len(items) // parts + (i < len(items) % parts)
        yield dict(items[start : start + size])
        start += size
