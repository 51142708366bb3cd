"""Whatever `palmette run` cannot do is one sentence on stderr and exit code 2, with nothing written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from palmette.cli import main

MODELS = """
from torch import nn
def text(*, shape, classes): return "no model"
def bare(*, shape, classes): return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Norm(classes))
one = nn.Linear(64, 10)
why = "cannot load:\\n\\tno key 'gate'"
def fails(*, shape, classes): raise RuntimeError(why)
class Wrong(nn.Linear):
    def forward(self, x): return fails(shape=0, classes=0)
def wrong(*, shape, classes): return Wrong(64, 10)
def three(*, shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
def frozen(*, shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)
class Norm(nn.Module):
    def __init__(self, classes):
        super().__init__(); self.norm = nn.BatchNorm1d(classes)
    def forward(self, x):
        return self.norm(x.expand(-1, self.norm.num_features))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all that can go wrong in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PALMETTE_DATA", raising=False)
    (tmp_path / "faulty_models.py").write_text(MODELS)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "in_the_way").write_text("a file\n")
    (tmp_path / "no.toml").write_text("epochs = \n")
    (tmp_path / "unknown.toml").write_text("epoch = 3\n")
    (tmp_path / "ratio.toml").write_text('method = "one-shot"\nratio = 0.3\n')
    images, labels = np.zeros((4, 8, 8), dtype=np.uint8), np.array([0, 1, 0, 1])
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "short.npz", **(arrays | {"y_train": labels[:3]}))
    np.savez(tmp_path / "whole.npz", **arrays)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:300])
    mnist = tmp_path / "sets" / "MNIST"
    mnist.mkdir(parents=True)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        for kind, head in (("images-idx3", (0, 0, 8, 3)), ("labels-idx1", (0, 0, 8, 1))):
            sizes = (count, 28, 28) if kind.startswith("images") else (count,)
            content = bytes(head) + b"".join(size.to_bytes(4, "big") for size in sizes) + bytes(99)
            (mnist / f"{part}-{kind}-ubyte").write_bytes(content)
    return tmp_path


def there(folder):
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


