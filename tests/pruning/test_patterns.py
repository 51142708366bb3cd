"""Scope n:m: of every m neighbours along the inputs, n remain."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.checkpoints.prune import prune_checkpoint

HALF = pm.Densities([0.5])


def cut(weights, scope="2:4", budget=HALF, **more):
    return pm.prune(weights, scope=scope, budget=budget, **more)


def test_the_two_largest_of_every_four_neighbours_remain():
    row = torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.1, 0.2, 0.4, -0.3]])
    masks, decision = cut({"w": row})
    assert masks["w"].int().tolist() == [[0, 1, 1, 0, 0, 0, 1, 1]]
    assert (decision.cut, decision.density_after) == (4, 0.5)


def test_ties_go_by_index_and_neighbours_that_are_zero_are_cut_too():
    masks, decision = cut({"w": torch.tensor([[1.0, -1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])})
    assert masks["w"].int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert decision.cut == 4
    masks, decision = cut({"w": torch.zeros(2, 4)})
    assert (masks.kept, decision.cut) == (4, 4)


def test_neighbours_of_a_convolution_are_input_channels_at_one_pixel():
    weight = torch.zeros(1, 4, 1, 2)
    weight[0, :, 0, 0], weight[0, :, 0, 1] = torch.tensor([1.0, 2, 3, 4]), torch.tensor([40.0, 30, 20, 10])
    masks, _ = cut({"w": weight})
    assert masks["w"][0, :, 0, 0].int().tolist() == [0, 0, 1, 1]
    assert masks["w"][0, :, 0, 1].int().tolist() == [1, 1, 0, 0]


LAYERS = {
    "linear": (nn.Linear(24, 5), 1, 1),
    "convolution": (nn.Conv2d(24, 5, 3), 1, 1),
    "grouped": (nn.Conv2d(48, 6, 3, groups=2), 1, 1),
    "transposed": (nn.ConvTranspose2d(24, 5, 3), 0, 1),
    "transposed and grouped": (nn.ConvTranspose2d(48, 4, 3, groups=2), 0, 2),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (1, 3), (4, 8), (7, 12)])
def test_counts_are_exact_in_every_layout(layer, n, m):
    module, axis, groups = LAYERS[layer]
    pruner = pm.Pruner(copy.deepcopy(module), scope=f"{n}:{m}")
    pruner.step()
    (mask,) = pruner.masks.values()
    units = mask.unflatten(0, (groups, -1)).movedim(axis + 1, -1) if groups > 1 else mask.movedim(axis, -1)
    assert set(units.reshape(-1, m).sum(1).tolist()) == {n}
    before = pruner.masks
    assert pruner.step().cut == 0
    assert pruner.masks == before


@pytest.mark.parametrize("shape", [(8, 24), (6, 12, 3, 3)])
def test_other_axes_do_not_compete_with_each_other(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    masks, _ = cut({"w": weight}, "1:3", pm.Densities([1 / 3]))
    units = weight.movedim(1, -1).reshape(-1, 3)
    expected = torch.zeros_like(units, dtype=torch.bool).scatter_(1, units.abs().argmax(1, keepdim=True), True)
    assert torch.equal(masks["w"].movedim(1, -1).reshape(-1, 3), expected)


def test_pruned_weights_stay_pruned_and_other_saliencies_rank():
    old = pm.Masks({"w": torch.tensor([[True, False, False, False, True, True, True, False]])})
    masks, decision = cut({"w": torch.tensor([[0.0, 9, 9, 9, 3, 2, 1, 9]])}, masks=old)
    assert masks["w"].int().tolist() == [[1, 0, 0, 0, 1, 1, 0, 0]]
    assert decision.cut == 1
    masks, _ = cut({"w": torch.tensor([[1.0, 2, 3, 4]])}, saliency=lambda name, weight: 1 / weight)
    assert masks["w"].int().tolist() == [[1, 1, 0, 0]]


def test_the_pattern_is_held_in_training_and_takes_part_in_save_and_load():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    pruner = pm.Pruner(model, scope="2:4", hold=optimizer)
    pruner.step()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    for layer in (model[0], model[2]):
        assert layer.weight.reshape(-1, 4).count_nonzero(1).tolist() == [2] * (layer.weight.numel() // 4)
    again = pm.Pruner(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), scope="2:4")
    again.load_state_dict(pruner.state_dict())
    assert again.masks == pruner.masks
    assert str(again.decisions) == str(pruner.decisions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_is_cut_like_a_model_in_parts(dtype, tmp_path):
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(40, 16), "a.bias": torch.randn(40), "c.weight": torch.randn(8, 4, 3, 3)}
    state = {name: values.to(dtype) for name, values in state.items()}
    torch.save(state, tmp_path / "in.pt")
    found = prune_checkpoint(tmp_path / "in.pt", tmp_path / "out.safetensors", scope="2:4")
    masks = pm.Masks.load(tmp_path / "out.masks.safetensors")
    assert found.whole.density_after == 0.5
    assert masks == cut({name: state[name] for name in masks})[0]


def test_widths_that_m_does_not_divide_are_refused(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    said = r"scope '2:4' needs a number of inputs divisible by 4, but '0.weight' has 6; .* exclude=\['0.weight'\]"
    with pytest.raises(ValueError, match=said):
        pm.Pruner(model, scope="2:4")
    with pytest.raises(ValueError, match=said):
        cut(pm.prunable(model))
    torch.save(model.state_dict(), tmp_path / "in.pt")
    with pytest.raises(ValueError, match=said):
        prune_checkpoint(tmp_path / "in.pt", tmp_path / "out.safetensors", scope="2:4")
    assert not (tmp_path / "out.safetensors").exists()
    assert pm.Pruner(model, scope="2:4", exclude=["0.weight"]).step().cut == 16


@pytest.mark.parametrize("scope", ["4:4", "5:4"])
def test_a_pattern_must_leave_something_out(scope):
    with pytest.raises(ValueError, match=f"n must be below m, got '{scope}'"):
        pm.Pruner(nn.Linear(4, 4), scope=scope)


@pytest.mark.parametrize("scope", ["0:4", "2:", "a:4", "2:4:8", "-1:4"])
def test_what_is_no_pattern_is_refused(scope):
    with pytest.raises(ValueError, match="'global', 'channel', 'n:m', got"):
        pm.Pruner(nn.Linear(4, 4), scope=scope)


@pytest.mark.parametrize(
    "budget", [pm.Sap(), pm.FixedRatio(0.2), pm.Densities([0.5, 0.25]), pm.Allocated(HALF)], ids=str
)
def test_another_budget_than_that_of_the_pattern_is_refused(budget):
    said = r"keeps 2 of every 4 weights, so its budget is Densities\(\[0.5\]\)"
    with pytest.raises(ValueError, match=said):
        pm.Pruner(nn.Linear(4, 4), scope="2:4", budget=budget)
    with pytest.raises(ValueError, match=said):
        cut({"w": torch.ones(4, 4)}, budget=budget)


def test_a_third_may_be_written_with_few_digits():
    assert pm.Pruner(nn.Linear(3, 3), scope="1:3", budget=pm.Densities([0.333])).step().cut == 6


def test_scopes_without_masks_refuse_patterns():
    with pytest.raises(ValueError, match="scope must be one of 'neuron', 'layer', 'global', got '2:4'"):
        pm.PQPenalty(nn.Linear(4, 4), scope="2:4", strength=0.1)


def test_prune_and_retrain_makes_one_cut():
    x, y = torch.eye(8), torch.arange(8) % 4

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for _ in range(30):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    def evaluate(model):
        return (model(x).argmax(1) == y).float().mean()

    limit = pm.prune_and_retrain(nn.Linear(8, 4), train, evaluate, scope="2:4", say=None)
    assert limit.model.weight.reshape(-1, 4).count_nonzero(1).tolist() == [2] * 8
    assert limit.density == 0.5
    assert len(limit.records) == 2


def test_a_run_makes_one_cut(tmp_path):
    settings = {"method": "densities", "densities": "0.5", "model": "mlp", "epochs": 1}
    run = pm.run(pm.Experiment(scope="2:4", **settings), tmp_path)
    records = run.records()
    assert [record["retrained"]["density"] for record in records] == [1.0, 0.5]
    assert all(mask.reshape(-1, 4).sum(1).eq(2).all() for mask in pm.Masks.load(run.mask(1)).values())
    with pytest.raises(ValueError, match=r"--method densities --densities 0\.5 in palmette run; got Sap"):
        pm.Experiment(scope="2:4")
