"""Who trains what next: fleets in crews, one for each worker, shared anew when some have nothing to do.

Nothing here knows of machines. An engine asks for crews when workers are free, and tells what came of them;
`docs/simulation.py` does the same with workers that it makes up.
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
"""So often a run may fail without a new round in between; then it is set aside."""
TOGETHER = {"linear": 4, "mlp": 4, "transformer": 4}
"""Models that are stacked: fewer at once are hardly faster than so many, so crews are split no further."""


@dataclass(eq=False)
class Crew:
    """Runs that are trained together by one worker.

    Args:
        number: no two have the same.
        runs: by folder.
        fixed: whether it stays together, since who is trained with whom was asked for.
        not_before: a moment, on the clock of the engine.
    """

    number: int
    runs: Mapping[Path, Experiment]
    fixed: bool = False
    not_before: float = 0.0

    @property
    def least(self) -> int:
        """Runs that a part of it must have."""
        return len(self.runs) if self.fixed else _fewest(self.runs)


@dataclass
class Schedule:
    """The crews that wait and those that train.

    Args:
        fleets: by folder, as an engine has them.
        workers: that there are to begin with; a fleet is split so that all have work.
        size: runs of a crew, which then stays as it is; None splits as it is best.
        rounds: how many rounds of a run are done already, by folder.
        guess: what an epoch of one network costs, by `kind` and in any unit, until `seconds` are measured.
    """

    fleets: Sequence[Mapping[Path, Experiment]]
    workers: int
    size: int | None = None
    rounds: dict[Path, int] = field(default_factory=dict)
    guess: Mapping[object, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Crew]] = []
        self._later: list[Crew] = []
        self.training: dict[int, Crew] = {}
        self.asked: set[int] = set()
        self._some_may_share = True
        self.failures: dict[Path, int] = {}
        self.seconds: dict[object, float] = {}  # of an epoch of one network, by kind, as it was measured
        for part in self._parts():
            self._wait(self._crew(part))

    def _parts(self) -> Iterator[Mapping[Path, Experiment]]:
        """Each fleet in as many parts as its share of the work deserves, all of one fleet of one size."""
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
        """What is left to do: seconds where they are known of one kind at least, else in the unit of the guess."""
        first = next(iter(runs.values()))
        return self.cost(kind(first)) * sum(self._epochs_left(folder, e) for folder, e in runs.items())

    def cost(self, of: object) -> float:
        """Of an epoch of one network: measured, or guessed from others that are."""
        ratios = [seconds / self.guess.get(known, 1.0) for known, seconds in self.seconds.items()]
        scale = sum(ratios) / len(ratios) if ratios else 1.0
        return self.seconds.get(of, scale * self.guess.get(of, 1.0))

    def _epochs_left(self, folder: Path, experiment: Experiment) -> int:
        done = epochs_before(experiment, self.rounds.get(folder, 0))
        return epochs_before(experiment, experiment.rounds + 1) - done

    def next(self, now: float = 0.0) -> Crew | None:
        """The crew with the most work left, to be trained now; None if none is ready."""
        for crew in [crew for crew in self._later if crew.not_before <= now]:
            self._later.remove(crew)
            self._push(crew)
        if not self._waiting:
            return None
        crew = heapq.heappop(self._waiting)[2]
        self.training[crew.number] = crew
        self._some_may_share = True
        return crew

    def reached(self, folder: Path, rounds: int) -> None:
        """So many rounds of a run are done."""
        self.rounds[folder] = rounds
        self.failures.pop(folder, None)

    def to_share(self, idle: int) -> list[Crew]:
        """Crews that should give back what is left after this round, since `idle` workers have nothing to do."""
        wanted = idle - len(self.asked)
        if wanted <= 0 or self._waiting or self._later or not self._some_may_share:
            return []
        able = [
            crew
            for crew in self.training.values()
            if crew.number not in self.asked and len(crew.runs) >= 2 * crew.least and self._rounds_left(crew) >= 2
        ]
        chosen = heapq.nlargest(wanted, able, key=lambda crew: (self.work(crew.runs), -crew.number))
        self._some_may_share = len(able) > len(chosen)  # until another crew begins
        self.asked |= {crew.number for crew in chosen}
        return chosen

    def given_back(self, crew: Crew, left: Mapping[Path, Experiment], *, idle: int = 0, at: float = 0.0) -> None:
        """A crew ended, and these of its runs are not over; with idle workers it is split.

        Args:
            crew: that was given by `next`.
            left: its runs that are to go on.
            idle: workers that have nothing to do, that of the crew not among them.
            at: when they may go on at the earliest.
        """
        self._landed(crew)
        if not left:
            return
        for part in divided(left, max(1, min(1 + idle, len(left) // crew.least))):
            self._wait(self._crew(part, at))

    def failed(self, crew: Crew, left: Mapping[Path, Experiment]) -> list[Path]:
        """A crew was lost or raised an error; which of its runs have to be set aside.

        Nobody knows which of them is to blame. So they are tried once more together, then by halves: one that is
        set aside has failed three times, the last time alone.
        """
        self._landed(crew)
        if not left:
            return []
        for folder in left:
            self.failures[folder] = self.failures.get(folder, 0) + 1
        most = max(self.failures[folder] for folder in left)
        if len(left) == 1 and most >= TRIES:
            return list(left)
        for part in divided(left, 2 if most > 1 else 1):
            self._wait(self._crew(part))
        return []

    def _landed(self, crew: Crew) -> None:
        del self.training[crew.number]
        self.asked.discard(crew.number)

    def _rounds_left(self, crew: Crew) -> int:
        return max(e.rounds + 1 - self.rounds.get(folder, 0) for folder, e in crew.runs.items())

    def _crew(self, runs: Mapping[Path, Experiment], at: float = 0.0) -> Crew:
        return Crew(next(self._numbers), dict(runs), self.size is not None, at)

    def _wait(self, crew: Crew) -> None:
        if crew.not_before:
            self._later.append(crew)
        else:
            self._push(crew)

    def _push(self, crew: Crew) -> None:
        heapq.heappush(self._waiting, (-self.work(crew.runs), crew.number, crew))

    def __bool__(self) -> bool:
        return bool(self._waiting or self._later or self.training)


def _fewest(runs: Mapping[Path, Experiment]) -> int:
    """Runs of this kind that a part of them must have."""
    return TOGETHER.get(next(iter(runs.values())).model, 1)


def kind(experiment: Experiment) -> object:
    """Runs of one kind take about the same time for an epoch."""
    e = experiment
    return (e.data, e.model, e.batch, e.optimizer, e.precision, e.compile)


def divided(runs: Mapping[Path, Experiment], parts: int) -> Iterable[dict[Path, Experiment]]:
    """In so many parts, or as many as there are, whose sizes differ by one at most.

    >>> [len(part) for part in divided({Path(f"{i}"): Experiment(seed=i) for i in range(96)}, 7)]
    [14, 14, 14, 14, 14, 13, 13]
    """
    items, start = list(runs.items()), 0
    parts = min(parts, len(items))
    for i in range(parts):
        size = len(items) // parts + (i < len(items) % parts)
        yield dict(items[start : start + size])
        start += size
