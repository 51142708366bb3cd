"""Worker of a Ray cluster, which trains a batch of runs, and the mailbox on the driver's machine.

A worker that sees the driver's run folders trains in them. Any other gets copies of the folders of its batch, and
sends back what has changed after each round.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from palmette.errors import NotWritten, PalmetteError, RunBusy, RunFailed, RunInterrupted, in_words
from palmette.studies.disk.locking import allow_open_files
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer, Progress
from palmette.studies.running import run_together
from palmette.studies.sweep import why_over
from palmette.training.data import load

SECONDS_BETWEEN_SAVES = 900.0
"""Within a round: writing a state every half minute is the first thing to overload a shared disk."""
Instruction: TypeAlias = Literal["continue", "share", "end"]
"""What a batch is to do: continue, end after this round, or end after this epoch."""
Event: TypeAlias = tuple[str, Path | None, Any]
"""Kind of event, folder of the run or None, and details."""
_load_once = functools.lru_cache(1)(load)  # a worker trains several batches
Files: TypeAlias = dict[str, bytes]
Changes: TypeAlias = dict[Path, tuple[Files, list[str]]]
"""Folder of a run -> changed files, and the names of all files."""


@dataclass(frozen=True)
class WorkerContext:
    """Settings that all batches of a sweep share."""

    token: Path  # a file next to the run folders; a worker that sees it shares the folders
    here: str  # the driver's working directory, for data and models of the user
    data_folder: str | None
    device: str
    threads: int
    seconds: float  # interval between two reports


@dataclass
class Report:
    """End of a batch: outcomes by folder, and the error if not all runs are over."""

    outcomes: dict[Path, str | Exception] = field(default_factory=dict)
    why: Exception | None = None


class Mailbox:
    """Ray actor on the driver's machine that collects the events of all workers."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._instructions: dict[int | None, Instruction] = {}  # by batch; None is for all
        self._lent: dict[int, ExitStack] = {}
        allow_open_files()  # for the locks of the runs that are lent

    def tell(self, batch: int, events: list[Event], files: Changes) -> Instruction:
        """Add the events of a batch, and write files that it trained elsewhere; return what it is to do."""
        if files and batch not in self._lent:  # the batch was given up as lost, and others have its runs
            return "end"
        for folder, (changed, names) in files.items():
            put(RunDir(folder), changed, names)
        self._events += events
        return self._instructions.get(None) or self._instructions.get(batch, "continue")

    def take(self) -> list[Event]:
        """All events since the last call."""
        events, self._events = self._events, []
        return events

    def ask(self, instruction: Instruction, batch: int | None = None) -> None:
        """Instruct a batch, or all of them."""
        self._instructions[batch] = instruction

    def lend(self, batch: int, folders: list[Path]) -> dict[Path, Files | RunBusy]:
        """Files of runs that a worker without access to the folders trains; locked until `close`."""
        locks = self._lent[batch] = ExitStack()
        found: dict[Path, Files | RunBusy] = {}
        for folder in folders:
            try:
                locks.enter_context(RunDir(folder, say=lambda _: None).lock())
                found[folder] = files_of(folder)
            except RunBusy as error:
                found[folder] = error
        return found

    def close(self, batch: int) -> None:
        """Unlock the runs of a batch that is over or lost."""
        self._instructions.pop(batch, None)
        if batch in self._lent:
            self._lent.pop(batch).close()


class Reporter(Observer):
    """Sends events to the mailbox at an interval, and after each round."""

    def __init__(
        self,
        tell: Callable[[list[Event], Changes], Instruction],
        runs: Mapping[Path, Experiment],
        places: Mapping[Path, Path],
        seconds: float,
    ) -> None:
        self._tell, self._places, self._seconds = tell, places, seconds
        self._homes = {runs[folder].id: folder for folder in places}
        self._away = any(folder != there for folder, there in places.items())
        self._events: list[Event] = []
        self._epochs: dict[Path, Progress] = {}
        self._sent: dict[Path, dict[str, tuple[int, int]]] = {folder: {} for folder in places}
        self._border, self._told = False, time.monotonic()
        self._instruction: Instruction = "continue"

    def epoch(self, experiment: Experiment, progress: Progress) -> None:
        """Keep the last epoch for the next report: a GPU trains thousands per second."""
        self._epochs[self._homes[experiment.id]] = progress
        self._border = False

    def recorded(self, experiment: Experiment, record: Mapping[str, Any]) -> None:
        """Report when all runs of the batch are recorded."""
        home = self._homes[experiment.id]
        self._flush_epochs()
        self._events.append(("recorded", home, dict(record)))
        if not self._border and (timings := RunDir(self._places[home]).timings()) and timings[-1]["epochs"]:
            self._events.append(("pace", home, timings[-1]["seconds"] / timings[-1]["epochs"]))
        self._border = True

    def say(self, text: str) -> None:
        """Send the message with the next report."""
        self._events.append(("said", None, text))

    def interrupts(self) -> bool:
        """Whether the driver wants the batch to end now, or after the round that is over."""
        if self._border or time.monotonic() - self._told > self._seconds:
            self.report()
        return self._instruction == "end" or (self._border and self._instruction == "share")

    def report(self, *, last: bool = False) -> None:
        """Send all events and, after a round, the changed files if folders are not shared.

        What the mailbox could not write is sent again with the next report.
        """
        self._flush_epochs()
        files: Changes = {}
        sent = {home: dict(marks) for home, marks in self._sent.items()}
        if self._away and (self._border or last):
            for home, there in self._places.items():
                files[home] = (files_of(there, sent[home]), _names(there))
        self._instruction = self._tell(self._events, files)
        self._events, self._sent, self._told = [], sent, time.monotonic()

    def _flush_epochs(self) -> None:
        self._events += [("epoch", home, progress) for home, progress in self._epochs.items()]
        self._epochs.clear()


