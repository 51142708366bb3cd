"""A piece of work in a forked process, so that it can be killed, leak or hang without harm to the campaign."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import palmette.errors as errors

REFUSALS = (errors.PalmetteError, ValueError, TypeError, OSError, ImportError)
"""Errors that the command line prints as one sentence; any other is a fault of palmette."""


@dataclass(frozen=True)
class Ended:
    """End of a child.

    Args:
        how: "done", "refused" (an error for people), "raised" (any other error), "killed" or "hung".
        value: what the work returned.
        why: the error.
    """

    how: str
    value: Any = None
    why: str = ""

    def __str__(self) -> str:
        return self.how + (f" ({self.why})" if self.why else "")


class Refused(Exception):
    """Raised by work that saw palmette refuse it in one sentence."""


class Child:
    """A child that runs `work`; what it prints is dropped."""

    def __init__(self, work: Callable[[], Any], *, seconds: int = 120) -> None:
        reading, writing = os.pipe()
        self._seconds = seconds
        if (child := os.fork()) == 0:
            os.close(reading)
            _work(work, writing, seconds)
        os.close(writing)
        self._pipe, self.id = os.fdopen(reading, "rb"), child

    def stopped(self) -> bool:
        """Wait until it stops itself, or ends; return whether it stopped."""
        state = os.waitid(os.P_PID, self.id, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return state is not None and state.si_code == os.CLD_STOPPED

    def resume(self) -> None:
        """Let it continue."""
        os.kill(self.id, signal.SIGCONT)

    def wait(self) -> Ended:
        """Wait for its end."""
        with self._pipe as pipe:
            content = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])
        if code == -signal.SIGALRM:
            return Ended("hung", why=f"over {self._seconds} s")
        if code:
            return Ended("killed", why=f"signal {-code}" if code < 0 else f"exit code {code}")
        found: Ended = pickle.loads(content)
        return found


def forked(work: Callable[[], Any], *, seconds: int = 120) -> Ended:
    """Run `work` in a child of this process and return how it ended."""
    return Child(work, seconds=seconds).wait()


def _work(work: Callable[[], Any], writing: int, seconds: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        torch.set_num_threads(1)  # threads of the parent do not exist here
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        warnings.simplefilter("ignore")
        try:
            ended = Ended("done", work())
        except Refused as error:
            ended = Ended("refused", why=str(error))
        except REFUSALS as error:
            ended = Ended("refused", why=f"{type(error).__name__}: {error}")
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            ended = Ended("raised", why=f"{type(error).__name__}: {error} at {place}")
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(ended, pipe)
        code = 0
    finally:
        os._exit(code)
