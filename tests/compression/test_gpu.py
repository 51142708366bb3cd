"""Small files, compact models and their speed, on a CUDA device; skipped where there is none."""

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.compression.flops import flops_of
from palmette.training.models import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_model_on_the_device_is_saved_and_filled(tmp_path):
    model = build("cnn", shape=(1, 16, 16), classes=10).cuda()
    pm.Pruner(model, budget=pm.FixedRatio(0.9), scope="global").step()
    pm.save(tmp_path / "m.safetensors", model)
    other = pm.load(tmp_path / "m.safetensors", build("cnn", shape=(1, 16, 16), classes=10, seed=1).cuda())
    assert all(t.is_cuda and torch.equal(t, model.state_dict()[n]) for n, t in other.state_dict().items())


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "resnet18", "transformer"])
def test_compact_model_stays_on_the_device_with_the_same_outputs(name):
    model = build(name, shape=(3, 16, 16), classes=10).cuda().eval()
    generator = torch.Generator().manual_seed(0)
    for layer, weight in pm.prunable(model).items():
        if not layer.startswith(("head", "linear")):
            weight.tensor.data[torch.rand(len(weight.tensor), generator=generator) < 0.5] = 0
    images = torch.randn(8, 3, 16, 16, device="cuda")
    allowed = torch.backends.cudnn.allow_tf32
    small, report = pm.compact(model, images)
    assert torch.backends.cudnn.allow_tf32 == allowed
    assert not any(note.startswith(("Left alone", "Nothing")) for note in report.notes)
    assert report.flops[1] < 0.9 * report.flops[0]
    assert all(t.is_cuda for t in small.state_dict().values())
    with torch.no_grad():
        wanted, found = model.double()(images.double()), small.double()(images.double())
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * max(1, float(wanted.abs().max())))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_counted_as_on_the_cpu(cell):
    layer, inputs = cell(5, 7, num_layers=2, bidirectional=True), torch.zeros(4, 6, 5)
    wanted = flops_of(lambda: layer(inputs))
    assert wanted > 0
    layer, inputs = layer.cuda(), inputs.cuda()
    assert flops_of(lambda: layer(inputs)) == wanted


def test_two_of_four_is_measured_if_the_weights_have_it():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 128)).bfloat16().cuda()
    inputs = torch.randn(256, 1024, device="cuda").bfloat16()
    ways = {way.name: way for way in pm.speed(model, inputs).ways}
    assert ways["2:4"].note == "no Linear layer has two zeros in every four weights"
    pm.Pruner(model, scope="2:4", include=["0.weight"]).step()
    ways = {way.name: way for way in pm.speed(model, inputs).ways}
    assert ways["2:4"].note == "1 of 2 Linear layers"
    assert ways["2:4"].seconds is not None
