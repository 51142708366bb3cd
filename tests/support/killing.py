"""A child process that is killed from outside, as by a power cut, while it does what a test asks."""

import os
import signal

import torch


def killed_in(function):
    """Whether a child that runs `function`, which sends SIGKILL to itself when it is time, was killed by it."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(100)  # a test that hangs says so
            torch.set_num_threads(1)  # the threads of the parent are not there any more
            function()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die():
    os.kill(os.getpid(), signal.SIGKILL)
