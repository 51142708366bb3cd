"""The loop over rounds for every trainer: rewind, train, score, measure, cut, record, decide."""

from __future__ import annotations

import ctypes
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from palmette.errors import NotFinite, RunDamaged, RunInterrupted
from palmette.pruning.masks import Masks
from palmette.pruning.weights import Weight
from palmette.studies.extending import networks_to_keep
from palmette.studies.folder import RunDir
from palmette.studies.measurements import index_maps, measured
from palmette.studies.observer import Observer, Progress
from palmette.studies.record import AnyExperiment, Record
from palmette.studies.trainers.run_state import RunState

SECONDS_BETWEEN_SAVES = 30.0

Scores = Mapping[str, float | None]


class Trainer(Protocol):
    """Trains and scores runs; the engine does the rest."""

    timing: Mapping[str, float | None]
    """Epochs and images per second of the last round."""

    def train(self, runs: Sequence[Any]) -> Iterator[None]:
        """Train a round; yield after every epoch, or never if epochs are unknown."""

    def validate(self, runs: Sequence[Any]) -> list[Scores | None]:
        """Scores on held-out data; None without held-out data."""

    def test(self, runs: Sequence[Any]) -> list[Scores]:
        """Scores on the test data."""

    def divergence(self, run: Any) -> NotFinite:
        """Error for a run whose loss or weights are not finite."""


class RoundEngine:
    """Takes runs through their rounds in step: all are in the same epoch of the same round.

    `end` is called with spec, folder and outcome of each run that ends or fails. Within a round, runs are
    saved every `save_every` epochs or, if it is None, every `save_seconds` seconds.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        observer: Observer,
        end: Callable[[Any, Any, str | Exception], None],
        save_every: int | None = None,
        save_seconds: float = SECONDS_BETWEEN_SAVES,
    ) -> None:
        self.trainer, self.observer, self._end = trainer, observer, end
        self.save_every, self.save_seconds, self._saved = save_every, save_seconds, time.monotonic()
        self.over = set[RunDir | None]()

    def run(self, runs: Sequence[RunState]) -> None:
        """Run round after round, until every run is over."""
        if any(run.rundir and run.stopped is None and not run.rundir.checkpoint_numbers() for run in runs):
            self._save(runs)  # so that all runs share a checkpoint
        while runs := self._unfinished(runs):
            runs = self._round(runs)

    def _round(self, runs: Sequence[RunState]) -> list[RunState]:
        """Run one round of all runs, from the rewind that ended the last one; return the runs that continue."""
        began = time.monotonic()
        for _ in self.trainer.train(runs):
            self._after_epoch(runs)
            if not self._left(runs):
                return []
        for run in [run for run in self._left(runs) if not run.is_finite]:
            if run.may_diverge:
                run.discard()
            else:
                self.end(run.spec, run.rundir, self.trainer.divergence(run))
        if not (sound := self._left(runs)):
            return []
        held_out, test = self.trainer.validate(sound), self.trainer.test(sound)
        validation = [None if run.diverged else scores for run, scores in zip(sound, held_out, strict=True)]
        retrained, maps = measured(*_networks(sound)), index_maps(*_networks(sound))
        good = [run.judge(scores) for run, scores in zip(sound, validation, strict=True)]
        cuts = [run.cut() for run in sound]
        pruned, scores_after = measured(*_networks(sound)), self._scores_after_cut(sound)
        for i, run in enumerate(sound):
            record = Record(
                round=run.round,
                train=run.train_scores,
                test=test[i],
                validation=validation[i],
                retrained=retrained[i],
                pruned={**scores_after[i], **pruned[i]},
                cut=cuts[i],
                index_map=maps[i],
                good=good[i],
                search=run.search_record(),
            )
            run.add_record(record)
            run.decide()
        # Append records only after all runs are saved, so that a resumed fleet has the same runs in step.
        self._save(sound)
        seconds = (time.monotonic() - began) / len(runs)  # share of each run
        for run in sound:
            self._write(run, {"seconds": seconds, **self.trainer.timing, "members": len(runs)})
        self._interrupt_if_asked([run for run in self._left(sound) if run.stopped is None])
        if (trim := _malloc_trim()) is not None:
            trim(0)
        return self._left(sound)

    def _scores_after_cut(self, runs: Sequence[RunState]) -> list[dict[str, Scores | None]]:
        """Scores of the networks before they are retrained; on held-out data too where a search compares them."""
        found: list[dict[str, Scores | None]] = [{"test": scores} for scores in self.trainer.test(runs)]
        if any(run.tolerance is not None for run in runs):
            for run, scores, held_out in zip(runs, found, self.trainer.validate(runs), strict=True):
                if run.tolerance is not None:
                    scores["validation"] = held_out
        return found

    def _unfinished(self, runs: Sequence[RunState]) -> list[RunState]:
        for run in runs:
            if run.stopped is not None:
                if run.rundir is not None:
                    run.rundir.finish(networks_to_keep(run.spec, run.rundir.records()))
                self.end(run.spec, run.rundir, run.stopped)
        return self._left(runs)

    def _after_epoch(self, runs: Sequence[RunState]) -> None:
        for run in self._left(runs):
            if not math.isfinite(run.train.loss) and not run.may_diverge:
                self.end(run.spec, run.rundir, self.trainer.divergence(run))
        sound = self._left(runs)
        due = time.monotonic() - self._saved > self.save_seconds
        if sound and (sound[0].epoch % self.save_every == 0 if self.save_every else due):
            self._save(sound)
        for run in sound:
            progress = Progress(run.round, run.epoch, run.spec.epochs, run.train, run.pruner.density)
            self.observer.epoch(run.spec, progress)
        self._interrupt_if_asked(sound)

    def _write(self, run: RunState, timing: Mapping[str, Any]) -> None:
        assert run.record is not None
        record = run.record.to_json()
        try:
            if run.rundir is not None and run.rundir.append_record(record):
                run.rundir.append_timing({"round": record["round"], **timing})
            self.observer.recorded(run.spec, record)
        except RunDamaged as error:
            self.end(run.spec, run.rundir, error)

    def _left(self, runs: Sequence[RunState]) -> list[RunState]:
        return [run for run in runs if run.rundir not in self.over]

    def _save(self, runs: Sequence[RunState]) -> None:
        for run in runs:
            run.save(other.spec.id for other in runs)
        self._saved = time.monotonic()

    def _interrupt_if_asked(self, runs: Sequence[RunState]) -> None:
        if runs and self.observer.interrupts():
            self._save(runs)
            names = runs[0].spec.id if len(runs) == 1 else f"{len(runs)} runs"
            where = f"round {runs[0].round} after {runs[0].epoch} of {runs[0].spec.epochs} epochs"
            raise RunInterrupted(f"{names} ended in {where}; the state is saved")

    def end(self, spec: AnyExperiment, rundir: RunDir | None, outcome: str | Exception) -> None:
        """End a run; an error is written to its folder."""
        if rundir is not None and isinstance(outcome, Exception):
            rundir.note_failure(outcome)
        self.over.add(rundir)
        self._end(spec, rundir, outcome)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Function of glibc that gives free memory back; None with another allocator.

    Each round leaves small tensors between freed large ones, whose room later ones no longer fit: 150 rounds of a
    network of 4 MB took 1 GB.
    """
    try:
        return cast(Callable[[int], int], ctypes.CDLL(None).malloc_trim)
    except (OSError, AttributeError, TypeError):
        return None


def _networks(runs: Sequence[RunState]) -> tuple[list[Mapping[str, Weight]], list[Masks]]:
    return [run.weights for run in runs], [run.pruner.masks for run in runs]
