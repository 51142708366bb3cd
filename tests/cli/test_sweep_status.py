"""`palmette sweep --status`: how far a sweep has come, whoever runs it and whatever became of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command import palmette
from earlier_folders import back_to, unseal

from palmette.studies.folder import RunDir
from palmette.studies.sweep import read

GRID = '[base]\nmodel = "linear"\nrounds = 1\nepochs = 2\nclip = "none"\n[axes]\nlearning_rate = [1e30, 0.1, 1]\n'


@pytest.fixture(autouse=True)
def grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("grid.toml").write_text(GRID)


def states(*args):
    return json.loads(palmette("sweep", "--status", "--json", *args).stdout)["states"]


def test_status_before_a_sweep_shows_new_runs():
    told = json.loads(palmette("sweep", "--status", "--json", "grid.toml").stdout)
    assert (told["states"], told["epochs_done"], told["epochs_left"]) == ({"new": 3}, 0, 12)
    assert not Path("runs").exists()


def test_status_after_a_sweep_shows_failures_and_damage():
    palmette("sweep", "grid.toml", "--device", "cpu", code=1)
    assert states("grid.toml") == states("runs") == {"failed": 1, "finished": 2}
    diverged, damaged, _ = (RunDir(Path("runs", e.id)) for e in read("grid.toml"))
    damaged.records_file.write_text("{\n")
    for what in ("grid.toml", "runs"):
        told = json.loads(palmette("sweep", "--status", "--json", what).stdout)
        assert told["states"] == {"failed": 1, "damaged": 1, "finished": 1}
        why = {run["run"]: run["why"] for run in told["runs"] if run["why"]}
        assert "diverged" in why[diverged.path.name]
        assert "line 1" in why[damaged.path.name]


def without_a_test(run):
    record = json.loads(run.records_file.read_text().splitlines()[0])
    run.records_file.write_text(json.dumps({name: v for name, v in record.items() if name != "test"}) + "\n")


def without_a_whole_checkpoint(run):
    back_to(run, 0)
    run.write_bytes("checkpoints/0001.pt", b"rubbish")


def with_a_checkpoint_of_other_data(run):
    back_to(run, 0)
    run.save_checkpoint(1, {"company": [], "round": 0, "epoch": 1, "train": (0.5, 0.5), "data": "others"})


def with_another_record_of_its_first_round(run):
    unseal(run)
    record = json.loads(run.records_file.read_text().splitlines()[0])
    record["test"]["accuracy"] = 0.5
    run.records_file.write_text(json.dumps(record) + "\n")


SPOILT = {
    "experiment that cannot be read": (lambda run: run.experiment.write_text("p = 7\n"), "damaged"),
    "another experiment": (lambda run: run.experiment.write_text("seed = 7\n"), "damaged"),
    "no first round": (
        lambda run: run.records_file.write_text(run.records_file.read_text().split("\n", 1)[1]),
        "damaged",
    ),
    "no test": (without_a_test, "damaged"),
    "no whole checkpoint": (without_a_whole_checkpoint, "failed"),
    "checkpoint of other data": (with_a_checkpoint_of_other_data, "failed"),
    "another record of its first round": (with_another_record_of_its_first_round, "failed"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_sweep_and_status_use_the_same_names(what):
    spoil, state = SPOILT[what]
    Path("grid.toml").write_text(GRID.replace("1e30, ", ""))
    palmette("sweep", "grid.toml", "--device", "cpu")
    first, second = (RunDir(Path("runs", e.id)) for e in read("grid.toml"))
    spoil(first)
    last = json.loads(palmette("sweep", "grid.toml", "--device", "cpu", "--json", code=2).stdout.splitlines()[-1])
    told = json.loads(palmette("sweep", "--status", "--json", "grid.toml").stdout)["runs"]
    assert last["runs"] == {run["run"]: run["state"] for run in told}
    assert last["runs"] == {first.path.name: state, second.path.name: "finished"}
    assert last["problems"] == {run["run"]: run["why"] for run in told if run["why"]}
    assert last["finished"] == 1


def test_status_distinguishes_running_from_killed_runs():
    palmette("sweep", "grid.toml", "--device", "cpu", code=1)
    _, second, _ = (RunDir(Path("runs", e.id)) for e in read("grid.toml"))
    back_to(second, 1)
    with second.lock():
        told = json.loads(palmette("sweep", "--status", "--json", "runs").stdout)
        assert told["states"] == {"failed": 1, "running": 1, "finished": 1}
        assert len(told["owners"]) == 1
        assert told["seconds_left"] > 0
    second.lock_file.write_text("process 7 on a machine that is gone\n")
    assert states("runs") == {"failed": 1, "interrupted": 1, "finished": 1}


@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_status_without_runs_is_refused(what):
    Path("empty").mkdir()
    assert what in palmette("sweep", "--status", "--json", what, code=2).stderr


def test_unreadable_experiment_is_named_and_others_are_shown():
    palmette("sweep", "grid.toml", "--device", "cpu", code=1)
    first, *_ = (RunDir(Path("runs", e.id)) for e in read("grid.toml"))
    first.experiment.write_text("model = ")
    result = palmette("sweep", "--status", "--json", "runs")
    assert json.loads(result.stdout)["states"] == {"finished": 2}
    assert first.path.name in result.stderr
