from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import palmette as pm
from palmette.errors import NotWritten, PalmetteError, RunBusy, RunDamaged
from palmette.files import write_whole
from palmette.studies.folder import RunDir, find_runs

# Imports torch once, then starts a writer for every line it is sent; a writer goes on until it is killed.
WRITERS = """
import os, sys
import torch
from palmette.studies.folder import RunDir

def write(path):
    run = RunDir(path, say=lambda message: None)
    with run.lock():
        number, state = run.load_checkpoint() or (-1, None)
        assert state is None or state["w"][0] == number
        print(os.getpid(), flush=True)
        while True:
            number += 1
            run.append_record({"round": number, "numbers": [number + i / 7 for i in range(2000)]})
            run.append_timing({"round": number})
            run.save_checkpoint(number, {"w": torch.full((20_000,), float(number))})

for line in sys.stdin:
    if os.fork() == 0:
        write(line.strip())
    os.wait()
    print("gone", flush=True)
"""


@pytest.fixture
def said():
    return []


@pytest.fixture
def run(tmp_path, said):
    run = RunDir(tmp_path / "run", say=said.append)
    with run.lock():
        yield run


@contextmanager
def writers():
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", WRITERS], stdin=pipe, stdout=pipe, text=True)
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


def start(process, path):
    print(path, file=process.stdin, flush=True)
    return int(process.stdout.readline())


def kill(process, pid):
    os.kill(pid, signal.SIGKILL)
    assert process.stdout.readline() == "gone\n"


