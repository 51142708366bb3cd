"""Errors of file readers, turned into one sentence that names the file and the cause."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palmette.errors import NotFinite, NotReadable, PalmetteError

_LFS_POINTER = b"version https://git-lfs.github.com/"
_TRUNCATED = (
    "incomplete metadata",
    "header length",
    "header too small",
    "not a zip file",
    "reading array header",
    "exhausted before seeing",  # this and the next two: pickles
    "but only",
    "not enough data",
    "Invalid argument",  # an offset beyond the end of the file
)
_OTHER_FORMAT = ("header too large", "JSON in header", "magic string", "Cannot parse header", "magic invalid")


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Raise `NotReadable`, with the name of the file and the cause, for anything a reader raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the errors below say what matters
            yield
    except NotFinite as error:
        raise NotFinite(f"{str(path)!r} has {error}") from error
    except PalmetteError:
        raise
    except ImportError as error:  # an extra is not installed
        raise ImportError(f"{str(path)!r} could not be read: {error}") from error
    except Exception as error:  # a damaged file can break its reader anywhere
        raise NotReadable(f"{str(path)!r} could not be read: {_cause(error, Path(path).suffix)}") from error


def check_downloaded(file: Path) -> None:
    """Refuse a Git LFS pointer: without Git LFS, a cloned repository has lines of text in place of weights."""
    with file.open("rb") as handle:
        if handle.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise NotReadable(f"{str(file)!r} is a Git LFS pointer, not the file; `git lfs pull` fetches it")


def _cause(error: Exception, suffix: str) -> str:
    from safetensors import SafetensorError

    if any(words in str(error) for words in _TRUNCATED):
        return "it is damaged or truncated"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Libraries add paragraphs to their messages; those of KeyError and struct.error are no help to users.
    first = re.split(r"\n|(?<=\S)\. ", str(error).strip())[0].rstrip(".")
    helpful = isinstance(error, ValueError | TypeError | RuntimeError | MemoryError | SafetensorError)
    if first and helpful and not any(words in first for words in _OTHER_FORMAT):
        return first
    return f"its contents are not weights in the {suffix} format"
