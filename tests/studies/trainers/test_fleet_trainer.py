"""Every method and every saliency can be run, alone and in a fleet."""

from __future__ import annotations

import pytest

import palmette as pm
from palmette.pruning.methods import METHODS, SALIENCIES
from palmette.pruning.targets import Target
from palmette.studies.running import run_together

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
