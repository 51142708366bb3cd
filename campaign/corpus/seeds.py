"""A valid file, the part of it to damage, and the reader that must not fall for it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

Wrap = Callable[[bytes], bytes]
"""What makes a file of a damaged part of it, such as a zip archive of a pickle, with its checksums."""


@dataclass(frozen=True)
class Seed:
    """A valid file: the part to damage, and what makes the file of it."""

    part: bytes
    wrap: Wrap = bytes


@dataclass(frozen=True)
class Target:
    """A reader.

    Args:
        file: name of the damaged file; `beside` has those next to it.
        read: reads the file at a path.
        seeds: valid files.
    """

    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[Seed]]
    beside: Callable[[Path], None] = lambda folder: None


def written(write: Callable[[Path], object], suffix: str = "") -> bytes:
    with TemporaryDirectory() as folder:
        write(file := Path(folder, f"a{suffix}"))
        return file.read_bytes()


def header_of(whole: bytes) -> Seed:
    """A safetensors file of which the JSON is damaged and the length before it is right."""
    length = int.from_bytes(whole[:8], "little")
    return Seed(whole[8 : 8 + length], lambda text: len(text).to_bytes(8, "little") + text + whole[8 + length :])


def member_of(archive: bytes, ending: str, packing: int = zipfile.ZIP_STORED) -> Seed:
    """A zip archive of which one member is damaged."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    name = next(name for name in contents if name.endswith(ending))

    def wrap(part: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as made:
            for other, content in contents.items():
                made.writestr(other, part if other == name else content)
        return buffer.getvalue()

    return Seed(contents[name], wrap)
