from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import palmette

ROOT = Path(palmette.__file__).parent
ROOMS = [
    *("errors", "files", "words", "measures", "pruning", "compression", "checkpoints"),
    *("training", "studies", "reports", "integrations", "cli"),
]
HEAVY = ["torch", "matplotlib", "transformers", "lightning", "ray", "pandas", "scipy", "triton", "tensorboard"]
IN_NO_ROOM = {"__init__.py", "__main__.py", "examples"}
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def room_of(module):
    """The room of `palmette.pruning.masks` is `pruning`; that of `palmette` itself is none."""
    parts = module.split(".")
    return parts[1] if parts[0] == "palmette" and len(parts) > 1 else None


def imported_modules(path):
    """Every module of this package that a file imports, at the top, inside a function or for its types."""
    package = ["palmette", *path.with_suffix("").parts]
    if path.name == "__init__.py":
        package.append("__init__")
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from palmette import pruning` names a room; `from palmette import Sap` names what lives in one.
            yield from (f"{module}.{alias.name}" if module == "palmette" else module for alias in node.names)


def rank(name):
    """Where a room, or the home of a public name, stands in the order of rooms."""
    home = palmette._HOME.get(name, name).split(".")[0]
    return ROOMS.index(home) if home in ROOMS else -1


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] not in IN_NO_ROOM], ids=str)
def test_a_later_room_imports_an_earlier_one_and_never_the_reverse(path):
    room = path.parts[0].removesuffix(".py")
    assert room in ROOMS
    for module in imported_modules(path):
        if (other := room_of(module)) is not None:
            assert rank(other) <= rank(room), f"{path} imports {module}"


def test_the_reader_of_imports_sees_all_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "measures").mkdir()
    (tmp_path / "measures" / "new.py").write_text(
        "import palmette.cli\n"
        "from palmette import Sap, pruning\n"
        "from . import rows\n"
        "from .rows import Rows\n"
        "from ..pruning import masks\n"
        "def f():\n"
        "    from palmette.studies import plan\n"
    )
    assert list(imported_modules(Path("measures/new.py"))) == [
        "palmette.cli",
        "palmette.Sap",
        "palmette.pruning",
        "palmette.measures",
        "palmette.measures.rows",
        "palmette.pruning",
        "palmette.studies",
    ]
    assert rank("Sap") == rank("pruning") > rank("measures")


def loaded_after(code):
    """Which heavy modules are there after `code` ran in a fresh interpreter."""
    code = f"{code}\nimport sys; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "code",
    [
        "import palmette",
        "import palmette; palmette.__version__; dir(palmette)",
        "import palmette.errors",
        "import palmette.cli",
        "import palmette.cli\ntry: palmette.cli.main(['--help'])\nexcept SystemExit: print()",
        "import palmette.cli\ntry: palmette.cli.main(['measure', '--help'])\nexcept SystemExit: print()",
        "import palmette.cli\ntry: palmette.cli.main(['run', '--help'])\nexcept SystemExit: print()",
        "import palmette.cli\ntry: palmette.cli.main(['show', '--help'])\nexcept SystemExit: print()",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    assert loaded_after(code) == []


def test_pruning_loads_torch_and_nothing_else_that_is_heavy():
    assert loaded_after("import palmette; palmette.Pruner, palmette.prune, palmette.pq_index") == ["torch"]


@pytest.mark.parametrize("name", palmette.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    thing = getattr(palmette, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing)
        assert thing.__module__ == f"palmette.{palmette._HOME[name]}"


def test_the_names_for_type_checkers_are_those_that_are_loaded():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (guard,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    named = {a.asname: node.module for node in guard.body for a in node.names if a.name == a.asname}
    assert named == {name: f"palmette.{home}" for name, home in palmette._HOME.items()}


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'prun'; it has .*prune"):
        palmette.prun  # noqa: B018
    assert set(palmette.__all__) <= set(dir(palmette))
    assert len(palmette.__all__) == len(set(palmette.__all__))
