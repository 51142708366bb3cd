"""The command line, called as from a shell, or in a terminal."""

import os
import pty
import re
import subprocess
import sys

from click.testing import CliRunner, Result

from palmette.cli import main


def palmette(*args: object, code: int = 0) -> Result:
    """What it printed; it must end with `code`."""
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, result.stderr
    return result


def on_terminal(*args: object, code: int = 0, width: int = 120, height: int = 20) -> list[str]:
    """Lines that a terminal shows, without colours; a live table leaves none."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "palmette", *map(str, args)]
    size = {"COLUMNS": str(width), "LINES": str(height), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=os.environ | size) as process:
        os.close(follower)
        screen = b""
        try:
            while part := os.read(leader, 4096):
                screen += part
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) == code, screen.decode()
    os.close(leader)
    erased = screen.decode().replace("\r\n", "\n").rpartition("\x1b[1A\x1b[2K")[2]
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", erased).replace("\r", "").split("\n")]
