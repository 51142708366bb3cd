"""Runs in step: all in the same epoch of the same round, trained and measured together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.errors import NotFinite, RunDamaged, RunInterrupted
from palmette.pruning.masks import Masks
from palmette.pruning.weights import Weight
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.record import index_maps, measured
from palmette.studies.run_state import RunState, plain
from palmette.training.data import Images
from palmette.training.data.augment import Preparation
from palmette.training.data_parallel import Team
from palmette.training.fleet import Fleet
from palmette.training.loop import Score
from palmette.training.models import MODELS

SECONDS_BETWEEN_SAVES = 30.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an epoch; `train` is the score of that epoch."""

    round: int
    epoch: int
    epochs: int
    train: Score
    density: float


class Observer:
    """Whoever looks on while runs are under way; does nothing, and is made to be inherited from."""

    def epoch(self, experiment: Experiment, progress: Progress) -> None:
        """An epoch is trained."""

    def recorded(self, experiment: Experiment, record: Mapping[str, Any]) -> None:
        """A round is over, and its record is on disk."""

    def ended(self, experiment: Experiment, outcome: str | Exception) -> None:
        """The run is over, and why; or it could not go on, and why."""

    def interrupts(self) -> bool:
        """Asked after each epoch; when it says so, all states are saved and `RunInterrupted` is raised."""
        return False

    def say(self, text: str) -> None:
        """Something was amiss, and was put right."""


