import os

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

import palmette as pm
from palmette.cli import main


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(50)


def same_bits(a, b):
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_unpack_writes_an_ordinary_safetensors_file(path, tmp_path):
    model, out = Tied(), tmp_path / "plain.safetensors"
    pm.save(path, model)
    done = CliRunner().invoke(main, ["unpack", str(path), "-o", str(out)])
    assert (done.exit_code, done.output.split("; ")[0]) == (0, f"{out}: 7 tensors, 5 kB")
    plain = load_file(out)
    assert all(same_bits(plain[n], t) for n, t in model.state_dict().items())
    Tied().load_state_dict(plain)


def test_unpack_overwrites_a_file_only_with_force(path, tmp_path):
    pm.save(path, Tied())
    for out in (path, tmp_path / "plain.safetensors"):
        out.touch()
        before = out.read_bytes()
        done = CliRunner().invoke(main, ["unpack", str(path), "-o", str(out)])
        assert done.output.endswith("exists: choose another file, or overwrite it with --force\n")
        assert out.read_bytes() == before
        assert CliRunner().invoke(main, ["unpack", str(path), "-o", str(out), "--force"]).exit_code == 0
        pm.save(path, Tied())


def test_unpack_refuses_with_one_sentence(path, tmp_path):
    save_file({"w": torch.ones(3)}, path)
    done = CliRunner().invoke(main, ["unpack", str(path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert done.output.startswith("palmette: ")
    assert done.output.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert os.listdir(tmp_path) == [path.name]
