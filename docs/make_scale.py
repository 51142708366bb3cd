"""Simulate a sweep of 10^5 runs on 1,000 GPUs; write the tables and the picture of `docs/scale.md`.

The scheduler is the one that `palmette sweep --engine ray` uses; the GPUs are made up, from what was measured.
`python docs/make_scale.py` takes minutes.
"""

from __future__ import annotations

import heapq
import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from palmette.integrations.ray_worker import SECONDS_BETWEEN_SAVES
from palmette.reports.figures import LINES, STYLE, png
from palmette.studies import in_step
from palmette.studies.config import Experiment
from palmette.studies.crews import Crew, Schedule, kind
from palmette.studies.run_state import RunState
from palmette.studies.rundir import RunDir, find_runs, write_whole
from palmette.training.data import load
from palmette.training.loop import Training

PAGE = Path(__file__).with_name("scale.md")
RESULTS = PAGE.parent.parent / "results"
BEGIN, END = "<!-- tables: written by docs/make_scale.py -->\n", "<!-- end of tables -->\n"

GPUS, PER_MACHINE, SEED = 1_000, 8, 0
SLOW, SLOWNESS = 0.01, 2.0  # of the GPUs take twice as long
JITTER = 0.05  # standard deviation of the logarithm of a round's time
HOURS_TO_FAILURE, MINUTES_TO_RETURN = 1_000, 10  # of a machine, on average
START = 10.0  # seconds until a worker trains a crew that it is given: state, data, recorded steps


@dataclass(frozen=True)
class Kind:
    """A model on an H200, as docs/training-cuda.md and results/ have it; bytes of its states, by docs/scale.md."""

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
    Kind("cnn", "CIFAR10", 40, 400, ((1, 60.4), (2, 84.4), (4, 168.8), (8, 337.6)), 1.75e13),
    Kind("resnet18", "CIFAR10", 40, 100, ((1, 191.6), (2, 290.4), (4, 580.8), (8, 1161.6)), 1.67e14),
)  # fmt: skip
SHAPES = {"FashionMNIST": (1, 28, 28), "CIFAR10": (3, 32, 32)}


@dataclass(frozen=True)
class Sizes:
    """Bytes on disk of what a round leaves, measured."""

    within: int  # a state within a round: weights and momentum
    weights: int  # of these, the weights, which a state between rounds had too
    border: int  # a state between two rounds: masks, decisions, the last record
    mask: int


def sizes(k: Kind, record: int) -> Sizes:
    """Train for a step on images that say nothing, and look at the files."""
    images = load("digits")
    pixels = torch.zeros(20, *SHAPES[k.data], dtype=torch.uint8)
    labels, channels = torch.arange(20) % 10, SHAPES[k.data][0]
    parts = {"train_images": pixels, "test_images": pixels, "train_labels": labels, "test_labels": labels}
    images = replace(images, mean=images.mean * channels, sd=images.sd * channels, **parts)
    with TemporaryDirectory() as folder:
        rundir, experiment = RunDir(folder), Experiment(data=k.data, model=k.model)
        state = RunState(experiment, rundir, images, "")
        Training([state.member()], images, experiment.recipe).epoch(0)
        state.epoch = 1
        state.save([experiment.id])
        within = rundir.checkpoint(1).stat().st_size
        state.round, state.epoch = 1, 0
        state.save([experiment.id])
        border = rundir.checkpoint(201).stat().st_size + record
        mask = rundir.save_masks(0, state.pruner.masks).stat().st_size
    return Sizes(within, 4 * sum(p.numel() for p in state.model.parameters()), border, mask)


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


def rounds_of_real_runs() -> list[int]:
    """How many rounds the runs of results/ had before nothing was left to cut."""
    runs = [
        run for study in ("fashionmnist-mlp", "fashionmnist-mlp-ablations") for run in find_runs(RESULTS / study)
    ]
    return [len(run.records()) for run in runs]


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


@dataclass
class Written:
    """What a sweep writes, by ten-minute windows."""

    gigabytes: float
    most: float  # gigabytes per second, in the fullest window
    files: float  # per second, in the fullest window
    window: float


