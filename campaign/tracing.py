"""Trace of all that a process does to the files of a folder, and its death at a chosen point of it.

Replaces `open` and the functions of `os`. safetensors writes in Rust; its calls
(a file ``.tmp…``, ftruncate, write, rename) are repeated in Python. To be installed in a child that ends soon.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

import palmette.files


@dataclass(frozen=True)
class Event:
    """One change of a folder.

    Args:
        kind: "create", "write", "truncate", "sync", "sync all", "rename", "unlink", "mkdir" or "rmdir".
        path: relative to the folder.
        target: new name of what is renamed.
        offset: where `data` is written; the new size of what is truncated.
    """

    kind: str
    path: str
    target: str = ""
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True)
class Point:
    """Where to die: before the event `number`, or when half of what it writes is written.

    With SIGSTOP for a `signal`, the process stops there, until it gets SIGCONT.
    """

    number: int
    half: bool = False
    signal: int = signal.SIGKILL


def points(events: list[Event]) -> list[Point]:
    """All points of a trace at which a kill leaves something else behind."""
    found = []
    for number, event in enumerate(events):
        found.append(Point(number))
        if event.kind == "write" and len(event.data) > 1:
            found.append(Point(number, half=True))
    return found


class Tracer:
    """Events below `root`, in order; at the `point` the process kills itself."""

    def __init__(self, root: Path, point: Point | None = None) -> None:
        self.root, self.point = root.resolve(), point
        self.events: list[Event] = []

    def inside(self, path: Any, folder: int | None = None) -> str | None:
        """Path relative to the root; None if it lies elsewhere. `folder` is a descriptor it is relative to."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif folder is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fspath(path))
        path = os.path.abspath(os.fsdecode(path))
        base = str(self.root)
        return os.path.relpath(path, base) if path == base or path.startswith(base + os.sep) else None

    def note(self, event: Event, write: Callable[[bytes], object] | None = None) -> None:
        """Add an event that is about to happen, or die."""
        if self.point is not None and self.point.number == len(self.events):
            if self.point.half and write is not None:
                write(event.data[: len(event.data) // 2])
            os.kill(os.getpid(), self.point.signal)
        self.events.append(event)

    def install(self) -> None:
        """Replace what leads to the disk, until the process ends."""
        opened = self._opener()
        for module, name in ((builtins, "open"), (io, "open"), (tarfile, "bltn_open")):
            setattr(module, name, opened)
        for name in ("unlink", "remove", "rmdir", "mkdir"):
            kind = "unlink" if name == "remove" else name
            setattr(os, name, self._one_path(kind, getattr(os, name)))
        for wrapped, names in (
            (self._two_paths, ("rename", "replace")),
            (self._synced, ("fsync", "fdatasync")),
            (self._truncated, ("truncate", "ftruncate")),
            (self._low_opener, ("open",)),
            (self._all_synced, ("sync",)),
        ):
            for name in names:
                setattr(os, name, wrapped(getattr(os, name)))
        vars(shutil)["_USE_CP_SENDFILE"] = False  # copies by write
        vars(safetensors.torch)["save_file"] = vars(palmette.files)["save_file"] = _save_file

    def _opener(self) -> Callable[..., Any]:
        plain = builtins.open

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            path = None
            if set(mode) & set("wax+") and not isinstance(file, int) and opener is None:
                path = self.inside(file)
            if path is None:
                return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if "r" not in mode and not os.path.lexists(file):
                self.note(Event("create", path))
            elif "w" in mode:
                self.note(Event("truncate", path))
            raw = _File(self, path, os.fspath(file), mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            buffer: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

        return opened

    def _low_opener(self, plain: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if flags & os.O_CREAT and (place := self.inside(path, dir_fd)) and not os.path.lexists(path):
                self.note(Event("create", place))
            return plain(path, flags, mode, dir_fd=dir_fd)

        return opened

    def _one_path(self, kind: str, plain: Callable[..., None]) -> Callable[..., None]:
        def done(path: Any, *args: Any, dir_fd: int | None = None) -> None:
            place = self.inside(path, dir_fd)
            if place is not None:
                here = self.root / place
                there = os.path.lexists(here)
                if kind == "mkdir":
                    works = not there and here.parent.is_dir()
                else:
                    works = there and (kind != "rmdir" or not os.listdir(here))
                if works:
                    self.note(Event(kind, place))
            plain(path, *args, dir_fd=dir_fd)

        return done

    def _two_paths(self, plain: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any) -> None:
            before, after = self.inside(source), self.inside(target)
            if (before is None) != (after is None):
                raise NotImplementedError(f"{source} to {target}: a rename into or out of the folder")
            if before is not None and after is not None and os.path.lexists(source):
                self.note(Event("rename", before, after))
            plain(source, target)

        return renamed

    def _synced(self, plain: Callable[[Any], None]) -> Callable[[Any], None]:
        def synced(file: Any) -> None:
            if (path := self.inside(file if isinstance(file, int) else file.fileno())) is not None:
                self.note(Event("sync", path))
            plain(file)

        return synced

    def _all_synced(self, plain: Callable[[], None]) -> Callable[[], None]:
        def synced() -> None:
            self.note(Event("sync all", "."))  # on the disk nothing is at stake here: spare the machine

        return synced

    def _truncated(self, plain: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def truncated(file: Any, size: int) -> None:
            if (path := self.inside(file)) is not None:
                self.note(Event("truncate", path, offset=size))
            plain(file, size)

        return truncated


class _File(io.FileIO):
    def __init__(self, tracer: Tracer, path: str, name: Any, mode: str) -> None:
        super().__init__(name, mode)
        self._tracer, self._path, self._at_end = tracer, path, "a" in mode

    def write(self, data: Any) -> int:
        content = bytes(data)
        offset = os.fstat(self.fileno()).st_size if self._at_end else self.tell()
        self._tracer.note(Event("write", self._path, offset=offset, data=content), super().write)
        return super().write(content)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self._tracer.note(Event("truncate", self._path, offset=size))
        return super().truncate(size)


def _save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
    """As safetensors does it: by way of a file with a name of its own, without a sync."""
    content = safetensors.torch.save(tensors, metadata)
    hidden = Path(filename).with_name(f".tmp{os.getpid() % 10**6:06d}")
    with open(hidden, "xb", buffering=0) as file:
        file.truncate(len(content))
        file.write(content)
    hidden.chmod(0o600)
    os.replace(hidden, filename)