def train(
    batch: int, runs: Mapping[Path, Experiment], company: bool, context: WorkerContext, mailbox: Any
) -> Report:
    """Task of a worker: train runs, by the driver's folder, until they are over or the driver wants them back.

    `company` says whether the batch is part of a larger fleet.
    """
    _settle(context)
    report = Report()
    with ExitStack() as stack:
        places = {folder: folder for folder in runs}
        if not context.token.exists():
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palmette-")))
            lent = answer(mailbox.lend.remote(batch, list(runs)))
            busy = {folder: found for folder, found in lent.items() if isinstance(found, RunBusy)}
            report.outcomes |= busy
            places = {folder: scratch / folder.name for folder in runs if folder not in busy}
            for folder, there in places.items():
                there.mkdir()
                put(RunDir(there), lent[folder], list(lent[folder]))
        if not places:
            return report
        reporter = Reporter(
            lambda events, files: answer(mailbox.tell.remote(batch, events, files)), runs, places, context.seconds
        )
        outcomes: dict[Path, str | Exception] = {}
        try:
            first = runs[next(iter(places))]
            outcomes = run_together(
                {there: runs[folder] for folder, there in places.items()},
                images=_load_once(first.data, folder=context.data_folder),
                data_folder=context.data_folder,
                device=context.device,
                save_seconds=SECONDS_BETWEEN_SAVES,
                company=company,
                observer=reporter,
            )
        except RunInterrupted:
            pass  # the driver asked for it
        except Exception as error:  # whatever a model, its data or a device raise
            report.why = sendable(error)
        for folder, there in places.items():
            if (outcome := outcomes.get(there) or why_over(there)) is not None:
                report.outcomes[folder] = sendable(outcome)
        reporter.report(last=True)
    if context.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return report


def answer(call: Any) -> Any:
    """Result of a Ray call; an error of the task is raised as it is, not as Ray wraps it."""
    import ray

    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def sendable(outcome: Any) -> Any:
    """An outcome that the driver can unpickle: other errors become one of palmette with the same message."""
    where = f" (on {socket.gethostname()})" if isinstance(outcome, OSError) else ""
    if isinstance(outcome, NotWritten):
        return NotWritten(f"{outcome}{where}")
    if isinstance(outcome, str | PalmetteError | MemoryError):
        return outcome
    return RunFailed(f"{in_words(outcome)}{where}")


def files_of(folder: Path, known: dict[str, tuple[int, int]] | None = None) -> Files:
    """Files of a run folder except its lock; without files that are `known` and unchanged."""
    found: Files = {}
    known = {} if known is None else known
    for name in _names(folder):
        status = (folder / name).stat()
        mark = (status.st_size, status.st_mtime_ns)
        if known.get(name) != mark:
            found[name], known[name] = (folder / name).read_bytes(), mark
    return found


def put(rundir: RunDir, files: Mapping[str, bytes], names: list[str]) -> None:
    """Write files of a run, records and then its end last, and remove checkpoints that are not among `names`."""
    for name in sorted(files, key=lambda name: (name == rundir.finished.name, name.endswith(".jsonl"), name)):
        with suppress(OSError):  # `write_bytes` explains it
            (rundir.path / name).parent.mkdir(parents=True, exist_ok=True)
        rundir.write_bytes(name, files[name])
    for number in rundir.checkpoint_numbers():
        if str(rundir.checkpoint(number).relative_to(rundir.path)) not in names:
            rundir.checkpoint(number).unlink()
    with suppress(OSError):  # absent, or not empty
        rundir.checkpoints.rmdir()


def _names(folder: Path) -> list[str]:
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and file.stem != "lock" and file.suffix != ".partial"
    )


def _settle(context: WorkerContext) -> None:
    """Set threads, working directory and import path as the driver has them."""
    torch.set_num_threads(context.threads)
    if os.path.isdir(context.here):
        os.chdir(context.here)
    if context.here not in sys.path:
        sys.path.insert(0, context.here)
