"""`palmette run`: what a command line asks for, and what it leaves on the screen and on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from palmette.cli import main
from palmette.cli.display.watch import Watch
from palmette.cli.options import DIGITS_EPOCHS, experiments, setting_options
from palmette.reports import figures
from palmette.reports.tables import as_text, last_kept, summary
from palmette.studies.experiment import Experiment, setting_fields
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.running import run as run_one
from palmette.studies.spec import PARAMETERS
from palmette.training import data as data_sets

SMALL = ("--rounds", "1", "--epochs", "1", "--seeds", "0", "--device", "cpu", "--model", "linear", "--json")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(*args):
    return CliRunner().invoke(main, ["run", *map(str, args)])


def lines(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def made(*args, file=None):
    """The experiments that a command line stands for."""
    command = main.commands["run"]
    with command.make_context("run", list(args)) as context:
        names = {f.name for f in setting_fields()}
        given = {n: v for n, v in context.params.items() if n in names and v is not None}
    return experiments(file, given)


# What is asked for


def test_method_of_the_current_folder_is_found():
    Path("methods_here.py").write_text("import palmette as pm\nhalf = pm.Method(budget=pm.FixedRatio(0.5))\n")
    done = run(*SMALL, "--method", "methods_here:half", "--dry-run")
    assert done.exit_code == 0, done.stderr


def test_every_setting_is_a_flag_with_its_default():
    table = {f.name: f.default for f in setting_fields()}
    fields = {
        n: table[n] if n in PARAMETERS else f.default
        for n, f in Experiment.__dataclass_fields__.items()
        if n != "own"
    }
    assert table == fields
    assert {name: type(value) for name, value in table.items()} == {n: type(v) for n, v in fields.items()}
    assert [option.name for option in setting_options()] == list(table)


def test_help_describes_each_command_in_a_sentence():
    said = CliRunner().invoke(main, ["--help"]).stdout
    lines = [line for line in said.partition("Train, prune")[2].splitlines() if line.startswith("  ")]
    assert sorted(line.split()[0] for line in lines) == sorted(main.commands)
    assert [line for line in lines if line.endswith(("...", "al.")) or not line.endswith((".", "?"))] == []


def test_help_names_every_flag():
    text = CliRunner().invoke(main, ["run", "--help"]).stdout
    flags = [flag for parameter in main.commands["run"].params for flag in parameter.opts if flag.startswith("--")]
    assert all(flag in text for flag in flags)
    assert "--seed" in flags


def test_default_runs_compare_the_papers_methods_on_digits():
    four = [Experiment(epochs=DIGITS_EPOCHS), Experiment(epochs=DIGITS_EPOCHS, p=1, q=2)]
    four += [Experiment(epochs=DIGITS_EPOCHS, method=m) for m in ("lottery-ticket", "one-shot")]
    assert made() == [dataclasses.replace(e, seed=seed) for seed in (0, 1, 2) for e in four]


def test_other_data_are_trained_as_long_as_in_the_paper():
    assert {e.epochs for e in made("--data", "MNIST")} == {200}
    assert {e.epochs for e in made("--epochs", "3")} == {3}


def test_methods_that_a_setting_makes_equal_are_run_once():
    names = [experiment.method for experiment in experiments(None, {"saliency": "lamp", "seed": "0"})]
    assert names == ["sap", "sap", "lottery-ticket"]


def test_a_setting_is_given_to_the_methods_that_have_it():
    sap, ticket = made("--method", "sap,lottery-ticket", "--eta", "0.1", "--p", "0.3", "--seed", "4")
    assert (sap.eta, sap.p, sap.q, sap.seed) == (0.1, 0.3, 1.0, 4)
    assert ticket == Experiment(method="lottery-ticket", epochs=DIGITS_EPOCHS, seed=4)


MANY = Experiment(
    data="MNIST", model="cnn", scope="neuron", rewind="epoch:5", stop="index-turns-up:2,density:0.05", epochs=20,
    weight_decay=1e-5, nesterov=False, clip=None, precision="bfloat16", compile=True, seed=3, warm_up=2,
)  # fmt: skip


@pytest.mark.parametrize(
    "experiment",
    [Experiment(), MANY, Experiment(method="one-shot", ratio=0.3), Experiment(optimizer="adam", clip=2.5)],
)
def test_flags_and_file_of_an_experiment_reproduce_it(experiment, tmp_path):
    (tmp_path / "defaults.toml").write_text("")
    assert made(*experiment.flags(), file=tmp_path / "defaults.toml") == [experiment]
    (tmp_path / "own.toml").write_text(experiment.to_toml())
    assert made(file=tmp_path / "own.toml") == [experiment]
    assert [e.seed for e in made("--seeds", "0..2,7", file=tmp_path / "own.toml")] == [0, 1, 2, 7]
    assert made("--epochs", "9", file=tmp_path / "own.toml") == [dataclasses.replace(experiment, epochs=9)]
    made(*experiment.flags())  # accepted without a file too


def test_every_seed_of_an_experiment_is_a_seed_of_the_command(tmp_path):
    largest = Experiment(seed=2**63 - 1)
    (tmp_path / "own.toml").write_text(largest.to_toml())
    assert made(file=tmp_path / "own.toml") == [largest]
    assert made(*largest.flags(), file=tmp_path / "own.toml") == [largest]
    assert [e.seed for e in made("--seeds", f"3,{10**18}, 0..1,3", file=tmp_path / "own.toml")] == [
        3, 10**18, 0, 1,
    ]  # fmt: skip


def test_help_says_what_each_rewind_keeps():
    text = " ".join(CliRunner().invoke(main, ["run", "--help"]).stdout.split())
    assert "fine-tune (keep the weights, and use the last, smallest learning rate" in text


# What comes out


def test_a_program_gets_one_line_per_round_and_a_last_one(tmp_path):
    *rounds, last = lines(run(*SMALL, "--method", "lottery-ticket,one-shot"))
    ids = [Experiment(method=m, rounds=1, epochs=1, model="linear").id for m in ("lottery-ticket", "one-shot")]
    assert [(line["run"], line["round"], line["kept"]) for line in rounds] == [
        (ids[0], 0, 640), (ids[1], 0, 640), (ids[0], 1, 512), (ids[1], 1, 512),
    ]  # fmt: skip
    assert rounds[0]["density"] == 1.0
    assert set(rounds[0]) >= {"run", "round", "accuracy", "density", "pq_index"}
    records = RunDir(tmp_path / "runs" / ids[0]).records()
    assert rounds[2]["accuracy"] == records[1]["test"]["accuracy"]
    assert rounds[2]["pq_index"] == records[1]["retrained"]["pq_index"]
    assert last["runs"] == dict.fromkeys(ids, "finished")
    assert re.fullmatch(r"runs/digits-linear-[0-9a-f]{8}\.png", last["figure"])
    assert (tmp_path / last["figure"]).read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / last["table"]).read_text()
    assert all(name in table for name in (*ids, "Lottery Ticket", "One Shot"))
    assert not list((tmp_path / "runs").rglob("*.partial"))


def test_repeated_command_repeats_nothing_and_others_overwrite_nothing(tmp_path):
    first = lines(run(*SMALL, "--method", "sap"))[-1]
    contents = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    assert lines(run(*SMALL, "--method", "sap")) == [first]
    *rounds, other = lines(run(*SMALL, "--method", "sap", "--seeds", "0,1"))
    assert {line["seed"] for line in rounds} == {1}
    assert other["table"] != first["table"]
    assert all(path.read_bytes() == content for path, content in contents.items())


def test_a_file_is_run_under_its_id(tmp_path):
    experiment = Experiment(model="linear", epochs=1, rounds=0, method="one-shot")
    (tmp_path / "mine.toml").write_text(experiment.to_toml())
    last = lines(run("mine.toml", "--out", "elsewhere", "--json"))[-1]
    assert last["runs"] == {experiment.id: "finished"}
    assert RunDir(tmp_path / "elsewhere" / experiment.id).records()[-1]["stopped"] == "0 rounds are done"


def test_model_in_the_working_directory_is_found(tmp_path):
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\n"
        "def small(*, shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, bias=False))\n"
    )
    command = [
        sys.executable,
        "-P",
        "-m",
        "palmette",
        "run",
        *SMALL,
        "--model",
        "nets_of_mine:small",
        "--method",
        "sap",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[0])["kept"] == 640


def test_a_reader_that_closes_the_pipe_ends_the_run_in_silence(tmp_path):
    command = [sys.executable, "-m", "palmette", "run", *SMALL, "--seeds", "0..3", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert json.loads(run.stdout.readline())["round"] == 0
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written_is_no_failure_of_the_run(tmp_path):
    command = [sys.executable, "-m", "palmette", "run", *SMALL, "--out", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert not list(tmp_path.glob("*/failure.txt"))


@pytest.mark.parametrize("arguments", [["run", *SMALL[:-1]], ["table", "runs"]], ids=["run", "table"])
def test_a_closed_stdout_is_no_terminal(arguments):
    assert run(*SMALL, "--out", "runs").exit_code == 0
    command = [sys.executable, "-c", "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "palmette", *arguments], stderr=subprocess.PIPE, text=True, check=True
    )
    assert "Error" not in done.stderr


def test_a_dry_run_of_training_that_diverges_says_what_it_costs():
    (plan,) = lines(run(*SMALL, "--learning-rate", "1e30", "--dry-run"))
    assert plan["seconds"] > 0


@pytest.mark.slow
def test_a_dry_run_of_networks_that_cannot_be_stacked_says_what_they_cost():
    (plan,) = lines(run(*SMALL, "--model", "own_models:branches", "--seeds", "0,1", "--dry-run"))
    assert plan["seconds"] > 0


def test_a_dry_run_counts_and_writes_nothing(tmp_path):
    lines(run(*SMALL, "--method", "one-shot"))
    before = sorted((tmp_path / "runs").rglob("*"))
    (plan,) = lines(run(*SMALL, "--method", "sap,one-shot", "--p", "1", "--q", "2", "--seeds", "0,1", "--dry-run"))
    assert [(r["seed"], r["state"]) for r in plan["runs"]] == [
        (0, "new"), (0, "finished"), (1, "new"), (1, "new"),
    ]  # fmt: skip
    assert plan["model_epochs"] == 3 * 2
    (fleet,) = plan["fleets"]
    assert (fleet["parameters"], fleet["prunable"], fleet["flops_per_image"]) == (650, 640, 1280)
    assert fleet["flops"] == 3 * 1280 * 1500 * 6
    assert plan["seconds"] == fleet["seconds"] > 0
    assert (fleet["runs"], fleet["members"]) == (3, 3)  # of the four, one is done
    assert sorted((tmp_path / "runs").rglob("*")) == before


def test_diverging_run_is_named_and_others_continue(tmp_path):
    (tmp_path / "nets_that_diverge.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.head = nn.Linear(64, 10); self.odd = torch.initial_seed() % 2 == 1\n"
        "    def forward(self, x):\n"
        "        return self.head(x.flatten(1)) * (float('nan') if self.odd and self.training else 1)\n"
        "def net(*, shape, classes): return Net()\n"
    )
    result = run(
        *SMALL,
        "--method",
        "sap,one-shot",
        "--p",
        1,
        "--model",
        "nets_that_diverge:net",
        "--seeds",
        "0..2",
        "--q",
        2,
    )
    assert result.exit_code == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["finished"], len(last["problems"])) == (4, 2)
    assert all("-s1-" in name for name in last["problems"])
    assert result.stderr.count("diverged: its training loss is nan in epoch 1 of round 0") == 2


def test_run_in_use_by_another_command_is_named(tmp_path):
    taken = Experiment(method="one-shot", rounds=1, epochs=1, model="linear")
    with RunDir(tmp_path / "runs" / taken.id).lock():
        result = run(*SMALL, "--method", "one-shot,lottery-ticket")
    assert result.exit_code == 2
    assert f"is in use by process {os.getpid()} on" in result.stderr
    last = json.loads(result.stdout.splitlines()[-1])
    assert list(last["problems"]) == [taken.id]
    assert last["finished"] == 1


@pytest.mark.parametrize(("more", "members"), [((), 4), (("--fleet", "2"), 2), (("--seeds", "0"), 1)])
def test_a_dry_run_times_as_many_networks_as_train_together(more, members):
    (plan,) = lines(run(*SMALL, "--method", "one-shot", "--seeds", "0..5", "--dry-run", *more))
    assert plan["fleets"][0]["members"] == members


def test_runs_of_another_command_are_reported_once(tmp_path):
    taken = [Experiment(method="one-shot", rounds=1, epochs=1, model="linear", seed=seed) for seed in range(3)]
    with contextlib.ExitStack() as locks:
        for experiment in taken:
            locks.enter_context(RunDir(tmp_path / "runs" / experiment.id).lock())
        result = run(*SMALL, "--method", "one-shot", "--seeds", "0..2")
    assert result.exit_code == 2
    (said,) = result.stderr.splitlines()
    assert said.startswith(f"palmette: 3 runs, such as {taken[0].id}, are in use by process {os.getpid()} on ")
    assert list(json.loads(result.stdout)["problems"]) == [e.id for e in taken]


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [("records.jsonl", "no record\n", "line 1 of"), ("experiment.toml", "p = 7\n", "has no readable settings")],
)
def test_a_damaged_folder_is_named_and_the_others_are_run(tmp_path, file, content, why):
    damaged = Experiment(method="one-shot", rounds=1, epochs=1, model="linear")
    lines(run(*SMALL, "--method", "one-shot"))
    (tmp_path / "runs" / damaged.id / file).write_text(content)
    result = run(*SMALL, "--method", "one-shot", "--seeds", "0,1")
    assert result.exit_code == 2
    assert why in result.stderr
    last = json.loads(result.stdout.splitlines()[-1])
    assert list(last["problems"]) == [damaged.id]
    other = dataclasses.replace(damaged, seed=1)
    assert last["runs"] == {damaged.id: "damaged", other.id: "finished"}
    assert last["finished"] == 1
    assert RunDir(tmp_path / "runs" / other.id).records()[-1]["stopped"] == "1 round is done"
    assert (tmp_path / "runs" / damaged.id / file).read_text() == content


def test_missing_matplotlib_names_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(*SMALL, "--method", "sap", "--p", "1", "--q", "2")
    assert lines(result)[-1]["figure"] is None
    assert (tmp_path / lines(result)[-1]["table"]).exists()
    assert "pip install 'palmette[report]'" in result.stderr


# Ending it


LONG = [
    sys.executable,
    "-m",
    "palmette",
    "run",
    "--method",
    "sap",
    "--p",
    "1",
    "--seeds",
    "0",
    "--model",
    "linear",
]
LONG += ["--epochs", "40", "--rounds", "3", "--q", "2", "--json"]


@pytest.mark.parametrize("kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_cleanly_and_the_named_command_resumes(tmp_path, kind):
    process = subprocess.Popen(LONG, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["round"] == 0
    process.send_signal(kind)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + kind
    assert "Traceback" not in err
    assert "palmette run --method sap --p 1 --seeds 0 --model linear --epochs 40" in err
    assert "0 of 1 run finished, " in err
    assert not any("table" in json.loads(line) for line in out.splitlines())
    done = subprocess.run(LONG, capture_output=True, text=True, check=True)
    experiment = Experiment(p=1, q=2, model="linear", epochs=40, rounds=3)
    whole = run_one(experiment, tmp_path / "whole")
    resumed = RunDir(tmp_path / "runs" / experiment.id)
    assert resumed.records_file.read_bytes() == whole.records_file.read_bytes()
    assert json.loads(done.stdout.splitlines()[-1])["finished"] == 1


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize("under_nohup", [False, True])
def test_a_hang_up_ends_like_ctrl_c_but_not_under_nohup(monkeypatch, under_nohup):
    recorded = Watch.recorded

    def hung_up(watch, *args):
        recorded(watch, *args)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(Watch, "recorded", hung_up)
    handler = signal.SIG_IGN if under_nohup else signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, handler)
    try:
        result = run(*SMALL, "--method", "one-shot")
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)
    (there,) = find_runs("runs")
    assert (result.exit_code, len(there.records())) == ((0, 2) if under_nohup else (128 + 1, 1))
    assert ("The same command resumes from here" in result.stderr) != under_nohup


@pytest.mark.parametrize("place", ["last round", "figure"])
def test_ctrl_c_after_training_keeps_table_and_figure(tmp_path, monkeypatch, place):
    def interrupting(function, when):
        def wrapped(*args, **kwargs):
            if when(args):
                os.kill(os.getpid(), signal.SIGINT)
            return function(*args, **kwargs)

        return wrapped

    if place == "figure":
        monkeypatch.setattr(figures, "draw", interrupting(figures.draw, lambda _: True))
    else:
        at_last = interrupting(Watch.recorded, lambda args: args[2]["round"] == 1)
        monkeypatch.setattr(Watch, "recorded", at_last)
    last = lines(run(*SMALL, "--method", "one-shot"))[-1]
    assert last["finished"] == 1
    assert (tmp_path / last["table"]).exists()
    assert (tmp_path / last["figure"]).exists()
    assert len(RunDir(tmp_path / "runs" / next(iter(last["runs"]))).checkpoint_numbers()) == 1


def ended_import(*args, **kwargs):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise ImportError("a part is missing")  # noqa: B904  as compiled modules do


def ctrl_c(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("what", [ctrl_c, ended_import])
def test_ctrl_c_before_training_is_a_sentence(tmp_path, monkeypatch, what):
    monkeypatch.setattr(data_sets, "load", what)
    result = run(*SMALL)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 130
    assert result.stderr == "palmette: stopped by Ctrl-C; files on disk are complete\n"
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_during_imports_leaves_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-m", "palmette", "run"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_second_ctrl_c_on_a_terminal_ends_at_once():
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [*LONG[:-1], "--data", "slow.npz", "--epochs", "9"]
    zeros = np.zeros((600_000, 8, 8), dtype=np.uint8)  # an epoch of which takes long
    labels = np.arange(len(zeros)) % 10
    np.savez("slow.npz", x_train=zeros, y_train=labels, x_test=zeros[:9], y_test=labels[:9])
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        screen, sent = "", 0
        with contextlib.suppress(OSError):  # which is how a terminal says that nobody is there any more
            while True:
                screen += os.read(leader, 65536).decode(errors="replace")
                if sent < 2 and ("left" if sent == 0 else "stopping after this epoch") in screen:
                    process.send_signal(signal.SIGINT)
                    sent += 1
        assert process.wait(60) == 130
    os.close(leader)
    assert "Traceback" not in screen
    assert all(word in screen for word in ("linear on slow.npz", "SAP (p=1, q=2)", "PQ Index", "The same command"))


@pytest.mark.parametrize("command", ["run", "paper"])
def test_help_explains_seeds_as_numbers(command):
    said = " ".join(CliRunner().invoke(main, [command, "--help"]).stdout.split())
    assert re.search(r"--seeds.{,90}0\.\.3,7 \(numbers, not a count\)", said)


# The table


def records(accuracies, indices):
    return [
        {
            "round": t, "test": {"accuracy": a}, "validation": None, "stopped": None,
            "retrained": {"density": 0.5**t, "pq_index": i},
        }
        for t, (a, i) in enumerate(zip(accuracies, indices, strict=True))
    ]  # fmt: skip


def test_kept_is_until_the_first_fall():
    assert last_kept(records([0.90, 0.92, 0.89, 0.88, 0.95], [0.1] * 5)) == 2
    assert last_kept(records([0.9, 0.1], [0.1, 0.1])) == 0


def test_the_index_of_the_table_turns_up_by_the_rule_of_the_report():
    runs = [
        (Experiment(seed=0), records([0.9] * 6, [0.3, 0.1, 0.2, 0.15, 0.3, 0.2])),  # up for good, not at once
        (Experiment(seed=1), records([0.9] * 6, [0.3, 0.1, 0.2, 0.3, 0.05, 0.1])),  # twice in a row, not for good
        (Experiment(seed=2), records([0.9] * 5 + [0.1], [0.3, 0.2, 0.1, 0.2, 0.3, 0])),  # its fall is the collapse
    ]
    (row,) = summary(runs)
    assert row["index_turned_up"]["runs"] == 2
    assert row["index_turned_up"]["round"][0] == 1.5
    assert "turned up in 2 runs only" in as_text([row], runs)


def test_validation_images_judge_where_there_are_any():
    many = records([0.9, 0.5, 0.9], [0.1] * 3)
    for record, accuracy in zip(many, [0.8, 0.8, 0.7], strict=True):
        record["validation"] = {"accuracy": accuracy}
    assert last_kept(many) == 1


def test_means_and_deviations_are_over_runs_of_a_method():
    pair = [Experiment(seed=seed) for seed in (0, 1)]
    alone = Experiment(method="one-shot")
    rows = summary(
        [
            (pair[0], records([0.9], [0.1])),
            (pair[1], records([0.8], [0.3])),
            (alone, records([0.5, 0.5], [0.1, 0.2])),
        ]
    )
    assert [row["method"] for row in rows] == [pair[0].label, "One Shot"]
    mean, deviation = rows[0]["dense"]["accuracy"]
    assert (mean, deviation) == (pytest.approx(0.85), pytest.approx(0.1 / 2**0.5))
    assert rows[1]["end"]["density"] == [0.5, None]
    assert rows[1]["index_turned_up"]["runs"] == 0
