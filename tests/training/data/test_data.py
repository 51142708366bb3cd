from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from data_sets import no_other_data, write_idx  # noqa: F401

from palmette.cli import main
from palmette.training import data
from palmette.training.data import DATA_SETS, data_set, idx, load
from palmette.training.data.images import mean_and_sd


def test_digits_are_bundled_with_1500_and_297_images():
    digits = load("digits")
    assert digits.train_images.shape == (1500, 1, 8, 8)
    assert digits.test_images.shape == (297, 1, 8, 8)
    assert digits.train_labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert digits.test_labels.bincount().tolist() == [27, 31, 27, 30, 33, 30, 30, 30, 28, 31]
    assert sorted({*digits.train_images.unique().tolist()}) == list(range(0, 241, 15))
    assert (digits.train_images[0, 0, 0] // 15).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert mean_and_sd(digits.train_images) == (digits.mean, digits.sd)
    assert digits.sha256() == DATA_SETS["digits"].sha256


def test_digits_are_small_and_carry_their_licence():
    folder = Path(data.__file__).parent
    assert (folder / "digits.npz").stat().st_size < 50_000
    assert "CC BY 4.0" in (folder / "digits.LICENSE.txt").read_text()


@pytest.mark.parametrize("name", ["FashionMNIST", "fashion-mnist", "FASHION_MNIST", "fashionmnist"])
def test_names_ignore_case_hyphens_and_underscores(name):
    assert data.canonical(name) == "FashionMNIST"


def test_checksum_ignores_the_order_of_the_images():
    digits = load("digits")
    order = torch.randperm(1500)
    x, y = digits.train_images, digits.train_labels
    assert replace(digits, train_images=x[order], train_labels=y[order]).sha256() == DATA_SETS["digits"].sha256
    assert replace(digits, train_images=x[order]).sha256() != DATA_SETS["digits"].sha256
    moved = replace(digits, train_images=digits.test_images, train_labels=digits.test_labels)
    assert replace(moved, test_images=x, test_labels=y).sha256() != DATA_SETS["digits"].sha256


def test_images_of_a_wrong_type_are_refused():
    digits = load("digits")
    with pytest.raises(ValueError, match=r"must be uint8 N×C×H×W, got torch.float32"):
        replace(digits, train_images=digits.train_images.float())
    with pytest.raises(ValueError, match=r"must be a row of int64, got torch.int32"):
        replace(digits, test_labels=digits.test_labels.int())
    with pytest.raises(ValueError, match="must be 1 numbers each, one per channel"):
        replace(digits, mean=(0.1, 0.2))


def test_folders_are_searched_in_order(tmp_path, monkeypatch):
    system = write_idx(tmp_path / "system")
    fashion = replace(idx.FASHION_MNIST, system_folders=(str(system),))
    assert fashion.find() == system
    cache = write_idx(tmp_path / "cache" / "palmette" / "fashion-mnist")
    assert fashion.find() == cache
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path / "env"))
    assert fashion.find() == cache
    env = write_idx(tmp_path / "env" / "FashionMNIST" / "raw", packed=True)
    assert fashion.find() == env
    given = write_idx(tmp_path / "given")
    assert fashion.find(given) == given
    inside = write_idx(given / "fashion-mnist")
    assert fashion.find(given) == inside
    assert fashion.find(tmp_path / "nowhere") == env


def test_files_in_the_data_folder_itself_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("PALMETTE_DATA", str(write_idx(tmp_path / "env")))
    with pytest.raises(FileNotFoundError):
        DATA_SETS["FashionMNIST"].find()


@pytest.mark.parametrize("name", [name for name in DATA_SETS if DATA_SETS[name].folders])
def test_a_missing_set_names_the_folders_searched_and_the_download(tmp_path, name, monkeypatch):
    with pytest.raises(
        FileNotFoundError, match=rf"{name} was not found; looked in .*PALMETTE_DATA is not set"
    ) as error:
        load(name, folder=tmp_path / "given")
    said = str(error.value)
    assert f"palmette data get {name}" in said
    assert str(tmp_path / "given") in said
    assert str(tmp_path / "cache" / "palmette") in said
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path / "env"))
    with pytest.raises(FileNotFoundError, match="env"):
        load(name)


@pytest.mark.parametrize(
    ("platform", "variable", "end"),
    [
        ("linux", None, ".cache/palmette"),
        ("linux", "XDG_CACHE_HOME", "own/palmette"),
        ("darwin", None, "Library/Caches/palmette"),
        ("win32", "LOCALAPPDATA", "own/palmette"),
        ("win32", None, "AppData/Local/palmette"),
    ],
)
def test_cache_folder_of_each_platform(monkeypatch, platform, variable, end):
    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "/own")
    monkeypatch.setattr(sys, "platform", platform)
    assert data_set.cache_folder().as_posix().endswith(f"/{end}")


def test_command_lists_every_set_and_its_problems(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.bin").write_bytes(b"short")
    shown = CliRunner().invoke(main, ["data", "--data-dir", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "bundled with palmette" in shown.output
    assert str(tmp_path / "mnist") in shown.output
    assert "train.bin' is not whole" in shown.output
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(main, ["data", "--json"]).output)}
    assert list(rows) == list(DATA_SETS)
    assert rows["digits"]["sha256"] == DATA_SETS["digits"].sha256
    assert rows["digits"]["official"] is True
    assert rows["digits"]["shape"] == [1, 8, 8]
    assert rows["CIFAR10"]["found"] is None
    given = json.loads(CliRunner().invoke(main, ["data", "--json", "--data-dir", str(tmp_path)]).output)
    by_name = {row["name"]: row for row in given}
    assert by_name["MNIST"]["official"] is False
    assert (by_name["MNIST"]["train"], by_name["MNIST"]["test"]) == (20, 10)
    assert by_name["CIFAR100"]["found"] == "unreadable"


@pytest.mark.parametrize("module", ["cli.data", "training.data", "training.models"])
def test_listing_names_imports_neither_torch_nor_numpy(module):
    code = f"import sys, palmette.{module}; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
