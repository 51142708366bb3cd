"""Every method and every saliency can be run, alone and in a fleet."""

from __future__ import annotations

import copy

import pytest
from torch import nn

import palmette as pm
from palmette.pruning.methods import METHODS, SALIENCIES
from palmette.pruning.saliency import BUILDERS
from palmette.pruning.targets import Target
from palmette.studies.running import run_together
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.models import build

SMALL = {"model": "linear", "rounds": 1, "epochs": 1}


def given(method):
    """Settings of a method; a tolerance if it needs one."""
    return {"method": method, "tolerance": "0.05" if isinstance(METHODS[method].budget, Target) else ""}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("saliency", SALIENCIES)
def test_every_method_ranks_by_every_saliency(method, saliency, tmp_path):
    first, second = pm.run(pm.Experiment(**given(method), saliency=saliency, **SMALL), tmp_path).records()
    assert first["retrained"]["kept"] - first["cut"]["weights"] == second["retrained"]["kept"] < 640


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_share_its_cuts_between_layers(method, tmp_path):
    shared = {"scope": "layer", "allocate": "erk", "model": "mlp", "epochs": 1, "rounds": 1}
    run = pm.run(pm.Experiment(**given(method), **shared), tmp_path)
    masks = pm.Masks.load(run.mask(1)).values()
    # ERK: as many as inputs and outputs together, times a factor, or all.
    per_unit = [int(mask.sum()) / sum(mask.shape) for mask in masks]
    assert not all(mask.all() for mask in masks)
    for mask, found in zip(masks, per_unit, strict=True):
        assert mask.all() or found == pytest.approx(max(per_unit), rel=0.02)


def test_saliencies_choose_different_weights(tmp_path):
    found = {
        name: pm.run(pm.Experiment(saliency=name, method="lottery-ticket", **SMALL), tmp_path / name)
        for name in ("magnitude", "input-weighted")
    }
    masks = {name: pm.Masks.load(run.mask(1)) for name, run in found.items()}
    assert {mask.kept for mask in masks.values()} == {512}
    assert masks["magnitude"] != masks["input-weighted"]


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def first_samples():
    images = load("digits")
    return Preparation(images, device="cpu")(images.train_images[:512]), images.train_labels[:512]


@pytest.mark.parametrize("saliency", ["snip", "grasp", "synflow"])
def test_saliencies_of_the_start_rank_the_initial_network(saliency, tmp_path):
    settings = {"model": "mlp", "rounds": 1, "epochs": 1, "method": "lottery-ticket"}
    run = pm.run(pm.Experiment(saliency=saliency, **settings), tmp_path / "ours")
    model, (inputs, classes) = build("mlp", shape=(1, 8, 8), classes=10, seed=0), first_samples()
    if saliency == "synflow":
        scores = pm.synflow(model, inputs)
    else:
        found = pm.gradients(model, loss, [(inputs, classes)], hessian=True)
        scores = getattr(found, saliency)
    weights = pm.prunable(model)
    expected, _ = pm.prune(weights, scope="global", budget=pm.FixedRatio(0.2), saliency=scores)
    assert pm.Masks.load(run.mask(1)) == expected
    usual = pm.run(pm.Experiment(**settings), tmp_path / "usual").records()[0]
    assert run.records()[0]["retrained"] == usual["retrained"]


@pytest.mark.parametrize("saliency", ["taylor", "fisher"])
def test_saliencies_of_the_end_rank_the_trained_network(saliency, tmp_path, monkeypatch):
    trained, built = [], BUILDERS[saliency]

    def noted(subject):
        trained.append(copy.deepcopy(subject.model))
        return built(subject)

    monkeypatch.setitem(BUILDERS, saliency, noted)
    settings = {"model": "mlp", "rounds": 1, "epochs": 1, "method": "lottery-ticket"}
    run = pm.run(pm.Experiment(saliency=saliency, **settings), tmp_path)
    model, (inputs, classes) = trained[0].eval(), first_samples()
    batches = [(inputs, classes)] if saliency == "taylor" else zip(inputs.split(1), classes.split(1), strict=True)
    scores = getattr(pm.gradients(model, loss, batches), saliency)
    expected, _ = pm.prune(pm.prunable(model), scope="global", budget=pm.FixedRatio(0.2), saliency=scores)
    assert pm.Masks.load(run.mask(1)) == expected


def test_a_fleet_of_all_methods_has_the_records_of_each_alone(tmp_path):
    experiments = [pm.Experiment(**given(method), validation=150, **SMALL) for method in METHODS]
    together = {tmp_path / "fleet" / e.id: e for e in experiments}
    run_together(together)
    for folder, experiment in together.items():
        alone = pm.run(experiment, tmp_path / "alone" / experiment.id).records()
        fleet = pm.read_runs(folder)
        assert fleet["kept"].tolist() == [record["retrained"]["kept"] for record in alone]


def test_a_method_of_your_own_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "mymethods.py").write_text(
        "import palmette as pm\n"
        "def scores(name, weight):\n    return -weight.abs() if name == 'never' else weight.abs()\n"
        "gentle = pm.Method(budget=pm.FixedRatio(0.1), saliency='mymethods:scores', label='Gentle')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    records = pm.run(pm.Experiment(method="mymethods:gentle", **SMALL), tmp_path / "run").records()
    assert [record["retrained"]["kept"] for record in records] == [640, 576]
