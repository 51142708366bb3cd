"""Networks that are called alike, in runs whose folders are called by their ids, as `palmette run` does it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from torch import nn

import palmette as pm
from palmette.reports import comparison
from palmette.studies.experiment import Experiment


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(folder, *layers, **settings):
        monkeypatch.setitem(
            sys.modules, "mine", SimpleNamespace(net=lambda shape, classes: nn.Sequential(nn.Flatten(), *layers))
        )
        experiment = Experiment(model="mine:net", epochs=0, rounds=1, **settings)
        pm.run(experiment, tmp_path / folder / experiment.id)

    return run


@pytest.fixture
def models(tmp_path):
    return lambda: comparison.read([tmp_path])[["method", "seed", "model"]].drop_duplicates().values.tolist()


def test_an_edited_network_is_called_by_its_size_and_not_by_a_method_and_a_seed(run, models):
    for folder, width in (("A", 8), ("B", 16)):
        for method in ("lottery-ticket", "one-shot"):
            run(folder, nn.Linear(64, width), nn.Linear(width, 10), method=method, seed=1)
    assert models() == [
        [method, 1, f"mine:net, {weights:,} weights"]
        for weights in (64 * 8 + 8 * 10, 64 * 16 + 16 * 10)
        for method in ("lottery-ticket", "one-shot")
    ]


def test_edited_networks_of_one_size_are_called_by_the_folders_around_their_runs(run, models):
    run("A", nn.Linear(64, 8), nn.Linear(8, 10), method="one-shot")
    run("B", nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    run("B", nn.Linear(64, 8), nn.Linear(8, 10), seed=1)
    assert sorted(models()) == [
        ["one-shot", 0, "mine:net as in A"],
        ["sap", 0, "mine:net as in B"],
        ["sap", 1, "mine:net as in A"],
    ]


def test_edited_networks_of_one_size_in_one_folder_are_called_by_the_run_each_was_first_in(run, models):
    run("A", nn.Linear(64, 8), nn.Linear(8, 10), seed=0)
    run("A", nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10), seed=1)
    ids = [Experiment(model="mine:net", epochs=0, rounds=1, seed=seed).id for seed in (0, 1)]
    assert models() == [["sap", seed, f"mine:net as in {ids[seed]}"] for seed in (0, 1)]


def test_the_other_networks_keep_their_sizes_where_two_have_the_same(run, models):
    run("A", nn.Linear(64, 8), nn.Linear(8, 10))
    run("B", nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    run("C", nn.Linear(64, 10))
    assert [model for *_, model in models()] == [
        "mine:net as in A",
        "mine:net as in B",
        "mine:net, 640 weights",
    ]
