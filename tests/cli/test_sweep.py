"""`palmette sweep` and `palmette table`: what they run, print and write."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from command import on_terminal, palmette
from earlier_folders import back_to

from palmette.reports.comparison import compare, read
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.training.data import load

GRID = """
[base]
rounds = 2
epochs = 1
[axes]
seed = "0..1"
model = ["linear", "mlp"]
method = ["sap", "lottery-ticket"]
eta = [0, 0.5]
"""
FAILING = '[base]\nmodel = "linear"\nrounds = 1\nepochs = 2\nclip = "none"\n[axes]\nlearning_rate = [1e30, 0.1]\n'


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("grid.toml").write_text(GRID)


def sweep(*args, code=0):
    return palmette("sweep", *args, "--device", "cpu", "--json", code=code)


# palmette sweep


def test_grid_prints_a_line_per_round_and_a_summary():
    *rounds, last = map(json.loads, sweep("grid.toml").stdout.splitlines())
    assert len(rounds) == 12 * 3
    assert (last["finished"], last["problems"]) == (12, {})
    assert {line["method"] for line in rounds} == {
        f"{method}, {model}"
        for method in ("SAP (p=0.5, q=1)", "SAP (p=0.5, q=1), eta=0.5", "Lottery Ticket")
        for model in ("linear", "mlp")
    }
    assert [(row["method"], row["runs"]) for row in last["summary"]] == [
        (name, 2) for name in dict.fromkeys(line["method"] for line in rounds)
    ]
    text = Path(last["table"]).read_text()
    assert re.fullmatch("grid-[0-9a-f]{8}.txt", Path(last["table"]).name)
    assert "SAP (p=0.5, q=1), eta=0.5, mlp" in text
    assert [json.loads(line) for line in sweep("grid.toml").stdout.splitlines()] == [last]


def test_a_dry_run_says_what_each_fleet_costs_and_writes_nothing():
    plan = json.loads(sweep("grid.toml", "--dry-run").stdout)
    assert [(f["model"], f["runs"], f["model_epochs"]) for f in plan["fleets"]] == [
        ("linear", 6, 18), ("mlp", 6, 18),
    ]  # fmt: skip
    assert plan["model_epochs"] == 36
    assert plan["seconds"] == sum(fleet["seconds"] for fleet in plan["fleets"]) > 0
    assert {run["state"] for run in plan["runs"]} == {"new"}
    assert not Path("runs").exists()


def test_dry_run_of_a_finished_grid_has_nothing_left():
    Path("one.toml").write_text('[base]\nmodel = "linear"\nrounds = 0\nepochs = 1\n')
    sweep("one.toml", "--out", "other")
    plan = json.loads(sweep("one.toml", "--out", "other", "--dry-run").stdout)
    assert (plan["fleets"], plan["seconds"], plan["runs"][0]["state"]) == ([], 0, "finished")


def test_failed_run_is_named_at_the_end_and_others_run():
    Path("failing.toml").write_text(FAILING)
    result = sweep("failing.toml", code=1)
    last = json.loads(result.stdout.splitlines()[-1])
    (name,) = last["problems"]
    assert "diverged" in last["problems"][name]
    assert name in result.stderr
    assert last["finished"] == 1


def test_error_of_a_model_is_reported_with_its_type():
    Path("fragile.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.training: raise KeyError('gate')\n"
        "        return super().forward(x.flatten(1))\n"
        "def net(*, shape, classes): return Net(64, classes)\n"
    )
    Path("two.toml").write_text('[base]\nrounds = 1\nepochs = 1\n[axes]\nmodel = ["fragile:net", "linear"]\n')
    result = sweep("two.toml", code=1)
    last = json.loads(result.stdout.splitlines()[-1])
    assert list(last["problems"].values()) == ["KeyError: 'gate'"]
    who = f"SAP (p=0.5, q=1), fragile:net, seed 0 ({next(iter(last['problems']))})"
    assert f"palmette: {who}: KeyError: 'gate'\n" in result.stderr
    assert last["finished"] == 1
    told = json.loads(palmette("sweep", "--status", "two.toml", "--json").stdout)
    assert [(run["state"], run["why"]) for run in told["runs"]] == [
        ("failed", "KeyError: 'gate'"),
        ("finished", ""),
    ]
    assert last["runs"] == {run["run"]: run["state"] for run in told["runs"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[axes]\np = [0.5, 1]\nq = [1, 2]\n", r"bad\.toml: p = 1, q = 1: "),
        ('[axes]\ndata = ["digits", "nowhere.npz"]\n', "nowhere.npz"),
        ('[axes]\nmodel = ["linear", "nomodule:net"]\n', "nomodule"),
        ("[base]\nepochs = 1\nvalidation = 5000\n", "validation"),
    ],
)
def test_invalid_grid_is_refused_before_anything_runs(text, said):
    Path("bad.toml").write_text(text)
    result = sweep("bad.toml", code=2)
    assert re.search(said, result.stderr)
    assert len(result.stderr.splitlines()) == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(("flag", "given"), [("--out", ""), ("--fleet", "0")])
def test_shared_flags_are_checked_first(flag, given):
    assert sweep("no.toml", flag, given, code=2).stderr.startswith(f"palmette: {flag} must be ")


def test_folder_instead_of_a_grid_suggests_status():
    Path("runs").mkdir()
    assert "'runs' is a folder: add --status for" in sweep("runs", code=2).stderr


def test_run_in_use_by_another_process_is_skipped():
    Path("one.toml").write_text('[base]\nmodel = "linear"\nrounds = 1\nepochs = 1\n[axes]\nseed = [0, 1]\n')
    busy = Experiment(model="linear", rounds=1, epochs=1)
    with RunDir(f"runs/{busy.id}").lock():
        result = sweep("one.toml", code=2)
    assert json.loads(result.stdout.splitlines()[-1])["finished"] == 1
    assert "in use by process" in result.stderr


def test_every_batch_of_a_grid_is_checked_and_its_data_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr("palmette.training.data.load", lambda *args, **kw: read.append(args) or load(*args, **kw))
    Path("batches.toml").write_text('[base]\nmodel = "cnn"\n[axes]\nbatch = [250, 1499]\n')
    said = sweep("batches.toml", code=2).stderr
    assert "batch=1499 of 1500 training images leaves one for the last batch; batch=1500 does not" in said
    assert len(read) == 1


LONG = '[base]\nmodel = "linear"\nepochs = 40\nrounds = 3\n[axes]\nbatch = [250, 100]\n'


@pytest.mark.parametrize("kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_cleanly_and_the_named_command_resumes(tmp_path, kind):
    Path("long.toml").write_text(LONG)
    command = [sys.executable, "-m", "palmette", "sweep", "long.toml", "--device", "cpu", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["round"] == 0
    process.send_signal(kind)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + kind
    assert "Traceback" not in err
    assert "palmette sweep long.toml --device cpu" in err
    assert "of 2 runs finished, " in err
    assert json.loads(sweep("long.toml").stdout.splitlines()[-1])["finished"] == 2


def test_terminal_lists_failures_by_reason():
    Path("failing.toml").write_text(f"{FAILING}seed = [0, 1]\n")
    screen = on_terminal("sweep", "failing.toml", "--device", "cpu", code=1)
    assert screen[-3].startswith("No limit was reached: both runs ended within 0.01 of dense (in hindsight)")
    text = " ".join(" ".join(screen).split())
    failed = "SAP (p=0.5, q=1), learning_rate=1e+30, seeds 0, 1: diverged: its training loss is "
    for words in (
        "not finished: 2 of 4 runs; `palmette show runs` has their ids",
        failed,
        "table",
    ):
        assert words in text, words
    assert text.count("a warm-up may help") == 1
    assert re.search(r"palmette show runs all runs, \d+ kB", text)
    for what in ("failing.toml", "runs"):
        text = " ".join(" ".join(on_terminal("sweep", "--status", what)).split())
        assert "not finished, and why; `palmette show runs` has their ids:" in text
        assert failed in text
        assert text.count("a warm-up may help") == 1


# palmette table


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "grid.toml").write_text(GRID)
    palmette("sweep", folder / "grid.toml", "--out", folder / "runs", "--device", "cpu")
    return folder / "runs"


def test_the_table_is_markdown_by_default(runs):
    lines = palmette("table", runs).stdout.splitlines()
    assert lines[0] == "| model | round | density % | method | n | accuracy % |"
    assert len(lines) == 2 + 2 * 3 * 3 + 2


def test_runs_without_a_round_are_named(runs, tmp_path):
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    whole = palmette("table", copy)
    assert whole.stderr == ""
    for file in (first := sorted(copy.glob("*/records.jsonl"))[:5]):
        back_to(RunDir(file.parent), 0)
    result = palmette("table", copy)
    names = ", ".join(file.parent.name for file in first[:3])
    assert result.stderr == f"palmette: left out, as no round is finished: {names} and 2 more\n"
    assert len(result.stdout.splitlines()) < len(whole.stdout.splitlines())


def test_runs_that_failed_before_round_1_show_the_reason(runs, tmp_path):
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    first, second, third = sorted(copy.glob("*/records.jsonl"))[:3]
    for file in (first, second, third):
        back_to(RunDir(file.parent), 0)
    for file in (first, third):
        (file.parent / "failure.txt").write_text(f"{file.parent.name} diverged: its loss is nan\n")
    said = (
        f"palmette: left out, as no round is finished: {first.parent.name}, {third.parent.name}, which failed: "
        f"diverged: its loss is nan\npalmette: left out, as no round is finished: {second.parent.name}\n"
    )
    assert palmette("table", copy).stderr == said
    assert palmette("report", copy, "-o", tmp_path / "a.html").stderr == said
    assert "which failed: diverged: its loss is nan" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("name", [pytest.param("experiment.toml", marks=pytest.mark.slow), "records.jsonl"])
def test_damaged_run_is_left_out_of_table_and_report(runs, tmp_path, name):
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    first, *others = sorted(file.parent for file in copy.glob("*/records.jsonl"))
    (first / name).write_text("{\n")
    table = palmette("table", copy)
    assert table.stdout == palmette("table", *others).stdout
    assert re.fullmatch(rf"palmette: left out: .*{first}.*\n", table.stderr)
    assert palmette("report", copy, "-o", tmp_path / "a.html").stderr == table.stderr
    for command in (("table",), ("report", "-o", tmp_path / "b.html")):
        alone = palmette(*command, first, code=2)
        assert alone.stderr.startswith(f"palmette: no run to read in '{first}'; left out: ")


def test_run_without_experiment_toml_is_named_until_repaired(tmp_path):
    Path("one.toml").write_text('[base]\nmodel = "linear"\nrounds = 1\nepochs = 1\n[axes]\nseed = [0, 1]\n')
    sweep("one.toml", "--out", "runs")
    whole = palmette("table", "runs").stdout
    first = sorted(Path("runs").glob("*/experiment.toml"))[0]
    first.unlink()
    Path("runs/notes").mkdir()
    Path("runs/notes/records.jsonl").write_text("{}\n")  # of something else
    said = f"'{first.parent}' has records, but no experiment.toml with its settings; run its command"
    for command in (("table", "runs"), ("report", "runs", "-o", "a.html"), ("sweep", "--status", "runs")):
        assert said in palmette(*command).stderr
    assert said in palmette("show", "runs").stdout
    assert said in palmette("table", first.parent, code=2).stderr
    sweep("one.toml", "--out", "runs")
    assert palmette("table", "runs").stdout == whole


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_programs_get_every_digit(runs, end):
    palmette("table", runs, "--at", "0.9,0.7", "--baseline", "lottery-ticket", "-o", f"deep/table.{end}")
    found = (pd.read_csv if end == "csv" else pd.read_parquet)(f"deep/table.{end}")
    wanted = compare(read([runs]), at=[0.9, 0.7], baseline="lottery-ticket")
    pd.testing.assert_frame_equal(found, wanted, check_exact=True, check_dtype=False)
    assert found["difference"].notna().any()


def test_format_is_read_from_the_file_name(runs):
    assert palmette("table", runs, "--at", "0.9", "-o", "a.tex").stdout == "a.tex: 6 rows\n"
    assert Path("a.tex").read_text().startswith("\\begin{table}")
    printed = palmette("table", runs, "--at", "0.9").stdout
    palmette("table", runs, "--at", "0.9", "-o", "a.md")
    assert Path("a.md").read_text() == printed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--at", "0.5,none"], "got 'none' in '0.5,none'"),
        (["--at", "0"], "above 0 and at most 1"),
        (["--at", ""], "as 0.5,0.1, got ''"),
        (["--baseline", "sap"], "which is 2 of them"),
        (["--baseline", "one-shot"], "which is none of them"),
        (["-o", "table.xlsx"], "must end in one of .md, .csv, .tex, .parquet, got 'table.xlsx'"),
    ],
)
def test_invalid_table_arguments_are_refused(runs, flags, said):
    result = palmette("table", runs, *flags, code=2)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_without_runs_is_refused(tmp_path):
    assert "no folder at" in palmette("table", "nowhere", code=2).stderr
    assert "no run to read in" in palmette("table", tmp_path, code=2).stderr
    allowed = "give a folder of runs, or an archive of runs (.tar.xz)"
    for command in (("table",), ("show",), ("report", "-o", "a.html")):
        said = palmette(*command, "grid.toml", code=2).stderr
        assert said == f"palmette: 'grid.toml' is a file; {allowed}\n"


def test_grid_in_another_encoding_is_reported_as_such():
    Path("wide.toml").write_text(GRID, encoding="utf-16")
    said = "palmette: wide.toml: this file is not UTF-8 text; save it as UTF-8\n"
    assert sweep("wide.toml", code=2).stderr == palmette("run", "wide.toml", code=2).stderr == said


def test_missing_pyarrow_names_the_install_command(runs, monkeypatch):
    def missing(*args, **kwargs):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", missing)
    result = palmette("table", runs, "-o", "x.parquet", code=2)
    assert "pip install 'palmette[parquet]'" in result.stderr
    assert not Path("x.parquet").exists()
