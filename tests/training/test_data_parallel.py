"""`palmette run --nproc N`: data-parallel training equals one process but for rounding."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from palmette.cli import main
from palmette.studies.folder import RunDir

MODEL = """
from torch import nn

class Halved(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) / 2

def net(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * (shape[1] - 2) * (shape[2] - 2), 20, bias=False),
        Halved(20, momentum=None), nn.ReLU(),
        nn.Linear(20, classes),
    )
"""
RUN = ["run", "--model", "tiny:net", "--method", "lottery-ticket", "--seeds", "0", "--learning-rate", "0.01"]
RUN += ["--json"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def command(*arguments):
    return [sys.executable, "-m", "palmette", *arguments]


def finished(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def the_run(folder):
    (found,) = (path for path in Path(folder).iterdir() if path.is_dir())
    return RunDir(found)


def records(folder):
    return the_run(folder).records()


def check_like_one_process(*more, processes):
    alone = CliRunner().invoke(main, [*RUN, *more, "--out", "one"])
    assert alone.exit_code == 0
    finished(*RUN, *more, "--nproc", str(processes), "--out", "many")
    for one, many in zip(records("one"), records("many"), strict=True):
        assert many["round"] == one["round"]
        assert many["retrained"]["kept"] == one["retrained"]["kept"]
        assert many["retrained"]["pq_index"] == pytest.approx(one["retrained"]["pq_index"], rel=1e-5)
        assert many["train"]["loss"] == pytest.approx(one["train"]["loss"], rel=1e-5)
        assert many["test"]["loss"] == pytest.approx(one["test"]["loss"], rel=1e-5)
    assert the_run("one").path.name == the_run("many").path.name


def test_two_processes_write_the_records_of_one():
    check_like_one_process("--epochs", "1", "--rounds", "1", processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["1498", "601"])
def test_batches_that_do_not_divide_evenly(batch):
    check_like_one_process("--epochs", "2", "--rounds", "1", "--batch", batch, processes=3)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_clipping_and_other_optimizers(optimizer):
    over = "all" if optimizer == "sgd" else "kept"
    more = ["--optimizer", optimizer, "--clip", "0.1", "--clip-over", over, "--label-smoothing", "0.1"]
    check_like_one_process("--epochs", "2", "--rounds", "2", *more, processes=2)


def test_invalid_options_are_refused():
    for more, why in [
        (["--nproc", "2", "--fleet", "3"], "--nproc 2 trains one network at a time, got --fleet 3"),
        (["--nproc", "8", "--batch", "4"], "--nproc 8 needs an image per process, got --batch 4"),
        (["--nproc", "2", "--compile"], "--nproc 2 and --compile cannot be combined"),
    ]:
        result = CliRunner().invoke(main, [*RUN, *more, "--device", "cpu"])
        assert result.exit_code == 2
        assert result.stderr == f"palmette: {why}\n"
    for given, why in (("0", "0 is not in the range"), ("two", "'two' is not a valid integer")):
        result = CliRunner().invoke(main, [*RUN, "--nproc", given])
        assert result.exit_code == 2
        assert f"Invalid value for '--nproc': {why}" in result.stderr
    assert not Path("runs").exists()


LONG = [*RUN, "--epochs", "10", "--rounds", "3", "--nproc", "2"]


def started(*arguments):
    """A running command after its first round, and its workers."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert json.loads(process.stdout.readline())["round"] == 0
    return process, children(process)


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def check_gone(workers):
    end = time.monotonic() + 20
    while alive := [pid for pid in workers if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]:
        assert time.monotonic() < end, alive
        time.sleep(0.1)


def is_zombie(pid):
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.py").write_text(MODEL)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command(*LONG), cwd=folder, env=environment, check=True, capture_output=True, timeout=300)
    return the_run(folder / "runs").records_file.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_stops_all_processes_and_the_run_resumes_exactly(kind, uninterrupted):
    process, workers = started(*LONG)
    assert len(workers) == 1
    for pid in [process.pid] if kind == signal.SIGKILL else [process.pid, *workers]:
        os.kill(pid, kind)  # as job schedulers do, workers included
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == (-kind if kind == signal.SIGKILL else 128 + kind)
    check_gone(workers)
    assert len(records("runs")) < 4
    finished(*LONG)
    assert the_run("runs").records_file.read_bytes() == uninterrupted


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_dead_worker_ends_the_command_with_a_message(uninterrupted):
    process, workers = started(*LONG)
    os.kill(workers[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == (
        "palmette: process 2 of 2 has ended by signal 9. The same command resumes from the last saved state\n"
    )
    finished(*LONG)
    assert the_run("runs").records_file.read_bytes() == uninterrupted


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_ctrl_c_while_workers_start():
    process = subprocess.Popen(command(*LONG), stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (workers := children(process)):  # without delay: a worker soon has a session of its own
        pass
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command resumes from here" in err
    check_gone(workers)


STUCK = """
import os, signal, time
from palmette.training import data_parallel

data_parallel._STUCK = 0.5
with data_parallel.worker_group(2, "cpu") as group:
    os.kill(group._workers[0][0].pid, signal.SIGKILL)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_leader_blocked_by_a_dead_worker_exits():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    assert done.stderr.startswith("palmette: process 2 of 2 has ended by signal 9.")


CLOSED = """
from torch import nn

def net(shape, classes):
    class Net(nn.Linear): ...
    return nn.Sequential(nn.Flatten(), Net(shape[0] * shape[1] * shape[2], classes))
"""


@pytest.mark.slow
def test_a_model_that_cannot_be_pickled_is_refused():
    Path("closed.py").write_text(CLOSED)
    arguments = ["closed:net" if a == "tiny:net" else a for a in RUN]
    done = subprocess.run(command(*arguments, "--nproc", "2"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "this one cannot be: Can't pickle" in done.stderr
    assert "Traceback" not in done.stderr
