"""The map in docs/architecture.md is that of the code, and the code keeps its shape."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "palmette"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
NAMES = {path.relative_to(SOURCE).as_posix() for path in MODULES}


def tree():
    """The modules in the first block of the page, where a folder is a line that ends its name with a slash."""
    folders, found = [], []
    for line in PAGE.partition("```\nsrc/palmette/\n")[2].partition("```")[0].splitlines():
        depth, words = (len(line) - len(line.lstrip())) // 2, line.split()
        folders[depth - 1 :] = [words[0]] if words[0].endswith("/") else []
        found += ["".join(folders) + word for word in words if word.endswith(".py")]
    return found


def defined(path):
    """Functions and classes of a module, and methods as Class.method."""
    for node in ast.parse((SOURCE / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_the_tree_on_the_page_is_the_real_one():
    assert Counter(tree()) == Counter(NAMES)


def test_every_path_on_the_page_exists():
    paths = set(re.findall(r"`([\w/]+(?:\.py|\.md|/))`", PAGE))
    assert [path for path in paths if not ((SOURCE / path).exists() or (ROOT / path).exists())] == []


def test_every_function_on_the_page_is_where_the_page_says():
    named = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", PAGE)
    assert len(named) > 30
    assert [(path, name) for path, name in named if name not in set(defined(path))] == []


def test_tests_mirror_the_rooms():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert rooms <= {path.name for path in (ROOT / "tests").iterdir()}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_reads_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 350


def test_no_folder_is_crowded_and_three_files_with_one_prefix_are_a_folder():
    assert [f for f, count in Counter(path.parent for path in MODULES).items() if count > 18] == []
    families = Counter((p.parent, p.stem.split("_")[0]) for p in MODULES if "_" in p.stem)
    assert [family for family, count in families.items() if count > 2] == []


def test_two_classes_share_a_name_only_where_they_are_one_thing_for_two_libraries():
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} <= {"PalmetteCallback"}


def test_two_modules_share_a_name_only_as_a_command_and_what_it_runs():
    rooms = {}
    for path in MODULES:
        rooms.setdefault(path.stem, []).append(path.relative_to(SOURCE).parts[0])
    assert {stem: where for stem, where in rooms.items() if len([w for w in where if w != "cli"]) > 1} == {}
