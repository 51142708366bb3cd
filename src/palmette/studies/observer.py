"""Observers of runs: what is called while they train. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from palmette.training.loop import Score

Outcomes: TypeAlias = dict[Path, str | Exception]
"""Outcome of each run by folder: why it ended, or the error."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run after an epoch; `train` is the score of that epoch."""

    round: int
    epoch: int
    epochs: int
    train: Score
    density: float


class Observer:
    """No-op base class for run observers; override what you need."""

    def epoch(self, experiment: Any, progress: Progress) -> None:
        """Called after each epoch."""

    def recorded(self, experiment: Any, record: Mapping[str, Any]) -> None:
        """Called after each round, when its record is on disk."""

    def ended(self, experiment: Any, outcome: str | Exception) -> None:
        """Called when a run ends or fails; `outcome` is the reason."""

    def interrupts(self) -> bool:
        """Whether to save all states and raise `RunInterrupted`; called after each epoch."""
        return False

    def say(self, text: str) -> None:
        """Called with a message for the user about a repaired problem."""
