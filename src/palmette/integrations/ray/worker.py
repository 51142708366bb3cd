"""What a worker of a Ray cluster does with a crew of runs, and the desk on the driver's machine where it reports.

Where a worker sees the driver's run folders, it trains in them. Where it does not, it gets copies of those of its
crew, and what a round adds goes back when the round is over.
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
from palmette.studies.engine import Observer, Progress
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.locking import allow_open_files
from palmette.studies.running import run_together
from palmette.studies.sweep import why_over
from palmette.training.data import load
from palmette.training.data.images import Images

SECONDS_BETWEEN_SAVES = 900.0
"""Within a round: on one path for all, a state every half minute is what breaks first (docs/scale.md)."""
Word: TypeAlias = Literal["go on", "share", "end"]
"""What a crew is told: to go on, to end after this round, to end after this epoch."""
News: TypeAlias = tuple[str, Path | None, Any]
"""What happened, to the run of which folder, and more about it."""
Files: TypeAlias = dict[str, bytes]


@dataclass(frozen=True)
class Place:
    """What all crews of a sweep have in common.

    Args:
        token: a file beside the run folders; who sees it, shares them.
        here: the driver's working directory, for data and models of a user's own.
        data_folder, device: as for `palmette.run`.
        threads: of a worker that trains on a CPU.
        seconds: between two reports.
    """

    token: Path
    here: str
    data_folder: str | None
    device: str
    threads: int
    seconds: float


@dataclass
class Report:
    """How a crew ended: what is known of each run by folder, and why not all are over."""

    outcomes: dict[Path, str | Exception] = field(default_factory=dict)
    why: Exception | None = None


class Desk:
    """Where workers leave their news for the driver; an actor on the driver's machine."""

    def __init__(self) -> None:
        self._news: list[News] = []
        self._words: dict[int, Word] = {}
        self._everybody: Word = "go on"
        self._lent: dict[int, ExitStack] = {}
        allow_open_files()  # for the locks of the runs that are lent

    def tell(self, crew: int, news: list[News], files: Mapping[Path, tuple[Files, list[str]]]) -> Word:
        """News of a crew, and files of runs that it trains elsewhere; what the crew is to do."""
        if files and crew not in self._lent:  # it was taken for lost, and others have its runs
            return "end"
        for folder, (changed, names) in files.items():
            put(RunDir(folder), changed, names)
        self._news += news
        return "end" if self._everybody == "end" else self._words.get(crew, "go on")

    def take(self) -> list[News]:
        """All news since it was last asked for."""
        news, self._news = self._news, []
        return news

    def ask(self, word: Word, crew: int | None = None) -> None:
        """Tell a crew, or all of them, what to do."""
        if crew is None:
            self._everybody = word
        else:
            self._words[crew] = word

    def lend(self, crew: int, folders: list[Path]) -> dict[Path, Files | RunBusy]:
        """The files of runs that are to be trained where they cannot be seen; they are locked until `close`."""
        locks = self._lent[crew] = ExitStack()
        found: dict[Path, Files | RunBusy] = {}
        for folder in folders:
            try:
                locks.enter_context(RunDir(folder, say=lambda _: None).lock())
                found[folder] = files_of(folder)
            except RunBusy as error:
                found[folder] = error
        return found

    def close(self, crew: int) -> None:
        """A crew is over, or lost."""
        self._words.pop(crew, None)
        if crew in self._lent:
            self._lent.pop(crew).close()


class Reporter(Observer):
    """Tells the desk what happens, a few times a minute, and after each round."""

    def __init__(
        self,
        tell: Callable[[list[News], dict[Path, tuple[Files, list[str]]]], Word],
        runs: Mapping[Path, Experiment],
        places: Mapping[Path, Path],
        seconds: float,
    ) -> None:
        self._tell, self._places, self._seconds = tell, places, seconds
        self._homes = {runs[folder].id: folder for folder in places}
        self._away = any(folder != there for folder, there in places.items())
        self._news: list[News] = []
        self._epochs: dict[Path, Progress] = {}
        self._sent: dict[Path, dict[str, tuple[int, int]]] = {folder: {} for folder in places}
        self._border, self._told = False, time.monotonic()
        self._word: Word = "go on"

    def epoch(self, experiment: Experiment, progress: Progress) -> None:
        """The last one is told, with others: a GPU trains thousands in a second."""
        self._epochs[self._homes[experiment.id]] = progress
        self._border = False

    def recorded(self, experiment: Experiment, record: Mapping[str, Any]) -> None:
        """Told when all of the crew are."""
        home = self._homes[experiment.id]
        self._flush_epochs()
        self._news.append(("recorded", home, dict(record)))
        if not self._border and (timings := RunDir(self._places[home]).timings()) and timings[-1]["epochs"]:
            self._news.append(("pace", home, timings[-1]["seconds"] / timings[-1]["epochs"]))
        self._border = True

    def say(self, text: str) -> None:
        """Told with others."""
        self._news.append(("said", None, text))

    def interrupts(self) -> bool:
        """Whether the driver wants the end, or what is left after this round."""
        if self._border or time.monotonic() - self._told > self._seconds:
            self.report()
        return self._word == "end" or (self._border and self._word == "share")

    def report(self, *, last: bool = False) -> None:
        """Tell all there is, and at the end of a round send what has changed where folders are not shared.

        What did not arrive, since the desk could not write it, is told and sent again the next time.
        """
        self._flush_epochs()
        files: dict[Path, tuple[Files, list[str]]] = {}
        sent = {home: dict(marks) for home, marks in self._sent.items()}
        if self._away and (self._border or last):
            for home, there in self._places.items():
                files[home] = (files_of(there, sent[home]), _names(there))
        self._word = self._tell(self._news, files)
        self._news, self._sent, self._told = [], sent, time.monotonic()

    def _flush_epochs(self) -> None:
        self._news += [("epoch", home, progress) for home, progress in self._epochs.items()]
        self._epochs.clear()


