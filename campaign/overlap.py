"""Two processes at one folder, clocks that jump, and a thousand rounds."""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import palmette as pm
from campaign.child import Child, forked
from campaign.downloads import server
from campaign.kills import SLICES, fault_of_end, fault_of_look, killed, undisturbed
from campaign.ledger import Case, Result, Row
from campaign.scenarios import SCENARIOS, refill
from campaign.tracing import Point

ROUNDS = 1000
JUMPS = 4  # cases of a scenario


def _overlapping(name: str, number: int, folder: Path) -> Result:
    """Stop a process at one point after another, let a second one do the same, and let the first continue."""
    scenario, place = SCENARIOS[name], folder / "work"
    with server() if name.startswith("data") else nullcontext():
        known = undisturbed(scenario, place)
        lost, tried = [], 0
        sparse = 4 if len(known.events) > 100 else 1
        for event in range(number * sparse, len(known.events), SLICES * sparse):
            refill(place, known.before)
            first = Child(partial(killed, scenario, place, Point(event, signal=signal.SIGSTOP)))
            if not first.stopped():
                raise RuntimeError(f"{name} was to stop at event {event}, but {first.wait()}")
            second = forked(partial(scenario.command, place))
            seen = forked(partial(scenario.look, place))
            first.resume()
            ends = [first.wait(), second]
            if all(end.how == "refused" for end in ends):
                ends.append(forked(partial(scenario.command, place)))
            tried += 1
            where = f"stopped before {known.events[event].kind} {known.events[event].path}, event {event}"
            for end in ends:
                if end.how not in ("done", "refused"):
                    lost.append(f"{where}: {end}")
            # The same command again finds all done, and changes nothing.
            again = forked(partial(scenario.command, place))
            for why in (fault_of_look(seen, known), fault_of_end(again, place, known)):
                if why is not None:
                    lost.append(f"{where}: {why}; they ended {', '.join(str(end) for end in ends)}")
    return Result(tried, tuple(lost))


class Clock:
    """A clock that jumps by up to eleven days, forwards and backwards, whenever it is read."""

    def __init__(self, seed: str) -> None:
        self._choose, self._offset = random.Random(seed), 0.0

    def read(self, plain: Callable[[], float]) -> float:
        """Time, after a jump or without one."""
        if self._choose.random() < 0.2:
            self._offset += self._choose.choice([-1e6, -3600.0, -1.0, 1.0, 3600.0, 1e6])
        return plain() + self._offset

    def install(self) -> None:
        """Replace the clocks of `time`, until the process ends."""
        for name in ("time", "monotonic", "perf_counter"):
            setattr(time, name, partial(self.read, getattr(time, name)))


def _jumping(name: str, number: int, seed: int, folder: Path) -> Result:
    scenario, place = SCENARIOS[name], folder / "work"
    known = undisturbed(scenario, place)
    refill(place, known.before)

    def work() -> Any:
        Clock(f"{seed} {name} {number}").install()
        return scenario.command(place)

    why = fault_of_end(forked(work), place, known)
    return Result(1, () if why is None else (why,))


def _rounds(folder: Path) -> list[tuple[float, int, int]]:
    """CPU seconds, bytes of memory and open files at the end of every round of a long run."""
    torch.manual_seed(0)
    model, seen = nn.Linear(100, 200, bias=False), []
    with torch.no_grad():
        model.weight.normal_().mul_(2).exp_()  # far from equal to the end, where an index takes longer
    x, page = torch.randn(4, 100), os.sysconf("SC_PAGE_SIZE")

    def train(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        model(x).square().mean().backward()
        optimizer.step()
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * page
        seen.append((time.process_time(), memory, len(os.listdir("/proc/self/fd"))))

    pm.prune_and_retrain(
        model, train, budget=pm.FixedRatio(0.002), stop=pm.AtDensity(0.001), rounds=ROUNDS, folder=folder, say=None
    )
    return seen


def _long(folder: Path) -> Result:
    ended = forked(partial(_rounds, folder / "run"), seconds=3600)
    if ended.how != "done":
        return Result(ROUNDS, (str(ended),))
    seen, lost = ended.value, []
    times = [after[0] - before[0] for before, after in itertools.pairwise(seen)]
    early, late = statistics.median(times[50:150]), statistics.median(times[-100:])
    if late > 2 * early:
        lost.append(f"a round takes {1000 * early:.1f} ms at the start and {1000 * late:.1f} ms at the end")
    if (more := seen[-1][1] - seen[200][1]) > 50_000 * (len(seen) - 200):  # the answer holds the records
        lost.append(f"memory grows by {more / 1e6:.0f} MB from round 200 on")
    if seen[-1][2] > seen[200][2]:
        lost.append(f"{seen[-1][2] - seen[200][2]} more files are open at the end than at round 200")
    return Result(len(seen), tuple(lost))


def _overlap_cases(seed: int) -> Iterator[Case]:
    for name in SCENARIOS:
        for number in range(SLICES):
            yield Case(f"{name}/{number}", partial(_overlapping, name, number))


def _clock_cases(seed: int) -> Iterator[Case]:
    for name in ("run", "run-search", "sweep", "prune_and_retrain"):
        for number in range(JUMPS):
            yield Case(f"{name}/{number}", partial(_jumping, name, number, seed))


def _long_cases(seed: int) -> Iterator[Case]:
    yield Case(f"{ROUNDS} rounds", _long)


ROWS = (
    Row(
        "overlap",
        "one process pauses at a file operation, a second runs the same command, then the first continues; one "
        "reports that the folder is in use, or both write the same files",
        250,
        _overlap_cases,
    ),
    Row(
        "clocks",
        "runs while the clocks jump by up to eleven days; all files equal those of an undisturbed run",
        16,
        _clock_cases,
    ),
    Row(
        "rounds",
        f"{ROUNDS:,} rounds of `prune_and_retrain`; flat memory, open files and time per round",
        ROUNDS,
        _long_cases,
    ),
)