REFUSED = {
    "data set not here": (["--data", "CIFAR100"], "palmette data get CIFAR100"),
    "no such data": (["--data", "nothing.npz"], "no data set is called 'nothing.npz'"),
    "data set with a typo": (["--data", "digit"], "no such path exists; did you mean 'digits'?"),
    "method with a typo": (["--method", "one-shto"], "got 'one-shto'; did you mean 'one-shot'?"),
    "tolerance in percent": (["--tolerance", "5"], "0.05 is five points; got 5"),
    "truncated npz": (["--data", "cut.npz"], "'cut.npz' could not be read"),
    "truncated set": (["--data", "MNIST", "--data-dir", "sets"], "train-images-idx3-ubyte"),
    "wrong label count": (["--data", "short.npz"], "4 images and 3 labels"),
    "unknown model": (["--model", "mpl"], "got 'mpl'; did you mean 'mlp'?"),
    "no such module": (["--model", "nowhere:net"], "module 'nowhere' cannot be imported"),
    "broken module": (["--model", "broken_module:net"], "ZeroDivisionError"),
    "no such function": (["--model", "faulty_models:nine"], "has no 'nine'"),
    "not a model": (["--model", "faulty_models:text"], "must return a torch.nn.Module, got str"),
    "a model in place of its function": (
        ["--model", "faulty_models:one"],
        "model 'faulty_models:one': one(shape=(1, 8, 8), classes=10) fails: TypeError",
    ),
    "a function that fails": (
        ["--model", "faulty_models:fails"],
        "classes=10) fails at faulty_models.py, line 7, 'def fails(*, shape, classes): raise RuntimeError(why)': "
        "RuntimeError: cannot load: no key 'gate'",
    ),
    "a model that fails": (
        ["--model", "faulty_models:wrong"],
        "model 'faulty_models:wrong' fails on two images of shape (1, 8, 8) at faulty_models.py, line 7, ",
    ),
    "nothing to prune": (["--model", "faulty_models:bare"], "prun"),
    "nothing to train": (["--model", "faulty_models:frozen"], "none of its parameters requires a gradient"),
    "wrong number of scores": (["--model", "faulty_models:three"], "one score per class"),
    "p without SAP": (["--method", "lottery-ticket", "--p", "1"], "--p belongs to --method sap"),
    "default p without SAP": (["--method", "one-shot", "--p", "0.5"], "--p belongs to --method sap"),
    "ratio without its methods": (["--method", "sap", "--ratio", "0.3"], "--method lottery-ticket or one-shot"),
    "ratio of a file": (["ratio.toml", "--method", "sap"], "--ratio belongs to"),
    "momentum of adam": (["--optimizer", "adam", "--momentum", "0.9"], "--momentum belongs to --optimizer sgd"),
    "unknown method": (["--method", "sap,random"], "got 'random'"),
    "p above q": (["--p", "2"], "got p=2.0, q=1.0"),
    "unknown scope": (["--scope", "glob"], "got 'glob'; did you mean 'global'?"),
    "unknown optimizer": (["--optimizer", "lion"], "optimizer must be one of sgd, adam, adamw"),
    "no number": (["--epochs", "many"], "'many' is not a valid integer"),
    "no clip": (["--clip", "off"], "'off'"),
    "rewind past the end": (
        ["--rewind", "epoch:9", "--epochs", "4"],
        "rewind=epoch:9 needs a recipe of at least 9",
    ),
    "unknown rule": (["--stop", "later"], "stop must consist of auto, accuracy-drops"),
    "bad seeds": (["--seeds", "3..1"], "such as 0..3,7, got '3..1'"),
    "too large a seed": (["--seeds", str(2**63)], "seed must be at least 0 and below 2**63"),
    "far too large a seed": (["--seeds", "1" + 30 * "0"], "seed must be at least 0 and below 2**63"),
    "too much validation": (["--validation", "1500"], "1 to 1499 of 1500 training images, got 1500"),
    "batch norm on one image": (
        ["--model", "cnn", "--validation", "249"],
        "batch=250 of 1251 training images leaves one for the last batch; batch=251 does not",
    ),
    "unknown device": (["--device", "abacus"], "--device 'abacus' cannot be used"),
    "device that computes nothing": (["--device", "meta"], "cpu, cuda, mps or xpu"),
    "file in the way": (["--out", "in_the_way"], "--out must be a folder, or the name of a new one; 'in_"),
    "file on the way": (["--out", "in_the_way/runs"], "'in_the_way' is a file"),
    "no name of a folder": (["--out", ""], "--out must be the name of a folder, got ''"),
    "no folder there": (["--out", "/proc/runs"], "No such file or directory. Choose another folder, or make it"),
    "file that is not there": (["none.toml"], "no experiment at 'none.toml'"),
    "bad TOML": (["no.toml"], "no.toml: Invalid value"),
    "unknown setting": (["unknown.toml"], "there is no setting 'epoch'; did you mean 'epochs'?"),
    "unknown flag": (["--epoch-count", "3"], "No such option"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_invalid_arguments_are_refused_in_one_sentence(why, folder):
    arguments, sentence = REFUSED[why]
    before = there(folder)
    result = CliRunner().invoke(main, ["run", *arguments])
    assert isinstance(result.exception, SystemExit)  # no traceback
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    last = result.stderr.splitlines()[-1]
    assert result.stderr.startswith("palmette: ") or last.startswith("Error: ")
    assert there(folder) == before


@pytest.mark.parametrize("why", ["data set not here", "nothing to prune", "file in the way", "p without SAP"])
def test_the_real_command_refuses_alike(why, folder):
    arguments, sentence = REFUSED[why]
    command = shutil.which("palmette", path=Path(sys.executable).parent)
    done = subprocess.run([command, "run", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none(folder):
    result = CliRunner().invoke(main, ["run", "--device", "cuda"])
    assert result.exit_code == 2
    assert "--device 'cuda' cannot be used" in result.stderr


def test_missing_tensorboard_is_reported_before_training(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = CliRunner().invoke(main, ["run", "--tensorboard"])
    assert result.exit_code == 2
    assert "pip install 'palmette[tensorboard]'" in result.stderr
    assert not (folder / "runs").exists()