def train(crew: int, runs: Mapping[Path, Experiment], company: bool, place: Place, desk: Any) -> Report:
    """Train a crew until its runs are over or the driver wants them back; the task of a worker.

    Args:
        crew: its number.
        runs: by the folder that the driver knows.
        company: whether they are part of a larger fleet.
        place: what all crews have in common.
        desk: where to report.
    """
    _settle(place)
    report = Report()
    with ExitStack() as stack:
        away = not place.token.exists()
        places = {folder: folder for folder in runs}
        if away:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palmette-")))
            lent = answer(desk.lend.remote(crew, list(runs)))
            busy = {folder: found for folder, found in lent.items() if isinstance(found, RunBusy)}
            report.outcomes |= busy
            places = {folder: scratch / folder.name for folder in runs if folder not in busy}
            for folder, there in places.items():
                there.mkdir()
                put(RunDir(there), lent[folder], list(lent[folder]))
        if not places:
            return report

        def tell(news: list[News], files: dict[Path, tuple[Files, list[str]]]) -> Word:
            word: Word = answer(desk.tell.remote(crew, news, files))
            return word

        reporter = Reporter(tell, runs, places, place.seconds)
        outcomes: dict[Path, str | Exception] = {}
        try:
            first = runs[next(iter(places))]
            outcomes = run_together(
                {there: runs[folder] for folder, there in places.items()},
                images=_images(first.data, place.data_folder),
                data_folder=place.data_folder,
                device=place.device,
                save_seconds=SECONDS_BETWEEN_SAVES,
                company=company,
                observer=reporter,
            )
        except RunInterrupted:
            pass  # as the driver wanted
        except Exception as error:  # whatever a model, its data or a device raise
            report.why = sendable(error)
        for folder, there in places.items():
            if (outcome := outcomes.get(there) or why_over(there)) is not None:
                report.outcomes[folder] = sendable(outcome)
        reporter.report(last=True)
    if place.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return report


def answer(call: Any) -> Any:
    """What a call of Ray gives; what it raises is raised as it is, not as Ray wraps it."""
    import ray

    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def sendable(outcome: Any) -> Any:
    """As it is, or an error of palmette that says the same: the driver may not have the class of another."""
    where = f" (on {socket.gethostname()})" if isinstance(outcome, OSError) else ""
    if isinstance(outcome, NotWritten):
        return NotWritten(f"{outcome}{where}")
    if isinstance(outcome, str | PalmetteError | MemoryError):
        return outcome
    return RunFailed(f"{in_words(outcome)}{where}")


def files_of(folder: Path, known: dict[str, tuple[int, int]] | None = None) -> Files:
    """What lies in a run folder, but for its lock; without what is `known` and has not changed since."""
    found: Files = {}
    known = {} if known is None else known
    for name in _names(folder):
        status = (folder / name).stat()
        mark = (status.st_size, status.st_mtime_ns)
        if known.get(name) != mark:
            found[name], known[name] = (folder / name).read_bytes(), mark
    return found


def put(rundir: RunDir, files: Mapping[str, bytes], names: list[str]) -> None:
    """Write files of a run, records last, and remove what is not among `names`."""
    for name in sorted(files, key=lambda name: (name.endswith(".jsonl"), name)):
        with suppress(OSError):  # of which `write_bytes` says more
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


def _settle(place: Place) -> None:
    """Be where the driver is, as far as this machine has it."""
    torch.set_num_threads(place.threads)
    if os.path.isdir(place.here):
        os.chdir(place.here)
    if place.here not in sys.path:
        sys.path.insert(0, place.here)


@functools.lru_cache(1)
def _images(data: str, folder: str | None) -> Images:
    """A worker that trains one crew after another reads their data once."""
    return load(data, folder=folder)
