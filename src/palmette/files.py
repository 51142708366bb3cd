"""Files written atomically: each is complete or absent, and a failed write leaves the old file in place."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from palmette.errors import NotWritten, reason_of

if TYPE_CHECKING:
    from torch import Tensor

_NO_ENTRY = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)  # errors that free space does not cure


def write_whole(target: Path, content: bytes | memoryview) -> Path:
    """Write `content` to `target`, creating its folder if needed; return `target`."""
    with explained(target, len(content), target.parent, "folder"):
        make_folder(target.parent)
        with replaced(target) as partial:
            partial.write_bytes(content)
        sync(target.parent)
    return target


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, so that a power cut does not undo them."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    sync(*(folder.parent for folder in missing))


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file into an existing folder."""
    from safetensors.torch import save_file  # imports torch, which commands that only read do without

    def write(partial: Path) -> None:
        # save_file first writes a hidden file with a random name, which a killed process would leave for ever.
        folder = Path(f"{partial}.folder")
        folder.mkdir()
        try:
            save_file(tensors, folder / "content", metadata)
            (folder / "content").replace(partial)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    write_beside(path, write)


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file into an existing folder: `write` receives the name of a file that then replaces `path`."""
    if not path.name or os.path.isdir(path):
        raise NotWritten(f"cannot write {str(path)!r}: it is a folder, not a file name")
    if not os.path.isdir(path.parent):
        raise NotWritten(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    try:
        with replaced(path) as partial:
            partial.touch()
            mode = partial.stat().st_mode
            write(partial)
            partial.chmod(mode)  # save_file creates files that only their owner may read
    except (OSError, SafetensorError) as error:
        raise NotWritten(f"cannot write {str(path)!r}: {reason_of(error)}") from error


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Name of a file next to `target` to write to; on success, it is synced and replaces `target`."""
    # Process and machine keep processes apart that write the same file, which may lie on a shared disk.
    partial = target.with_name(f"{target.name}.{os.getpid()}-{_machine()}.partial")
    _remove_leftovers(target)
    try:
        yield partial
        sync(partial)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files of `target` that killed processes of this machine have left."""
    for file in target.parent.glob(f"{glob.escape(target.name)}.*-{_machine()}.partial*"):
        process = file.name.removeprefix(f"{target.name}.").partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


def _machine() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def sync(*paths: Path) -> None:
    """Wait until the content of files, and the names in folders, have reached the disk."""
    for path in paths:
        folder = path.is_dir()
        if folder and os.name == "nt":  # Windows cannot open a folder, and needs no sync for names
            continue
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows flushes writable handles only
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def explained(target: Path, size: int, folder: Path, kind: str) -> Iterator[None]:
    """Raise `NotWritten` in place of an OSError: the cause, and a way out; `kind` is a word for `folder`."""
    try:
        yield
    except OSError as error:
        if folder.exists() and not folder.is_dir():
            raise NotWritten(
                f"{str(folder)!r} is a file where a {kind} is needed; choose another place"
            ) from error
        cause = error.__cause__ or error
        if getattr(cause, "errno", None) in _NO_ENTRY:
            raise NotWritten(
                f"cannot write into the {kind} {str(folder)!r}: {reason_of(cause)}. Choose another folder, or "
                "make it writable."
            ) from error
        free = "unknown"
        with suppress(OSError):
            free = f"{shutil.disk_usage(folder).free:,} bytes"
        raise NotWritten(
            f"cannot write {os.path.relpath(target, folder)!r} ({size:,} bytes) into the {kind} "
            f"{str(folder)!r}: {reason_of(cause)}; {free} free. Files written before are "
            "complete: free some space and repeat the command."
        ) from error
