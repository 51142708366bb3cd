"""Searches of built-in runs: alone, in fleets, interrupted, with noisy labels."""

from __future__ import annotations

import pytest
import torch

import palmette as pm
from palmette.errors import RunDamaged, RunInterrupted
from palmette.studies.cost import cost
from palmette.studies.extending import networks_to_keep
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer
from palmette.studies.running import fleets, run_together
from palmette.studies.search import Limit, attempts_of
from palmette.studies.trainers.snapshots import read_good
from palmette.training.data import load
from palmette.training.data.split import validation_split, with_label_noise
from palmette.training.models import build

SMALL = {"model": "linear", "epochs": 1, "rounds": 5, "tolerance": 0.05}
METHODS = {
    "sap": {},
    "interpolate": {},
    "bisect": {},
    "lottery-ticket": {"ratio": 0.6},
    "one-shot": {"ratio": 0.6},
}
EXPERIMENTS = [pm.Experiment(method=name, **more, **SMALL) for name, more in METHODS.items()]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Folders of a fleet of all methods, by experiment."""
    folder = tmp_path_factory.mktemp("fleet")
    run_together({folder / e.id: e for e in EXPERIMENTS})
    return {e: folder / e.id for e in EXPERIMENTS}


def test_searches_of_several_seeds_are_one_fleet():
    assert fleets(EXPERIMENTS) == [EXPERIMENTS]
    assert len(fleets([pm.Experiment(seed=seed, **SMALL) for seed in (0, 1)])) == 1


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.method)
def test_cost_of_a_search_is_known_before_it_runs(experiment):
    found = cost(experiment, load("digits"), seconds=1e-3)
    assert (found.prunable, found.images) == (640, 1350)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.method)
def test_search_in_a_fleet_equals_the_search_alone(together, tmp_path, experiment):
    run_together({tmp_path: experiment}, company=True)
    assert RunDir(tmp_path).records_file.read_bytes() == RunDir(together[experiment]).records_file.read_bytes()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.method)
def test_answer_of_a_search_loads_into_the_model(together, experiment):
    rundir = RunDir(together[experiment])
    records, good = rundir.records(), read_good(rundir)
    found = Limit.of(attempts_of(records), experiment.allowed_loss, stopped=records[-1]["stopped"])
    images = load("digits")
    model = build("linear", shape=images.shape, classes=images.classes, seed=5)
    model.load_state_dict(good["state_dict"])
    weights = [w.tensor for w in pm.prunable(model).values()]
    kept = sum(int((w != 0).sum()) for w in weights)
    assert kept == records[found.round]["retrained"]["kept"] == round(found.density * 640) < 640
    assert (good["round"], good["score"]) == (found.round, records[found.round]["validation"]["accuracy"])
    kept = {int(file.stem.removeprefix("round-")) for file in rundir.networks.glob("*")}
    assert kept == (networks_to_keep(experiment, records) or set())  # what more rounds start from
    assert all(record["version"] == 2 for record in records)


class Interrupts(Observer):
    """Interrupts after a number of epochs."""

    def __init__(self, epochs):
        self.left = epochs

    def interrupts(self):
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize("calls", [1, 2, 4, 7, 9])
def test_interrupted_fleet_is_resumed_as_if_it_had_not_been(together, tmp_path, calls):
    folders = {tmp_path / e.id: e for e in EXPERIMENTS}
    with pytest.raises(RunInterrupted):
        run_together(folders, observer=Interrupts(calls))
    run_together(folders)
    for folder, experiment in folders.items():
        assert RunDir(folder).records_file.read_bytes() == RunDir(together[experiment]).records_file.read_bytes()
        one, other = read_good(RunDir(folder)), read_good(RunDir(together[experiment]))
        assert all(torch.equal(one["state_dict"][n], other["state_dict"][n]) for n in one["state_dict"])


def test_damaged_answer_of_a_search_is_named(together, tmp_path):
    (tmp_path / "good.pt").write_bytes((together[EXPERIMENTS[0]] / "good.pt").read_bytes()[:-1])
    with pytest.raises(RunDamaged, match=r"good\.pt', is missing or damaged"):
        read_good(RunDir(tmp_path))


def test_run_without_a_tolerance_has_no_search(tmp_path):
    rundir = pm.run(pm.Experiment(model="linear", epochs=1, rounds=1), tmp_path)
    assert not any(record.keys() & {"search", "good", "version"} for record in rundir.records())
    assert not rundir.good.exists()
    assert not rundir.networks.exists()


# Noisy labels


@pytest.mark.parametrize(("fraction", "changed"), [(0.0, 0), (0.1, 150), (0.29, 435), (0.5, 750), (1.0, 1500)])
def test_exactly_a_fraction_of_training_labels_changes(fraction, changed):
    images = load("digits")
    assert len(images.train_labels) == 1500
    noisy = with_label_noise(images, fraction)
    assert int((noisy.train_labels != images.train_labels).sum()) == changed
    assert 0 <= int(noisy.train_labels.min()) <= int(noisy.train_labels.max()) < images.classes
    assert torch.equal(noisy.train_images, images.train_images)
    assert torch.equal(noisy.test_labels, images.test_labels)
    assert torch.equal(with_label_noise(images, fraction).train_labels, noisy.train_labels)


def test_label_noise_does_not_depend_on_the_seed_and_spares_held_out_labels(tmp_path, monkeypatch):
    seen = []

    def spy(images, fraction):
        noisy = with_label_noise(images, fraction)
        seen.append((images.train_labels, noisy.train_labels))
        return noisy

    monkeypatch.setattr("palmette.studies.running.with_label_noise", spy)
    for seed in (0, 1):
        pm.run(pm.Experiment(model="linear", epochs=0, rounds=0, seed=seed, label_noise=0.2), tmp_path / str(seed))
    assert [int((a != b).sum()) for a, b in seen] == [300, 300]
    assert torch.equal(seen[0][1], seen[1][1])
    held = pm.Experiment(model="linear", epochs=0, rounds=0, label_noise=0.2, validation=500)
    pm.run(held, tmp_path / "held")
    rest, _, labels = validation_split(load("digits"), count=500)
    assert torch.equal(seen[2][0], rest.train_labels)  # noise comes after the split
    assert (int((seen[2][0] != seen[2][1]).sum()), len(labels)) == (200, 500)
