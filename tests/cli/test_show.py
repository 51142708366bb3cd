"""`palmette show`: what a run is and where it stands, read while others write."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from observers import EndsAfter
from rich.console import Console

from palmette.cli import main
from palmette.cli.show import _print_many, _print_one
from palmette.errors import RunBusy, RunInterrupted
from palmette.studies import sweep
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer
from palmette.studies.running import run
from palmette.studies.status import Standing, epochs_before, standing

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
    assert "method    Lottery Ticket\n" in text
    assert "finished: 2 rounds are done" in text
    kept = [re.search(r"([\d,]+) +0\.\d{4} +0\.\d{4}", line) for line in text.splitlines()]
    assert [found[1] for found in kept if found] == ["640", "512", "410"]
    assert "resume" not in text
    data = shown(folder / TICKET.id)
    assert data["settings"] == TICKET.differences()
    assert [(r["kept"], r["cut_weights"]) for r in data["records"]] == [(640, 128), (512, 102), (410, 82)]
    assert data["bytes"] == RunDir(folder / TICKET.id).size()


def test_a_method_that_does_not_rewind_is_shown_as_such(folder):
    experiment = dataclasses.replace(TICKET, rewind="learning-rate", rounds=1)
    run(experiment, folder / experiment.id)
    assert "method    Fixed Ratio\n" in show(folder / experiment.id)


def test_interrupted_run_shows_its_state_and_how_to_resume(folder):
    interrupted(TICKET, folder / TICKET.id, after=6)
    data = shown(folder / TICKET.id)
    assert (data["state"], data["rounds_done"], data["epoch"]) == ("interrupted", 1, 2)
    assert "interrupted, round 1 of 2, 2 of 4 epochs saved" in show(folder / TICKET.id)
    _, *arguments = data["go_on"].split()
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert shown(folder / TICKET.id)["state"] == "finished"


def test_running_run_can_be_shown(folder):
    seen = []

    class Looking(Observer):
        def epoch(self, experiment, progress):
            found = shown(folder / TICKET.id)
            seen.append((found["state"], found["rounds_done"]))
            assert found["owner"] == f"process {os.getpid()} on {os.uname().nodename}"

    run(TICKET, folder / TICKET.id, observer=Looking())
    assert seen == [("running", 0)] * 4 + [("running", 1)] * 4 + [("running", 2)] * 4


def test_lock_of_a_killed_owner_is_not_running(folder):
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


def test_runs_in_an_archive_show_no_temporary_folder():
    study = Path(__file__).parents[2] / "results" / "cifar100-wresnet28x8"
    *_, hint, command = show(study).splitlines()
    assert hint.endswith("All of them round by round:")
    assert command.strip() == f"palmette table {study}"


def test_a_search_says_how_far_and_how_precise(folder):
    search = Experiment(model="linear", epochs=1, rounds=1, tolerance=0.05, method="interpolate")
    run(search, folder / search.id)
    text = show(folder / search.id)
    assert re.search(r"^how far   .*; 1 retraining \(", text, flags=re.M)
    assert re.search(r"^precision score 0\.\d+, dense 0\.\d+; standard error of the difference", text, flags=re.M)


def test_a_run_that_failed_is_counted_as_such(folder):
    run(TICKET, folder / TICKET.id)
    sick = Experiment(model="linear", epochs=1, rounds=1, learning_rate=1e30)
    assert all("diverged" in str(why) for why in sweep.run([sick], folder).values())
    assert "1 finished, 1 failed; " in show(folder)


def test_failure_is_read_as_utf_8_in_any_locale(folder):
    rundir = interrupted(TICKET, folder / TICKET.id, after=1)
    rundir.failure.write_text("größe\n", encoding="utf-8")
    of_ascii = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "palmette", "show", str(rundir.path), "--json"]
    ran = subprocess.run(command, env=of_ascii, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["failure"] == "größe"


def test_unreadable_failure_is_no_error(folder):
    rundir = interrupted(TICKET, folder / TICKET.id, after=1)
    rundir.failure.write_bytes(b"no room \xff")
    (found,) = shown(folder)
    assert (found["state"], found["failure"]) == ("failed", "no room \N{REPLACEMENT CHARACTER}")
    rundir.failure.unlink()
    rundir.failure.mkdir()
    (found,) = shown(folder)
    assert (found["state"], found["failure"]) == ("interrupted", None)


DAMAGE = {
    "experiment.toml": "p = 7\n",
    "records.jsonl": "no record\n",
}


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *DAMAGE.items(),
        *[("records.jsonl", text) for text in ('{"round": 0}\n', f'{{"round": {DEEP}\n')],
        *[("experiment.toml", text) for text in (f"p = {DEEP}", "a." * 20_000 + "a = 1")],
    ],
    ids=range(6),
)
def test_damaged_run_is_named_among_others_and_refused_alone(folder, file, content):
    run(TICKET, folder / TICKET.id)
    other = dataclasses.replace(TICKET, seed=1)
    run(other, folder / other.id)
    (folder / TICKET.id / file).write_text(content)
    text = show(folder)
    assert TICKET.id in text.partition("\ndamaged:")[2].partition("\n\n1 damaged, ")[0]
    assert "1 damaged, 1 finished" in text
    found = shown(folder)
    assert [(one["run"], one["state"]) for one in found] == [(TICKET.id, "damaged"), (other.id, "finished")]
    assert set(found[0]) == set(found[1])
    _, first, second, *_ = printed(80, found)
    assert first.startswith(f"…{TICKET.id[-15:]} ")
    assert second.startswith("Lottery Ticket ")
    assert TICKET.id in found[0]["damage"]
    alone = CliRunner().invoke(main, ["show", str(folder / TICKET.id)])
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert alone.stderr == f"palmette: {found[0]['damage']}\n"


def printed(width, found):
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False)
    if isinstance(found, dict):
        _print_one(console, found)
    else:
        _print_many(console, found, Path())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_folder_of_runs_fits_eighty_columns(folder):
    sap = Experiment(model="linear", epochs=1, rounds=1)
    same = [
        sap,
        dataclasses.replace(sap, p=1, q=2),
        Experiment(method="one-shot", model="linear", epochs=1, rounds=1),
    ]
    for experiment in same:
        run(experiment, folder / experiment.id)
    *rows, empty, _, _ = printed(80, shown(folder))
    assert empty == ""
    assert all(len(row) <= 80 and "…" not in row for row in rows)
    assert rows[0].split() == ["method", "seed", "round", "accuracy", "density", "PQ", "Index", "disk", "state"]
    starts = [re.match(r"(.*?) +0 +1/1 ", row)[1] for row in rows[1:]]
    assert sorted(starts) == ["One Shot", "SAP (p=0.5, q=1)", "SAP (p=1, q=2)"]
    assert all(row.endswith(" done") for row in rows[1:])
    longer = dataclasses.replace(sap, epochs=2)
    run(longer, folder / longer.id)
    text = "\n".join(printed(80, shown(folder)))
    assert all(e.id[-8:] in text for e in (*same, longer))  # else two could not be told apart
    mlp = dataclasses.replace(sap, model="mlp")
    run(mlp, folder / mlp.id)
    assert printed(80, shown(folder))[0].split()[0] == "model"
    assert all(e.id in "\n".join(printed(140, shown(folder))) for e in (*same, longer, mlp))


def test_renamed_folders_are_shown_by_name(folder):
    for name in ("a", "b"):
        run(TICKET, folder / name)
    assert [row.split()[:3] for row in printed(140, shown(folder))[1:3]] == [[TICKET.id, "in", n] for n in "ab"]
    narrow = printed(80, shown(folder))
    assert narrow[0].split()[:5] == ["method", "seed", "folder", "round", "accuracy"]
    assert [row.split()[3] for row in narrow[1:3]] == ["a", "b"]


def test_the_rounds_of_a_large_network_fit_eighty_columns(folder):
    run(TICKET, folder / TICKET.id)
    found = shown(folder / TICKET.id)
    for record in found["records"]:
        record |= {"kept": 23_520_842, "cut_weights": 2_352_084, "dead_neurons": 26_000, "density": 1.0}
    _, table = "\n".join(printed(80, found)).split("\n\n")
    assert "…" not in table
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.count("23,520,842") == table.count("2,352,084") == 3
    assert table.splitlines()[1].split()[-2:] == ["neurons", "next"]


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
    assert Standing(Experiment(rounds=10**15, epochs=2), rounds=1).epochs_left == 2 * 10**15  # at once


def test_a_folder_that_is_not_there_is_a_new_run(tmp_path):
    assert standing(RunDir(tmp_path / "none"), TICKET).state == "new"


COLUMNS = [
    ("retrained", "dead_neurons"),
    ("retrained", "kept"),
    ("retrained", "layers", 0, "total"),
    ("cut", "weights"),
    ("index_map", "p"),
    ("train",),
    ("pruned",),
]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return run(TICKET, tmp_path_factory.mktemp("once") / TICKET.id).path


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_record_without_a_column_is_damage_and_no_crash(folder, once, column):
    shutil.copytree(once, folder / TICKET.id)
    file = folder / TICKET.id / "records.jsonl"
    first, line, *rest = file.read_text().splitlines()
    record = json.loads(line)
    *path, last = column
    place = record
    for name in path:
        place = place[name] if name else next(iter(place.values()))
    place.pop(last)
    for other in ({}, {last: "x"}, {last: float("nan")}, {last: 10**400}):
        place |= other
        file.write_text("\n".join([first, json.dumps(record), *rest, ""]))
        assert "1 damaged" in show(folder)
