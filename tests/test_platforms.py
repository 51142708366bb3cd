"""Windows has neither `fcntl` nor `resource`: everything but the Triton kernels must load without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import palmette
from palmette.files import sync

ROOT = Path(palmette.__file__).parent
EXTRAS = [
    "matplotlib",
    "scipy",
    "pandas",
    "altair",
    "tensorboard",
    "onnx",
    "gguf",
    "huggingface_hub",
    "transformers",
    "lightning",
    "ray",
]
MODULES = sorted(
    ".".join(["palmette", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if not path.name.endswith("kernels.py") and path.name != "__main__.py"
)
NEED_THEIR_EXTRA = ["palmette.integrations.lightning", "palmette.integrations.transformers"]


def run_blocked(code, blocked):
    """Output of `code` in an interpreter in which the modules `blocked` are missing."""
    code = f"import sys, torch\nsys.modules.update(dict.fromkeys({blocked}))\n{code}"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_imported_without_fcntl_and_resource():
    code = f"import importlib\nfor name in {MODULES}: importlib.import_module(name)\nprint('done')"
    assert run_blocked(code, ["fcntl", "resource"]) == "done\n"


def test_every_module_but_its_own_integration_is_imported_without_an_extra():
    names = [name for name in MODULES if name not in NEED_THEIR_EXTRA]
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)\nprint('done')"
    assert run_blocked(code, ["fcntl", "resource", *EXTRAS]) == "done\n"


def test_measure_works_without_fcntl_and_resource():
    code = "from palmette.cli import main\nmain(['measure', 'example'])"
    assert "PQ" in run_blocked(code, ["fcntl", "resource"])


def test_sync_opens_no_folder_on_windows(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    opened, real = [], os.open
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.setattr(os, "open", lambda path, flags: opened.append((path, flags)) or real(path, flags))
        sync(file, tmp_path)
    assert opened == [(file, os.O_RDWR)]
