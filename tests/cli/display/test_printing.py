"""What commands print fits the terminal, breaks between words, and is JSON only on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from command import on_terminal, palmette

from palmette.cli import main

SMALL = ("run", "--rounds", "2", "--epochs", "1", "--seeds", "0,1", "--model", "linear", "--device", "cpu")
HELPS = [[name, "--help"] for name in main.commands] + [["data", "get", "--help"], ["--help"]]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("home"), Path.cwd()
    os.chdir(folder)
    palmette(*SMALL)
    yield folder
    os.chdir(before)


def shown(monkeypatch, capsys, width, *args):
    """Lines that a command prints in a terminal of this width, without live tables."""
    for name, value in {"COLUMNS": str(width), "LINES": "24", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    with pytest.raises(SystemExit):
        main([*map(str, args)])
    captured = capsys.readouterr()
    return (captured.out + captured.err).splitlines()


@pytest.mark.parametrize("args", HELPS, ids=" ".join)
def test_help_fits_and_breaks_between_words(args):
    narrow, wide = (CliRunner().invoke(main, args, env={"COLUMNS": str(width)}).stdout for width in (64, 80))
    assert max(map(len, wide.splitlines())) <= 80
    assert narrow.split() == wide.split()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "args",
    [
        ["show"], ["table"], ["table", "--at", "0.9,0.7", "--baseline", "one-shot"], ["sweep", "--status", "runs"],
        ["measure", "example"], ["prune", "example", "-o", "a.safetensors", "--force"], ["axioms", "gini"],
        ["show", "nowhere"], ["table", "nowhere"], ["paper", "table1"], ["paper", "fig2", "--seeds", "a"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_lines_fit_the_terminal(args, width, home, monkeypatch, capsys):
    lines = shown(monkeypatch, capsys, width, *args)
    assert lines
    assert [line for line in lines if len(line.rstrip()) > width] == []


def test_a_narrow_terminal_lacks_columns_but_cuts_none(home, monkeypatch, capsys):
    head, *rows = shown(monkeypatch, capsys, 40, "show")
    assert head.split() == ["method", "seed", "accuracy", "density", "state"]
    assert max(len(line.rstrip()) for line in (head, *rows[:12])) <= 40
    assert not any("…" in line for line in (head, *rows))


def test_folders_of_runs_are_runs_by_default(home):
    assert palmette("show").stdout == palmette("show", "runs").stdout
    assert palmette("table").stdout == palmette("table", "runs").stdout
    assert palmette("report").stdout.startswith("report.html: 8 runs")


def test_a_table_is_markdown_in_a_pipe_and_aligned_in_a_terminal(home, monkeypatch, capsys):
    assert palmette("table").stdout.startswith("| round |")
    lines = shown(monkeypatch, capsys, 80, "table")
    assert lines[0].split() == ["round", "density", "%", "method", "n", "accuracy", "%"]
    assert len({line.index("SAP") for line in lines if "SAP" in line}) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["show"], ["table"], ["sweep", "--status", "runs"], ["measure", "example"], ["axioms", "gini"],
        ["prune", "example", "-o", "b.safetensors", "--force"], [*SMALL], [*SMALL, "--dry-run"], ["data"],
        ["paper", "fig2", "--dry-run", "--models", "linear", "--seeds", "0"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_is_printed_on_request_only(args, home):
    with pytest.raises(json.JSONDecodeError):
        json.loads(palmette(*args).stdout)
    json.loads(palmette(*args, "--json").stdout)


def test_a_pipe_gets_one_plain_line_per_round(home):
    first, *_, last = palmette(*SMALL, "--out", "other", "--method", "one-shot").stdout.splitlines()
    assert first.startswith("One Shot, seed 0: round 0/2, density 100.0%, test ")
    assert last.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_a_run_ends_with_its_answer_below_a_table_that_is_still_visible(width, home):
    *_, answer, last = screen = on_terminal(
        *SMALL, "--out", f"w{width}", "--seeds", "0..2", width=width, height=24
    )
    assert last == ""
    assert max(map(len, screen)) <= width
    assert answer.endswith(".")
    assert any(line.startswith("method") for line in screen[-23:])
    (file,) = Path(f"w{width}").glob("*.txt")
    assert "index up: the round" in file.read_text()
    assert not any("index up: " in line for line in screen)


def test_aliases_set_the_same_settings():
    names = {option: p.name for p in main.commands["run"].params for option in p.opts}
    aliases = ("--lr", "--batch-size", "--warmup", "-o", "--seeds")
    assert [names[alias] for alias in aliases] == ["learning_rate", "batch", "warm_up", "out", "seed"]


def test_commands_are_suggested_for_unknown_ones():
    assert "No such command 'sweeep'" in palmette("sweeep", code=2).stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_stdout_lacks_are_replaced(encoding, home):
    for args in (["run", "--help"], ["show"], ["measure", "example"], ["paper"]):
        done = subprocess.run(
            [sys.executable, "-m", "palmette", *args], capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": encoding}, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")


def test_listing_runs_imports_no_torch(home):
    code = "import sys\nfrom palmette.cli import main\ntry: main(['show'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("False\n")
