"""A sweep of 10^5 runs on GPUs that are made up, with the scheduler of `palmette sweep --engine ray`."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from palmette.studies.experiment import Experiment
from palmette.studies.scheduler import Crew, Schedule, kind

GPUS, PER_MACHINE, SEED = 1_000, 8, 0
SLOW, SLOWNESS = 0.01, 2.0  # of the GPUs take twice as long
JITTER = 0.05  # standard deviation of the logarithm of a round's time
HOURS_TO_FAILURE, MINUTES_TO_RETURN = 1_000, 10  # of a machine, on average
START = 10.0  # seconds until a worker trains a crew that it is given: state, data, recorded steps


@dataclass(frozen=True)
class Kind:
    """A model on an H200, as docs/training-cuda.md and results/ have it."""

    model: str
    data: str
    fleets: int
    runs: int  # of a fleet
    seconds: tuple[tuple[int, float], ...]  # members, seconds of a round of 200 epochs
    flops: float  # of an epoch

    def round(self, members: int) -> float:
        """Seconds of a round of 200 epochs; beyond what was measured, the last slope goes on."""
        (a, s), (b, t) = self.seconds[-2:]
        if members > b:
            return t + (members - b) * (t - s) / (b - a)
        return float(np.interp(members, *zip(*self.seconds, strict=True)))

    @property
    def best(self) -> float:
        """Seconds of a round of one network in the best company."""
        return min(self.round(m) / m for m in range(1, 257))


KINDS = (
    Kind("linear", "FashionMNIST", 20, 1000, ((1, 3.4), (64, 4.9)), 2.9e9),
    Kind(
        "mlp", "FashionMNIST", 60, 1000,
        ((1, 7.1), (4, 3.3), (12, 4.6), (16, 5.3), (48, 9.1), (96, 16.7), (256, 30.1)), 4.9e10,
    ),
    Kind("cnn", "CIFAR10", 40, 400, ((1, 22.6), (4, 63.2), (8, 126.4)), 1.75e13),
    Kind("resnet18", "CIFAR10", 40, 100, ((1, 191.6), (2, 290.4), (4, 580.8), (8, 1161.6)), 1.67e14),
)  # fmt: skip
SHAPES = {"FashionMNIST": (1, 28, 28), "CIFAR10": (3, 32, 32)}


def fleets(kinds: tuple[Kind, ...]) -> list[dict[Path, Experiment]]:
    """10^5 runs: each fleet has a learning rate of its own, its runs have seeds."""
    return [
        {
            Path(f"{k.model}-{number}-{seed}"): Experiment(
                data=k.data, model=k.model, learning_rate=round(0.1 + number / 1000, 4), seed=seed
            )
            for seed in range(k.runs)
        }
        for k in kinds
        for number in range(k.fleets)
    ]


@dataclass
class Simulation:
    """One sweep: crews, rounds and failures as events in the order of their times."""

    work: list[dict[Path, Experiment]]
    kinds: dict[str, Kind]
    policy: str
    rounds: list[int]
    failures: bool = True
    seed: int = SEED
    events: list[tuple[float, int, str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        runs = [folder for fleet in self.work for folder in fleet]
        self.last = dict(zip(runs, self.rng.choice(self.rounds, len(runs)).tolist(), strict=True))
        self.speed = np.where(self.rng.random(GPUS) < SLOW, SLOWNESS, 1.0)
        self.count, self.now, self.left = itertools.count(), 0.0, len(runs)
        self.done: dict[Path, int] = {}
        self.free = list(range(GPUS))
        self.on: dict[int, tuple[Crew, float, float]] = {}  # GPU: crew, when its round began, its length
        self.lost, self.busy, self.failed = 0.0, 0.0, 0
        self.samples: list[tuple[float, int]] = []
        self.rounds_written: list[tuple[float, str, int, float]] = []  # when, model, members, seconds
        guess = {kind(next(iter(f.values()))): self.kinds[next(iter(f.values())).model].flops for f in self.work}
        split = self.policy != "a fleet is a task"
        self.schedule = Schedule(self.work, GPUS if split else 1, None, {}, guess)

    def run(self) -> float:
        """Until all runs are over; how long it took."""
        if self.failures:
            for machine in range(GPUS // PER_MACHINE):
                self._later(self.rng.exponential(HOURS_TO_FAILURE * 3600), "fail", machine)
        self._assign()
        while self.left:
            self.now, _, what, thing = heapq.heappop(self.events)
            getattr(self, f"_{what}")(thing)
            self._assign()
            self.samples.append((self.now, len(self.on)))
        return self.now

    def _later(self, seconds: float, what: str, thing: object) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.count), what, thing))

    def _assign(self) -> None:
        while self.free:
            crew = self.schedule.next()
            if crew is None:
                break
            self._begin(self.free.pop(), crew, START)
        if self.free and self.policy == "split and shared":
            self.schedule.to_share(len(self.free))  # who is asked finds it in `asked` after its round

    def _begin(self, gpu: int, crew: Crew, extra: float = 0.0) -> None:
        seconds = self.kinds[next(iter(crew.runs.values())).model].round(len(crew.runs))
        seconds *= self.speed[gpu] * float(self.rng.lognormal(0, JITTER))
        self.on[gpu] = (crew, self.now, seconds + extra)
        self._later(seconds + extra, "round", (gpu, crew, self.now))

    def _round(self, thing: tuple[int, Crew, float]) -> None:
        gpu, crew, began = thing
        if self.on.get(gpu, (None, 0, 0))[:2] != (crew, began):
            return  # its machine failed meanwhile
        _, began, length = self.on.pop(gpu)
        self.busy += length
        model = next(iter(crew.runs.values())).model
        self.rounds_written.append((self.now, model, len(crew.runs), length))
        self.schedule.seconds[kind(next(iter(crew.runs.values())))] = length / len(crew.runs) / 200
        left = {}
        for folder, e in crew.runs.items():
            self.done[folder] = self.done.get(folder, 0) + 1
            self.schedule.reached(folder, self.done[folder])
            if self.done[folder] < self.last[folder]:
                left[folder] = e
        self.left -= len(crew.runs) - len(left)
        if left and crew.number not in self.schedule.asked:
            crew.runs = left
            self._begin(gpu, crew)
        else:
            self.free.append(gpu)
            self.schedule.given_back(crew, left, idle=len(self.free) - 1)

    def _fail(self, machine: int) -> None:
        self.failed += 1
        for gpu in range(machine * PER_MACHINE, (machine + 1) * PER_MACHINE):
            if gpu in self.on:
                crew, began, _ = self.on.pop(gpu)
                self.lost += self.now - began
                self.schedule.failed(crew, crew.runs)
            elif gpu in self.free:
                self.free.remove(gpu)
        self._later(MINUTES_TO_RETURN * 60, "return", machine)

    def _return(self, machine: int) -> None:
        self.free += range(machine * PER_MACHINE, (machine + 1) * PER_MACHINE)
        self._later(self.rng.exponential(HOURS_TO_FAILURE * 3600), "fail", machine)


@dataclass(frozen=True)
class Result:
    """What came out of a simulation; times in seconds, `samples` are moments and how many GPUs were at work."""

    now: float
    ideal: float
    busy: float
    lost: float
    failed: int
    samples: list[tuple[float, int]]
    rounds_written: list[tuple[float, str, int, float]]


def simulated(kinds: tuple[Kind, ...], policy: str, rounds: list[int], failures: bool) -> Result:
    """One sweep; ideal if every network were trained in the best company, and all GPUs were busy to the end."""
    s = Simulation(fleets(kinds), {k.model: k for k in kinds}, policy, rounds, failures)
    s.run()
    best = {k.model: k.best for k in kinds}
    whole = sum(s.last[folder] * best[e.model] for fleet in s.work for folder, e in fleet.items())
    ideal = whole / float((1 / s.speed).sum())
    return Result(s.now, ideal, s.busy, s.lost, s.failed, s.samples, s.rounds_written)
