"""The folder of one run: all file names, and writes that leave a file complete or absent."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from palmette.errors import MaskMismatch, NotWritten, RunDamaged, reason_of
from palmette.files import explained, make_folder, replaced, sync
from palmette.measures.parameters import as_number
from palmette.studies.disk.archives import called, unpacked
from palmette.studies.disk.locking import FolderLock
from palmette.studies.disk.sealing import SealedLines, plain_line, read_state, seal_of_masks, sealed_state

if TYPE_CHECKING:
    from palmette.pruning.masks import Masks

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
        self.finished = self.path / "finished.json"  # how many lines the files of a finished run have
        self.failure = self.path / "failure.txt"  # the error of a run that failed
        self.settings = self.path / "settings.json"  # of `prune_and_retrain` in version 1
        self.good = self.path / "good.pt"  # the network that a search or `prune_and_retrain` returns
        self.lock_file = self.path / "lock"  # names the owner; empty without one
        self.checkpoints = self.path / "checkpoints"  # the last two; of a finished run, see `finish`
        self.networks = self.path / "networks"  # trained ones of a search; of a finished one, see `finish`
        self.tensorboard = self.path / "tensorboard"  # optional; written from the records
        self.sealed = True  # whether damage of the records would be noticed; not in folders of earlier versions
        self._say = say
        self._records = SealedLines(self.records_file, self._settings, say)
        self._timings = SealedLines(self.timings_file, self._settings, say)
        self._finished = SealedLines(self.finished, self._settings, say)

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
                make_folder(self.path)
                stack.enter_context(FolderLock(self.lock_file).held())
                masks = self.mask(0).parent
                folders = (self.path, masks, self.checkpoints, self.networks)
                # Earlier versions left `.tmp…`.
                for partial in (*masks.glob(".tmp*"), *(f for place in folders for f in place.glob("*.partial"))):
                    partial.unlink()
            self._records.cut_torn()
            self._timings.cut_torn()
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
        """Write the masks of a round, one bit per weight; their `digest` belongs into the record."""
        target = self.mask(round)
        with self._writing(target, sum((m.numel() + 7) // 8 for m in masks.values())):
            target.parent.mkdir(exist_ok=True)
            masks.save(target)
            sync(target.parent, self.path)

    def append_record(self, record: Mapping[str, Any]) -> bool:
        """Append the record of a round as one sealed line; return False if the same line exists."""
        if type(record.get("round")) is not int:
            raise ValueError(f"a record needs its 'round', an integer, got {record.get('round')!r}")
        line = plain_line(record)
        # Reading all records for each of them would be quadratic: those that this object wrote are known.
        known_by_now = self._records.ends_with(record["round"] - 1)
        for known in () if known_by_now else self.records(resuming=True):
            # Earlier versions wrote no digest of the masks.
            new = {name: value for name, value in record.items() if name != "masks" or "masks" in known}
            if plain_line(known) == plain_line(new):
                return False
            if known["round"] == record["round"]:
                keys = {**known, **record}
                differ = [k for k in keys if plain_line({k: known.get(k)}) != plain_line({k: record.get(k)})]
                raise RunDamaged(
                    f"{str(self.records_file)!r} has another record of round {record['round']}, which differs in "
                    f"{', '.join(differ) or 'the order of keys'}. Was the run continued with other code, data or "
                    "hardware? Start again in another folder."
                )
        if not known_by_now:
            self._records.cut_damaged()
        self._records.append(record["round"], line)
        return True

    def rewrite_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write all records anew, where a run continues that had ended."""
        self.finished.unlink(missing_ok=True)
        self.write_bytes(self.records_file.name, self.sealed_records(records))

    def sealed_records(self, records: Iterable[Mapping[str, Any]]) -> bytes:
        """Content of a file of these records, for a run with the settings of this one."""
        lines, seal = list[bytes](), None
        for record in records:
            line, seal = self._records.sealed(plain_line(record), seal)
            lines.append(line)
        return b"".join(lines)

    def append_timing(self, timing: Mapping[str, Any]) -> None:
        """Append a line to the timings; a round may repeat."""
        self._timings.append(timing["round"], plain_line(timing))

    def records(self, *, resuming: bool = False) -> list[dict[str, Any]]:
        """Records in order, without a line that is still being written.

        Raise `RunDamaged` if lines are damaged, or missing at the end. With `resuming`, lines of an unfinished run
        may be missing, and a damaged last one is left out: its last state has this record too.
        """
        end = self._end()  # before the records, which may grow
        timed = [] if resuming else [timing["round"] for timing in self.timings()]
        found = self._records.read(mend=resuming and end is None and self.checkpoint_numbers() != [])
        self.sealed = found.sealed
        rounds = max([0 if end is None else end["round"] + 1, *(t + 1 for t in timed if found.sealed)])
        if len(found.values) < rounds:
            raise RunDamaged(
                f"{str(self.records_file)!r} has {len(found.values)} of {rounds} rounds: lines at its end are "
                f"missing. {'Restore it from a copy' if end else 'Start the same command again'}, or remove "
                f"{str(self.path)!r} to start the run again"
            )
        if end is not None and found.seals[end["round"]] != end["records"]:
            raise RunDamaged(
                f"{str(self.records_file)!r} and {self.finished.name} next to it are of different runs; restore "
                f"them from a copy, or remove {str(self.path)!r} to start the run again"
            )
        return found.values

    def timings(self) -> list[dict[str, Any]]:
        """Timings in order; empty if the file is damaged or incomplete, since nothing depends on them."""
        with suppress(RunDamaged):
            found, end = self._timings.read().values, self._end()
            if end is None or len(found) >= end["timings"]:
                known = [t for t in found if type(t["round"]) is int]
                return [t for t in known if 0 <= as_number(t.get("seconds")) < 1e12]
        return []

    def mask_damage(
        self, records: Sequence[Mapping[str, Any]], *, only_heads: bool = True, needed: bool = False
    ) -> str | None:
        """Damage of the mask files of these records; None if they are sound.

        With `only_heads`, a flipped bit of a mask is not noticed. A copy of a finished run may lack all of them,
        unless they are `needed`.
        """
        ended = bool(records) and records[-1].get("stopped") is not None
        left_out = ended and not needed and not self.mask(0).parent.is_dir()
        for record in () if left_out else [r for r in records if "masks" in r]:
            file = self.mask(record["round"])
            try:
                if seal_of_masks(file, only_head=only_heads) != record["masks"]:
                    return f"{str(file)!r} has the masks of another round or run"
            except FileNotFoundError:
                return f"{str(file)!r} is missing"
            except (OSError, SafetensorError, MaskMismatch) as error:
                return f"{str(file)!r} is damaged ({reason_of(error).removeprefix('is damaged: ')})"
        return None

    def load_masks(self, round: int) -> Masks:
        """Masks of a round; raise `RunDamaged` if they are not those of its record."""
        from palmette.pruning.masks import Masks

        self.check_masks(self.records(resuming=True)[round : round + 1], needed=True)
        return Masks.load(self.mask(round))

    def check_masks(self, records: Sequence[Mapping[str, Any]], *, needed: bool) -> None:
        """Raise `RunDamaged` for `mask_damage`; where masks are `needed`, their bits are checked too."""
        if why := self.mask_damage(records, only_heads=not needed, needed=needed):
            raise RunDamaged(f"{why}; restore it from a copy, or remove {str(self.path)!r} to start the run again")

    def write_sealed(self, target: Path, state: Any) -> None:
        """Write `state`, tensors and plain values, with a SHA-256 of it, of the name and of the settings."""
        self.write_bytes(target.relative_to(self.path), sealed_state(state, self._origin(target)))

    def read_sealed(self, file: Path) -> Any:
        """State that `write_sealed` wrote there, on the CPU; None if the file is damaged or of another place."""
        return read_state(file, self._origin(file))

    def _origin(self, file: Path) -> bytes:
        return file.relative_to(self.path).as_posix().encode() + self._settings()

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

    def finish(self, keep: Collection[int] | None = None) -> None:
        """Note what a finished run has, then remove its checkpoints, and the networks of a search.

        If more rounds would extend the run, the last checkpoint stays, and the networks of the rounds `keep`.
        """
        records = self._records.read()
        if records.values and records.sealed and records.values[-1].get("stopped") is not None:
            end = {"round": len(records.values) - 1, "records": records.seals[-1], "timings": len(self.timings())}
            self.write_bytes(self.finished.name, self._finished.sealed(plain_line(end))[0])
        # Newest last, so that an interruption loses nothing.
        for number in self.checkpoint_numbers()[: None if keep is None else -1]:
            self.checkpoint(number).unlink()
        for network in set(self.networks.glob("round-*.pt")) - {self.network(round) for round in keep or ()}:
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

    def _end(self) -> dict[str, Any] | None:
        """Note of `finish`; None if the run is not finished, or finished in an earlier version."""
        found = self._finished.read()
        if self.finished.exists() and not (len(found.values) == 1 and found.sealed):
            raise RunDamaged(f"{str(self.finished)!r} is damaged; remove it and repeat the command to restore it")
        return next(iter(found.values), None)

    def _settings(self) -> bytes:
        """Settings in experiment.toml, which tie other files to the run; not the rounds, which may become more."""
        text = self.experiment.read_bytes() if self.experiment.is_file() else b""
        return re.sub(rb"(?m)^(#|rounds = ).*\n", b"", text)

    def _writing(self, target: Path, size: int) -> AbstractContextManager[None]:
        return explained(target, size, self.path, "run folder")


