import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import palmette as pm
from palmette.cli import main
from palmette.compression.speed import Speed, Way


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 4))


def way(report, name):
    return next(w for w in report.ways if w.name == name)


def test_every_way_is_measured_or_says_why_not():
    model = three_layers()
    model[0].weight.data[:32] = 0
    model[2].weight.data.masked_fill_(torch.rand(64, 64) < 0.9, 0)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    report = pm.speed(model, torch.randn(5, 3, 64))
    assert [w.name for w in report.ways] == ["dense", "compacted", "CSR", "2:4"]
    assert way(report, "dense").gain == (1.0, 1.0, 1.0)
    assert way(report, "compacted").note.endswith("% of the FLOPs")
    assert way(report, "CSR").note == "2 of 3 Linear layers"  # with half zeros or more
    assert way(report, "2:4").note == "needs an NVIDIA GPU, Ampere or later"
    assert [w.seconds is None for w in report.ways] == [False, False, False, True]
    assert report.fastest in ("dense", "compacted", "CSR")
    assert f"Fastest here: {report.fastest}.\n" in str(report)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert model.training


def test_a_model_without_zeros_is_dense():
    report = pm.speed(three_layers(), torch.randn(5, 64))
    assert way(report, "compacted").note == "no neuron or channel can be removed"
    assert way(report, "CSR").note == "no Linear layer has half zeros or more"
    assert report.fastest == "dense"


class Noisy(nn.Module):
    """Gives other outputs each time, and works on its inputs where they are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x.mul_(2)) + torch.rand(8)


def test_a_model_that_is_never_the_same_is_dense_and_its_inputs_are_left_as_they_are():
    inputs = torch.randn(4, 8)
    before = inputs.clone()
    report = pm.speed(Noisy(), inputs)
    assert str(report).startswith("dense  ")
    assert report.fastest == "dense"
    assert torch.equal(inputs, before)


def test_dead_neurons_that_have_to_stay_are_not_called_alive():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    model[0].weight.data[:4] = 0
    said = way(pm.speed(model, torch.randn(5, 8)), "compacted").note
    assert said == "4 dead channels stay: they reach layer_norm (layer_norm in 1)"


def test_what_cannot_be_run_says_so():
    model = three_layers().to(torch.float16)
    model[0].weight.data[:60] = 0
    assert way(pm.speed(model, torch.randn(5, 64).half()), "CSR").note.startswith("PyTorch cannot: ")
    with pytest.raises(ValueError, match="the model fails on the example inputs"):
        pm.speed(three_layers(), torch.randn(5, 63))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got str"):
        pm.speed("mlp", torch.randn(5, 64))


@pytest.mark.parametrize(
    ("gains", "fastest"),
    [
        ([(1.1, 2.0, 3.0), (1.2, 1.5, 1.6)], "compacted"),
        ([(0.9, 2.0, 3.0), (1.2, 1.5, 1.6)], "CSR"),  # the first was slower in a quarter of the rounds
        ([(0.9, 1.0, 3.0), (0.2, 0.5, 0.6)], "dense"),
        ([None, None], "dense"),
    ],
)
def test_another_way_is_the_fastest_only_if_it_was_faster_in_most_rounds(gains, fastest):
    ways = [Way("dense", "", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))]
    ways += [Way(n, "", g and (1.0, 1.0, 1.0), g) for n, g in zip(("compacted", "CSR"), gains, strict=True)]
    assert Speed(tuple(ways), "").fastest == fastest


def test_bench_prints_a_table_and_numbers():
    arguments = ["bench", "mlp", "--shape", "1,8,8", "--batch", "2", "--density", "0.25", "--device", "cpu"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("mlp, 25.0% of its weights not zero, 2 images of 1,8,8\n\ndense ")
    data = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert data["density"] == pytest.approx(0.25, abs=1e-4)
    assert [w["name"] for w in data["ways"]] == ["dense", "compacted", "CSR", "2:4"]


def test_bench_prunes_to_the_density_as_it_is_written():
    arguments = ["bench", "linear", "--shape", "1,8,8", "--batch", "2", "--device", "cpu", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--density", "0.9"])
    assert json.loads(done.output)["density"] == 0.9  # 576 of 640


def test_bench_fills_a_model_from_a_file(tmp_path):
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "there is no model 'nope'"),
        (["mlp", "--shape", "3x2"], "--shape must be channels,height,width"),
        (["mlp", "--density", "0"], "--density must be a fraction above 0"),
        (["mlp", "--batch", "0"], "--batch must be a number from 1"),
        (["mlp", "--weights", "nothing.pt"], "nothing.pt"),
    ],
)
def test_bench_refuses_with_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.output
    assert done.output.count("\n") == 1
