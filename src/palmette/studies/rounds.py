"""t = 0 … T: rewind, train, measure, record, prune; for one run or many in step. Starting again is resuming."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from palmette.errors import RunBusy, RunDamaged
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.in_step import SECONDS_BETWEEN_SAVES, InStep, Observer
from palmette.studies.locking import allow_open_files
from palmette.studies.record import experiment_of, records_of
from palmette.training.data import Images, load, validation_split
from palmette.training.data_parallel import Team
from palmette.training.loop import check_device

Outcomes: TypeAlias = dict[Path, str | Exception]
"""Why each run is over, or what went wrong with it, by folder."""


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

    >>> from tempfile import TemporaryDirectory
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
    """Those that can be trained together: they share data, model and recipe, and are always in the same epoch."""
    groups: dict[object, list[Experiment]] = {}
    for e in experiments:
        held_out = e.validation_images(2**60)
        key = (e.data, e.model, e.recipe, e.rewind, held_out, e.seed if held_out else None)
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
    team: Team | None = None,
) -> Outcomes:
    """Run all of one of the `fleets`, each in its folder, as `run` does one; what fails does not stop the others.

    Args:
        experiments: by folder.
        images: their data set, if it has been loaded already.
        size: how many are trained at once; as many as the memory holds by default.
        save_seconds: between two states within a round, where `save_every` does not say it.
        company: whether the last one left is trained as among others; by default where it was among others.
        team: processes that train each network together.
        data_folder, device, save_every, observer: as for `run`.

    Returns:
        Why each is over, or what went wrong with it, by folder.
    """
    watch, outcomes = observer or Observer(), Outcomes()

    def end(experiment: Experiment, rundir: RunDir, outcome: str | Exception) -> None:
        outcomes[rundir.path] = outcome
        watch.ended(experiment, outcome)

    for experiment, folders in Counter(experiments.values()).items():
        if folders > 1:  # states of a fleet are told apart by what is run
            raise ValueError(f"{experiment.id} is to be run in {folders} folders; at one time it has one")
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
            images, *held_out = validation_split(images, seed=first.seed, count=count)
        company = min(size, len(everyone)) > 1 if company is None else company
        together = InStep(
            _on(images, torch.device(device)),
            held_out,
            _hash(images),
            save_every=save_every,
            save_seconds=save_seconds,
            company=company,
            watch=watch,
            end=end,
            team=team,
        )
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
        records = records_of(rundir)
    except (RunBusy, RunDamaged) as error:
        end(experiment, rundir, error)
        return None
    if records and (stopped := records[-1].get("stopped")) is not None:
        rundir.finish()
        end(experiment, rundir, stopped)
        return None
    return rundir


def _claim(rundir: RunDir, experiment: Experiment) -> None:
    """Write down what is run here, or check that it is the same."""
    if rundir.experiment.exists():
        experiment_of(rundir, experiment)
    else:
        rundir.write_text(rundir.experiment.name, experiment.to_toml())


def _hash(images: Images) -> str:
    """Of all images and labels."""
    found = hashlib.sha256()
    for tensor in (images.train_images, images.train_labels, images.test_images, images.test_labels):
        array: Any = tensor.contiguous().numpy()
        found.update(array)
    return found.hexdigest()


def _on(images: Images, device: torch.device) -> Images:
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return replace(images, **{name: getattr(images, name).to(device) for name in names})
