"""The code on the pages runs, and what a page shows is there."""

import re
import shlex
from pathlib import Path

import click
import pytest
import torch

from palmette.cli import main
from palmette.cli.flags import SETTINGS, experiments
from palmette.studies.config import Experiment

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
FIELDS = Experiment.__dataclass_fields__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_on_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, page.name, "exec"), names)


def test_the_readme_starts_with_eight_lines_that_run():
    first = BLOCK.findall((ROOT / "README.md").read_text())[0]
    assert len([line for line in first.splitlines() if line]) == 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_on_a_page_are_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    for name, content in re.findall(r"^```toml\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        Path(name).write_text(content)
    lines = [line for block in SHELL.findall(text) for line in block.splitlines()]
    for line in lines:
        palmette, name, *arguments = shlex.split(line, comments=True)
        assert palmette == "palmette"
        with main.commands[name].make_context(name, arguments) as context:
            given = {k: v for k, v in context.params.items() if v is not None}
        if name == "run":
            assert experiments(given.get("file"), {k: given[k] for k in given if k in FIELDS})


def test_the_page_on_running_names_every_flag_and_its_default():
    text = (ROOT / "docs/running.md").read_text()
    options = {o for p in main.commands["run"].params if isinstance(p, click.Option) for o in p.opts}
    assert [flag for flag in options - {"--seed"} if f"`{flag}`" not in text] == []
    shown = dict(re.findall(r"^\| `--([a-z-]+)` \| `?([^|`]+?)`? \|", text, re.MULTILINE))
    settings = {n.replace("_", "-"): default for group in SETTINGS.values() for n, (default, _) in group.items()}
    numbers = {n: settings[n] for n in shown.keys() & settings.keys() if type(settings[n]) in (int, float)}
    del numbers["epochs"]  # it has two
    assert {n: float(shown[n]) for n in numbers} == numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_unfinished(page):
    text = page.read_text()
    assert text.strip()
    assert "@@" not in text
