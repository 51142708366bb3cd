"""`palmette show`: what a run is and where it stands, read while others write."""

from __future__ import annotations

import json
import os
import re

import pytest
from click.testing import CliRunner

from observers import EndsAfter
from palmette.cli import main
from palmette.errors import RunBusy, RunInterrupted
from palmette.studies.config import Experiment
from palmette.studies.rounds import Observer, run
from palmette.studies.rundir import RunDir
from palmette.studies.standing import Standing, epochs_before, standing

TICKET = Experiment(method="lottery-ticket", model="linear", epochs=4, rounds=2)


def show(*args):
    result = CliRunner().invoke(main, ["show", *map(str, args)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.stderr
    return result.stdout


def shown(*args):
    return json.loads(show(*args, "--json"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def interrupted(experiment, folder, after):
    """Run `experiment` for so many epochs."""
    with pytest.raises(RunInterrupted):
        run(experiment, folder, observer=EndsAfter(after))
    return RunDir(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_finished_run_is_shown_round_by_round(folder):
    run(TICKET, folder / TICKET.id)
    text = show(folder / TICKET.id)
    assert TICKET.id in text
    assert 'method = "lottery-ticket"' in text
    assert "finished: 2 rounds are done" in text
    kept = [re.search(r"([\d,]+) +0\.\d{4} +0\.\d{4}", line) for line in text.splitlines()]
    assert [found[1] for found in kept if found] == ["640", "512", "410"]
    assert "go on" not in text
    data = shown(folder / TICKET.id)
    assert data["settings"] == TICKET.differences()
    assert [(r["kept"], r["cut_weights"]) for r in data["records"]] == [(640, 128), (512, 102), (410, 82)]
    assert data["bytes"] == RunDir(folder / TICKET.id).size()


def test_an_interrupted_run_says_where_it_is_and_the_command_it_gives_goes_on(folder):
    interrupted(TICKET, folder / TICKET.id, after=6)
    data = shown(folder / TICKET.id)
    assert (data["state"], data["rounds_done"], data["epoch"]) == ("interrupted", 1, 2)
    assert "interrupted, round 1 of 2, 2 of 4 epochs saved" in show(folder / TICKET.id)
    _, *arguments = data["go_on"].split()
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert shown(folder / TICKET.id)["state"] == "finished"


def test_a_run_can_be_looked_at_while_it_runs(folder):
    seen = []

    class Looking(Observer):
        def epoch(self, experiment, progress):
            found = shown(folder / TICKET.id)
            seen.append((found["state"], found["rounds_done"]))
            assert found["owner"] == f"process {os.getpid()} on {os.uname().nodename}"

    run(TICKET, folder / TICKET.id, observer=Looking())
    assert seen == [("running", 0)] * 4 + [("running", 1)] * 4 + [("running", 2)] * 4


def test_what_a_killed_owner_left_does_not_count_as_running(folder):
    rundir = interrupted(TICKET, folder / TICKET.id, after=1)
    rundir.lock_file.write_text("process 1 on elsewhere\n")
    assert shown(folder / TICKET.id)["state"] == "interrupted"
    with rundir.lock():
        assert rundir.owner() is not None
        with pytest.raises(RunBusy), RunDir(rundir.path).lock():
            pass
    assert rundir.owner() is None


def test_a_folder_of_runs_is_a_line_for_each(folder):
    run(TICKET, folder / TICKET.id)
    other = Experiment(model="linear", epochs=4, rounds=2)
    interrupted(other, folder / "deeper" / other.id, after=1)
    (folder / "notes").mkdir()
    (folder / "notes" / "experiment.toml").write_text("epochs = 3\n")  # somebody's own, never run
    text = show(folder)
    assert all(name in text for name in (TICKET.id, other.id, "1 interrupted, 1 finished"))
    assert [found["state"] for found in shown(folder)] == ["interrupted", "finished"]


@pytest.mark.parametrize("what", ["nothing", "empty", "damaged"])
def test_what_is_no_run_is_refused_in_a_sentence(folder, what):
    (folder / "empty").mkdir(parents=True)
    run(TICKET, folder / "damaged")
    (folder / "damaged" / "experiment.toml").write_text("p = 7\n")
    result = CliRunner().invoke(main, ["show", str(folder / what)])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert result.stderr.startswith("palmette: ")
    assert result.stderr.count("\n") == 1
    assert str(folder / what) in result.stderr


def test_epochs_are_counted_as_the_rewind_has_them():
    late = Experiment(rewind="epoch:3", epochs=10, rounds=2)
    assert [epochs_before(late, rounds) for rounds in range(4)] == [0, 10, 17, 24]
    assert Standing(late, rounds=1, epoch=5).epochs_done == 12
    assert Standing(late, rounds=1, epoch=0).epochs_done == 10
    assert Standing(late, rounds=1, epoch=5).epochs_left == 12
    assert Standing(late, rounds=1, stopped="enough").epochs_left == 0


def test_a_folder_that_is_not_there_is_a_new_run(tmp_path):
    assert standing(RunDir(tmp_path / "none"), TICKET).state == "new"
