"""Weight norm, w = g · v/‖v‖: w is measured and ranked, v is pruned, and a g whose v has nothing left is zero."""

import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import palmette as pm
from palmette.checkpoints.prune import prune_checkpoint


def old_weight_norm(layer, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer, **options)


WAYS = {"parametrized": weight_norm, "as hooks": old_weight_norm}
X = torch.linspace(-1, 1, 30).reshape(5, 6).sin()


def network(way, dim=0):
    torch.manual_seed(0)
    model = nn.Sequential(WAYS[way](nn.Linear(6, 16), dim=dim), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():  # norms of all sizes, so that v and w differ
        for name, parameter in model.named_parameters():
            if name.endswith(("original0", "weight_g")):
                parameter.mul_(torch.logspace(-2, 1, parameter.numel()).reshape(parameter.shape))
    model(X)
    return model


def effective(model):
    """The weights that the model multiplies with, of its own making."""
    model(X)
    return [model[0].weight.detach().clone(), model[2].weight.detach().clone()]


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("way", WAYS)
def test_weights_are_measured_as_the_model_uses_them_in_memory_and_in_a_file(tmp_path, way, dim):
    model = network(way, dim)
    expected = effective(model)
    plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    plain[0].weight.data, plain[2].weight.data = expected
    found = pm.how_compressible(model)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    of_file = pm.how_compressible(tmp_path / "a.pt")
    assert {m.name: m for m in of_file.layers} == {m.name: m for m in found.layers}
    assert of_file.coverage == found.coverage
    assert "(the gain of weight norm)" in found.coverage
    for one, other in zip(found.layers, pm.how_compressible(plain).layers, strict=True):
        assert one.pq_index == pytest.approx(other.pq_index, rel=1e-6)


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
@pytest.mark.parametrize("way", WAYS)
def test_pruned_weights_are_zero_in_training_and_nothing_is_nan(way, scope):
    model = network(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    model(X).square().sum().backward()
    optimizer.step()
    smallest = effective(model)[0].abs()
    pruner = pm.Pruner(model, scope=scope, budget=pm.FixedRatio(0.8), hold=optimizer)
    pruner.step()
    (mask, _) = pruner.masks.values()
    if scope == "layer":  # the smallest of w go, not those of v
        assert smallest[mask].min() >= smallest[~mask].max()
        assert not bool(mask.any(1).all()), "this is about neurons that lose everything"
    for _ in range(4):
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()
        assert torch.equal(effective(model)[0] != 0, mask)
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    pruner.check()
    assert set(pruner.model.state_dict()) == set(network(way).state_dict())


@pytest.mark.parametrize("way", WAYS)
def test_masks_apply_to_copies_and_come_back_from_a_state(way):
    model, copy, third = network(way), network(way), network(way)
    pruner = pm.Pruner(model, scope="layer", budget=pm.FixedRatio(0.8))
    pruner.step()
    pruner.masks.apply_(dict(copy.named_parameters()))
    pruner.masks.apply_(pm.prunable(third))
    for other in (copy, third):
        assert torch.equal(other(X), model(X))
    again = pm.Pruner(network(way))
    again.load_state_dict(pruner.state_dict())
    assert torch.equal(again.model(X), model(X))


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_is_cut_as_the_model_is(tmp_path, way, scope, monkeypatch):
    monkeypatch.setattr("palmette.checkpoints.prune.CHUNK", 16)  # in several parts
    model = network(way)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    prune_checkpoint(tmp_path / "a.pt", tmp_path / "b.safetensors", scope=scope, budget=pm.FixedRatio(0.8))
    pruner = pm.Pruner(model, scope=scope, budget=pm.FixedRatio(0.8))
    pruner.step()
    cut = load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(cut[n], t) for n, t in model.state_dict().items())
    assert pm.Masks.load(tmp_path / "b.masks.safetensors") == pruner.masks


def test_a_pruned_model_is_known_by_the_zeros_of_its_weights():
    model = network("parametrized")
    pruner = pm.Pruner(model, scope="layer", budget=pm.FixedRatio(0.8))
    pruner.step()
    with pytest.warns(UserWarning, match="count as pruned before"):
        assert pm.Pruner(model).masks == pruner.masks


def test_weights_computed_in_other_ways_are_said():
    model = nn.Sequential(spectral_norm(nn.Linear(6, 16)), nn.Linear(16, 2))
    with pytest.warns(UserWarning, match=r"96 of 146 .*not the weight of a layer .*\(0.parametrizations"):
        assert list(pm.Pruner(model).masks) == ["1.weight"]
