"""The code on the pages runs, what a page shows or links to is there, and every page and name can be found."""

import doctest
import re
import shlex
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
import torch
from benchmarks.__main__ import renewed
from command_tables import reference
from markdown_it import MarkdownIt

import palmette
from palmette.cli import main
from palmette.cli.options import experiments
from palmette.studies.experiment import Experiment, setting_fields

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE_OF_COMMANDS = (ROOT / "docs/cli.md").read_text()
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAVIGATION = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIELDS = Experiment.__dataclass_fields__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_on_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", [p for p in PAGES if ">>>" in p.read_text()], ids=lambda page: page.name)
def test_the_sessions_on_a_page_are_true(page):
    found = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_that_needs_a_library_or_a_cluster_parses(page):
    for block in re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL):
        compile(block, page.name, "exec")


def test_the_readme_has_at_most_900_words():
    assert len((ROOT / "README.md").read_text().split()) <= 900


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


def described(command):
    """The options of a command and of its commands."""
    for part in (command, *getattr(command, "commands", {}).values()):
        yield from (option for option in part.params if isinstance(option, click.Option))


@pytest.mark.parametrize("name", main.commands)
def test_the_reference_of_a_command_names_every_flag_with_its_help_and_default(name):
    rows = [line for line in reference(name).splitlines() if line.startswith("| `-")]
    shown = [row.replace("`", "") for row in rows]
    options = list(described(main.commands[name]))
    assert len(shown) == len(options)
    for option in options:
        words = option.help.replace("`", "").replace("|", "\\|").partition("[default:")[0].split()
        assert any(row.startswith(f"| {option.opts[0]}") and " ".join(words) in row for row in shown), option.opts


def test_defaults_in_the_reference_of_run_are_those_of_an_experiment():
    shown = dict(re.findall(r"^\| `--([a-z-]+)[^`]*` \| ([^|]+?) \|", reference("run"), re.MULTILINE))
    settings = {f.name.replace("_", "-"): f.default for f in setting_fields()}
    numbers = {n: settings[n] for n in shown.keys() & settings.keys() if type(settings[n]) in (int, float)}
    for name in ("epochs", "p", "q", "eta"):  # they have several
        del numbers[name]
    assert len(numbers) > 10
    assert {n: float(shown[n]) for n in numbers} == numbers


def test_every_command_has_a_section_in_the_reference():
    sections = re.findall(r"^## palmette (\w+)\n\n```\{palmette\} (\w+)\n```$", PAGE_OF_COMMANDS, re.MULTILINE)
    assert Counter(sections) == Counter((name, name) for name in main.commands)


def tokens(page):
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        yield token
        yield from token.children or ()


def links(page):
    """What a page links to or shows, but for the network."""
    found = (token.attrs.get("href") or token.attrs.get("src") for token in tokens(page))
    return [urlsplit(link) for link in found if link and not urlsplit(link).scheme]


def anchors(page):
    """The names of its headings, as readers of Markdown make them."""
    if page.suffix != ".md":
        return set(re.findall(r'\bid="([^"]+)"', page.read_text()))
    found, seen, inside = set(), Counter(), False
    for token in tokens(page):
        inside = token.type == "heading_open" or (inside and token.type != "heading_close")
        if inside and token.type == "inline":
            text = "".join(part.content for part in token.children)
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def broken(page):
    """The links of a page that lead nowhere, or out of the repository."""
    found = []
    for link in links(page):
        target = (page.parent / unquote(link.path)).resolve() if link.path else page
        inside = target.is_relative_to(ROOT.resolve()) or page.parent in target.parents
        there = target.exists() and (not link.fragment or unquote(link.fragment) in anchors(target))
        if not (inside and there):
            found.append(link.geturl())
    return found


PROSE = [*sorted(ROOT.glob("*.md")), *PAGES[1:], *sorted((ROOT / "results").rglob("*.md"))]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page):
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# One `p`, two: η\n\n# Same\n\n# Same\n")
    page.write_text(
        "[a](other.md) [b](other.md#one-p-two-η) [c](other.md#same-1) [d](#here) [e](https://example.org/x)\n"
        "[f](gone.md) [g](other.md#gone) [h](other.md#same-2) ![i](gone.png) [j](#gone) [k](/etc/hostname)\n\n"
        "## Here\n\n```\n[l](code.md)\n```\n\n| [m](cell.md) |\n| --- |\n"
    )
    assert anchors(other) == {"one-p-two-η", "same", "same-1"}
    expected = ["gone.md", "other.md#gone", "other.md#same-2", "gone.png", "#gone", "/etc/hostname", "cell.md"]
    assert broken(page) == expected


def test_every_page_is_in_the_navigation_once():
    listed = Counter()
    pages = [page.stem for page in PAGES[1:]]
    for page in PAGES[1:]:
        for block in NAVIGATION.findall(page.read_text()):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed.update(name for name in pages if any(fnmatch(name, entry) for entry in entries))
    expected = Counter(name for name in pages if name != "index")
    assert listed == expected, "a page is listed in docs/index.md (an API page in docs/api.md), once"


def test_every_public_name_is_on_the_api_page_of_its_room():
    pages = {page.stem: page.read_text() for page in PAGES if page.stem.startswith("api-")}
    shown = Counter(
        (name, page) for page, text in pages.items() for name in re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.M)
    )
    homes = {name: module.split(".")[0] for name, module in palmette._HOME.items()}
    expected = Counter((name, f"api-{room}") for name, room in homes.items())
    assert shown == expected, "a public name is on docs/api-ROOM.md, once"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_unfinished(page):
    text = page.read_text()
    assert text.strip()
    assert "@@" not in text


VERBS = """
    Browse Choose Compare Compute Find Look Make Measure Prune Read Reproduce Run See Train Turn Use
""".split()  # noqa: SIM905
OPENED = [*PAGES[1:], *(ROOT / name for name in ("CHANGELOG.md", "results/FINDINGS.md", "results/README.md"))]


@pytest.mark.parametrize("page", [p for p in OPENED if p.name != "index.md"], ids=lambda page: page.name)
def test_a_page_opens_with_what_the_reader_can_do(page):
    title, opening, *_ = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert opening.split()[0].strip(",") in VERBS


@pytest.mark.parametrize("name", ["weights-cpu", "weights-cuda", "training-cpu", "training-cuda"])
def test_a_table_of_the_benchmarks_is_renewed_between_its_marks(name):
    page = (ROOT / "docs/benchmarks.md").read_text()
    changed = renewed(page, name, "| new |\n")
    assert changed.count("| new |") == 1
    assert "| what | palmette |" not in changed.partition("| new |")[0].rpartition("<!-- ")[2]
    assert (
        renewed(
            changed,
            name,
            page.partition(f"{name}: written by benchmarks -->\n\n")[2].partition(f"\n<!-- end of {name}")[0],
        )
        == page
    )
