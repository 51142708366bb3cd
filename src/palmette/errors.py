"""What palmette raises when what it was given cannot be used: said for people, with nothing changed."""


class PalmetteError(Exception):
    """Base of all errors of this package that are not plain misuse of an argument."""


class NothingToPrune(PalmetteError, ValueError):
    """A model, or a choice of its parameters, without a prunable weight."""


class NotFinite(PalmetteError, ValueError):
    """A weight is NaN or infinite, so that nothing can be said about its size."""


class NotReadable(PalmetteError, ValueError):
    """A file of weights that is damaged, not whole, or of another format than its name says."""


class MaskMismatch(PalmetteError, ValueError):
    """Masks that belong to another model: names or shapes differ."""


class ParameterGone(PalmetteError, RuntimeError):
    """A parameter whose mask is held is no longer part of the model or of the optimizer."""


class RunBusy(PalmetteError, RuntimeError):
    """Another process owns the run folder."""


class RunDamaged(PalmetteError, ValueError):
    """Files of a run that are not what was written, or that contradict what is to be written."""


class RunInterrupted(PalmetteError):
    """A run that was asked to end did so at a clean point; starting it again goes on from there."""


class RunFailed(PalmetteError, RuntimeError):
    """A run that failed time and again on a cluster, and was set aside; starting again tries it anew."""


class ProcessLost(PalmetteError, RuntimeError):
    """A process that trains along has ended; starting again goes on from the last saved state."""


class NotWritten(PalmetteError, OSError):
    """A file could not be written, such as on a full disk; what was there before is still there."""


class PackedDamaged(PalmetteError, ValueError):
    """A file that `pm.load` cannot read: it is not whole, or something else wrote it."""


def first_line(error: Exception) -> str:
    """What an error says, without the paragraphs that libraries add; its kind where it says nothing.

    >>> first_line(RuntimeError("shapes differ\\nSee the manual")), first_line(KeyError())
    ('shapes differ', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def in_words(error: Exception) -> str:
    """In a line; what is not said for people, such as a KeyError, by its kind too.

    >>> in_words(KeyError("gate")), in_words(MemoryError()), in_words(RunDamaged("a line is damaged"))
    ("KeyError: 'gate'", 'MemoryError', 'a line is damaged')
    """
    text, kind = first_line(error), type(error).__name__
    return text if isinstance(error, PalmetteError) or text == kind else f"{kind}: {text}"


def in_full(error: Exception) -> str:
    """All that an error in code of others says, in a line: what helps may stand below the first one.

    >>> in_full(RuntimeError("cannot load:\\n  no key 'gate'")), in_full(KeyError())
    ("RuntimeError: cannot load: no key 'gate'", 'KeyError')
    """
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def place_of(error: Exception) -> str:
    """Where in the code of a model it was raised: the last line of a file that is not PyTorch's own."""
    import traceback
    from pathlib import Path

    import torch

    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if frame.line and not Path(frame.filename).is_relative_to(Path(torch.__file__).parent)
    ]
    return f" at {Path(own[-1].filename).name}, line {own[-1].lineno}, {own[-1].line!r}" if own else ""
