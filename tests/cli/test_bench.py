import json
import sys

import pytest
from click.testing import CliRunner

import palmette as pm
from palmette.cli import main


def test_bench_prints_a_table_or_json():
    arguments = ["bench", "mlp", "--shape", "1,8,8", "--batch", "2", "--density", "0.25", "--device", "cpu"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("mlp, 25.0% of its weights not zero, 2 images of 1,8,8\n\ndense ")
    data = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert data["density"] == pytest.approx(0.25, abs=1e-4)
    assert [w["name"] for w in data["ways"]] == ["dense", "compacted", "CSR", "2:4"]


def test_bench_prunes_to_the_exact_density():
    arguments = ["bench", "linear", "--shape", "1,8,8", "--batch", "2", "--device", "cpu", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--density", "0.9"])
    assert json.loads(done.output)["density"] == 0.9  # 576 of 640


def test_bench_loads_weights_from_a_file(tmp_path):
    from palmette.training.models import build

    model = build("mlp", shape=(1, 8, 8), classes=10)
    model.layer1.weight.data[:100] = 0
    pm.save(tmp_path / "m.safetensors", model)
    arguments = [
        "bench",
        "mlp",
        "--shape",
        "1,8,8",
        "--device",
        "cpu",
        "--weights",
        str(tmp_path / "m.safetensors"),
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "of the FLOPs" in done.output
    done = CliRunner().invoke(main, [*arguments, "--classes", "9"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "head.weight ((10, 256) instead of (9, 256))" in done.output


def test_bench_finds_a_model_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    code = "from torch import nn\ndef net(**_):\n    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))\n"
    (tmp_path / "bench_here.py").write_text(code)
    arguments = ["bench", "bench_here:net", "--shape", "1,2,2", "--classes", "2", "--device", "cpu"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "there is no model 'nope'"),
        (["mlp", "--shape", "3x2"], "--shape must be channels,height,width"),
        (["mlp", "--density", "0"], "--density must be a fraction above 0"),
        (["mlp", "--density", "2"], "--density must be a fraction above 0"),
        (["mlp", "--batch", "0"], "--batch must be at least 1"),
        (["mlp", "--weights", "nothing.pt"], "nothing.pt"),
    ],
)
def test_bench_refuses_with_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.output
    assert done.output.count("\n") == 1
