import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import palmette as pm
from palmette.errors import MaskMismatch, NothingToPrune


def torch_pruned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.l1_unstructured(model[0], "weight", amount=0.5)  # again, of what is left
    prune.ln_structured(model[2], "weight", amount=0.5, n=2, dim=0)
    return model


def forward(model, x):
    return model[4](model[3](model[2](model[1](model[0](x))[:, None])))


def test_the_weights_are_plain_and_the_outputs_the_same():
    model, x = torch_pruned(), torch.randn(5, 8)
    names = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
    before, originals = forward(model, x), [model[0].weight_orig, model[2].weight_orig]
    masks = pm.from_torch_prune(model)
    assert {n: int(m.sum()) for n, m in masks.items()} == {"0.weight": 12, "2.weight": 6}
    assert sorted(model.state_dict()) == sorted(names)
    assert [model[0].weight, model[2].weight] == originals
    assert torch.equal(forward(model, x), before)
    zeros = model[0].weight[~masks["0.weight"]]
    assert torch.equal(zeros.view(torch.int32), torch.zeros(36, dtype=torch.int32))  # none of them is -0.0


def test_a_pruner_that_is_refused_leaves_the_model_as_it_was():
    model = torch_pruned()
    names = list(model.state_dict())
    with pytest.raises(NothingToPrune):
        pm.Pruner(model, include=["encoder.*"])
    assert list(model.state_dict()) == names


def test_a_model_that_was_never_pruned_has_no_masks():
    assert len(pm.from_torch_prune(nn.Linear(3, 2))) == 0
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got dict"):
        pm.from_torch_prune({})


def test_pruner_converts_a_torch_pruned_model_and_holds_its_zeros():
    model = torch_pruned()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)  # made before: it has weight_orig
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.25), scope="layer")
    assert pruner.masks.kept == 12 + 6 + 48
    pruner.hold(optimizer)
    for _ in range(3):
        forward(model, torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
    assert int(model[0].weight.count_nonzero()) == 12
    pruner.step()
    assert {n: int(m.sum()) for n, m in pruner.masks.items()} == {"0.weight": 9, "2.weight": 5, "4.weight": 36}


def test_torch_pruned_model_is_measured_with_its_masks():
    model = torch_pruned()
    before = list(model.state_dict())
    assert list(pm.prunable(model)) == ["0.weight", "2.weight", "4.weight"]
    report = pm.how_compressible(model)
    assert list(model.state_dict()) == before
    assert [(m.name, m.d, m.entries) for m in report.layers] == [
        ("0.weight", 12, 48),
        ("2.weight", 6, 12),
        ("4.weight", 48, 48),
    ]
    assert [t.name for t in report.left_out] == ["0.bias", "2.bias", "4.bias"]
    last = {name: torch.ones(w.shape, dtype=torch.bool) for name, w in pm.prunable(model).items()}
    last["4.weight"][0] = False
    assert pm.how_compressible(model, masks=last).whole.d == 12 + 6 + 32
    pruner = pm.Pruner(model)  # which converts it
    assert pm.how_compressible(model, masks=pruner.masks) == report


def test_attention_that_torch_has_pruned_is_found():
    attention = nn.MultiheadAttention(4, 2)
    prune.l1_unstructured(attention, "in_proj_weight", amount=0.5)
    found = pm.how_compressible(attention).layers
    assert [(m.name, m.d) for m in found] == [("in_proj_weight", 24), ("out_proj.weight", 16)]


def test_given_masks_narrow_existing_masks():
    model = torch_pruned()
    keep = {f"{i}.weight": torch.ones_like(model[i].weight, dtype=torch.bool) for i in (0, 2, 4)}
    keep["4.weight"][0] = False
    assert pm.Pruner(model, masks=keep).masks.kept == 12 + 6 + 32
    with pytest.raises(MaskMismatch):
        pm.Pruner(torch_pruned(), masks={"0.weight": keep["0.weight"]})


def test_pruned_weights_that_are_not_held_are_reported():
    model = torch_pruned()
    prune.random_unstructured(model[4], "bias", amount=1)
    with pytest.warns(UserWarning, match=r"had pruned 4\.bias too; their zeros are not held"):
        pruner = pm.Pruner(model)
    assert "4.bias" not in pruner.masks
    assert int((model[4].bias == 0).sum()) == 1


def test_save_and_compact_say_what_to_do_first(tmp_path):
    model = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 3))
    prune.ln_structured(model[0], "weight", amount=0.5, n=2, dim=0)
    with pytest.raises(
        ValueError, match=r"'0.weight_orig' is the unpruned weight .* pm.from_torch_prune\(model\)"
    ):
        pm.save(tmp_path / "m.safetensors", model)
    with pytest.raises(ValueError, match=r"call pm.from_torch_prune\(model\) first"):
        pm.compact(model, torch.randn(2, 50))
    with pytest.raises(ValueError, match=r"call pm.from_torch_prune\(model\) first"):
        pm.speed(model, torch.randn(2, 50))
    pm.from_torch_prune(model)
    pm.save(tmp_path / "m.safetensors", model)
    small, _ = pm.compact(model, torch.randn(2, 50))
    assert small[0].weight.shape == (20, 50)


def test_spectral_norm_is_not_mistaken_for_pruning(tmp_path):
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(5, 4)))  # it has a weight_orig, and no weight_mask
    pm.save(tmp_path / "m.safetensors", model)
    assert pm.compact(model, torch.randn(2, 5))[1].layers == {}


def test_error_lists_names_as_patterns_match_them():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.raises(NothingToPrune, match=r"the names are 0\.weight, 1\.weight$"):
        pm.Pruner(model, include=["nobody"])
