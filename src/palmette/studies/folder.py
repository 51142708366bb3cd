"""The folder of one run: all file names, and writes that leave a file complete or absent."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import json
import lzma
import os
import pickle
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from palmette.errors import NotWritten, RunDamaged
from palmette.files import explained, replaced, sync
from palmette.measures.parameters import as_number
from palmette.pruning.masks import Masks
from palmette.studies.locking import FolderLock

_SEAL_BYTES = 73  # length of `_seal`
_LARGEST = 2000  # times the size of an archive; records shrink to a tenth or so
_OF_RUNS = ("experiment.toml", "records.jsonl")  # a folder with either is a run, so that damage is detected


class RunDir:
    """One run on disk. Writing needs the `lock`, reading does not.

    `say` receives a message about each repaired file; it warns by default.
    """

    def __init__(self, path: str | Path, *, say: Callable[[str], None] = warnings.warn) -> None:
        if path == "":
            raise ValueError("a run needs a folder, got ''; the current one is '.'")
        self.path = Path(path)
        self.experiment = self.path / "experiment.toml"  # the settings
        self.records_file = self.path / "records.jsonl"  # a line per round, reproducible
        self.timings_file = self.path / "timings.jsonl"  # seconds and speeds
        self.failure = self.path / "failure.txt"  # the error of a run that failed
        self.settings = self.path / "settings.json"  # of `prune_and_retrain` in version 1
        self.good = self.path / "good.pt"  # the network that a search or `prune_and_retrain` returns
        self.lock_file = self.path / "lock"  # names the owner; empty without one
        self.checkpoints = self.path / "checkpoints"  # the last two; removed when the run is finished
        self.networks = self.path / "networks"  # trained ones of a search; removed when the run is finished
        self.tensorboard = self.path / "tensorboard"  # optional; written from the records
        self._say = say
        self._checked: tuple[int, int] | None = (
            None  # size of the records, and last round, when they were last read
        )

    def mask(self, round: int) -> Path:
        """Path of the masks of a round."""
        return self.path / "masks" / f"round-{round:02d}.safetensors"

    def checkpoint(self, number: int) -> Path:
        """Path of a checkpoint."""
        return self.checkpoints / f"{number:04d}.pt"

    def network(self, round: int) -> Path:
        """Path of the trained network of a round."""
        return self.networks / f"round-{round:02d}.pt"

    @contextmanager
    def lock(self) -> Iterator[RunDir]:
        """Own the folder until the process ends in any way; remove incomplete files of the last owner."""
        with ExitStack() as stack:
            with self._writing(self.lock_file, 0):
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FolderLock(self.lock_file).held())
                for folder in (self.path, self.mask(0).parent, self.checkpoints, self.networks):
                    for partial in folder.glob("*.partial"):
                        partial.unlink()
            self._cut_torn_line(self.records_file)
            self._cut_torn_line(self.timings_file)
            yield self

    def owner(self) -> str | None:
        """Name of the process that runs it now, such as "process 7 on host"; None without one."""
        return FolderLock(self.lock_file).owner()

    def free_from(self, hosts: Collection[str]) -> bool:
        """Free the folder from an owner on one of the lost `hosts`; return whether that was needed."""
        with self._writing(self.lock_file, 0):
            return FolderLock(self.lock_file).take_from(hosts)

    def write_text(self, name: str | Path, text: str) -> None:
        """Write a text file of the run atomically; see `write_bytes`."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str | Path, content: bytes | memoryview) -> None:
        """Write a file of the run, synced to disk; on any error the old file stays in place."""
        target = self.path / name
        if not target.resolve().is_relative_to(self.path.resolve()):
            raise ValueError(f"a file of the run must lie in {str(self.path)!r}, got {str(name)!r}")
        with self._writing(target, len(content)):
            target.parent.mkdir(exist_ok=True)
            with replaced(target) as partial:
                partial.write_bytes(content)
            sync(target.parent, self.path)

    def note_failure(self, why: object) -> None:
        """Write the reason of a failure, unless the disk is full."""
        with suppress(NotWritten):
            self.write_text(self.failure.name, f"{why}\n")

    def save_masks(self, round: int, masks: Masks) -> None:
        """Write the masks of a round, one bit per weight."""
        target = self.mask(round)
        with self._writing(target, sum((m.numel() + 7) // 8 for m in masks.values())):
            target.parent.mkdir(exist_ok=True)
            masks.save(target)
            sync(target.parent, self.path)

    def append_record(self, record: Mapping[str, Any]) -> bool:
        """Append the record of a round as one line; return False if the same line exists."""
        if type(record.get("round")) is not int:
            raise ValueError(f"a record needs its 'round', an integer, got {record.get('round')!r}")
        line = _line(record)
        # Reading all records for each of them would be quadratic: those that this object wrote are known.
        size = self.records_file.stat().st_size if self.records_file.exists() else 0
        known_by_now = self._checked == (size, record["round"] - 1)
        for known in () if known_by_now else self.records():
            if _line(known) == line:
                return False
            if known["round"] == record["round"]:
                differ = [k for k in {**known, **record} if _line({k: known.get(k)}) != _line({k: record.get(k)})]
                raise RunDamaged(
                    f"{str(self.records_file)!r} has another record of round {record['round']}, which differs in "
                    f"{', '.join(differ) or 'the order of keys'}. Was the run continued with other code, data or "
                    "hardware? Start again in another folder."
                )
        self._append(self.records_file, line)
        self._checked = (size + len(line), record["round"])
        return True

    def append_timing(self, timing: Mapping[str, Any]) -> None:
        """Append a line to the timings; a round may repeat."""
        self._append(self.timings_file, _line(timing))

    def records(self) -> list[dict[str, Any]]:
        """Records in order, without a line that is still being written."""
        return _lines(self.records_file)

    def timings(self) -> list[dict[str, Any]]:
        """Timings in order; empty if the file is damaged, since nothing depends on them."""
        with suppress(RunDamaged):
            known = [one for one in _lines(self.timings_file) if type(one["round"]) is int]
            return [one for one in known if 0 <= as_number(one.get("seconds")) < 1e12]
        return []

    def write_sealed(self, target: Path, state: Any) -> None:
        """Write `state`, tensors and plain values, with its SHA-256."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.write(_seal(buffer.getbuffer()))
        self.write_bytes(target.relative_to(self.path), buffer.getbuffer())

    def read_sealed(self, file: Path) -> Any:
        """State that `write_sealed` wrote, on the CPU; None if the file is damaged."""
        content = b""
        with suppress(OSError):  # an unreadable sector is damage too
            content = file.read_bytes()
        if content[-_SEAL_BYTES:] != _seal(memoryview(content)[:-_SEAL_BYTES]):
            return None
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise RunDamaged(f"{str(file)!r} holds more than tensors and plain values") from error

    def save_checkpoint(self, number: int, state: Any) -> None:
        """Write `state` with its SHA-256; keep two checkpoints."""
        if type(number) is not int or number < 0:
            raise ValueError(f"the number of a checkpoint must be an integer of at least 0, got {number!r}")
        self.write_sealed(self.checkpoint(number), state)
        numbers = self.checkpoint_numbers()
        # A higher number is left over from a damaged state, and must not count as the newest.
        for other in set(numbers) - set([n for n in numbers if n <= number][-2:]):
            self.checkpoint(other).unlink()

    def load_checkpoint(self, at_most: int | None = None, *, quiet: bool = False) -> tuple[int, Any] | None:
        """Number and state, on the CPU, of the newest undamaged checkpoint; None without checkpoints.

        Args:
            at_most: highest number to consider.
            quiet: return None instead of raising if all of them are damaged.
        """
        numbers = [n for n in self.checkpoint_numbers() if at_most is None or n <= at_most]
        for number in reversed(numbers):
            path = self.checkpoint(number)
            if (state := self.read_sealed(path)) is not None:
                return number, state
            self._say(f"the checkpoint {str(path)!r} is damaged; using the one before it")
        if numbers and not quiet:
            raise RunDamaged(
                f"all {len(numbers)} checkpoints are damaged; remove {str(self.path)!r} to start again"
            )
        return None

    def finish(self) -> None:
        """Remove the checkpoints, and the networks of a search."""
        for number in self.checkpoint_numbers():  # newest last, so that an interruption loses nothing
            self.checkpoint(number).unlink()
        for network in self.networks.glob("round-*.pt"):
            network.unlink()
        for folder in (self.checkpoints, self.networks):
            with suppress(OSError):  # absent, or the user put a file there
                folder.rmdir()

    def size(self) -> int:
        """Bytes of all files of the run."""
        total = 0
        for place, _, names in os.walk(self.path):
            for name in names:
                with suppress(FileNotFoundError):  # may be replaced while the run is training
                    total += os.stat(os.path.join(place, name)).st_size
        return total

    def checkpoint_numbers(self) -> list[int]:
        """Numbers of all checkpoints, damaged or not, in ascending order."""
        with suppress(FileNotFoundError):  # may be removed while the run finishes
            return sorted(int(f.stem) for f in self.checkpoints.glob("*.pt") if f.stem.isdecimal())
        return []

    def _append(self, target: Path, line: bytes) -> None:
        self._cut_torn_line(target)
        with self._writing(target, len(line)), target.open("ab", buffering=0) as file:
            size, written = file.seek(0, os.SEEK_END), 0
            try:
                while written < len(line):  # a disk that fills up accepts a part first
                    written += file.write(line[written:])
                sync(target, self.path)
            except BaseException:
                file.truncate(size)
                raise

    def _cut_torn_line(self, target: Path) -> None:
        content = b"\n" if not target.exists() or _ends_a_line(target) else target.read_bytes()
        torn = len(content) - (content.rfind(b"\n") + 1)
        if torn:
            with self._writing(target, 0):
                os.truncate(target, len(content) - torn)
                sync(target)
            self._say(f"the last line of {str(target)!r} was half-written ({torn} bytes) and has been removed")

    def _writing(self, target: Path, size: int) -> AbstractContextManager[None]:
        return explained(target, size, self.path, "run folder")


def find_runs(*folders: str | Path) -> list[RunDir]:
    """Run folders in `folders`, at any depth, sorted by name, each once; a folder may be a run itself.

    A folder with records but without experiment.toml is a damaged run. Runs in files named ``runs.tar.xz``, or in
    a given ``.tar.xz``, are unpacked to a folder that is removed when Python exits.
    """
    found: dict[Path, RunDir] = {}
    for folder in map(Path, folders):
        if folder.is_file() and folder.name.endswith(".tar.xz"):
            files = [folder]
        elif folder.is_dir():
            files = _called(folder, *_OF_RUNS, "runs.tar.xz")
        else:
            what = f"{str(folder)!r} is a file" if folder.exists() else f"no folder at {str(folder)!r}"
            raise FileNotFoundError(f"{what}; name folders with runs in them, or archives of runs, .tar.xz")
        for archive in [file.resolve() for file in files if file.suffix == ".xz"]:
            files += _called(_unpacked(archive, archive.stat().st_mtime_ns), *_OF_RUNS)
        for run in [RunDir(file.parent) for file in files if file.name in _OF_RUNS]:
            # Not a run: an experiment.toml without lock and records, records without timings, and a version 1 run
            # of `prune_and_retrain` with a custom budget, which had only settings.json.
            known = run.experiment.exists() or (run.timings_file.exists() and not run.settings.exists())
            if known and (run.lock_file.exists() or run.records_file.exists()):
                found[run.path.resolve()] = run
    return list(found.values())


def _called(folder: Path, *names: str) -> list[Path]:
    # Not `rglob`, which fails if a finishing run removes a folder meanwhile.
    return sorted(Path(place, name) for place, _, there in os.walk(folder) for name in names if name in there)


@functools.cache
def _unpacked(archive: Path, changed: int) -> Path:
    """Folder of an unpacked archive; `changed` keys the cache by modification time."""
    place = tempfile.TemporaryDirectory(prefix="palmette-")
    atexit.register(place.cleanup)
    try:
        with tarfile.open(archive) as file:
            left = _LARGEST * archive.stat().st_size
            for member in file:  # stops at the first that is too large, before its bytes are unpacked
                left -= member.size
                if left < 0:
                    raise tarfile.TarError(f"it would unpack to over {_LARGEST} times its size")
            file.extractall(place.name, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise RunDamaged(f"{str(archive)!r} is not an archive of runs, or is incomplete: {error}") from error
    return Path(place.name)


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as opened:
        if opened.seek(0, os.SEEK_END):
            opened.seek(-1, os.SEEK_END)
        return opened.read() in (b"", b"\n")


def _lines(file: Path) -> list[dict[str, Any]]:
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    found = []
    for number, line in enumerate(lines, start=1):
        why = "it is not JSON"
        try:
            found.append(json.loads(line))
            if not isinstance(found[-1], dict) or "round" not in found[-1]:
                why = "it is not the record of a round"
                raise ValueError(why)
        except (ValueError, RecursionError) as error:
            raise RunDamaged(
                f"line {number} of {str(file)!r} is damaged: {why}. Restore the file from a copy, or "
                f"remove {str(file.parent)!r} to start the run again"
            ) from error
    return found


def _line(record: Mapping[str, Any]) -> bytes:
    # A round trip, because only the parser can turn NaN and infinities, which JSON lacks, into null.
    plain = json.loads(json.dumps(dict(record)), parse_constant=lambda _: None)
    return (json.dumps(plain, ensure_ascii=False) + "\n").encode()


def _seal(content: memoryview) -> bytes:
    # After the archive, where `torch.load` ignores it.
    return b"\nsha256 " + hashlib.sha256(content).hexdigest().encode() + b"\n"
