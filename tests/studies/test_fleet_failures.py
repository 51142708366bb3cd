"""Failures of a fleet: damage, changed members, unusual models, out of memory."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest
import torch
from observers import EndsAfter, records_are_the_same

from palmette.errors import NotFinite, RunDamaged, RunInterrupted
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.running import run, run_together
from palmette.studies.trainers.fleet_trainer import FleetRun
from palmette.training.data import load
from palmette.training.fleet import Fleet

RUNS = [Experiment(model="linear", epochs=2, rounds=5, batch=500, seed=seed, p=1.0, q=2.0) for seed in range(3)]


def begin(folder, runs, epochs):
    """Run for so many epochs of all together."""
    with pytest.raises(RunInterrupted):
        run_together({folder / e.id: e for e in runs}, observer=EndsAfter(epochs))


def all_done(folder, runs):
    outcomes = run_together({folder / e.id: e for e in runs})
    assert set(outcomes.values()) == {f"{runs[0].rounds} rounds are done"}
    assert all(len(RunDir(folder / e.id).records()) == e.rounds + 1 for e in runs)


def test_a_member_that_advanced_alone_rejoins(tmp_path):
    begin(tmp_path, RUNS, 12)
    with pytest.raises(RunInterrupted):
        run(RUNS[0], tmp_path / RUNS[0].id, observer=EndsAfter(3))
    all_done(tmp_path, RUNS)


def test_runs_started_alone_continue_together(tmp_path):
    for e, epochs in zip(RUNS, (2, 5, 9), strict=True):
        with pytest.raises(RunInterrupted):
            run(e, tmp_path / e.id, observer=EndsAfter(epochs))
    all_done(tmp_path, RUNS)


@pytest.mark.parametrize("which", ["newest", "older"])
def test_a_damaged_checkpoint_rewinds_the_fleet_to_the_same_result(tmp_path, which):
    run_together({tmp_path / "whole" / e.id: e for e in RUNS})
    begin(tmp_path / "broken", RUNS, 14)
    rundir = RunDir(tmp_path / "broken" / RUNS[1].id)
    number = rundir.checkpoint_numbers()[-1 if which == "newest" else 0]
    rundir.checkpoint(number).write_bytes(b"damaged")
    all_done(tmp_path / "broken", RUNS)
    records_are_the_same(tmp_path, RUNS)


def test_an_irreparable_run_is_named_and_others_continue(tmp_path):
    begin(tmp_path, RUNS, 14)
    for file in (tmp_path / RUNS[1].id / "checkpoints").iterdir():
        file.write_bytes(b"damaged")
    lines = (tmp_path / RUNS[2].id / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / RUNS[2].id / "records.jsonl").write_text("".join(lines[1:]))
    outcomes = run_together({tmp_path / e.id: e for e in RUNS})
    assert outcomes[tmp_path / RUNS[0].id] == "5 rounds are done"
    assert "checkpoints are damaged; remove" in str(outcomes[tmp_path / RUNS[1].id])
    lacks, folder = str(outcomes[tmp_path / RUNS[2].id]), tmp_path / RUNS[2].id
    assert lacks.endswith(f"records.jsonl' lacks rounds; remove {str(folder)!r} to start again")
    assert (folder / "records.jsonl").read_text() == "".join(lines[1:])


def test_changed_data_are_detected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = load("digits")
    arrays = {"x_train": digits.train_images[:, 0], "x_test": digits.test_images[:, 0]}
    arrays |= {"y_train": digits.train_labels, "y_test": digits.test_labels}
    np.savez("own.npz", **{name: value.numpy() for name, value in arrays.items()})
    experiment = dataclasses.replace(RUNS[0], data="own.npz")
    with pytest.raises(RunInterrupted):
        run(experiment, "run", observer=EndsAfter(3))
    arrays["x_test"] = 255 - arrays["x_test"]
    np.savez("own.npz", **{name: value.numpy() for name, value in arrays.items()})
    with pytest.raises(RunDamaged, match=r"'own\.npz' is no longer the one"):
        run(experiment, "run")


@pytest.mark.parametrize("model", ["remembers", "scaled", "counts"])
def test_users_models_train_in_a_fleet_as_alone(tmp_path, model):
    runs = [dataclasses.replace(e, model=f"own_models:{model}", rounds=2) for e in RUNS]
    run_together({tmp_path / "fleet" / e.id: e for e in runs})
    for e in runs:
        alone, fleet = run(e, tmp_path / "alone" / e.id).records(), RunDir(tmp_path / "fleet" / e.id).records()
        for one, other in zip(alone, fleet, strict=True):
            assert one["test"]["loss"] == pytest.approx(other["test"]["loss"], rel=1e-2)
            assert one["retrained"]["kept"] == pytest.approx(other["retrained"]["kept"], abs=2)


@pytest.mark.parametrize("model", ["remembers", "counts"])
def test_buffers_of_every_kind_are_saved_and_rewound(tmp_path, model):
    experiment = dataclasses.replace(RUNS[0], model=f"own_models:{model}", rounds=2)
    whole = run(experiment, tmp_path / "whole").records_file.read_bytes()
    for epochs in (1, 2, 1):
        with pytest.raises(RunInterrupted):
            run(experiment, tmp_path / "broken", observer=EndsAfter(epochs))
    assert run(experiment, tmp_path / "broken").records_file.read_bytes() == whole


def test_a_frozen_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to train: all parameters of the model are frozen"):
        run(dataclasses.replace(RUNS[0], model="own_models:frozen"), tmp_path / "run")


def test_weights_that_are_not_finite_end_only_their_run(tmp_path, monkeypatch):
    epoch = Fleet.epoch

    def sick(self, number, **settings):
        scores = epoch(self, number, **settings)
        member = self.trainings[0].members[0]
        if member.round == 1 and number == 1:
            with torch.no_grad():
                member.model.head.weight[0, 0] = float("inf")
        return scores

    monkeypatch.setattr(Fleet, "epoch", sick)
    outcomes = run_together({tmp_path / e.id: e for e in RUNS})
    first, *others = outcomes.values()
    assert isinstance(first, NotFinite)
    assert "not all weights are finite" in str(first)
    assert others == ["5 rounds are done"] * 2


@pytest.mark.parametrize("from_round", [0, 3])
def test_a_fleet_too_large_for_memory_is_halved(tmp_path, monkeypatch, from_round):
    epoch, alive = Fleet.epoch, []
    short = dataclasses.replace(RUNS[2], rounds=1)  # is over before the memory is short
    runs = [*RUNS[:2], short, dataclasses.replace(RUNS[0], seed=7)]

    def scarce(self, number, **settings):
        members = [member for training in self.trainings for member in training.members]
        if len(members) > 2 and members[0].round >= from_round:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if members[0].round == 4 and number == 0:  # of each half; looking takes long
            gc.collect()
            alive.append(sum(type(thing) is FleetRun for thing in gc.get_objects()))
        return epoch(self, number, **settings)

    monkeypatch.setattr(Fleet, "epoch", scarce)
    observer = EndsAfter()
    outcomes = run_together({tmp_path / e.id: e for e in runs}, observer=observer)
    assert sorted(str(outcome) for outcome in outcomes.values()) == [
        "1 round is done",
        *["5 rounds are done"] * 3,
    ]
    assert "do not fit into the memory of the device; trying 2 at once" in observer.said[0]
    assert len(alive) == 2
    assert max(alive) <= 2


def test_loaded_states_are_released(tmp_path, monkeypatch):
    class State(dict):
        """A dict that can be watched."""

    begin(tmp_path, RUNS, 3)
    watched, looked, loaded, epoch = [], [], RunDir.load_checkpoint, Fleet.epoch

    def watching(self, *arguments, **options):
        number, state = loaded(self, *arguments, **options)
        watched.append(weakref.ref(state := State(state)))
        return number, state

    def checks(self, number, **settings):
        if not looked:
            gc.collect()
            looked.append([state() for state in watched])
        return epoch(self, number, **settings)

    monkeypatch.setattr(RunDir, "load_checkpoint", watching)
    monkeypatch.setattr(Fleet, "epoch", checks)
    all_done(tmp_path, RUNS)
    assert looked == [[None] * len(RUNS)]


def test_a_network_too_large_for_memory_is_named(tmp_path, monkeypatch):
    def none(self, number, **settings):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Fleet, "epoch", none)
    outcomes = run_together({tmp_path / e.id: e for e in RUNS})
    assert all("even one network does not fit" in str(outcome) for outcome in outcomes.values())
    assert all((folder / "failure.txt").read_text() == f"{outcome}\n" for folder, outcome in outcomes.items())


def test_a_model_that_cannot_be_compiled_trains_with_a_note(tmp_path, monkeypatch):
    def broken(function, **settings):
        def call(*inputs):
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    observer = EndsAfter()
    runs = [dataclasses.replace(e, compile=True, rounds=1) for e in RUNS]
    outcomes = run_together({tmp_path / e.id: e for e in runs}, observer=observer)
    assert set(outcomes.values()) == {"1 round is done"}
    assert observer.said == ["the model cannot be compiled here and trains without: no compiler here"]
