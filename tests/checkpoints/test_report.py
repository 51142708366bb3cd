"""The one call that answers the question: its figures are those of the library, its words follow from them."""

import dataclasses
import json
import math

import pytest
import torch
from mixed_model import mixed
from torch import nn

import palmette as pm
from palmette.checkpoints.measuring import measure, packed_bytes
from palmette.checkpoints.verdict import gaussian_index
from palmette.pruning.methods import SCOPES
from palmette.pruning.sources import file_cut as streaming
from palmette.pruning.sources.file import StoredWeight, stored_weights


def test_a_model_without_values_is_refused():
    with pytest.raises(ValueError, match=r"'weight' is on the meta device, without values; load its weights"):
        pm.how_compressible(nn.Linear(3, 3, device="meta"))


BUDGETS = [pm.Sap(), pm.Sap(p=1.0, q=2.0, eta=0.1, gamma=1.5, beta=0.5)]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_the_next_cut_is_the_one_that_prune_makes(budget):
    model = mixed()
    report = pm.how_compressible(model, budget=budget)
    weights = pm.prunable(model)
    for scope in SCOPES:
        masks, decision = pm.prune(weights, scope=scope, budget=budget)
        assert [layer.sap_cut[scope] for layer in report.layers] == [int((~m).sum()) for m in masks.values()]
        assert report.whole.sap_cut[scope] == decision.cut


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_the_measures_are_those_of_the_library(budget):
    model = mixed()
    report = pm.how_compressible(model, budget=budget)
    weights = {n: w.tensor.detach() for n, w in pm.prunable(model).items()}
    everything = torch.cat([w.double().flatten() for w in weights.values()])
    for found, w in zip((*report.layers, report.whole), (*weights.values(), everything), strict=True):
        assert (found.d, found.entries, found.zeros) == (w.numel(), w.numel(), int((w == 0).sum()))
        assert found.pq_index == pytest.approx(float(pm.pq_index(w, p=budget.p, q=budget.q)), rel=1e-12)
        assert found.gini_index == pytest.approx(float(pm.gini_index(w)), rel=1e-12)
        assert found.hoyer == pytest.approx(float(pm.MEASURES["hoyer"](w)), rel=1e-12)
        bound = pm.retained_lower_bound(found.pq_index, w.numel(), p=budget.p, q=budget.q, eta=budget.eta)
        assert found.retained_lower_bound == pytest.approx(float(bound), rel=1e-12)
        assert found.removable == pytest.approx(1 - bound / w.numel(), rel=1e-10)
        eta = pm.eta_of_cut(w, math.ceil(found.retained_lower_bound), budget.p)
        assert found.tail_mass == pytest.approx(eta, rel=1e-12)
    assert (report.layers[0].neurons, report.layers[0].dead_neurons) == (30, 1)
    assert report.whole.dead_neurons == 1


@pytest.mark.parametrize("chunk", [1, 1000, 10**9])
def test_parts_of_any_size_give_the_same_report(chunk):
    weights = stored_weights(pm.prunable(mixed()))
    whole = measure(weights, budget=pm.Sap())
    parts = measure(weights, budget=pm.Sap(), chunk=chunk)
    for ours, theirs in zip((*parts.layers, parts.whole), (*whole.layers, whole.whole), strict=True):
        for name, value in dataclasses.asdict(ours).items():
            if isinstance(value, float):
                assert value == pytest.approx(getattr(theirs, name), rel=1e-12), name
            else:
                assert value == getattr(theirs, name), name


def test_a_large_network_is_cut_where_prune_cuts_it(monkeypatch):
    """Beyond the entries that are kept as they are, the threshold is found by a second look into one bucket."""
    monkeypatch.setattr("palmette.measures.spectrum.EXACT", 100)
    looked = []
    inside = streaming._inside
    monkeypatch.setattr(
        streaming, "_inside", lambda stored, *args: looked.append(stored.name) or inside(stored, *args)
    )
    test_the_next_cut_is_the_one_that_prune_makes(pm.Sap())
    assert looked == [name for name in pm.prunable(mixed()) if name != "narrow.weight"]  # whose counts say it


def test_masks_say_what_still_counts():
    model = nn.Linear(20, 10)
    pruner = pm.Pruner(model, scope="global")
    pruner.step()
    report = pm.how_compressible(model, masks=pruner.masks)
    assert report.whole.d == pruner.masks.kept < report.whole.entries == 200
    assert report.whole.sap_cut["global"] == pruner.step().cut
    assert any("pruned before, as a mask says" in text for text in report.warnings)
    with pytest.raises(ValueError, match="the masks belong to another model"):
        pm.how_compressible(model, masks={"other": torch.ones(2, dtype=torch.bool)})


