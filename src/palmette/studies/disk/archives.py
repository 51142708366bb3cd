"""Archives of runs: files named ``runs.tar.xz``, unpacked where a program reads them."""

from __future__ import annotations

import atexit
import functools
import lzma
import os
import tarfile
import tempfile
from pathlib import Path

from palmette.errors import RunDamaged

_LARGEST = 2000  # times the size of an archive; records shrink to a tenth or so


def called(folder: Path, *names: str) -> list[Path]:
    """Files of these names in `folder`, at any depth, in order."""
    # Not `rglob`, which fails if a finishing run removes a folder meanwhile.
    return sorted(Path(place, name) for place, _, there in os.walk(folder) for name in names if name in there)


@functools.cache
def unpacked(archive: Path, changed: int) -> Path:
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
