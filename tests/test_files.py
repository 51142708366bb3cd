"""Temporary files next to the file that they become."""

import os
import subprocess
import sys

import pytest
import torch

from palmette.files import make_folder, replaced, write_beside, write_safetensors, write_whole


def beside(path):
    write_beside(path, lambda partial: partial.write_bytes(b"new"))


@pytest.mark.parametrize("write", [lambda path: write_whole(path, b"new"), beside])
def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path, write):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with replaced(tmp_path / "run.png") as ours:
        ours.touch()
    machine = ours.name.partition("-")[2]  # and ".partial"
    left = [f"run.png.{dead.pid}-{machine}", f"run.png.{dead.pid}-{machine}.masks"]
    kept = [f"run.png.{os.getppid()}-{machine}", f"other.png.{dead.pid}-{machine}"]
    kept += [f"run.png.2.{dead.pid}-{machine}", f"run.png.{dead.pid}-0123abcd.partial"]  # of another machine
    for name in (*left, *kept):
        (tmp_path / name).touch()
    write(tmp_path / "run.png")
    assert sorted(os.listdir(tmp_path)) == sorted(["run.png", *kept])


KILLED_IN_SAVE_FILE = """
import os, sys
from pathlib import Path
import safetensors.torch, torch
from palmette.files import write_safetensors

def save_file(tensors, path, metadata):
    Path(path).with_name(".tmpAbC123").touch()
    os._exit(1)

safetensors.torch.save_file = save_file
write_safetensors(Path(sys.argv[1]), {"w": torch.ones(1)}, {})
"""


def test_a_hidden_file_of_safetensors_goes_with_the_next_write(tmp_path):
    path = tmp_path / "w.safetensors"
    assert subprocess.run([sys.executable, "-c", KILLED_IN_SAVE_FILE, str(path)]).returncode == 1
    assert ".tmpAbC123" in [file.name for file in tmp_path.rglob("*")]
    write_safetensors(path, {"w": torch.ones(1)}, {})
    assert [file.name for file in tmp_path.rglob("*")] == ["w.safetensors"]


def test_the_names_of_new_folders_reach_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("palmette.files.sync", lambda *paths: synced.extend(paths))
    make_folder(tmp_path / "runs" / "one")
    make_folder(tmp_path / "runs" / "one")
    assert (tmp_path / "runs" / "one").is_dir()
    assert set(synced) == {tmp_path, tmp_path / "runs"}
