"""Scope "channel" in runs and searches, on real digits."""

import dataclasses

import pytest
import torch
from observers import EndsAfter
from own_digits import X, evaluate, network, train

import palmette as pm
from palmette.errors import RunInterrupted
from palmette.studies.running import run, run_together
from palmette.training.data import load
from palmette.training.models import build

RUN = pm.Experiment(scope="channel", method="lottery-ticket", ratio=0.5, epochs=1, rounds=2, batch=500)


def neurons(masks):
    """How many rows each weight keeps."""
    return [int(mask.flatten(1).any(1).sum()) for mask in masks.values()]


def test_a_run_cuts_whole_neurons_and_resumes_with_them(tmp_path):
    records = run(RUN, tmp_path / "whole").records()
    masks = pm.Masks.load(tmp_path / "whole" / "masks" / "round-02.safetensors")
    widths = [len(mask) for mask in masks.values()]
    assert neurons(masks)[-1] == 10
    assert sum(neurons(masks)[:-1]) == sum(widths[:-1]) / 4
    assert records[-1]["retrained"]["kept"] == masks.kept

    with pytest.raises(RunInterrupted):
        run(RUN, tmp_path / "halved", observer=EndsAfter(2))
    again = run(RUN, tmp_path / "halved").records()
    assert [r["retrained"] for r in again] == [r["retrained"] for r in records]


def test_members_of_a_fleet_are_cut_as_if_alone(tmp_path):
    seeds = [dataclasses.replace(RUN, seed=seed) for seed in (0, 1)]
    run_together({tmp_path / f"{one.seed}": one for one in seeds})
    alone = run(seeds[1], tmp_path / "alone").records()
    together = run(seeds[1], tmp_path / "1").records()
    assert [r["retrained"]["kept"] for r in together] == [r["retrained"]["kept"] for r in alone]


def test_a_search_for_channels_closes_its_bracket_in_weights():
    limit = pm.prune_and_retrain(
        network(), train, evaluate, scope="channel", inputs=X[:2], tolerance=0.02, rounds=8, say=None
    )
    assert 0 < limit.density < 1
    kept = {r["round"]: r["retrained"]["density"] for r in limit.records}
    assert kept[limit.round] == limit.density
    if limit.bad_density is not None:
        assert limit.bad_density < limit.density
    small, report = pm.compact(limit.model, X[:2])
    assert sum(p.numel() for p in small.parameters() if p.dim() > 1) == round(limit.density * (64 * 32 + 320))
    with torch.no_grad():
        assert torch.allclose(small.eval()(X), limit.model.eval()(X), atol=1e-5)
    assert report.notes == ()


def test_the_model_of_a_run_is_compacted_to_what_its_masks_keep(tmp_path):
    run(RUN, tmp_path / "run")
    masks, digits = pm.Masks.load(tmp_path / "run" / "masks" / "round-02.safetensors"), load("digits")
    model = build("mlp", shape=digits.shape, classes=10, seed=0)
    masks.apply_(pm.prunable(model))
    small, _ = pm.compact(model, torch.zeros(1, *digits.shape))
    assert [len(w.tensor) for w in pm.prunable(small).values()] == neurons(masks)