def test_what_is_left_out_of_a_model_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    report = pm.how_compressible(model, exclude=["2.*"])
    assert [layer.name for layer in report.layers] == ["0.weight"]
    assert [tensor.name for tensor in report.left_out] == ["0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert report.whole.bytes == sum(p.numel() * 4 for p in model.parameters())


def test_the_report_prints_and_is_plain_values():
    report = pm.how_compressible(mixed())
    lines = repr(report).splitlines()
    assert lines[0].split() == ["weights", "PQ", "Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead"]
    assert [line.split()[0] for line in lines[1:7]] == [*(layer.name for layer in report.layers), "all"]
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["whole"]["d"] == report.whole.d


# Verdicts and warnings


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (torch.rand(100, 100) + 1, "flatter than Gaussian noise (0.153)"),
        (torch.randn(100, 100), "about that of Gaussian noise (0.153)"),
        (torch.randn(100, 100) ** 3, "more unequal than Gaussian noise (0.153)"),
    ],
)
def test_the_verdict_sets_the_index_beside_that_of_noise(weights, words):
    model = nn.Linear(100, 100, bias=False)
    model.weight.data = weights
    report = pm.how_compressible(model)
    assert words in report.verdict[1]
    assert not report.warnings
    assert f"{report.whole.sap_cut['global'] / 10_000:.1%}" in report.verdict[0]


def test_noise_has_the_index_that_many_gaussian_numbers_have():
    w = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    for p, q in ((0.5, 1.0), (1.0, 2.0), (0.3, 1.7)):
        assert gaussian_index(p, q) == pytest.approx(float(pm.pq_index(w, p=p, q=q)), abs=2e-3)


def warned(**weights):
    model = nn.ModuleDict({n: nn.Linear(w.shape[1], w.shape[0], bias=False) for n, w in weights.items()})
    for name, w in weights.items():
        model[name].weight.data = w
    return pm.how_compressible(model).warnings


def test_a_layer_that_would_lose_everything_is_named():
    said = warned(large=torch.randn(50, 50), tiny=torch.randn(10, 10) * 1e-9)
    assert said == (
        "tiny.weight would lose everything in scope global: nothing would pass; exclude it, or change the scope.",
    )
    nearly = torch.randn(20, 20) * 1e-9
    nearly[0, 0] = 1
    assert "nearly.weight would keep less than 1% in scope global." in warned(
        large=torch.randn(80, 80), nearly=nearly
    )


def test_weights_that_are_sparse_or_dead_are_named():
    w = torch.randn(40, 40)
    w[:10] = 0
    assert warned(w=w) == (
        "25% of the weights are zero already. They count as weights here and go first, so that a cut takes less "
        "than it says.",
        "10 of 40 neurons have no weight but zeros.",
    )
    assert "b.weight: nothing but zeros." in warned(a=torch.randn(4, 4), b=torch.zeros(4, 4))


def test_quantised_weights_are_named():
    levels = torch.randn(100, 100).mul(10).round().div(10)
    assert any("no more than 256 different magnitudes" in text for text in warned(w=levels))
    assert not warned(w=torch.randn(100, 100).half().float())


# What is refused


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_with_nan_is_refused_by_name(value):
    model = nn.Linear(2, 2)
    model.weight.data[0, 0] = value
    with pytest.raises(ValueError, match="the model has NaN or infinite numbers in 'weight'"):
        pm.how_compressible(model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3,), "a torch.nn.Module or the path of a checkpoint, got int"),
        ((nn.Linear(2, 2), pm.FixedRatio()), "budget must be a Sap"),
    ],
)
def test_what_is_no_model_or_no_budget_is_refused(arguments, words):
    model, *budget = arguments
    with pytest.raises(TypeError, match=words):
        pm.how_compressible(model, **({"budget": budget[0]} if budget else {}))


def test_masks_do_not_go_with_a_file():
    with pytest.raises(ValueError, match="masks go with a model"):
        pm.how_compressible("a.pt", masks={})


def test_a_budget_that_needs_all_weights_at_once_is_refused():
    stored = StoredWeight("w", (2, 2), torch.float32, lambda a, b: torch.eye(2)[a:b], 16)
    with pytest.raises(TypeError, match="need a budget of sums, Sap or FixedRatio, got TailMass"):
        streaming.decide([stored], scope="global", budget=pm.TailMass())


@pytest.mark.parametrize(
    ("now", "entries", "kept", "after"), [(400, 100, 50, 213), (400, 100, 100, 400), (50, 100, 0, 13)]
)
def test_bytes_after_are_bits_and_the_values_that_stay_or_what_was_before(now, entries, kept, after):
    assert packed_bytes(now, entries, kept) == after
