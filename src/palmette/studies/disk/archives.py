"""Archives of runs: files named ``runs.tar.xz``, unpacked where a program reads them."""

from __future__ import annotations

import atexit
import functools
import io
import lzma
import os
import tarfile
import tempfile
from pathlib import Path

from palmette.errors import RunDamaged, reason_of

_ROOM, _TIMES = 1 << 20, 100
"""Bytes that an archive may unpack to, and how many more for each of its own; records shrink to a tenth or so."""
_FILE = 1 << 12  # bytes that a file counts at least: a block of the disk


def called(folder: Path, *names: str) -> list[Path]:
    """Files of these names in `folder`, at any depth, in order."""
    # Not `rglob`, which fails if a finishing run removes a folder meanwhile.
    return sorted(Path(place, name) for place, _, there in os.walk(folder) for name in names if name in there)


def unpacked(archive: Path) -> Path:
    """Folder of an unpacked archive, unpacked anew when it has changed."""
    return _unpacked(archive, archive.stat().st_mtime_ns)


@functools.cache
def _unpacked(archive: Path, changed: int) -> Path:
    place = tempfile.TemporaryDirectory(prefix="palmette-")
    atexit.register(place.cleanup)
    try:
        most = _ROOM + _TIMES * archive.stat().st_size
        with lzma.open(archive) as packed:
            content = packed.read(most)  # tarfile would read headers of any length
        large = tarfile.TarError(f"it would unpack to over {most:,} bytes")
        if len(content) == most:
            raise large
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as file:
            if sum(max(_FILE, member.size) for member in file) > most:
                raise large
            file.extractall(place.name, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OSError, RecursionError) as error:
        why = reason_of(error)
        raise RunDamaged(f"{str(archive)!r} is not an archive of runs, or is incomplete: {why}") from error
    return Path(place.name)
