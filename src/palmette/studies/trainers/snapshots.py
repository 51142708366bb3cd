"""Trained networks of a run that a later round, or the caller, may need again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palmette.errors import RunDamaged
from palmette.pruning.masks import Masks
from palmette.studies.folder import RunDir

KEYS = ("round", "score", "state_dict", "buffers", "pruner")
"""Contents of a snapshot."""


class Snapshots:
    """Snapshots and masks by round: in the folder of the run, or in memory without one."""

    def __init__(self, rundir: RunDir | None) -> None:
        self._rundir = rundir
        self._networks: dict[int, Mapping[str, Any]] = {}
        self._masks: dict[int, Masks] = {}
        self.masks_digest: str | None = None  # of the masks that were last written to disk

    def keep(self, snapshot: Mapping[str, Any]) -> None:
        """Keep the trained network of a round."""
        if self._rundir is None:
            self._networks[snapshot["round"]] = snapshot
        else:
            self._rundir.write_sealed(self._rundir.network(snapshot["round"]), dict(snapshot))

    def network(self, round: int) -> Mapping[str, Any]:
        """Trained network of a round."""
        return self._networks[round] if self._rundir is None else _read(self._rundir, round)

    def keep_masks(self, round: int, masks: Masks) -> None:
        """Keep the masks of a round, one bit per weight on disk."""
        if self._rundir is None:
            self._masks[round] = masks
        else:
            self._rundir.save_masks(round, masks)
            self.masks_digest = masks.digest

    def masks(self, round: int) -> Masks:
        """Masks of a round."""
        return self._masks[round] if self._rundir is None else self._rundir.load_masks(round)

    def answer(self, snapshot: Mapping[str, Any]) -> None:
        """Keep the network that the run returns, and only this one in memory."""
        if self._rundir is None:
            self._networks, self._masks = {snapshot["round"]: snapshot}, {}
        else:
            self._rundir.write_sealed(self._rundir.good, dict(snapshot))

    def returned(self) -> Mapping[str, Any]:
        """The last `answer`."""
        return next(iter(self._networks.values())) if self._rundir is None else read_good(self._rundir)


def _read(rundir: RunDir, round: int) -> Mapping[str, Any]:
    file = rundir.network(round)
    found = rundir.read_sealed(file)
    if found is None:
        raise RunDamaged(
            f"the network of round {round}, {str(file)!r}, is missing or damaged; remove {str(rundir.path)!r} to "
            "start again"
        )
    return {key: found[key] for key in KEYS}


def read_good(rundir: RunDir) -> dict[str, Any]:
    """Network that a finished run returned, on the CPU; its weights are under "state_dict".

    Where its file is missing or damaged, that of its round is read, which a search keeps for more rounds.
    """
    found = rundir.read_sealed(rundir.good)
    if found is None and (round := _round_of_answer(rundir)) is not None:
        found = rundir.read_sealed(rundir.network(round))
    if found is None:
        raise RunDamaged(
            f"the model that the run returned, {str(rundir.good)!r}, is missing or damaged; remove "
            f"{str(rundir.path)!r} to start again"
        )
    return {key: found[key] for key in KEYS}


def _round_of_answer(rundir: RunDir) -> int | None:
    """Round of the network that a finished search returned."""
    records = rundir.records(resuming=True)
    found = records[-1].get("search") if records and records[-1]["stopped"] is not None else None
    return None if found is None else int(found["answer"])


def good_damage(rundir: RunDir) -> str | None:
    """Damage of the file of the answer; None if it is sound or unsealed, or was left out of a copy."""
    damaged = rundir.sealed and rundir.good.is_file() and rundir.read_sealed(rundir.good) is None
    return f"the model that the run returned, {str(rundir.good)!r}, is damaged" if damaged else None


def mend_good(rundir: RunDir) -> None:
    """Write the file of the answer anew from that of its round, if it is missing or damaged."""
    if rundir.read_sealed(rundir.good) is None:
        rundir.write_sealed(rundir.good, read_good(rundir))
