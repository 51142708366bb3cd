"""The command line, called as from a shell."""

from click.testing import CliRunner, Result

from palmette.cli import main


def palmette(*args: object, code: int = 0) -> Result:
    """What it printed; it must end with `code`."""
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, result.stderr
    return result
