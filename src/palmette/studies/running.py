"""Run experiments in their folders, alone or as a fleet; running again resumes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from palmette.errors import RunBusy, RunDamaged
from palmette.studies.disk.locking import allow_open_files
from palmette.studies.engine import SECONDS_BETWEEN_SAVES, RoundEngine
from palmette.studies.experiment import Experiment
from palmette.studies.extending import extends, goes_on, longer, networks_to_keep
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer, Outcomes
from palmette.studies.record import experiment_of, records_of
from palmette.studies.trainers.fleet_trainer import FleetRun, FleetTrainer
from palmette.training.data import load
from palmette.training.data.images import Images
from palmette.training.data.split import validation_split, with_label_noise
from palmette.training.data_parallel import WorkerGroup
from palmette.training.loop import check_device

_TENSORS = ("train_images", "train_labels", "test_images", "test_labels")


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    data_folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    save_every: int | None = None,
    observer: Observer | None = None,
) -> RunDir:
    """Run `experiment` in `folder`, or resume it there, until all rounds are done or a rule stops it.

    A record is on disk before the next round starts; checkpoints are written at each round and every half minute.
    On a CPU, an interrupted and resumed run has the same records, byte for byte, as an uninterrupted one; on a GPU
    too, if torch has deterministic algorithms for the model.

    Args:
        folder: receives records, masks and checkpoints; a folder belongs to one experiment. More `rounds` extend
            a run that ended because its rounds were done.
        data_folder: first folder to search for the data set.
        save_every: epochs between checkpoints within a round, instead of half a minute.
        observer: receives progress and results.

    >>> from tempfile import TemporaryDirectory
    >>> from palmette import Experiment, run
    >>> experiment = Experiment(method="lottery-ticket", model="linear", rounds=2, epochs=1)
    >>> with TemporaryDirectory() as folder:
    ...     records = run(experiment, folder).records()
    >>> [record["retrained"]["kept"] for record in records]
    [640, 512, 410]

    Diao et al. 2023, Algorithm 1; Lottery Ticket and One Shot as in Section 4.1.
    """
    if not isinstance(experiment, Experiment):
        raise TypeError(f"run takes an Experiment, got {type(experiment).__name__}")
    check_device(device)
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
    """Groups of experiments that train in step: they share data, model, recipe and epochs per round."""
    groups: dict[object, list[Experiment]] = {}
    for e in experiments:
        key = (e.data, e.label_noise, e.model, e.recipe, e.rewind, e.validation_images(2**60))
        groups.setdefault(key, []).append(e)
    return list(groups.values())


def run_together(
    experiments: Mapping[Path, Experiment],
    *,
    images: Images | None = None,
    data_folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    size: int | None = None,
    save_every: int | None = None,
    save_seconds: float = SECONDS_BETWEEN_SAVES,
    company: bool | None = None,
    observer: Observer | None = None,
    workers: WorkerGroup | None = None,
) -> Outcomes:
    """Run the experiments of one of the `fleets`, each in its folder; a failure does not stop the others.

    Args:
        experiments: by folder.
        images: the data set, if already loaded.
        size: number of networks to train at once; by default as many as fit into memory.
        save_seconds: seconds between checkpoints within a round, without `save_every`.
        company: whether a single network trains like a member of a larger fleet; by default if there were others.
        workers: number of processes that train each network.
        data_folder, device, save_every, observer: as for `run`.

    Returns:
        Outcome of each run by folder: why it ended, or the error.
    """
    watch, outcomes = observer or Observer(), Outcomes()

    def end(experiment: Experiment, rundir: RunDir, outcome: str | Exception) -> None:
        outcomes[rundir.path] = outcome
        watch.ended(experiment, outcome)

    for experiment, folders in Counter(experiments.values()).items():
        if folders > 1:  # checkpoints of a fleet name each other by id
            raise ValueError(f"{experiment.id} is given for {folders} folders; a run has one folder at a time")
    everyone = list(experiments.items())
    allow_open_files(len(everyone) + 256)
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
        held_out = None
        if images is None:
            images = load(first.data, folder=data_folder)
        if count := first.validation_images(len(images.train_images)):
            images, *held_out = validation_split(images, count=count)
        images = with_label_noise(images, first.label_noise)
        company = min(size, len(everyone)) > 1 if company is None else company
        there = replace(images, **{name: getattr(images, name).to(device) for name in _TENSORS})
        trainer = FleetTrainer(there, held_out, company=company, workers=workers, say=watch.say)
        engine = RoundEngine(trainer, observer=watch, end=end, save_every=save_every, save_seconds=save_seconds)
        data = _hash(images)
        # Finished runs keep their position, so that the same networks train together as before.
        for start in range(0, len(everyone), size):
            part = [pending[folder] for folder, _ in everyone[start : start + size] if folder in pending]
            _run_in_step(part, trainer, engine, data)
    return outcomes


def _taken(experiment: Experiment, rundir: RunDir, locks: ExitStack, end: Callable[..., None]) -> RunDir | None:
    """Lock and claim the folder of a run; None if it is in use, damaged or finished."""
    try:
        locks.enter_context(rundir.lock())
        if rundir.experiment.exists() and not extends(experiment_of(rundir), experiment, rundir):
            experiment_of(rundir, experiment)
        else:
            rundir.write_text(rundir.experiment.name, longer(rundir, experiment))
        records = records_of(rundir, resuming=True)
        more = goes_on(records, experiment.rounds)
        rundir.check_masks(records, needed=more)
    except (RunBusy, RunDamaged) as error:
        end(experiment, rundir, error)
        return None
    if not more:
        rundir.finish(networks_to_keep(experiment, records))
        end(experiment, rundir, records[-1]["stopped"])
        return None
    return rundir


def _hash(images: Images) -> str:
    """SHA-256 of all images and labels."""
    found = hashlib.sha256()
    for name in _TENSORS:
        array: Any = getattr(images, name).contiguous().numpy()
        found.update(array)
    return found.hexdigest()


_Pending: TypeAlias = tuple[Experiment, RunDir]
_Found: TypeAlias = tuple[Experiment, RunDir, Mapping[str, Any] | None]


def _run_in_step(pending: Sequence[_Pending], trainer: FleetTrainer, engine: RoundEngine, data: str) -> None:
    """Run all to their end, in halves if they do not fit into the memory of the device."""
    for part in _by_checkpoint(pending, engine):
        together = [(experiment, rundir) for experiment, rundir, _ in part]
        with suppress(torch.OutOfMemoryError):  # a caught error would keep the networks alive
            engine.run(_resumed(part, trainer, engine, data))
            trainer.release()
            continue
        trainer.release()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        left = [one for one in together if one[1] not in engine.over]
        if len(together) == 1:
            why = "even one network does not fit into the memory of the device; try a smaller batch"
            engine.end(*left[0], MemoryError(why))
            continue
        half = -(-len(left) // 2)
        engine.observer.say(
            f"{len(together)} networks do not fit into the memory of the device; trying {half} at once"
        )
        _run_in_step(left[:half], trainer, engine, data)
        _run_in_step(left[half:], trainer, engine, data)


def _by_checkpoint(pending: Sequence[_Pending], engine: RoundEngine) -> list[list[_Found]]:
    """Groups of runs that resume from checkpoints of the same number, each with its state; None to start.

    All runs of a fleet are saved at the same time, and keep two states each. If some were saved once more than
    others before a process ended, or a state is damaged, all resume from the older state. A run that was saved
    with another fleet resumes from its newest state.
    """
    newest: dict[str, tuple[int, Any]] = {}
    for experiment, rundir in pending:
        try:
            newest[experiment.id] = rundir.load_checkpoint() or (0, None)
        except RunDamaged as error:
            engine.end(experiment, rundir, error)
    parts: dict[int, list[_Found]] = {}
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


def _resumed(part: list[_Found], trainer: FleetTrainer, engine: RoundEngine, data: str) -> list[FleetRun]:
    """Restore the runs of a part; the part is emptied, so that no state is in memory twice."""
    runs: list[FleetRun] = []
    while part:
        experiment, rundir, state = part.pop(0)
        rundir.failure.unlink(missing_ok=True)
        try:
            run = FleetRun(experiment, rundir, trainer.images, data)
            if state is not None:
                run.restore(state)
            runs.append(run)
        except RunDamaged as error:
            engine.end(experiment, rundir, error)
    return runs
