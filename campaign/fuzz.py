"""Damaged and made-up files for every reader: none may hang, fill the memory, or raise an error of a library.

``python -m campaign.fuzz KIND SEED NUMBER FOLDER`` makes one of them again in a folder, and reads it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from campaign.ledger import Case, Result, Row

SECONDS = 5.0
"""CPU time for one file."""
_ADDRESSES = 4 << 30  # bytes of address space of a process
_RESIDENT = 3 << 28  # bytes in use at any time, of which a third is torch
_SILENT = 300  # seconds without an answer: a reader that waits uses no CPU time
_AT_ONCE = 2000


class Files:
    """Damaged files of one kind, by number."""

    def __init__(self, kind: str, seed: int, folder: Path) -> None:
        module, _, name = kind.rpartition(":")
        if module:
            self.target = getattr(importlib.import_module(module), name)
        else:
            from campaign.corpus.kinds import KINDS

            self.target = next(targets[name] for targets in KINDS.values() if name in targets)
        self.kind, self.seed, self.file = kind, seed, folder / self.target.file
        self.seeds = self.target.seeds()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.target.beside(self.file.parent)

    def write(self, number: int) -> None:
        """Write a file."""
        from campaign.mutations import mutated

        rng = random.Random(f"{self.kind} {self.seed} {number}")
        chosen = rng.choice(self.seeds)
        part = mutated(rng, chosen.part, [seed.part for seed in self.seeds])
        self.file.write_bytes(chosen.wrap(part))

    def fault(self) -> str:
        """Read the file that was written last; what the reader did wrong, or nothing."""
        from palmette.errors import PalmetteError

        try:
            self.target.read(self.file)
        except (PalmetteError, OSError):
            return ""
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:120]}"
            return "" if type(error) is ValueError else text
        return ""


class _Worker:
    """A process that reads files; started again when it dies."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # to open a file on disk takes longer than to read it
        self.scratch = TemporaryDirectory(prefix="palmette-fuzz-", dir=memory if memory.is_dir() else None)
        self.log = Path(self.scratch.name, "stderr.txt")
        command, pipe = [sys.executable, "-m", "campaign.fuzz", "work"], subprocess.PIPE
        place = Path(__file__).parents[1]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, cwd=place, env=env)
        atexit.register(self.process.kill)

    def answers(self, task: dict[str, Any]) -> Iterator[str]:
        """A line for each file, until the task is done or the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        task["folder"] = f"{self.scratch.name}/{task['kind'].rpartition(':')[2]}"
        self.process.stdin.write(json.dumps(task).encode() + b"\n")
        self.process.stdin.flush()
        rest = b""
        for _ in range(task["count"]):
            while b"\n" not in rest:
                ready, _, _ = select.select([self.process.stdout], [], [], _SILENT)
                more = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
                if not more:
                    return
                rest += more
            line, _, rest = rest.partition(b"\n")
            yield json.loads(line)

    def why(self) -> str:
        """End of the process, in words."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stdout.close()
        code = self.process.wait()
        atexit.unregister(self.process.kill)
        words = self.log.read_text(errors="replace").strip()[-300:]
        self.scratch.cleanup()
        if code == -signal.SIGPROF:
            return "took longer than it may"
        return f"{signal.Signals(-code).name if code < 0 else f'exit {code}'}: {words}"


_RUNNING: list[_Worker] = []  # at most one, for the next case


def executed(kind: str, seed: int, first: int, count: int, *, seconds: float = SECONDS) -> Result:
    """Read `count` files of a kind, from number `first` on, each within `seconds` of CPU time."""
    faults: dict[str, list[int]] = {}
    number = first
    while number < first + count:
        if not _RUNNING:
            _RUNNING.append(_Worker())
        worker, start = _RUNNING[0], number
        task = {"kind": kind, "seed": seed, "first": number, "count": first + count - number, "seconds": seconds}
        for fault in worker.answers(task):
            if fault:
                faults.setdefault(fault, []).append(number)
            number += 1
        if number < first + count:
            _RUNNING.clear()
            why = worker.why()
            if number == start and why.startswith("exit"):
                raise RuntimeError(f"the reader of {kind} does not start: {why}")
            faults.setdefault(why, []).append(number)
            number += 1
    lost = [f"{kind} {seed} {at[0]}, {len(at)} times: {fault}" for fault, at in faults.items()]
    return Result(count, tuple(lost))


def _work() -> None:
    """Read files, as standard input asks."""
    import resource
    import warnings

    out = os.dup(1)
    os.dup2(2, 1)  # what a reader prints is no answer
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        task = json.loads(line)
        files = Files(task["kind"], task["seed"], Path(task["folder"]))
        printed = os.fstat(2).st_size
        for number in range(task["first"], task["first"] + task["count"]):
            files.write(number)
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
            signal.setitimer(signal.ITIMER_PROF, task["seconds"])  # ends the process, inside of any library
            fault = files.fault()
            signal.setitimer(signal.ITIMER_PROF, 0)
            if not fault and (peak := _peak()) > _RESIDENT:
                fault = f"took {peak >> 20} MB"
            if not fault and os.fstat(2).st_size > printed:
                fault = "printed an error on standard error"
            printed = os.fstat(2).st_size
            os.write(out, json.dumps(fault).encode() + b"\n")


def _peak() -> int:
    """Largest number of bytes in use since it was last forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def _cases(row: str, goal: int, seed: int) -> Iterator[Case]:
    from campaign.corpus.kinds import KINDS

    each = -(-goal // (len(KINDS[row]) * _AT_ONCE))
    for kind in KINDS[row]:
        for i in range(each):
            run = functools.partial(executed, kind, seed, i * _AT_ONCE, _AT_ONCE)
            yield Case(f"{kind} {i}", lambda folder, run=run: run())  # type: ignore[misc]


_WHAT = "read, or refused with a clear error, within 5 s and 768 MB each"
_GOALS = {
    "fuzz-weights": (700_000, f"damaged checkpoints: {_WHAT}"),
    "fuzz-others": (300_000, f"damaged masks, data sets and runs: {_WHAT}"),
}
ROWS = tuple(Row(name, what, goal, functools.partial(_cases, name, goal)) for name, (goal, what) in _GOALS.items())


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        _work()
    else:
        _kind, _seed, _number, _folder = sys.argv[1:]
        _files = Files(_kind, int(_seed), Path(_folder))
        _files.write(int(_number))
        print(_files.file, _files.file.stat().st_size, "bytes")
        _files.target.read(_files.file)
