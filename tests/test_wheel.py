"""The wheel, installed into an empty environment: everything it needs is in it."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_wheel_works_in_an_empty_environment(tmp_path):
    def run(*command):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pip = sys.executable, "-m", "pip", "-q"
    run(*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("palmette-*-py3-none-any.whl")
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", wheel)
    # Dependencies are those of the tests; the line leaves out the palmette that they have installed.
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    palmette = python.with_name("palmette")
    assert own in Path(run(python, "-c", "import palmette; print(palmette.__file__)").strip()).parents
    assert "PQ Index" in run(palmette, "measure", "example")
    run(palmette, "measure", "example", "--html", "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "--tolerance" in run(palmette, "run", "--help")
    run(palmette, "run", "--method", "lottery-ticket", "--seeds", "0", "--epochs", "1", "--rounds", "1")
    assert "1 finished" in run(palmette, "show")
