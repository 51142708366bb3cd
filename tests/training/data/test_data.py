from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from data_sets import nothing_but_what_the_test_makes, write_idx  # noqa: F401

from palmette.cli import main
from palmette.training import data
from palmette.training.data import DATA, SHA256, load, places
from palmette.training.data.images import mean_and_sd


def test_digits_come_along_with_1500_and_297_images():
    digits = load("digits")
    assert digits.train_images.shape == (1500, 1, 8, 8)
    assert digits.test_images.shape == (297, 1, 8, 8)
    assert digits.train_labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert digits.test_labels.bincount().tolist() == [27, 31, 27, 30, 33, 30, 30, 30, 28, 31]
    assert sorted({*digits.train_images.unique().tolist()}) == list(range(0, 241, 15))
    assert (digits.train_images[0, 0, 0] // 15).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert mean_and_sd(digits.train_images) == (digits.mean, digits.sd)
    assert digits.sha256() == SHA256["digits"]


def test_digits_are_small_and_have_their_licence_beside_them():
    folder = Path(data.__file__).parent
    assert (folder / "digits.npz").stat().st_size < 50_000
    assert "CC BY 4.0" in (folder / "digits.LICENSE.txt").read_text()


@pytest.mark.parametrize("name", ["FashionMNIST", "fashion-mnist", "FASHION_MNIST", "fashionmnist"])
def test_a_name_is_understood_however_it_is_written(name):
    assert data.canonical(name) == "FashionMNIST"


def test_the_checksum_is_of_the_images_with_their_labels_whatever_their_order():
    digits = load("digits")
    order = torch.randperm(1500)
    x, y = digits.train_images, digits.train_labels
    assert replace(digits, train_images=x[order], train_labels=y[order]).sha256() == SHA256["digits"]
    assert replace(digits, train_images=x[order]).sha256() != SHA256["digits"]
    moved = replace(digits, train_images=digits.test_images, train_labels=digits.test_labels)
    assert replace(moved, test_images=x, test_labels=y).sha256() != SHA256["digits"]


def test_images_check_what_they_are_given():
    digits = load("digits")
    with pytest.raises(ValueError, match=r"must be uint8 N×C×H×W, got torch.float32"):
        replace(digits, train_images=digits.train_images.float())
    with pytest.raises(ValueError, match=r"must be a row of int64, got torch.int32"):
        replace(digits, test_labels=digits.test_labels.int())
    with pytest.raises(ValueError, match="must be 1 numbers each, one per channel"):
        replace(digits, mean=(0.1, 0.2))


def test_places_are_tried_in_order(tmp_path, monkeypatch):
    system = write_idx(tmp_path / "system")
    place = replace(places.PLACES["FashionMNIST"], system=(str(system),))
    monkeypatch.setitem(places.PLACES, "FashionMNIST", place)
    assert places.find("FashionMNIST") == system
    cache = write_idx(tmp_path / "cache" / "palmette" / "fashion-mnist")
    assert places.find("FashionMNIST") == cache
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path / "env"))
    assert places.find("FashionMNIST") == cache
    env = write_idx(tmp_path / "env" / "FashionMNIST" / "raw", packed=True)
    assert places.find("FashionMNIST") == env
    given = write_idx(tmp_path / "given")
    assert places.find("FashionMNIST", given) == given
    inside = write_idx(given / "fashion-mnist")
    assert places.find("FashionMNIST", given) == inside
    assert places.find("FashionMNIST", tmp_path / "nowhere") == env


def test_files_in_a_shared_folder_do_not_pass_for_a_set(tmp_path, monkeypatch):
    monkeypatch.setenv("PALMETTE_DATA", str(write_idx(tmp_path / "env")))
    with pytest.raises(FileNotFoundError):
        places.find("FashionMNIST")


@pytest.mark.parametrize("name", [name for name in DATA if name != "digits"])
def test_a_set_that_is_missing_is_said_with_where_and_how(tmp_path, name, monkeypatch):
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
def test_the_cache_folder_is_where_the_platform_has_it(monkeypatch, platform, variable, end):
    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "/own")
    monkeypatch.setattr(sys, "platform", platform)
    assert places.cache_folder().as_posix().endswith(f"/{end}")


def test_the_command_lists_every_set_and_what_is_wrong(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.bin").write_bytes(b"short")
    shown = CliRunner().invoke(main, ["data", "--data-dir", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "comes with palmette" in shown.output
    assert str(tmp_path / "mnist") in shown.output
    assert "train.bin' is not whole" in shown.output
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(main, ["data", "--json"]).output)}
    assert list(rows) == list(DATA)
    assert rows["digits"]["sha256"] == SHA256["digits"]
    assert rows["digits"]["official"] is True
    assert rows["digits"]["shape"] == [1, 8, 8]
    assert rows["CIFAR10"]["found"] is None
    given = json.loads(CliRunner().invoke(main, ["data", "--json", "--data-dir", str(tmp_path)]).output)
    by_name = {row["name"]: row for row in given}
    assert by_name["MNIST"]["official"] is False
    assert (by_name["MNIST"]["train"], by_name["MNIST"]["test"]) == (20, 10)
    assert by_name["CIFAR100"]["found"] == "unreadable"


def test_help_of_the_command_waits_for_neither_torch_nor_numpy():
    code = "import sys, palmette.cli.data; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
