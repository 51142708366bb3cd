"""Methods and saliencies by name: the same values at every door, refused alike where data are needed."""

import copy
import io
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import palmette as pm
from palmette.checkpoints.prune import prune_checkpoint
from palmette.errors import MaskMismatch
from palmette.integrations.callbacks import Cutting
from palmette.studies.experiment import Experiment
from palmette.studies.spec import RunSpec

WITHOUT_SEARCH = [name for name in pm.METHODS if name not in ("interpolate", "bisect")]


def largest_go(name, weight):
    return 1 / (1 + weight.abs())


OWN = pm.Method(budget=pm.FixedRatio(0.25), saliency=f"{__name__}:largest_go")


@dataclass(frozen=True, kw_only=True)
class Further(pm.Method):
    grow: str = ""


GROWING = Further(budget=pm.Sap(), grow="random")


def row(*values):
    model = nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return model


def train_to(model, *values):
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]) * (model.weight != 0))


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", WITHOUT_SEARCH)
def test_a_method_gives_a_pruner_its_budget(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
    same = copy.deepcopy(model)
    pm.Pruner(model, method=name).step()
    pm.Pruner(same, budget=pm.METHODS[name].budget).step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("method", [OWN, f"{__name__}:OWN"], ids=["value", "path"])
def test_an_own_method_brings_its_saliency(method):
    model = row(1.0, 2.0, 3.0, 4.0)
    pm.Pruner(model, method=method).step()
    assert model.weight.tolist() == [[1, 2, 3, 0]]
    other = row(1.0, 2.0, 3.0, 4.0)
    pm.Pruner(other, method=method, saliency=lambda name, weight: weight).step()
    assert other.weight.tolist() == [[0, 2, 3, 4]]


def test_dense_magnitude_is_that_before_the_first_step():
    model = row(9.0, 9.0, 9.0, 9.0)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), saliency="dense-magnitude")
    train_to(model, 1.0, 2.0, 3.0, 4.0)  # the dense training
    assert pruner.plan()[0] == pruner.plan()[0]  # changes nothing
    pruner.step()
    assert model.weight.tolist() == [[0, 0, 3, 4]]
    train_to(model, 0.0, 0.0, 8.0, 7.0)
    pruner.step()
    assert model.weight.tolist() == [[0, 0, 0, 7]]


def test_dense_magnitude_survives_a_resume():
    model = row(1.0, 2.0, 3.0, 4.0)
    pruner = pm.Pruner(model, method="one-shot", stop=())
    pruner.step(budget=pm.FixedRatio(0.5))
    train_to(model, 0.0, 0.0, 8.0, 7.0)
    state = saved_and_loaded(pruner.state_dict())
    again = row(0.0, 0.0, 8.0, 7.0)
    resumed = pm.Pruner(again, method="one-shot", zeros="count", stop=())
    resumed.load_state_dict(state)
    resumed.step(budget=pm.FixedRatio(0.5))
    assert again.weight.tolist() == [[0, 0, 0, 7]]
    with pytest.raises(MaskMismatch, match="the dense weights belong to another model"):
        resumed.load_state_dict(state | {"dense": {}})


def test_a_state_of_before_the_first_step_has_no_dense_weights_yet():
    early = pm.Pruner(row(4.0, 3.0, 2.0, 1.0), saliency="dense-magnitude").state_dict()
    model = row(1.0, 2.0, 3.0, 4.0)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), saliency="dense-magnitude")
    pruner.load_state_dict(saved_and_loaded(early))
    pruner.step()
    assert model.weight.tolist() == [[0, 0, 3, 4]]


@pytest.mark.parametrize("saliency", ["magnitude", "dense-magnitude", f"{__name__}:largest_go"])
def test_files_and_plain_weights_take_the_same_names(tmp_path, saliency):
    weights = {"w": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}
    save_file(weights, tmp_path / "in.safetensors")
    masks, _ = pm.prune(weights, scope="layer", budget=pm.FixedRatio(0.5), saliency=saliency)
    assert masks["w"].tolist() == [[":" in saliency] * 2 + [":" not in saliency] * 2]
    prune_checkpoint(
        tmp_path / "in.safetensors", tmp_path / "out.safetensors", budget=pm.FixedRatio(0.5), saliency=saliency
    )
    assert torch.equal(load_file(tmp_path / "out.safetensors")["w"], weights["w"] * masks["w"])


def test_a_file_takes_a_method(tmp_path):
    save_file({"w": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}, tmp_path / "in.safetensors")
    prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", method=OWN)
    assert load_file(tmp_path / "out.safetensors")["w"].tolist() == [[1, 2, 3, 0]]


DOORS = {
    "Pruner": lambda **given: pm.Pruner(nn.Linear(2, 2), **given),
    "callback": lambda **given: Cutting(steps=[1], **given),
    "prune_and_retrain": lambda **given: pm.prune_and_retrain(nn.Linear(2, 2), print, **given),
    "file": lambda **given: prune_checkpoint("in.safetensors", "out.safetensors", **given),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "size"}, "method must be one of sap, lottery-ticket"),
        ({"method": 3}, r"method must be a Method such as METHODS\['one-shot'\], or its name, got 3"),
        ({"method": GROWING}, "only budget and saliency of a method are used here, got grow of Further"),
        (
            {"method": pm.Method(budget=pm.Sap(), repair="admm")},
            "repair='admm' updates the remaining weights on sentences, in cuts without training",
        ),
        ({"method": "sap", "budget": pm.Sap()}, "budget is given twice, directly and by method='sap'"),
        ({"saliency": "size"}, "saliency must be one of magnitude, dense-magnitude"),
        ({"saliency": "input-weighted"}, r"pass weighted_by_inputs\(input_norms\(model, batches\), model\)"),
        ({"saliency": "snip"}, r"needs data, .*, pass pm.gradients\(model, loss, batches\).snip"),
        ({"saliency": "synflow"}, r"pass pm.synflow\(model, inputs\)"),
        ({"saliency": f"{__name__}:OWN"}, "saliency '.*:OWN' must be a function of .*, got Method"),
        ({"saliency": f"{__name__}:nothing"}, "was imported, but has no 'nothing'"),
    ],
)
def test_every_door_refuses_alike(door, given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DOORS[door](**given)


def test_a_callback_takes_the_same_values_but_for_dense_magnitude():
    Cutting(steps=[1], method=OWN)
    Cutting(steps=[1], method="one-shot", saliency=pm.magnitude_of({"w": torch.ones(1)}))
    with pytest.raises(ValueError, match=r"pass saliency=pm.magnitude_of\(pm.prunable\(model\)\)"):
        Cutting(steps=[1], method="one-shot")


REPAIRED = pm.Method(budget=pm.FixedRatio(0.5), repair="admm")


def test_a_run_refuses_a_method_that_repairs_and_a_cut_of_a_file_takes_it():
    for method in (REPAIRED, f"{__name__}:REPAIRED"):
        with pytest.raises(ValueError, match="repair='admm' updates the remaining weights"):
            Experiment(data="digits", model="mlp", method=method)
    assert RunSpec(method=f"{__name__}:REPAIRED").pruning == REPAIRED
    with pytest.raises(ValueError, match=r"repair must be one of least-squares, .*, got 'obs'"):
        pm.Method(budget=pm.Sap(), repair="obs")
