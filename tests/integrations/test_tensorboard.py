"""The event files of a run, read back by TensorBoard itself."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner
from observers import EndsAfter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import palmette as pm
from palmette.cli import main
from palmette.errors import RunInterrupted
from palmette.studies.folder import RunDir

TICKET = pm.Experiment(method="lottery-ticket", model="linear", epochs=2, rounds=2)
COMMAND = ["run", *TICKET.flags(), "--seeds", "0", "--tensorboard"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def scalars(folder):
    """Tag -> (step, value) as TensorBoard shows them."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check(folder):
    found, records = scalars(folder), RunDir(folder).records()
    assert [step for step, _ in found["density"]] == [0, 1, 2]
    places = {"test_accuracy": "test accuracy", "train_loss": "train loss", "pq_index": "retrained pq_index"}
    for tag, place in places.items():
        part, name = place.split()
        assert [value for _, value in found[tag]] == pytest.approx([r[part][name] for r in records], rel=1e-6)
    assert found["layers/head.weight/kept"] == [(0, 640.0), (1, 512.0), (2, 410.0)]
    assert found["cut_weights"] == [(0, 128.0), (1, 102.0), (2, 82.0)]


def test_events_have_the_numbers_of_the_records(tmp_path):
    assert CliRunner().invoke(main, COMMAND).exit_code == 0
    check(tmp_path / "runs" / TICKET.id)


def test_resumed_run_repeats_no_event(tmp_path):
    folder = tmp_path / "runs" / TICKET.id
    with pytest.raises(RunInterrupted):
        pm.run(TICKET, folder, observer=EndsAfter(3))
    for _ in range(2):
        assert CliRunner().invoke(main, COMMAND).exit_code == 0
        check(folder)


def test_finished_run_gets_its_events_later(tmp_path):
    pm.run(TICKET, tmp_path / "runs" / TICKET.id)
    assert CliRunner().invoke(main, COMMAND).exit_code == 0
    check(tmp_path / "runs" / TICKET.id)
