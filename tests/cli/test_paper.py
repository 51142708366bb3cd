"""`palmette paper`: listing, running, drawing and writing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import palmette
from data_sets import no_other_data, write_idx  # noqa: F401

from palmette.cli.paper_list import ListEntry, print_list
from palmette.studies.cost import Clock
from palmette.studies.folder import RunDir
from palmette.studies.paper import FIGURES, PaperFigure
from palmette.studies.status import Standing

TINY = ("--epochs", 1, "--rounds", 1, "--seeds", "0..1")
LINEAR = ("--models", "linear")
TABLES = ["table1", "table2", "table3"]
SHAKY = (
    "from torch import nn\n"
    "class Net(nn.Linear):\n"
    "    def forward(self, x):\n"
    "        if self.training: raise KeyError('gate')\n"
    "        return super().forward(x.flatten(1))\n"
    "def net(*, shape, classes): return Net(784, classes)\n"
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_idx(tmp_path / "data" / "fashion-mnist", train=40, test=20)


def paper(*args, code=0):
    return palmette("paper", *args, code=code)


def run(*args, code=0):
    return paper(*args, "--device", "cpu", "--data-dir", "data", "--json", code=code)


def planned(*args):
    return json.loads(paper(*args, "--dry-run", "--json", "--device", "cpu").stdout)


def last_line(result):
    return json.loads(result.stdout.splitlines()[-1])


def files(folder="runs"):
    return sorted(path.name for path in Path(folder).glob("*.*") if path.is_file() and path.suffix != ".txt")


def test_list_has_runs_cost_and_state():
    small = ("--models", "linear", "--epochs", 1, "--rounds", 0)
    run("fig1", *small, "--seeds", 0)
    names = ("fig1", "fig2", "fig14", "table1")
    found = planned(*names, *small, "--seeds", "0,1")
    assert [
        (f["name"], f["data"], len(f["runs"]), f["finished"], f["model_epochs"]) for f in found["figures"]
    ] == [
        ("fig1", "FashionMNIST", 2, 1, 2),
        ("fig2", "FashionMNIST", 8, 1, 8),
        ("fig14", "CIFAR10", 8, 0, 8),
        ("table1", "", 0, 0, 0),
    ]
    assert list(found["runs"].values()).count("finished") == 1
    assert (len(found["runs"]), found["model_epochs"]) == (16, 15)  # each run once, without what is done
    assert 0 < found["seconds"] < sum(f["seconds"] for f in found["figures"])


def test_list_fits_eighty_columns(capsys, monkeypatch):
    standings = {name: tuple(map(Standing, figure.experiments())) for name, figure in FIGURES.items()}
    entries = [ListEntry(figure, standings[name], 4e10) for name, figure in FIGURES.items()]
    everyone = tuple({s for many in standings.values() for s in many})
    entries.append(ListEntry(PaperFigure("all", "table", said="each run once"), everyone, 4e11))
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_list(entries, False, Clock("cpu"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1 : len(FIGURES) + 2]] == [*FIGURES, "all"]
    assert re.fullmatch(r"fig2 +retrained, pruned +FashionMNIST +MLP +16 +99,200 +1,268 y +0/16 *", lines[2])


def test_the_list_reads_runs_and_times_nothing(monkeypatch):
    monkeypatch.setattr(Clock, "seconds", None)
    run("fig1", *LINEAR, "--epochs", 1, "--rounds", 0, "--seeds", 0)
    listed = json.loads(paper("--json", *LINEAR, "--epochs", 1, "--rounds", 0, "--seeds", 0).stdout)
    assert (listed["seconds"], listed["device"]) == (None, None)
    assert {f["name"]: f["finished"] for f in listed["figures"]}["fig1"] == 1
    assert re.search(r"fig2 +retrained, pruned FashionMNIST +MLP +16 +99,200 +0/16", paper().stdout)


def test_tables_are_printed_as_json():
    told = json.loads(paper("table1", "--json").stdout)
    assert told["table"] == "table1"
    assert told["rows"][0]["layer"] == "Linear(784, 128)"


@pytest.mark.slow
def test_cost_of_large_models_is_estimated_from_the_cnn():
    found = planned()
    assert [figure["name"] for figure in found["figures"]] == list(FIGURES)
    seconds = {figure["name"]: figure["seconds"] for figure in found["figures"]}
    assert seconds["fig18"] > seconds["fig17"] > seconds["fig3"] > seconds["fig16"] > seconds["fig2"] > 0
    assert seconds["fig18"] / seconds["fig17"] == pytest.approx(2 * 10_383_294_464 / 6_720_262_144, rel=0.01)


def test_dry_run_writes_nothing():
    plan = planned("2", "Figure 11", "--seeds", "3")
    assert [(f["name"], f["model"], len(f["runs"])) for f in plan["figures"]] == [
        ("fig2", "mlp", 4), ("fig11", "linear", 4),
    ]  # fmt: skip
    assert plan["model_epochs"] == 8 * 31 * 200
    assert plan["seconds"] == pytest.approx(sum(f["seconds"] for f in plan["figures"]))
    assert set(plan["runs"].values()) == {"new"}
    assert not Path("runs").exists()


def test_finished_runs_are_not_repeated():
    first = run("fig11", *TINY)
    *rounds, last = map(json.loads, first.stdout.splitlines())
    assert len(rounds) == 8 * 2
    assert (last["finished"], last["problems"], last["fig11"]) == (8, {}, "runs/fig11-e1-t1-n2.png")
    assert files() == [f"fig11-e1-t1-n2.{end}" for end in ("pdf", "png", "svg")]
    again = run("fig1", *TINY, "--models", "linear")  # its runs are among those of the other
    assert json.loads(again.stdout)["finished"] == 2


def test_other_model_and_data_and_a_table_among_figures():
    other = ("--models", "linear", "--data", "Digits")
    (plan,) = planned("fig1", *TINY, *other)["figures"]
    assert (plan["data"], plan["model"], plan["model_epochs"]) == ("digits", "linear", 4)
    last = last_line(run("fig1", "table1", *TINY, *other))
    assert last["fig1-linear"] == "runs/fig1-digits-linear-e1-t1-n2.png"
    assert last["table1"] == "runs/table1.md"
    assert Path("runs/table1.csv").read_text().startswith("data set,layer")


def test_failed_run_is_named_and_others_are_drawn():
    Path("shaky.py").write_text(SHAKY)
    assert planned("fig1", "--models", "shaky:net")["seconds"] > 0
    result = run("fig1", "--epochs", 1, "--rounds", 1, "--seeds", 0, "--models", "shaky:net,linear", code=1)
    last = last_line(result)
    assert list(last["problems"].values()) == ["KeyError: 'gate'"]
    assert last["fig1-shaky:net"] is None
    assert files() == [f"fig1-linear-e1-t1-n1.{end}" for end in ("pdf", "png", "svg")]


def test_figure_is_drawn_from_existing_runs():
    run("fig1", *TINY, *LINEAR, "--out", "deep/down/runs")
    result = paper("fig1", *LINEAR, "--from", "deep", "--out", "pictures")
    assert result.stdout == "pictures/fig1-linear-e1-t1-n2.png, .svg, .pdf: 2 runs, 2 of each line\n"
    name = "fig1-linear-e1-t1-n2.png"
    assert Path("pictures", name).read_bytes() == Path("deep/down/runs", name).read_bytes()
    said = paper("fig2", "--from", "deep", code=2).stderr
    assert "no run below 'deep' is one for fig2 (mlp on FashionMNIST)" in said
    said = paper("fig1", *LINEAR, "--from", "deep", "--epochs", 2, "--seeds", 0, code=2).stderr
    assert re.search(r"is one for fig1 \(linear on \w+\) with the given --seeds, --epochs", said)
    before = files()
    assert "leave one of them out" in paper("fig1", *LINEAR, "--from", "deep", "--dry-run", code=2).stderr
    assert files() == before


@pytest.mark.slow
def test_all_draws_every_figure_that_has_runs():
    run("fig11", *TINY)
    result = paper("all", "--from", "runs", "--out", "all")
    assert re.findall(r"fig\d+|table\d", result.stdout) == ["fig11", *TABLES]
    assert Path("all/table3.tex").exists()


@pytest.mark.slow
def test_all_skips_figures_without_a_contrast():
    run("fig1", *TINY)
    result = paper("all", "--from", "runs", "--out", "all")
    assert re.findall(r"all/(fig\d+|table\d)", result.stdout) == ["fig1", "fig2", "fig7", *TABLES]
    assert result.stderr == "palmette: not drawn: fig19, for which no run has scopes other than global\n"
    one = paper("fig19", "--from", "runs", "--out", "all")  # what is asked for by its name is drawn
    assert "not run: 11 lines" in one.stdout


def test_figures_of_mixed_runs_are_refused_after_drawing_the_others():
    for epochs in (1, 2):
        run("fig1", "--epochs", epochs, "--rounds", 0, "--seeds", 0)
    result = paper("all", "--from", "runs", "--out", "all", code=2)
    assert result.stdout.startswith("all/table1.md")
    assert result.stderr == (
        "palmette: the runs for fig1, fig2, fig7, fig19 differ in epochs (1, 2) and cannot share a figure; "
        "choose with --epochs\n"
    )


@pytest.mark.slow
def test_damaged_run_is_reported_and_others_are_drawn():
    runs = list(last_line(run("fig1", *TINY, *LINEAR))["runs"])
    RunDir(Path("runs") / runs[0]).records_file.write_text("no record\n")
    result = paper("fig1", *LINEAR, "--from", "runs")
    assert "fig1-linear-e1-t1-n1.png, .svg, .pdf: 1 run, 1 of each line" in result.stdout
    assert f"left out: line 1 of '{Path.cwd()}/runs/{runs[0]}/records.jsonl'" in result.stderr


def test_figure_with_logarithmic_axes_has_another_name():
    run("fig1", *TINY, *LINEAR)
    plain = Path("runs/fig1-linear-e1-t1-n2.svg").read_bytes()
    last = last_line(run("fig1", *TINY, *LINEAR, "--log"))
    assert last["fig1-linear"] == "runs/fig1-linear-e1-t1-n2-log.png"
    assert Path("runs/fig1-linear-e1-t1-n2.svg").read_bytes() == plain


def test_figure_is_drawn_for_a_column_of_text():
    run("fig1", *TINY, *LINEAR, "--width", "5.5", "--bare")
    text = Path("runs/fig1-linear-e1-t1-n2.svg").read_text()
    assert f'width="{5.5 * 72:g}pt"' in text
    result = paper("fig1", "--width", "100", code=2)
    assert "--width must be 3 to 40 inches, got 100" in result.stderr


def test_tables_are_printed_and_written():
    result = paper("table1", "table3")
    assert "Table 1. Layers of the MLP" in result.stdout
    assert "136,074" in result.stdout
    assert files() == [f"table{n}.{end}" for n in (1, 3) for end in ("csv", "md", "tex")]
    assert "Table 2" in paper("table2", "--out", "other").stdout
    assert Path("runs/table1.md").read_text().startswith("**Table 1. Layers of the MLP**\n\n| data set |")


@pytest.mark.slow
def test_ctrl_c_prints_the_command_that_resumes():
    arguments = ["fig1", "--models", "linear", "--epochs", "300", "--rounds", "20", "--seeds", "0"]
    arguments += ["--device", "cpu", "--data-dir", "data", "--json"]
    command = [sys.executable, "-m", "palmette", "paper", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["round"] == 0
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "palmette paper " + " ".join(arguments) in err
    assert "Traceback" not in err
    result = paper("fig1", "--models", "linear", "--from", "runs")
    assert re.search(r"fig1-linear-e300-t[01]-n1\.png", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fig33"], "the paper has fig1 to fig32 and table1 to table3, got 'fig33'"),
        (["fig2", "--models", "mpl"], "model must be one of"),
        (["fig2", "--models", ""], "model must be one of"),
        (["fig2", "--data", "nowhere.npz"], "no data set is called 'nowhere.npz'"),
        (["fig2", "--data", "nowhere.npz", "--dry-run"], "no data set is called 'nowhere.npz'"),
        (["fig2", "--seeds", "a"], "seeds must be numbers"),
        (["fig2", "--precision", "half"], "precision must be one of"),
        (["fig2", "--rounds", "-1"], "rounds must be at least 0"),
        (["fig2", "--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["table2", "--models", "mlp"], "not runs, so --models would change nothing"),
        (["table1", "table3", "--epochs", "3", "--log"], "so --epochs, --log would change nothing"),
        (["table1", "--from", "data"], "so --from would change nothing"),
        (["fig2", "--out", ""], "--out must be the name of a folder"),
        (["fig2", "--from", "nowhere"], "no folder at 'nowhere'"),
        (["--from", "data"], "--from needs the names of figures"),
        (["fig3", "--data-dir", "data"], "CIFAR10 was not found"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, said):
    result = paper(*arguments, code=2)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path("runs").exists()


def test_missing_matplotlib_is_reported_before_running(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'palmette[report]'" in run("fig11", *TINY, code=2).stderr
    assert not Path("runs").exists()