def written(s: Result, found: dict[str, Sizes], record: int, *, seconds: float, weights: bool) -> Written:
    """Of rounds: mask, state, record and timing of each network; and states within rounds, every `seconds`."""
    window = 600.0 if s.now > 3600 else 60.0
    count = int(s.now // window) + 1
    size, files = np.zeros(count), np.zeros(count)
    for when, model, members, length in s.rounds_written:
        of = found[model]
        within = int(length // seconds)
        each = of.mask + of.border + (of.weights if weights else 0) + record + 110 + within * of.within
        size[int(when // window)] += members * each
        files[int(when // window)] += members * (4 + within)
    return Written(size.sum() / 1e9, size.max() / window / 1e9, files.max() / window, window)


POLICIES = ("a fleet is a task", "split", "split and shared")


def page() -> str:
    """The page with its tables made anew; the picture beside it."""
    rounds = rounds_of_real_runs()
    records = [
        run.records_file.stat().st_size / len(run.records()) for run in find_runs(RESULTS / "fashionmnist-mlp")
    ]
    record = round(sum(records) / len(records))
    found = {k.model: sizes(k, record) for k in KINDS}
    mlps = tuple(replace(k, fleets=100) for k in KINDS if k.model == "mlp")
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as processes:
        tasks = [processes.submit(simulated, KINDS, policy, rounds, True) for policy in POLICIES]
        tasks += [processes.submit(simulated, KINDS, POLICIES[-1], rounds, False)]
        tasks += [processes.submit(simulated, mlps, POLICIES[-1], rounds, True)]
        *shares, calm, quick = [task.result() for task in tasks]
    mixed = dict(zip(POLICIES, shares, strict=True))
    lines = _schedule_table(mixed, calm, quick) + _bytes_table(mixed[POLICIES[-1]], quick, found, record)
    write_whole(PAGE.with_suffix(".png"), png(picture(mixed)))
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END)[1]


def _schedule_table(mixed: dict[str, Result], calm: Result, quick: Result) -> list[str]:
    lines = [
        "| 10^5 runs on 1,000 GPUs | length | ideal | ratio | GPUs busy | failures | GPU hours lost |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [(f"four models: {policy}", s) for policy, s in mixed.items()]
    rows += [("four models: split and shared, nothing fails", calm), ("MLPs alone: split and shared", quick)]
    for name, s in rows:
        best, hours = s.ideal, s.now / 3600
        length = f"{hours:.1f} h" if hours > 1 else f"{hours * 60:.1f} min"
        least = f"{best / 3600:.1f} h" if hours > 1 else f"{best / 60:.1f} min"
        lost = f"{s.failed} | {s.lost / 3600:.0f}"
        busy = (s.busy + s.lost) / (s.now * GPUS)
        lines.append(f"| {name} | {length} | {least} | {s.now / best:.2f} | {busy:.0%} | {lost} |")
    return [*lines, ""]


def _bytes_table(mixed: Result, quick: Result, found: dict[str, Sizes], record: int) -> list[str]:
    lines = ["| bytes of | state within a round | between rounds, before | between rounds, now | masks | record |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model, of in found.items():
        cells = (of.within, of.border + of.weights, of.border, of.mask, record)
        lines.append(f"| {model} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    lines += ["", "| written | in all | at most | files at most |", "| --- | ---: | ---: | ---: |"]
    often, now = in_step.SECONDS_BETWEEN_SAVES, SECONDS_BETWEEN_SAVES
    for name, s in (("four models", mixed), ("MLPs alone", quick)):
        for how, seconds, weights in (
            (f"a state every {often:.0f} s, with weights between rounds", often, True),
            (f"a state every {now:.0f} s, with weights between rounds", now, True),
            (f"a state every {now:.0f} s, without", now, False),
        ):
            w = written(s, found, record, seconds=seconds, weights=weights)
            cells = f"{w.gigabytes / 1000:.1f} TB | {w.most:.2f} GB/s | {w.files:,.0f} /s"
            lines.append(f"| {name}: {how} | {cells} |")
    return lines


def picture(mixed: dict[str, Result]) -> Figure:
    """How many GPUs are at work, over the hours, for each way to share it out."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        axis = figure.subplots()
        for (policy, s), line in zip(mixed.items(), LINES, strict=False):
            times = np.linspace(0, s.now, 600)
            when, busy = np.array(s.samples).T
            busy = busy[np.clip(np.searchsorted(when, times, side="right") - 1, 0, None)]
            style = {name: value for name, value in line.items() if name != "marker"}
            axis.plot(times / 3600, busy, label=f"{policy}, {s.now / 3600:.1f} h", **style)
        axis.axvline(mixed[POLICIES[-1]].ideal / 3600, color="#666666", linewidth=1)
        axis.annotate("ideal", (mixed[POLICIES[-1]].ideal / 3600, 30), xytext=(4, 0), textcoords="offset points")
        axis.set(xscale="log", xlabel="hours, logarithmic", title=f"GPUs at work, of {GPUS:,}", ylim=(0, None))
        figure.legend(loc="outside upper center", ncols=3, handlelength=3.2)
    return figure


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
