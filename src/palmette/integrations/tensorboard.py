"""The records of a run as TensorBoard events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palmette.errors import extra
from palmette.studies.folder import RunDir
from palmette.studies.record import Record


class Events:
    """The event file of one run, written anew from its records, so that a resumed run repeats no scalar.

    A scalar has the name of its column in `read_runs`; scalars of a layer are below ``layers/``.
    """

    def __init__(self, rundir: RunDir) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        for old in rundir.tensorboard.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer: Any = SummaryWriter(rundir.tensorboard)
        for record in rundir.records():
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the scalars of a round."""
        read = Record.from_json(record)
        scalars = {name: value for name, value in read.flat().items() if name != "round"}
        for layer, values in read.flat_layers().items():
            scalars |= {f"layers/{layer}/{name}": value for name, value in values.items()}
        for name, value in scalars.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, read.round)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def check_tensorboard() -> None:
    """Raise `ImportError` with the line that installs it, unless TensorBoard is here."""
    with extra("tensorboard", "--tensorboard needs the package"):
        import tensorboard  # noqa: F401