@contextmanager
def no_file_larger_than(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(run):
    return sorted(str(f.relative_to(run.path)) for f in run.path.rglob("*") if f.is_file())


def test_folder_survives_kill_9_at_any_moment(tmp_path, said):
    path, moments, last = tmp_path / "run", random.Random(0), -1
    with writers() as process:
        for _ in range(20):
            pid = start(process, path)
            time.sleep(moments.uniform(0, 0.12))
            kill(process, pid)
            run = RunDir(path, say=said.append)
            with run.lock():
                records = run.records()
                assert [r["round"] for r in records] == list(range(len(records)))
                assert all(r["numbers"][7] == r["round"] + 1 and len(r["numbers"]) == 2000 for r in records)
                assert run.records_file.read_bytes().count(b"\n") == len(records)
                assert not [name for name in names(run) if name.endswith(".partial")]
                number, state = run.load_checkpoint() or (-1, {"w": torch.full((20_000,), -1.0)})
                assert torch.equal(state["w"], torch.full((20_000,), float(number)))
                assert number in (len(records) - 1, len(records) - 2)
                assert number >= last
                last = number
    assert last > 0
    assert all("half-written" in message for message in said)  # no checkpoint was ever damaged


def test_second_process_learns_the_owner_until_it_is_killed(tmp_path):
    with writers() as process:
        pid = start(process, tmp_path / "run")
        run = RunDir(tmp_path / "run", say=lambda message: None)
        with pytest.raises(RunBusy, match=rf"in use by process {pid} on .*Wait until it ends"), run.lock():
            pass
        run.records()  # reading needs no lock
        kill(process, pid)
        with run.lock():
            assert run.lock_file.read_text().startswith(f"process {os.getpid()} on ")
        assert run.lock_file.read_text() == ""


def test_lock_holds_within_a_process_and_is_released_after_an_error(run, tmp_path):
    with pytest.raises(RunBusy, match=f"process {os.getpid()}"), RunDir(run.path).lock():
        pass
    other = RunDir(tmp_path / "other")
    with pytest.raises(KeyError), other.lock():
        raise KeyError
    with other.lock():
        pass


def test_a_run_without_a_folder_is_refused():
    with pytest.raises(ValueError, match=r"a run needs a folder, got ''; the current one is '\.'"):
        RunDir("")


def test_record_is_one_line_with_keys_in_order(run):
    assert run.append_record(
        {"round": 0, "loss": float("nan"), "b": [float("inf"), 0.1], "a": {"é": 1e-17, "x": True}}
    )
    assert run.records_file.read_text(encoding="utf-8") == (
        '{"round": 0, "loss": null, "b": [null, 0.1], "a": {"é": 1e-17, "x": true}, "seal": "6e3a96bc2769c4ee"}\n'
    )


def test_repeated_record_is_kept_once_and_a_different_one_refused(run):
    assert run.append_record({"round": 0, "loss": float("nan"), "t": (1, 2)})
    assert run.append_record({"round": 1, "loss": 0.25})
    before = run.records_file.read_bytes()
    assert not run.append_record({"round": 0, "loss": float("nan"), "t": (1, 2)})
    with pytest.raises(RunDamaged, match=r"another record of round 1, which differs in loss\."):
        run.append_record({"round": 1, "loss": 0.5})
    with pytest.raises(RunDamaged, match="the order of keys"):
        run.append_record({"loss": 0.25, "round": 1})
    assert run.records_file.read_bytes() == before


@pytest.mark.parametrize("record", [{}, {"round": "1"}, {"round": True}, {"round": 1.0}])
def test_a_record_without_its_round_is_refused(run, record):
    with pytest.raises(ValueError, match="needs its 'round'"):
        run.append_record(record)


def test_value_that_is_not_plain_is_refused(run):
    with pytest.raises(TypeError, match="Tensor is not JSON serializable"):
        run.append_record({"round": 0, "layers": [1, torch.tensor(2)]})
    assert not run.records_file.exists()


def test_timings_may_repeat(run):
    run.append_timing({"round": 0, "seconds": 1.5})
    run.append_timing({"round": 0, "seconds": 1.5})
    line = '{"round": 0, "seconds": 1.5, "seal": "%s"}\n'
    assert run.timings_file.read_text() == line % "a845f787ea5846ba" + line % "9e7717caee1b6f99"
    assert run.timings() == [{"round": 0, "seconds": 1.5}] * 2


def test_a_torn_last_line_is_cut_off_and_reported(tmp_path, said):
    run = RunDir(tmp_path, say=said.append)
    run.records_file.write_text('{"round": 0}\n{"rou')
    assert run.records() == [{"round": 0}]
    assert run.records_file.read_text() == '{"round": 0}\n{"rou'  # who only reads changes nothing
    with run.lock():
        assert run.records_file.read_text() == '{"round": 0}\n'
    assert len(said) == 1
    assert "half-written (5 bytes)" in said[0]


def test_a_damaged_line_inside_the_records_is_named(run):
    run.records_file.write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    again = f"remove '{run.path}' to start the run again"
    with pytest.raises(RunDamaged, match=rf"line 2 of .*records\.jsonl' is damaged: it is not JSON.*{again}$"):
        run.append_record({"round": 3})


@pytest.mark.parametrize("line", ["{}", "[]", "null", '[["round", 0]]'])
def test_a_line_that_is_not_of_a_round_is_damage(run, line):
    run.records_file.write_text(f'{{"round": 0}}\n{line}\n')
    with pytest.raises(
        RunDamaged, match=r"line 2 of .*records.jsonl' is damaged: it is not the record of a round"
    ):
        run.records()


@pytest.mark.parametrize("line", ["{", "{}", "[]"])
def test_unreadable_timings_are_ignored(run, line):
    run.timings_file.write_text(f'{{"round": 0, "seconds": 1}}\n{line}\n')
    assert run.timings() == []
    run.timings_file.write_text('{"round": 0, "seconds": 1}\n{"round": 1}\n')
    assert run.timings() == [{"round": 0, "seconds": 1}]


def test_partial_files_of_a_nested_run_are_kept(tmp_path):
    ours, theirs = tmp_path / "masks" / "round-00.partial", tmp_path / "other" / "experiment.toml.7.partial"
    for file in (ours, theirs):
        file.parent.mkdir()
        file.touch()
    with RunDir(tmp_path).lock():
        assert (ours.exists(), theirs.exists()) == (False, True)


def test_the_last_two_checkpoints_are_kept(run):
    for number in (0, 1, 9, 10):
        run.save_checkpoint(number, {"number": number})
    assert names(run) == ["checkpoints/0009.pt", "checkpoints/0010.pt", "lock"]
    assert run.load_checkpoint() == (10, {"number": 10})
    assert torch.load(run.checkpoint(10), weights_only=True) == {"number": 10}
    run.save_checkpoint(10_000, {"number": 10_000})
    assert run.load_checkpoint() == (10_000, {"number": 10_000})


def test_new_folder_has_no_checkpoint(tmp_path):
    assert RunDir(tmp_path / "nowhere").load_checkpoint() is None
    assert RunDir(tmp_path / "nowhere").records() == []


def test_checkpoint_restores_tensors_and_plain_values(run):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    state["masks"] = pm.Masks({"weight": torch.tensor([[True, False, True]] * 2)}).state_dict()
    run.save_checkpoint(0, state)
    _, loaded = run.load_checkpoint()
    assert torch.equal(loaded["model"]["weight"], model.weight)
    assert torch.equal(loaded["random"], state["random"])
    assert torch.equal(loaded["optimizer"]["state"][0]["momentum_buffer"], model.weight.grad)
    assert pm.Masks.from_state_dict(loaded["masks"]).kept == 4


DAMAGES = {
    "a flipped bit": lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
    "a flipped bit of the checksum": lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
    "half of the file": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "a byte too many": lambda content: content + b"\n",
    "zeros": lambda content: bytes(len(content)),
    "nothing": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_falls_back_to_the_previous_one(run, said, damage):
    for number in range(3):
        run.save_checkpoint(number, {"w": torch.arange(100.0) + number})
    newest = run.checkpoint(2)
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    number, state = run.load_checkpoint()
    assert number == 1
    assert torch.equal(state["w"], torch.arange(100.0) + 1)
    assert len(said) == 1
    assert "0002.pt' is damaged" in said[0]

    run.checkpoint(1).write_bytes(DAMAGES[damage](run.checkpoint(1).read_bytes()))
    with pytest.raises(RunDamaged, match=r"all 2 checkpoints are damaged; remove .*/run' to start again"):
        run.load_checkpoint()


def test_by_default_a_message_is_a_warning(tmp_path):
    run = RunDir(tmp_path)
    run.save_checkpoint(0, {})
    run.save_checkpoint(1, {})
    run.checkpoint(1).write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        assert run.load_checkpoint() == (0, {})


def test_checkpoint_saved_after_a_fallback_is_the_newest(run, said):
    for number in (3, 5, 9):
        run.save_checkpoint(number, {"number": number})
    run.checkpoint(9).write_bytes(b"")
    assert run.load_checkpoint()[0] == 5
    run.save_checkpoint(6, {"number": 6})
    assert names(run) == ["checkpoints/0005.pt", "checkpoints/0006.pt", "lock"]


def test_checkpoint_with_code_is_refused(run):
    run.save_checkpoint(0, {"method": print})
    with pytest.raises(RunDamaged, match=r"0000\.pt' holds more than tensors and plain values$"):
        run.load_checkpoint()


@pytest.mark.parametrize("number", [-1, 1.0, True, "1"])
def test_a_checkpoint_needs_a_number(run, number):
    with pytest.raises(ValueError, match="at least 0, got"):
        run.save_checkpoint(number, {})


def test_file_is_replaced_atomically_inside_the_folder(run):
    run.write_text(run.experiment, "first")
    run.write_text("experiment.toml", "é")
    assert run.experiment.read_bytes() == "é".encode()
    with pytest.raises(ValueError, match="must lie in"):
        run.write_text("../elsewhere", "text")


@contextmanager
def small_disk(folder):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    try:
        mounted = os.getuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk can be mounted by root on Linux only")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_and_nothing_is_half_written(tmp_path):
    with small_disk(tmp_path / "disk"):
        run = RunDir(tmp_path / "disk" / "run")
        with run.lock():
            refuses_what_does_not_fit(run, "No space left on device")
            number = 0
            with pytest.raises(NotWritten, match="No space left"):  # noqa: PT012
                while True:
                    number += 1
                    run.append_record({"round": number, "text": "x" * 3000})
            assert [r["round"] for r in run.records()] == list(range(number))
            assert run.records_file.read_bytes().endswith(b"\n")


def test_a_limit_on_file_sizes_is_reported_and_nothing_is_half_written(run):
    with no_file_larger_than(100_000):
        refuses_what_does_not_fit(run, os.strerror(errno.EFBIG))


def refuses_what_does_not_fit(run, why):
    run.write_text("table.txt", "old")
    run.append_record({"round": 0})
    run.save_checkpoint(0, {"number": 0})
    before = {name: (run.path / name).read_bytes() for name in names(run)}
    large = torch.ones(100_000)
    with pytest.raises(
        NotWritten, match=rf"cannot write 'table.txt' \(200,000 bytes\) .*{why}; [\d,]+ bytes free"
    ):
        run.write_text("table.txt", "x" * 200_000)
    with pytest.raises(NotWritten, match=rf"cannot write 'records.jsonl' \(200,\d\d\d bytes\) .*{why}"):
        run.append_record({"round": 1, "text": "x" * 200_000})
    with pytest.raises(PalmetteError, match=rf"cannot write 'checkpoints/0001.pt' .*{why}"):
        run.save_checkpoint(1, {"large": large})
    with pytest.raises(NotWritten, match=rf"cannot write 'masks/round-01.safetensors' .*{why}"):
        run.save_masks(1, pm.Masks({"w": torch.ones(2_000_000, dtype=torch.bool)}))
    assert {name: (run.path / name).read_bytes() for name in names(run)} == before
    assert run.load_checkpoint() == (0, {"number": 0})


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(NotWritten, match=r"run' is a file where a run folder is needed; choose another"):
        RunDir(tmp_path / "run").write_text("failure.txt", "why")
    with pytest.raises(NotWritten, match=r"run' is a file"), RunDir(tmp_path / "run").lock():
        pass


@pytest.mark.parametrize("place", ["/proc/runs", "/proc"])
def test_unwritable_place_does_not_suggest_free_space(place):
    said = rf"^cannot write into the folder '{place}': No such file or directory\. Choose another folder, or "
    with pytest.raises(NotWritten, match=said):
        write_whole(Path(place, "table.md"), b"")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_reported(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(NotWritten, match="Permission denied"), RunDir(tmp_path).lock():
        pass
    with pytest.raises(NotWritten, match="Permission denied"), RunDir(tmp_path / "run").lock():
        pass


@pytest.mark.parametrize("look", [RunDir.size, RunDir.checkpoint_numbers, lambda run: find_runs(run.path)])
def test_run_that_finishes_while_it_is_read_is_no_error(run, monkeypatch, look):
    run.write_text("experiment.toml", "")
    run.save_checkpoint(0, {})
    scandir = os.scandir

    def late(path):
        if os.fspath(path) == str(run.checkpoints) and run.checkpoint(0).exists():
            run.checkpoint(0).unlink()
            run.checkpoints.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    look(run)
    assert not run.checkpoints.exists()


def test_finished_run_keeps_records_and_masks(run):
    masks = pm.Masks({"w": torch.tensor([True, False])})
    run.append_record({"round": 0})
    run.save_masks(0, masks)
    run.save_checkpoint(0, {"w": torch.ones(10_000)})
    run.save_checkpoint(1, {"w": torch.ones(10_000)})
    assert run.size() > 80_000
    run.finish()
    assert names(run) == ["lock", "masks/round-00.safetensors", "records.jsonl"]
    assert not run.checkpoints.exists()
    assert run.size() == sum((run.path / name).stat().st_size for name in names(run)) < 1000
    assert pm.Masks.load(run.mask(0)) == masks
    assert json.loads(run.records_file.read_text()) == {"round": 0, "seal": "12e1df02913f24c7"}
    run.finish()  # again, as whoever starts a finished run does


def test_appending_reads_only_the_end_of_the_records(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    with run.lock():
        for t in range(3):
            run.append_record({"round": t, "text": "x" * 10_000})
        monkeypatch.setattr(RunDir, "records", lambda self: pytest.fail("all records were read"))
        assert run.append_record({"round": 3})
    monkeypatch.undo()
    assert [record["round"] for record in run.records()] == [0, 1, 2, 3]
