import pytest
import torch
from torch import nn

import palmette as pm
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
    assert f"\nFastest here: {report.fastest}" in str(report)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert model.training


def test_model_without_zeros_is_fastest_dense():
    report = pm.speed(three_layers(), torch.randn(5, 64))
    assert way(report, "compacted").note == "no neuron or channel can be removed"
    assert way(report, "CSR").note == "no Linear layer has half zeros or more"
    assert report.fastest == "dense"


class Noisy(nn.Module):
    """Random outputs; changes its inputs in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x.mul_(2)) + torch.rand(8)


def test_random_model_is_fastest_dense_and_its_inputs_are_unchanged():
    inputs = torch.randn(4, 8)
    before = inputs.clone()
    report = pm.speed(Noisy(), inputs)
    assert str(report).startswith("dense  ")
    assert report.fastest == "dense"
    assert torch.equal(inputs, before)


def test_dead_neurons_that_must_stay_are_reported():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    model[0].weight.data[:4] = 0
    said = way(pm.speed(model, torch.randn(5, 8)), "compacted").note
    assert said == "4 dead channels stay: they reach layer_norm (layer_norm in 1)"


def test_ways_that_cannot_run_say_why():
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
def test_fastest_way_beats_dense_in_three_of_four_rounds(gains, fastest):
    ways = [Way("dense", "", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))]
    ways += [Way(n, "", g and (1.0, 1.0, 1.0), g) for n, g in zip(("compacted", "CSR"), gains, strict=True)]
    assert Speed(tuple(ways), "").fastest == fastest
