"""Errors written for people: argument, rule, value received, way out. What they refuse is left unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class PalmetteError(Exception):
    """Base of all errors of this package, except plain misuse of an argument."""


class NothingToPrune(PalmetteError, ValueError):
    """A model, or a selection of its parameters, has no prunable weight."""


class NotFinite(PalmetteError, ValueError):
    """A weight is NaN or infinite, so it has no magnitude."""


class NotReadable(PalmetteError, ValueError):
    """A file of weights is damaged, incomplete, or of another format than its name says."""


class MaskMismatch(PalmetteError, ValueError):
    """Masks belong to another model: names or shapes differ."""


class ParameterGone(PalmetteError, RuntimeError):
    """A parameter whose mask is held is no longer part of the model or of the optimizer."""


class NotHeld(PalmetteError, RuntimeError):
    """Pruned weights are no longer zero: something that is not held has changed them."""


class RunBusy(PalmetteError, RuntimeError):
    """Another process owns the run folder."""


class RunDamaged(PalmetteError, ValueError):
    """Files of a run are not what was written, or contradict what is to be written."""


class RunInterrupted(PalmetteError):
    """A run was interrupted and stopped at a clean point; starting it again resumes there."""


class RunFailed(PalmetteError, RuntimeError):
    """A run failed repeatedly on a cluster and was set aside; starting again retries it."""


class ProcessLost(PalmetteError, RuntimeError):
    """Another process of the same training has ended; starting again resumes from the last checkpoint."""


class NotWritten(PalmetteError, OSError):
    """A file could not be written, as on a full disk; the previous file is still there."""


class PackedDamaged(PalmetteError, ValueError):
    """`pm.load` cannot read a file: it is incomplete, or another program wrote it."""


@contextmanager
def extra(name: str, who: str) -> Iterator[None]:
    """Name the extra of palmette to install where an import inside fails; `who` says what needs it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{who}: pip install 'palmette[{name}]'") from error


def first_line(error: Exception) -> str:
    """First line of a message, without the paragraphs that libraries add; the type of an error without one.

    >>> first_line(RuntimeError("shapes differ\\nSee the manual")), first_line(KeyError())
    ('shapes differ', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def in_words(error: Exception) -> str:
    """Describe an error in one line; with its type unless the message is written for people.

    >>> in_words(KeyError("gate")), in_words(MemoryError()), in_words(RunDamaged("a line is damaged"))
    ("KeyError: 'gate'", 'MemoryError', 'a line is damaged')
    """
    text, kind = first_line(error), type(error).__name__
    return text if isinstance(error, PalmetteError) or text == kind else f"{kind}: {text}"


def in_full(error: Exception) -> str:
    """Describe an error of foreign code in one line: its type and all lines of its message.

    >>> in_full(RuntimeError("cannot load:\\n  no key 'gate'")), in_full(KeyError())
    ("RuntimeError: cannot load: no key 'gate'", 'KeyError')
    """
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def place_of(error: Exception) -> str:
    """Place in the model's code that raised an error: the last line in a file that is not PyTorch's."""
    import traceback
    from pathlib import Path

    import torch

    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if frame.line and not Path(frame.filename).is_relative_to(Path(torch.__file__).parent)
    ]
    return f" at {Path(own[-1].filename).name}, line {own[-1].lineno}, {own[-1].line!r}" if own else ""


def reason_of(error: BaseException) -> str:
    """Describe an error of a library as part of a sentence.

    >>> reason_of(KeyError("gate")), reason_of(OSError(28, "No space left on device"))
    ("there is no 'gate'", 'No space left on device')
    """
    if isinstance(error, KeyError):
        return f"there is no {error}"
    line = str(getattr(error, "strerror", None) or error).split("\n")[0].rstrip(".")
    return re.sub(r"^.*I/O error: (.*?) \(os error.*$", r"\1", line)
