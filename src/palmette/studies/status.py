"""State of a run, read from its folder, also while another process trains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from palmette.errors import RunDamaged
from palmette.studies.folder import RunDir
from palmette.studies.record import AnyExperiment, experiment_of, records_of


@dataclass(frozen=True)
class Standing:
    """State of a run.

    Args:
        experiment: an `Experiment` or an `OwnExperiment`.
        rounds: finished rounds, round 0 included.
        epoch: saved epochs of the current round.
        stopped: why it ended; None if it has not.
        owner: process that trains it now, or None.
        failure: reason of the last failure, or None.
        damage: what is wrong with its folder, or None.
        last: round, test scores, density and index of the last record, or None.
        sealed: whether damage of its numbers would be noticed; not in folders of earlier versions.
    """

    experiment: Any
    rounds: int = 0
    epoch: int = 0
    stopped: str | None = None
    owner: str | None = None
    failure: str | None = None
    damage: str | None = None
    last: Mapping[str, Any] | None = None
    sealed: bool = True

    @property
    def state(self) -> str:
        """One word: damaged, finished, running, failed, interrupted or new."""
        if self.damage is not None:
            return "damaged"
        if self.stopped is not None:
            return "finished"
        if self.owner is not None:
            return "running"
        if self.failure is not None:
            return "failed"
        return "interrupted" if self.rounds or self.epoch else "new"

    @property
    def epochs_done(self) -> int:
        """Model-epochs that are done."""
        under_way = max(0, self.epoch - epochs_of(self.experiment, self.rounds).start)
        return epochs_before(self.experiment, self.rounds) + under_way

    @property
    def epochs_left(self) -> int:
        """Model-epochs left, if no rule ends the run early."""
        whole = epochs_before(self.experiment, self.experiment.rounds + 1)
        return 0 if self.stopped is not None else whole - self.epochs_done

    @property
    def rounds_left(self) -> int:
        """Rounds left, if no rule ends the run early."""
        return 0 if self.stopped is not None else max(0, self.experiment.rounds + 1 - self.rounds)


def standing(
    rundir: RunDir,
    experiment: AnyExperiment | None = None,
    records: Sequence[Mapping[str, Any]] | None = None,
) -> Standing:
    """State of the run in a folder; raises `RunDamaged` if damaged, or if it is not a run of `experiment`.

    Damage of a mask file is returned, since it changes no number. `records` are those of `records_of`, if read.
    """
    if experiment is None or rundir.experiment.exists():
        experiment = experiment_of(rundir, experiment)
    records = records_of(rundir) if records is None else records
    number = max(rundir.checkpoint_numbers(), default=None)
    round, epoch = (0, 0) if number is None else place(experiment.epochs, number)
    if round != len(records):  # recorded, but the state of the next round is not saved yet
        epoch = 0
    stopped, owner, failure = records[-1]["stopped"] if records else None, rundir.owner(), None
    if stopped is None and owner is None:
        with suppress(OSError):  # absent unless the last attempt failed
            failure = rundir.failure.read_text(encoding="utf-8", errors="replace").strip()
    last = _first_looked_at(records[-1]) if records else None
    damage = rundir.mask_damage(records)
    return Standing(experiment, len(records), epoch, stopped, owner, failure, damage, last, rundir.sealed)


def _first_looked_at(record: Mapping[str, Any]) -> dict[str, Any]:
    """Record without layers and maps, which would take much memory for many runs."""
    retrained = {name: record["retrained"][name] for name in ("density", "pq_index")}
    return {"round": record["round"], "test": record["test"], "retrained": retrained}


def standing_or_damage(rundir: RunDir, experiment: AnyExperiment) -> Standing:
    """State of the run of `experiment` in a folder; a damaged run counts as new, with its damage."""
    try:
        return standing(rundir, experiment)
    except RunDamaged as error:
        return Standing(experiment, damage=str(error))


def all_done(rounds: int) -> str:
    """Reason to stop after the last round.

    >>> all_done(1), all_done(30)
    ('1 round is done', '30 rounds are done')
    """
    return "1 round is done" if rounds == 1 else f"{rounds} rounds are done"


def epochs_of(experiment: AnyExperiment, round: int) -> range:
    """Epochs that a round trains."""
    return experiment.rewinding.epochs(experiment.epochs) if round else range(experiment.epochs)


def epochs_before(experiment: AnyExperiment, rounds: int) -> int:
    """Total number of epochs of the first `rounds` rounds.

    >>> from palmette import Experiment
    >>> epochs_before(Experiment(epochs=15, rewind="epoch:5"), 3)
    35
    """
    return experiment.epochs + (rounds - 1) * len(epochs_of(experiment, 1)) if rounds else 0


def number_of(epochs: int, round: int, epoch: int) -> int:
    """Number of the checkpoint after `epoch` of the `epochs` epochs of a round.

    >>> number_of(15, 2, 7), place(15, 39)
    (39, (2, 7))
    """
    return round * (epochs + 1) + epoch


def place(epochs: int, number: int) -> tuple[int, int]:
    """Round and epoch of a checkpoint; inverse of `number_of`."""
    return divmod(number, epochs + 1)