def find_runs(*folders: str | Path) -> list[RunDir]:
    """Run folders in `folders`, at any depth, sorted by name, each once; a folder may be a run itself.

    A folder with records but without experiment.toml is a damaged run, and so is a damaged archive. Runs in files
    named ``runs.tar.xz``, or in a given ``.tar.xz``, are unpacked to a folder that is removed when Python exits.
    """
    found: dict[Path, RunDir] = {}
    for folder in map(Path, folders):
        if folder.is_file() and folder.name.endswith(".tar.xz"):
            files = [folder]
        elif folder.is_dir():
            files = called(folder, *_OF_RUNS, "runs.tar.xz")
        else:
            what = f"{str(folder)!r} is a file" if folder.exists() else f"no folder at {str(folder)!r}"
            raise FileNotFoundError(f"{what}; give a folder of runs, or an archive of runs (.tar.xz)")
        for archive in [file.resolve() for file in files if file.suffix == ".xz"]:
            try:
                files += called(unpacked(archive), *_OF_RUNS)
            except RunDamaged:
                found[archive] = RunDir(archive)  # `experiment_of` says why; other runs are read
        for run in [RunDir(file.parent) for file in files if file.name in _OF_RUNS]:
            # Not a run: an experiment.toml without lock and records, records without timings, and a version 1 run
            # of `prune_and_retrain` with a custom budget, which had only settings.json.
            known = run.experiment.exists() or (run.timings_file.exists() and not run.settings.exists())
            if known and (run.lock_file.exists() or run.records_file.exists()):
                found[run.path.resolve()] = run
    return list(found.values())
