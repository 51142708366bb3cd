"""What a Pruner refuses, and that it is as it was afterwards."""

import copy
import pickle

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.errors import MaskMismatch, NothingToPrune, ParameterGone


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def trained_once(model, optimizer):
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"saliency": 3}, "saliency"),
        ({"saliency": None}, "saliency"),
        ({"stop": 3}, "stop"),
        ({"stop": None}, "stop"),
        ({"stop": "x"}, "stop"),
        ({"stop": pm.AtDensity}, "stop"),
        ({"stop": [pm.AtDensity(0.1), pm.SmallCut]}, "stop"),
        ({"exclude": None}, "exclude"),
        ({"exclude": "*"}, "exclude"),
        ({"include": 3}, "include"),
        ({"masks": 3}, "masks"),
        ({"budget": 3}, "budget"),
    ],
    ids=str,
)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(settings, named):
    with pytest.raises(TypeError, match=named):
        pm.Pruner(network(), **settings)


@pytest.mark.parametrize("call", ["rewind", "load_state_dict"])
def test_a_state_that_is_none_is_refused_by_name(call):
    with pytest.raises(TypeError, match=rf"{call} takes .* got NoneType"):
        getattr(pm.Pruner(network()), call)(None)


def test_masks_of_the_wrong_kind_are_refused_by_name():
    with pytest.raises(TypeError, match="masks must be boolean tensors by name, got int"):
        pm.prune({"w": torch.ones(2, 2)}, 3, scope="layer", budget=pm.Sap())
    with pytest.raises(TypeError, match="got NoneType"):
        pm.Masks.from_state_dict(None)


@pytest.mark.parametrize("kept", ["ab", [[True], [True, False]], object()], ids=["text", "ragged", "object"])
def test_a_budget_refuses_what_is_no_mask_by_name(kept):
    with pytest.raises(TypeError, match=r"kept must (hold|be) booleans.*, got "):
        pm.Sap()(torch.ones(2), kept=kept)


class Packed(torch.Tensor):
    """As a quantized optimizer keeps its state."""


@pytest.mark.parametrize("odd", ["subclass", "expanded", "integer"])
def test_a_state_that_an_optimizer_keeps_in_a_way_of_its_own_is_left_to_it(odd):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="neuron")
    pruner.hold(optimizer)
    trained_once(model, optimizer)
    shape = model[0].weight.shape
    kinds = {
        "subclass": torch.ones(shape).as_subclass(Packed),
        "expanded": torch.ones(1, 1).expand(shape),
        "integer": torch.ones(shape, dtype=torch.int32),
    }
    optimizer.state[model[0].weight]["own"] = kinds[odd]
    pruner.step()
    assert int(model[0].weight.count_nonzero()) == 12
    assert int(optimizer.state[model[0].weight]["own"].sum()) == 24


def test_a_weight_that_cannot_be_cut_in_place_leaves_all_weights_and_masks_as_they_were():
    model = network()
    model[2].weight = nn.Parameter(torch.ones(1, 1).expand(2, 4))
    before = copy.deepcopy(model.state_dict())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="neuron")
    with pytest.raises(TypeError, match=r"2\.weight"):
        pruner.step()
    assert pruner.density == 1.0
    assert pruner.decisions == []
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


class Remembering(nn.Linear):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        assert state["seen"] == 3


def test_rewinding_to_a_state_without_its_extra_state_changes_nothing():
    model = nn.Sequential(Remembering(4, 4))
    start = copy.deepcopy(model.state_dict())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="neuron")
    pruner.step()
    now = copy.deepcopy(model.state_dict())
    with pytest.raises(MaskMismatch, match="_extra_state"):
        pruner.rewind({n: v for n, v in start.items() if n != "0._extra_state"})
    assert torch.equal(model[0].weight, now["0.weight"])
    pruner.rewind(start)
    assert int(model[0].weight.count_nonzero()) == 8


def test_a_pickled_pruner_whose_model_lost_a_layer_says_so():
    pruner = pickle.loads(pickle.dumps(pm.Pruner(network())))
    del pruner.model[2]
    with pytest.raises(ParameterGone, match=r"2\.weight"):
        pruner.step()


def test_masks_that_were_given_are_copied():
    model = network()
    masks = pm.Masks({n: torch.rand(w.shape) < 0.5 for n, w in pm.prunable(model).items()})
    pruner = pm.Pruner(model, masks=masks)
    before = pruner.density
    masks["0.weight"].fill_(True)
    assert pruner.density == before


def test_what_prunable_gives_is_taken_wherever_weights_are():
    model = network()
    weights = pm.prunable(model)
    assert pm.Masks.ones_like(weights).density == 1.0
    masks, _ = pm.prune(weights, scope="global", budget=pm.FixedRatio(0.5), saliency=pm.magnitude_of(weights))
    masks.apply_(weights)
    assert int(sum(w.tensor.count_nonzero() for w in weights.values())) == 16


def test_an_average_of_the_weights_can_be_masked_like_the_model():
    model = network()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="neuron")
    pruner.step()
    averaged.update_parameters(model)
    pruner.masks.apply_(dict(averaged.module.named_parameters()))
    assert int(averaged.module[0].weight.count_nonzero()) == 12


def test_a_copied_optimizer_is_held_again():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="neuron")
    pruner.hold(optimizer)
    trained_once(model, optimizer)
    pruner.step()
    model, optimizer, pruner = copy.deepcopy((model, optimizer, pruner))
    pruner.hold(optimizer)
    trained_once(model, optimizer)
    assert int(model[0].weight.count_nonzero()) == 12


def test_weights_without_values_are_refused_by_name():
    with torch.device("meta"):
        model = network()
    with pytest.raises(ValueError, match=r"0\.weight.*meta.*; load its values first"):
        pm.Pruner(model)


def test_weights_that_cannot_change_are_refused_by_name():
    with torch.inference_mode():
        model = network()
    with pytest.raises(ValueError, match=r"'0\.weight' was made in inference mode.*make it outside"):
        pm.Pruner(model)


def test_a_model_of_vectors_is_told_what_to_do():
    with pytest.raises(NothingToPrune, match="quantized must be pruned before"):
        pm.Pruner(nn.LayerNorm(4))


def test_weights_too_narrow_to_rank_are_refused_at_once():
    with pytest.raises(TypeError, match=r"in float64, float32, float16 or bfloat16, got torch\.float8_e4m3fn"):
        pm.Pruner(nn.Linear(4, 4).to(torch.float8_e4m3fn))
