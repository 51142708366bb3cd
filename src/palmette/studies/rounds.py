"""t = 0 … T: rewind, train, measure, record, prune; for one run or many in step. Starting again is resuming."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from palmette.errors import NotFinite, RunBusy, RunDamaged, RunInterrupted
from palmette.pruning.masks import Masks
from palmette.pruning.weights import Weight
from palmette.studies.config import Experiment
from palmette.studies.records import index_maps, measured
from palmette.studies.run_state import RunState, plain
from palmette.studies.rundir import RunDir
from palmette.training.data import Images, load, validation_split
from palmette.training.fleet import Fleet
from palmette.training.loop import Score

_SECONDS_BETWEEN_SAVES = 30.0


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


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    data_folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    save_every: int | None = None,
    observer: Observer | None = None,
) -> RunDir:
    """Run `experiment` in `folder`, or go on where it was left, until its rounds are done or a rule stops it.

    A record is on disk before the next round starts, and a state at each round and every half minute. On a CPU, an
    interrupted run that is started again ends with the same records, byte for byte, as one that was not; on a GPU
    too, where torch has deterministic algorithms for the model.

    Args:
        experiment: what to do; a folder belongs to one experiment.
        folder: where records, masks and states go.
        data_folder: where the data set is looked for first.
        device: where to train.
        save_every: epochs between two states within a round, in place of the half minute.
        observer: is told what happens.

    Diao et al. 2023, Algorithm 1; Lottery Ticket and One Shot as in Section 4.1.
    """
    outcomes = run_together(
        {Path(folder): experiment},
        data_folder=data_folder,
        device=device,
        save_every=save_every,
        observer=observer,
    )
    if isinstance(outcome := outcomes[Path(folder)], Exception):
        raise outcome
    return RunDir(folder)


def fleets(experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """Those that can be trained together: they share data, model and recipe, and are always in the same epoch."""
    groups: dict[object, list[Experiment]] = {}
    for e in experiments:
        key = (e.data, e.model, e.recipe, e.rewind, e.validation, e.seed if e.validation else None)
        groups.setdefault(key, []).append(e)
    return list(groups.values())


def run_together(
    experiments: Mapping[Path, Experiment],
    *,
    data_folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    size: int | None = None,
    save_every: int | None = None,
    observer: Observer | None = None,
) -> dict[Path, str | Exception]:
    """Run all of one of the `fleets`, each in its folder, as `run` does one; what fails does not stop the others.

    Args:
        experiments: by folder.
        size: how many are trained at once; as many as the memory holds by default.
        data_folder, device, save_every, observer: as for `run`.

    Returns:
        Why each is over, or what went wrong with it, by folder.
    """
    watch, outcomes = observer or Observer(), dict[Path, str | Exception]()

    def end(experiment: Experiment, rundir: RunDir, outcome: str | Exception) -> None:
        outcomes[rundir.path] = outcome
        watch.ended(experiment, outcome)

    everyone = list(experiments.items())
    size = size or len(everyone)
    with ExitStack() as locks:
        pending = {
            folder: (experiment, rundir)
            for folder, experiment in everyone
            if (rundir := _taken(experiment, RunDir(folder, say=watch.say), locks, end)) is not None
        }
        if not pending:
            return outcomes
        first = everyone[0][1]
        images, held_out = load(first.data, folder=data_folder), None
        if first.validation:
            images, *held_out = validation_split(images, seed=first.seed, count=first.validation)
        together = _Together(_on(images, torch.device(device)), held_out, save_every, watch, end)
        # Whether some are done already makes no difference to who is trained with whom.
        for start in range(0, len(everyone), size):
            together.run([pending[folder] for folder, _ in everyone[start : start + size] if folder in pending])
    return outcomes


def _taken(
    experiment: Experiment,
    rundir: RunDir,
    locks: ExitStack,
    end: Callable[[Experiment, RunDir, str | Exception], None],
) -> RunDir | None:
    """Own the folder of a run; None if someone else does, or if it is damaged or done."""
    try:
        locks.enter_context(rundir.lock())
        _claim(rundir, experiment)
        records = rundir.records()
    except (RunBusy, RunDamaged) as error:
        end(experiment, rundir, error)
        return None
    if records and records[-1]["stopped"] is not None:
        rundir.finish()
        end(experiment, rundir, records[-1]["stopped"])
        return None
    return rundir


def _claim(rundir: RunDir, experiment: Experiment) -> None:
    """Write down what is run here, or check that it is the same."""
    if not rundir.experiment.exists():
        rundir.write_text(rundir.experiment.name, experiment.to_toml())
        return
    there = Experiment.from_toml(rundir.experiment)
    if there != experiment:
        raise RunDamaged(
            f"{str(rundir.path)!r} holds the run {there.id}, not {experiment.id}; give another folder, "
            "or remove that one"
        )


def _on(images: Images, device: torch.device) -> Images:
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return replace(images, **{name: getattr(images, name).to(device) for name in names})


class _Together:
    """Runs in step: epoch by epoch, round by round."""

    def __init__(
        self,
        images: Images,
        held_out: Sequence[torch.Tensor] | None,
        save_every: int | None,
        watch: Observer,
        end: Callable[[Experiment, RunDir, str | Exception], None],
    ) -> None:
        self.images, self.held_out, self.save_every = images, held_out, save_every
        self.watch, self.end = watch, end
        self.saved, self.told = time.monotonic(), set[str]()

    def run(self, pending: Sequence[tuple[Experiment, RunDir]]) -> None:
        """From the newest states that all have, or from the beginning, to the end."""
        for part in _in_step(pending):
            try:
                self._go_on([self._begin(*one) for one in part])
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                if len(part) == 1:
                    why = "even one network does not fit into the memory of the device; a smaller batch may"
                    self.end(part[0][0], part[0][1], MemoryError(why))
                    continue
                half = len(part) // 2
                self.watch.say(
                    f"{len(part)} networks do not fit into the memory of the device; {half} at once then"
                )
                runs = [(experiment, rundir) for experiment, rundir, _ in part]
                self.run(runs[:half])
                self.run(runs[half:])

    def _begin(self, experiment: Experiment, rundir: RunDir, found: Mapping[str, Any] | None) -> RunState:
        state = RunState(experiment, rundir, self.images)
        rundir.failure.unlink(missing_ok=True)
        if found is None:
            state.save()
        else:
            state.restore(found)
            if state.record is not None:
                rundir.append_record(state.record)  # it may not have come to that
        return state

    def _go_on(self, runs: list[RunState]) -> None:
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
        fleet = Fleet([state.member() for state in runs], self.images, runs[0].recipe)
        diverged: set[RunState] = set()
        for epoch in epochs:
            scores = fleet.epoch(epoch, learning_rate=runs[0].learning_rate_at(epoch))
            for state, score in zip(runs, scores, strict=True):
                state.after_epoch(score)
                if not math.isfinite(state.train.loss) and state not in diverged:
                    diverged.add(state)
                    self._diverged(state)
            self._tell_of(fleet)
            sound = [state for state in runs if state not in diverged]
            self._save_if_due(sound, epoch + 1)
            for state in sound:
                density = state.pruner.density
                progress = Progress(state.round, state.epoch, state.recipe.epochs, state.train, density)
                self.watch.epoch(state.experiment, progress)
            self._end_if_asked(sound)
        trained = time.monotonic() - began
        self._end_round(runs, fleet, diverged)
        sound = [state for state in runs if state not in diverged]
        # Only when all are saved is a record appended: whoever resumes finds the same runs in step as before.
        for state in sound:
            state.save()
        self.saved = time.monotonic()
        images, seconds = len(runs) * len(epochs) * len(self.images.train_images), time.monotonic() - began
        for state in sound:
            assert state.record is not None
            timing = {
                "round": state.record["round"],
                "seconds": seconds / len(runs),  # its share
                "epochs": len(epochs),
                "images_per_second": images / max(trained, 1e-9),  # of all members together
                "members": len(runs),
            }
            if state.rundir.append_record(state.record):
                state.rundir.append_timing(timing)
            self.watch.recorded(state.experiment, state.record)
        self._end_if_asked([state for state in sound if state.stopped is None])
        return sound

    def _end_round(self, runs: list[RunState], fleet: Fleet, diverged: set[RunState]) -> None:
        """Measure w_t ⊙ m_t, cut, and measure w_t ⊙ m_{t+1}; all networks at once."""
        sound = [state for state in runs if state not in diverged]
        if not sound:
            return
        tests, held_out = self._scores(runs, fleet), self._held_out_scores(runs, fleet)
        measures, maps = self._measures(sound), index_maps(*_weights_and_masks(sound))
        for state, retrained, spectrum in zip(sound, measures, maps, strict=True):
            number = runs.index(state)
            state.cut(
                {
                    "round": state.round,
                    "train": plain(state.train),
                    "test": plain(tests[number]),
                    "validation": None if held_out is None else plain(held_out[number]),
                    "retrained": retrained,
                    "index_map": spectrum,
                }
            )
        tests = self._scores(runs, fleet)
        for state, pruned in zip(sound, self._measures(sound), strict=True):
            state.end_round(tests[runs.index(state)], pruned)

    def _scores(self, runs: list[RunState], fleet: Fleet) -> list[Score]:
        test = (self.images.test_images, self.images.test_labels)
        return fleet.evaluate(*test, runs[0].prepare, precision=runs[0].recipe.precision)

    def _held_out_scores(self, runs: list[RunState], fleet: Fleet) -> list[Score] | None:
        if self.held_out is None:
            return None
        images, labels = self.held_out
        return fleet.evaluate(images, labels, runs[0].prepare, precision=runs[0].recipe.precision)

    def _measures(self, runs: list[RunState]) -> list[dict[str, Any]]:
        return measured(*_weights_and_masks(runs))

    def _diverged(self, state: RunState) -> None:
        error = NotFinite(
            f"{state.experiment.id} diverged: its training loss is {state.train.loss} in epoch {state.epoch} "
            f"of round {state.round}; a smaller learning rate, clipping or a warm-up may help"
        )
        state.rundir.write_text(state.rundir.failure.name, f"{error}\n")
        self.end(state.experiment, state.rundir, error)

    def _tell_of(self, fleet: Fleet) -> None:
        for note in fleet.notes:
            if note not in self.told:
                self.told.add(note)
                self.watch.say(note)

    def _save_if_due(self, runs: list[RunState], epoch: int) -> None:
        due = time.monotonic() - self.saved > _SECONDS_BETWEEN_SAVES
        if epoch % self.save_every == 0 if self.save_every else due:
            self._save(runs)

    def _save(self, runs: list[RunState]) -> None:
        for state in runs:
            state.save()
        self.saved = time.monotonic()

    def _end_if_asked(self, runs: list[RunState]) -> None:
        if self.watch.interrupts():
            self._save(runs)
            names = runs[0].experiment.id if len(runs) == 1 else f"{len(runs)} runs"
            where = (
                f"round {runs[0].round} after {runs[0].epoch} of {runs[0].recipe.epochs} epochs" if runs else ""
            )
            raise RunInterrupted(f"{names} ended in {where}; the state is saved")


def _weights_and_masks(runs: list[RunState]) -> tuple[list[dict[str, Weight]], list[Masks]]:
    return [state.weights for state in runs], [state.pruner.masks for state in runs]


def _in_step(
    pending: Sequence[tuple[Experiment, RunDir]],
) -> list[list[tuple[Experiment, RunDir, Mapping[str, Any] | None]]]:
    """The runs that go on from checkpoints of the same number, each with its state; None is the beginning.

    All runs of a fleet are saved at the same moments, and keep two states each. So where some were saved once more
    than others before a process ended, the older state is the one that all have.
    """
    found: dict[Path, tuple[int, Any] | None] = {}
    numbers = {rundir.path: rundir.checkpoint_numbers() for _, rundir in pending}
    for newest in sorted({known[-1] for known in numbers.values() if known}):
        for _, rundir in pending:
            if rundir.path not in found and newest in numbers[rundir.path]:
                found[rundir.path] = rundir.load_checkpoint(newest)
    parts: dict[int, list[tuple[Experiment, RunDir, Mapping[str, Any] | None]]] = {}
    for experiment, rundir in pending:
        number, state = found.get(rundir.path) or (0, None)  # the first state of all is the beginning
        parts.setdefault(number, []).append((experiment, rundir, state))
    return list(parts.values())
