"""Folder lock: one owner process at a time, released when the process ends, even if killed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from palmette.errors import RunBusy
from palmette.files import replaced, sync

_READABLE = os.name != "nt"  # Windows does not let other processes read a locked file


class FolderLock:
    """A lock on the file `path` that names its owner, such as "process 7 on host".

    The file is emptied when the owner ends, and never removed: another process may have opened it, and would
    then lock a file that no other process finds. On Windows the name is in a file `path`.owner next to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._named = path if _READABLE else path.with_name(f"{path.name}.owner")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; raise `RunBusy` if another process, or other code in this one, holds it."""
        with ExitStack() as files:
            lock = name = files.enter_context(self.path.open("a", encoding="utf-8"))
            if not _locked(lock.fileno()):
                raise RunBusy(
                    f"the run folder {str(self.path.parent)!r} is in use by {self._name() or 'another process'}. "
                    "Wait until it ends, or stop it, and repeat the command; or choose another folder."
                )
            if not _READABLE:
                name = files.enter_context(self._named.open("a", encoding="utf-8"))
            name.truncate(0)
            name.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            name.flush()
            try:
                yield
            finally:
                with suppress(OSError):  # which would hide the error that ended the run
                    name.truncate(0)  # by its handle: `take_from` may have put another file at its path

    def owner(self) -> str | None:
        """Name of the process that holds the lock; None if it is free."""
        name = self._name()  # a killed owner leaves its name behind, so check the lock too
        writable = os.access(self.path, os.W_OK)  # a network file system locks writable handles only
        with suppress(OSError), self.path.open("rb+" if writable else "rb") as lock:
            if name and not _locked(lock.fileno()):
                return name
        return None

    def take_from(self, hosts: Collection[str]) -> bool:
        """Free the lock if its owner is on one of the lost `hosts`; return whether that was needed.

        A network file system may keep the lock of a lost machine: it stays on the old file, and `path` becomes a
        new file.
        """
        owner = self.owner()
        if owner is None or owner.rpartition(" on ")[2] not in hosts:
            return False
        for path in {self.path, self._named}:
            with replaced(path) as empty:
                empty.touch()
        sync(self.path.parent)
        return True

    def _name(self) -> str:
        with suppress(OSError):
            return self._named.read_text(encoding="utf-8").strip()
        return ""


def _locked(handle: int) -> bool:
    from filelock import lock_descriptor

    for pause in (0.05, 0):  # twice: `owner` holds the lock for an instant
        if lock_descriptor(handle, blocking=False):
            return True
        time.sleep(pause)
    return False


def allow_open_files(count: int | None = None) -> None:
    """Raise the limit of open files to `count`, or as far as permitted: every held lock keeps a file open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is None or count > hard != resource.RLIM_INFINITY:
        count = hard
    if soft != resource.RLIM_INFINITY and (count == resource.RLIM_INFINITY or soft < count):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