class InStep:
    """Runs in step: epoch by epoch, round by round.

    Args:
        images: the data set, where the networks are to be.
        held_out: images and labels for validation, if there are any.
        data: a hash of the data set.
        save_every, save_seconds, company, team: as for `run_together`.
        watch: is told what happens.
        end: is told which run is over, and why.
    """

    def __init__(
        self,
        images: Images,
        held_out: Sequence[Tensor] | None,
        data: str,
        *,
        save_every: int | None,
        save_seconds: float,
        company: bool,
        watch: Observer,
        end: Callable[[Experiment, RunDir, str | Exception], None],
        team: Team | None,
    ) -> None:
        self.images, self.held_out, self.data = images, held_out, data
        self.prepare = Preparation(images, device=images.train_images.device)
        self.save_every, self.save_seconds, self.company = save_every, save_seconds, company
        self.watch, self._end, self.team = watch, end, team
        self.saved, self.told, self.over = time.monotonic(), set[str](), set[Path]()
        self.stack, self.checked = True, False

    def end(self, experiment: Experiment, rundir: RunDir, outcome: str | Exception) -> None:
        """A run is over."""
        self.over.add(rundir.path)
        self._end(experiment, rundir, outcome)

    def run(self, pending: Sequence[tuple[Experiment, RunDir]]) -> None:
        """From the newest states that all have, or from the beginning, to the end."""
        for part in self._in_step(pending):
            together = [(experiment, rundir) for experiment, rundir, _ in part]
            with suppress(torch.OutOfMemoryError):  # which would hold on to the networks where it is caught
                self._go_on(self._begun(part))
                continue
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            left = [one for one in together if one[1].path not in self.over]
            if len(together) == 1:
                why = "even one network does not fit into the memory of the device; a smaller batch may"
                self._fail(*left[0], MemoryError(why))
                continue
            half = -(-len(left) // 2)
            said = f"{len(together)} networks do not fit into the memory of the device; {half} at once then"
            self.watch.say(said)
            self.run(left[:half])
            self.run(left[half:])

    def _in_step(
        self, pending: Sequence[tuple[Experiment, RunDir]]
    ) -> list[list[tuple[Experiment, RunDir, Mapping[str, Any] | None]]]:
        """The runs that go on from checkpoints of the same number, each with its state; None is the beginning.

        All runs of a fleet are saved at the same moments, and keep two states each. So where some were saved once
        more than others before a process ended, or one is damaged, the older state is the one that all have. Those
        that were saved in other company go on from where they are.
        """
        newest: dict[str, tuple[int, Any]] = {}
        for experiment, rundir in pending:
            try:
                newest[experiment.id] = rundir.load_checkpoint() or (0, None)
            except RunDamaged as error:
                self._fail(experiment, rundir, error)
        parts: dict[int, list[tuple[Experiment, RunDir, Mapping[str, Any] | None]]] = {}
        for experiment, rundir in pending:
            if experiment.id not in newest:
                continue
            number, state = newest[experiment.id]
            company = state["company"] if state is not None else []
            least = min([newest[other][0] for other in company if other in newest], default=number)
            if least < number and (older := rundir.load_checkpoint(least, quiet=True)) and older[0] == least:
                number, state = older
            parts.setdefault(number, []).append((experiment, rundir, state))
        return list(parts.values())

    def _begun(self, part: list[tuple[Experiment, RunDir, Mapping[str, Any] | None]]) -> list[RunState]:
        """The runs of a part as they go on; the part is emptied, so that no state stays in memory twice."""
        begun = [self._begin(*one) for one in part]
        part.clear()
        return [state for state in begun if state is not None]

    def _begin(self, experiment: Experiment, rundir: RunDir, found: Mapping[str, Any] | None) -> RunState | None:
        rundir.failure.unlink(missing_ok=True)
        try:
            state = RunState(experiment, rundir, self.images, self.data)
            if found is not None:
                state.restore(found)
                if state.record is not None:
                    rundir.append_record(state.record)  # it may not have come to that
            if len(rundir.records()) < state.round:
                raise RunDamaged(
                    f"{str(rundir.records_file)!r} lacks rounds; remove {str(rundir.path)!r} to begin again"
                )
        except RunDamaged as error:
            self._fail(experiment, rundir, error)
            return None
        return state

    def _go_on(self, runs: list[RunState]) -> None:
        if any(not state.rundir.checkpoint_numbers() for state in runs):
            self._save(runs)  # so that there is one that all have
        while True:
            for state in runs:
                if state.stopped is not None:
                    state.rundir.finish()
                    self.end(state.experiment, state.rundir, state.stopped)
            runs = [state for state in runs if state.stopped is None]
            if not runs:
                return
            runs = self._round(runs)

    def _round(self, runs: list[RunState]) -> list[RunState]:
        """One round of all; those that are left."""
        began, epochs = time.monotonic(), runs[0].epochs
        if runs[0].round == 0:  # what is dense yet follows from the seed: of those with the same, one is trained
            of_seed: dict[int, RunState] = {}
            for state in runs:
                state.follow(of_seed.setdefault(state.experiment.seed, state))
        members = list(dict.fromkeys(state.trained for state in runs))
        fleet = self._fleet(members)
        for epoch in epochs:
            found = fleet.epoch(epoch, learning_rate=runs[0].learning_rate_at(epoch))
            self._tell_of(fleet)
            self._after_epoch(runs, dict(zip(members, found, strict=True)))
            if not self._left(runs):
                return []
        trained = time.monotonic() - began
        if len(members) < len(runs):
            del fleet
            for state in runs:
                state.part()
            fleet = self._fleet(runs)  # from here on they differ
        for state in self._left(runs):
            if not state.is_finite:
                self._diverged(state)
        sound = self._left(runs)
        if not sound:
            return []
        self._end_round(runs, sound, fleet)
        # Only when all are saved is a record appended: whoever resumes finds the same runs in step as before.
        self._save(sound)
        images, seconds = len(members) * len(epochs) * len(self.images.train_images), time.monotonic() - began
        timing = {
            "seconds": seconds / len(runs),  # the share of each
            "epochs": len(epochs),
            "images_per_second": images / max(trained, 1e-9),  # of all members together
            "members": len(runs),
        }
        for state in sound:
            self._record(state, timing)
        self._end_if_asked([state for state in self._left(sound) if state.stopped is None])
        return self._left(sound)

    def _after_epoch(self, runs: list[RunState], scores: Mapping[RunState, Score]) -> None:
        for state in runs:
            state.after_epoch(scores[state.trained])
        for state in self._left(runs):
            if not math.isfinite(state.train.loss):
                self._diverged(state)
        sound = self._left(runs)
        self._save_if_due(sound)
        for state in sound:
            density = state.pruner.density
            progress = Progress(state.round, state.epoch, state.recipe.epochs, state.train, density)
            self.watch.epoch(state.experiment, progress)
        self._end_if_asked(sound)

    def _record(self, state: RunState, timing: Mapping[str, Any]) -> None:
        assert state.record is not None
        try:
            if state.rundir.append_record(state.record):
                state.rundir.append_timing({"round": state.record["round"], **timing})
            self.watch.recorded(state.experiment, state.record)
        except RunDamaged as error:
            self._fail(state.experiment, state.rundir, error)

    def _left(self, runs: Sequence[RunState]) -> list[RunState]:
        """Those that are not over."""
        return [state for state in runs if state.rundir.path not in self.over]

    def _fleet(self, runs: Sequence[RunState]) -> Fleet:
        fleet = Fleet(
            [state.member() for state in runs],
            self.images,
            runs[0].recipe,
            stack=self.stack,
            check=not self.checked and runs[0].experiment.model not in MODELS,
            company=self.company,
            team=self.team,
        )
        if len(runs) > 1:
            self.stack, self.checked = fleet.stacked, True
        return fleet

    def _end_round(self, runs: list[RunState], sound: list[RunState], fleet: Fleet) -> None:
        """Measure w_t ⊙ m_t, cut, and measure w_t ⊙ m_{t+1}; all networks of the `fleet` at once."""

        def scores(images: Tensor, labels: Tensor) -> dict[RunState, Score]:
            return dict(zip(runs, fleet.evaluate(images, labels, self.prepare), strict=True))

        test = (self.images.test_images, self.images.test_labels)
        tests, held_out = scores(*test), scores(*self.held_out) if self.held_out else None
        measures, maps = measured(*_weights_and_masks(sound)), index_maps(*_weights_and_masks(sound))
        for state, retrained, spectrum in zip(sound, measures, maps, strict=True):
            state.cut(
                {
                    "round": state.round,
                    "train": plain(state.train),
                    "test": plain(tests[state]),
                    "validation": None if held_out is None else plain(held_out[state]),
                    "retrained": retrained,
                    "index_map": spectrum,
                }
            )
        tests = scores(*test)
        for state, pruned in zip(sound, measured(*_weights_and_masks(sound)), strict=True):
            state.end_round(tests[state], pruned)

    def _diverged(self, state: RunState) -> None:
        weights = "" if state.is_finite else ", and not all weights are finite"
        error = NotFinite(
            f"{state.experiment.id} diverged: its training loss is {state.train.loss} in epoch {state.epoch} "
            f"of round {state.round}{weights}; a smaller learning rate, clipping or a warm-up may help"
        )
        self._fail(state.experiment, state.rundir, error)

    def _fail(self, experiment: Experiment, rundir: RunDir, error: Exception) -> None:
        """A run cannot go on; why is written down for whoever looks at it later."""
        rundir.note_failure(error)
        self.end(experiment, rundir, error)

    def _tell_of(self, fleet: Fleet) -> None:
        for note in fleet.notes:
            if note not in self.told:
                self.told.add(note)
                self.watch.say(note)

    def _save_if_due(self, runs: list[RunState]) -> None:
        due = time.monotonic() - self.saved > self.save_seconds
        if runs and (runs[0].epoch % self.save_every == 0 if self.save_every else due):
            self._save(runs)

    def _save(self, runs: list[RunState]) -> None:
        company = [state.experiment.id for state in runs]
        for state in runs:
            state.save(company)
        self.saved = time.monotonic()

    def _end_if_asked(self, runs: list[RunState]) -> None:
        if runs and self.watch.interrupts():
            self._save(runs)
            names = runs[0].experiment.id if len(runs) == 1 else f"{len(runs)} runs"
            where = f"round {runs[0].round} after {runs[0].epoch} of {runs[0].recipe.epochs} epochs"
            raise RunInterrupted(f"{names} ended in {where}; the state is saved")


def _weights_and_masks(runs: list[RunState]) -> tuple[list[Mapping[str, Weight]], list[Masks]]:
    return [state.weights for state in runs], [state.pruner.masks for state in runs]
