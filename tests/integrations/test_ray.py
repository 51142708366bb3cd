"""Sweeps on a real Ray cluster: whatever is lost on the way, the records are those of one process."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from observers import EndsAfter

from palmette.errors import NotWritten, PalmetteError, RunFailed
from palmette.integrations.ray.driver import OnRay
from palmette.integrations.ray.worker import Mailbox, Reporter, files_of, put, sendable
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.sweep import read, run

ray = pytest.importorskip("ray", reason="pip install 'palmette[ray]'")

GRID = """
[base]
model = "linear"
rounds = 5
epochs = {epochs}
[axes]
seed = "0..2"
[[variants]]
method = "sap"
[[variants]]
method = "lottery-ticket"
[[variants]]
model = "mlp"
method = "one-shot"
"""
# Half of all seeds kill whoever trains them.
POISON = """
import os, signal
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self, classes):
        super().__init__(64, classes)
        self.register_buffer("bad", torch.rand(()) < 0.5)
    def forward(self, x):
        if self.training and bool(self.bad):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x.flatten(1))

def net(*, shape, classes):
    return Net(classes)
"""
# One core for each fleet; and only who knows the word may join the cluster.
ENV = os.environ | {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(16),
}


class Machines:
    """A cluster on this machine: a head that trains nothing, and "machines" of one core each."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self.head, self.others = f"127.0.0.1:{port}", None, []
        head = ("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        self.head = self._start(*head, "--node-ip-address=127.0.0.1")

    def _start(self, *args, inside=()):
        command = [*inside, str(Path(sys.executable).with_name("ray")), "start", "--block", *args]
        command += ["--object-store-memory=100000000", "--disable-usage-stats"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV)
        for line in process.stdout:
            if "--block" in line:  # it is up, and stays
                return process
        raise AssertionError(f"Ray did not start: {command}")

    def add(self, *, inside=()):
        at = f"--node-ip-address=127.0.0.{2 + len(self.others)}"  # so the driver is on the head
        self.others.append(self._start(f"--address={self.address}", "--num-cpus=1", at, inside=inside))
        return self.others[-1]

    def lose(self, machine):
        """As by a power cut, with all that runs on it."""
        self.others = [other for other in self.others if other is not machine]
        parts = psutil.Process(machine.pid).children(recursive=True)
        assert "raylet" in {part.name() for part in parts}
        for part in [psutil.Process(machine.pid), *parts]:
            with contextlib.suppress(psutil.NoSuchProcess):
                part.kill()
        machine.wait(30)
        machine.stdout.close()

    def mailbox(self):
        for part in psutil.Process(self.head.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "".join(part.cmdline()).startswith("ray::Mailbox"):  # and what it does
                    return part
        return None

    def close(self):
        for machine in (*self.others, self.head):
            self.lose(machine)


@pytest.fixture
def machines():
    cluster = Machines()
    yield cluster
    cluster.close()


@pytest.fixture
def few_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def driver(*args, **env):
    command = [
        sys.executable,
        "-m",
        "palmette",
        "sweep",
        "grid.toml",
        "--engine",
        "ray",
        "--device",
        "cpu",
        "--json",
        *args,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV | env)


def end(process):
    process.kill()
    process.communicate(timeout=30)


def in_one_process():
    code = "from palmette.studies.sweep import read, run; run(read('grid.toml'), 'here')"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENV, timeout=300)


def same(folder="runs"):
    """The records of all runs of the grid, and whether they are those of one process."""
    pairs = [
        (RunDir(f"{folder}/{e.id}").records_file, RunDir(f"here/{e.id}").records_file) for e in read("grid.toml")
    ]
    return [one.read_bytes() == other.read_bytes() for one, other in pairs]


def goes_on_to_the_same_records(machines):
    again = driver("--address", machines.address)
    out, err = again.communicate(timeout=400)
    assert again.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["finished"] == 9
    in_one_process()
    assert same() == [True] * 9


def wait_for(thing, seconds=300):
    end = time.monotonic() + seconds
    while not (found := thing()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
    return found


def trainers():
    """The processes that train at this moment, by what the locks say."""
    owners = {RunDir(path.parent).owner() for path in Path("runs").glob("*/lock")}
    return {int(owner.split()[1]) for owner in owners if owner}


def records():
    return sum(path.read_bytes().count(b"\n") for path in Path("runs").glob("*/records.jsonl"))


def test_a_grid_on_ray_has_the_records_of_one_process():
    Path("grid.toml").write_text('[base]\nmodel = "linear"\nrounds = 1\nepochs = 1\n[axes]\nseed = [0, 1]\n')
    watch = EndsAfter()
    with OnRay() as engine:
        outcomes = run(read("grid.toml"), "runs", engine=engine, observer=watch)
        assert run([], "runs", engine=engine) == {}
        assert ray.is_initialized()  # for the next sweep
    assert not ray.is_initialized()
    assert outcomes == {Path("runs", e.id): "1 round is done" for e in read("grid.toml")}
    assert sorted(watch.records) == sorted((e.id, t) for e in read("grid.toml") for t in (0, 1))
    run(read("grid.toml"), "here")
    assert same() == [True] * 2
    assert [path.name for path in Path("runs").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1"])
def test_missing_cluster_is_reported_at_once(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(PalmetteError, match=r"nothing answers at 127\.0\.0\.1:1 .*`ray start --head` starts one"):
        OnRay(address).__enter__()


def test_batch_given_up_as_lost_overwrites_nothing():
    mailbox, folder = Mailbox(), Path("run").resolve()
    mailbox.lend(0, [folder])
    assert mailbox.tell(0, [], {folder: ({"records.jsonl": b"{}\n"}, ["records.jsonl"])}) == "continue"
    mailbox.close(0)
    assert mailbox.tell(0, [], {folder: ({"records.jsonl": b""}, ["records.jsonl"])}) == "end"
    assert RunDir(folder).records_file.read_bytes() == b"{}\n"


def test_unwritable_folder_is_reported_and_files_are_sent_again():
    experiment, home, there = Experiment(), Path("run").resolve(), Path("elsewhere").resolve()
    RunDir(there).path.mkdir()
    RunDir(there).write_text("masks/round-00.safetensors", "masks")
    RunDir(there).write_text("checkpoints/0002.pt", "state")
    mailbox = Mailbox()
    mailbox.lend(0, [home])
    RunDir(home).write_text("checkpoints/0001.pt", "older state")
    Path(home, "masks").touch()
    reporter = Reporter(lambda *sent: mailbox.tell(0, *sent), {home: experiment}, {home: there}, 1.0)
    reporter.say("something was amiss")
    with pytest.raises(NotWritten, match=f"'masks/round-00.safetensors' .* into the run folder '{home}'"):
        reporter.report(last=True)
    Path(home, "masks").unlink()
    reporter.report(last=True)
    mailbox.close(0)
    assert mailbox.take() == [("said", None, "something was amiss")]
    assert files_of(home) == files_of(there)


def test_the_end_of_a_run_is_written_after_its_records(monkeypatch):
    names = ["experiment.toml", "finished.json", "masks/round-00.safetensors", "records.jsonl", "timings.jsonl"]
    written = []
    monkeypatch.setattr(RunDir, "write_bytes", lambda self, name, content: written.append(name))
    put(RunDir("run"), dict.fromkeys(names, b""), names)
    assert written == [names[0], names[2], names[3], names[4], names[1]]


def test_more_runs_are_lent_than_the_limit_of_open_files(few_open_files):
    folders = [Path(f"run-{number}").resolve() for number in range(200)]
    assert Mailbox().lend(0, folders) == {folder: {} for folder in folders}


def test_error_of_a_custom_class_reaches_the_driver_as_text():
    class Odd(Exception):
        def __init__(self, one, other):
            super().__init__(f"{one} and {other}")

    sent = pickle.loads(pickle.dumps(sendable(Odd("this", "that"))))
    assert (type(sent), str(sent)) == (RunFailed, "Odd: this and that")
    assert isinstance(sendable(NotWritten("full")), NotWritten)
    assert isinstance(sendable(MemoryError("one network does not fit")), MemoryError)


@pytest.mark.slow
def test_lost_workers_machines_and_driver_leave_the_records_of_one_process(machines):
    Path("grid.toml").write_text(GRID.format(epochs=60))
    first, _ = machines.add(), machines.add()
    _, err = driver("--address", machines.address, OMP_NUM_THREADS="2").communicate(timeout=100)
    assert "no machine of the Ray cluster has the 2 CPU" in err  # though two have as many together
    process = driver("--address", machines.address)
    wait_for(lambda: len(trainers()) == 2)  # both work, though there are three fleets of three runs
    wait_for(lambda: records() >= 3)
    os.kill(trainers().pop(), signal.SIGKILL)
    wait_for(lambda: records() >= 12)
    machines.lose(first)
    wait_for(lambda: records() >= 20)
    end(process)
    machines.add()
    told = subprocess.run(
        [sys.executable, "-m", "palmette", "sweep", "grid.toml", "--status", "--json"],
        capture_output=True,
        text=True,
        env=ENV,
    )
    assert len(json.loads(told.stdout)["runs"]) == 9
    goes_on_to_the_same_records(machines)


@pytest.mark.slow
def test_runs_that_kill_their_worker_are_set_aside(machines):
    Path("poison.py").write_text(POISON)
    Path("grid.toml").write_text(
        '[base]\nrounds = 1\nepochs = 1\n[axes]\nseed = "0..3"\nmodel = ["poison:net", "linear"]\n'
    )
    from palmette.training.models import build

    sys.path.insert(0, os.getcwd())
    planned = read("grid.toml")
    bad = {
        e.id
        for e in planned
        if e.model != "linear" and build(e.model, shape=(1, 8, 8), classes=10, seed=e.seed).bad
    }
    sys.path.remove(os.getcwd())
    assert 0 < len(bad) < 4
    machines.add()
    process = driver("--address", machines.address)
    out, err = process.communicate(timeout=400)
    *_, last = (json.loads(line) for line in out.splitlines())  # and Ray says nothing there
    assert process.returncode == 1
    assert last["problems"].keys() == bad, err
    assert all("failed 3 times, the last time alone" in why for why in last["problems"].values())
    assert last["finished"] == 8 - len(bad)
    told = subprocess.run(
        [sys.executable, "-m", "palmette", "sweep", "--status", "runs", "--json"],
        capture_output=True,
        text=True,
        env=ENV,
    )
    assert json.loads(told.stdout)["states"] == {"finished": 8 - len(bad), "failed": len(bad)}


@pytest.mark.slow
def test_lost_mailbox_is_reported_without_a_traceback(machines):
    Path("grid.toml").write_text(GRID.format(epochs=1000))
    machines.add()
    process = driver("--address", machines.address)
    wait_for(trainers)
    wait_for(machines.mailbox).kill()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("palmette: the Ray cluster was lost (Actor"), err


@pytest.mark.slow
def test_records_of_a_machine_without_the_folders_are_fetched(machines, tmp_path):
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount of one's own")
    Path("grid.toml").write_text(GRID.format(epochs=20))
    machines.add(inside=("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$0" "$@"'))
    process = driver("--address", machines.address)
    wait_for(lambda: records() >= 6)
    end(process)
    before = {file: file.read_bytes() for file in tmp_path.glob("runs/*/records.jsonl")}
    process = driver("--address", machines.address)

    def sent():  # a round, after all was lent; and another is to come
        for file in tmp_path.glob("runs/*/records.jsonl"):
            if file.read_bytes() != before.get(file) and not RunDir(file.parent).records()[-1]["stopped"]:
                return file.parent
        return None

    folder = wait_for(sent)
    masks = folder / "masks"
    masks.rename("masks")
    masks.touch()  # so that what is sent back cannot be written there
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert err.startswith("palmette: cannot write 'masks/round-"), err  # and nothing is tried again
    assert f"into the run folder '{folder}'" in err
    masks.unlink()
    Path("masks").rename(masks)
    goes_on_to_the_same_records(machines)
