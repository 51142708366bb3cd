"""Cuts that are shared between layers: how many each keeps, and that the whole keeps what was asked for."""

from __future__ import annotations

import pytest
import torch

import palmette as pm
from palmette.checkpoints.prune import prune_checkpoint
from palmette.pruning.budgets import ALLOCATIONS, Allocated, Partly

FLAT, STEEP = torch.linspace(1, 2, 400).reshape(20, 20), torch.linspace(0, 1, 400).pow(8).reshape(20, 20)
NETWORK = {"0.weight": FLAT, "1.weight": STEEP}


def kept(weights, budget, *, masks=None, scope="layer", saliency=pm.magnitude):
    found, _ = pm.prune(weights, masks, scope=scope, budget=budget, saliency=saliency)
    return {name: int(mask.sum()) for name, mask in found.items()}


def test_the_index_keeps_more_where_it_is_high_and_sap_less():
    half = pm.FixedRatio(0.5)
    assert kept(NETWORK, Allocated(half, by="index", spread=0.1)) == {"0.weight": 160, "1.weight": 240}
    assert kept(NETWORK, Allocated(half, by="sap", spread=0.1)) == {"0.weight": 240, "1.weight": 160}
    assert kept(NETWORK, Allocated(half, by="uniform")) == {"0.weight": 200, "1.weight": 200}


def test_the_index_has_the_norms_of_the_budget():
    torch.manual_seed(0)
    # A few large weights count at (1, 2), many tiny ones at (0.5, 1).
    few, tiny = torch.ones(400), torch.ones(400)
    few[:4], tiny[:200] = 30.0, 1e-4
    weights = {"few.0.weight": few, "tiny.1.weight": tiny}
    assert pm.pq_index(few, p=1, q=2) > pm.pq_index(tiny, p=1, q=2)
    assert pm.pq_index(few, p=0.5, q=1) < pm.pq_index(tiny, p=0.5, q=1)

    class Half(pm.FixedRatio):
        p, q = 1.0, 2.0

    assert kept(weights, Allocated(Half(0.5), spread=0.1)) == {"few.0.weight": 240, "tiny.1.weight": 160}
    half = Allocated(pm.FixedRatio(0.5), spread=0.1)
    assert kept(weights, half) == {"few.0.weight": 160, "tiny.1.weight": 240}


def test_lamp_keeps_the_largest_weights_of_each_layer():
    weights = {
        "small.weight": torch.tensor([0.1, 0.2, 0.2, 0.0]),
        "large.weight": torch.tensor([10.0, 1.0, 5.0, 5.0]),
    }
    # Scores, squared: 1/9, 4/8, 4/4, 0 and 100/100, 1/151, 25/150, 25/125.
    assert kept(weights, pm.FixedRatio(0.5), scope="global", saliency="lamp") == {
        "small.weight": 2,
        "large.weight": 2,
    }
    scores = torch.cat([pm.pruning.saliency.lamp(n, w).square() for n, w in weights.items()])
    exact = [1 / 9, 4 / 8, 1.0, 0.0, 1.0, 1 / 151, 25 / 150, 25 / 125]
    torch.testing.assert_close(scores, torch.tensor(exact, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_lamp_does_not_depend_on_the_scale_of_a_layer(scale):
    weight = torch.tensor([[3.0, -4.0], [0.0, 0.5]])
    torch.testing.assert_close(
        pm.pruning.saliency.lamp("w", weight * scale), pm.pruning.saliency.lamp("w", weight)
    )


def test_erk_follows_the_sum_over_the_product_of_the_dimensions():
    shapes = {"wide.weight": torch.rand(40, 10), "narrow.weight": torch.rand(10, 10)}
    # 50/400 and 20/100 are as 5 to 8; all of 500 shall keep 252: 5x · 400 + 8x · 100 = 252.
    assert kept(shapes, Allocated(pm.FixedRatio(0.496), by="erk")) == {"wide.weight": 180, "narrow.weight": 72}


def test_a_layer_that_would_keep_more_than_all_leaves_the_rest_to_others():
    shapes = {"large.weight": torch.rand(100, 100), "small.weight": torch.rand(5, 2)}
    found = kept(shapes, Allocated(pm.FixedRatio(0.9), by="erk"))
    assert found == {"small.weight": 10, "large.weight": 1001 - 10}


def test_blocks_share_a_density_and_their_layers_are_alike():
    weights = {f"layers.{block}.{name}.weight": NETWORK[f"{block}.weight"] for block in (0, 1) for name in "ab"}
    found = kept(weights, Allocated(pm.FixedRatio(0.5), spread=0.1))
    assert list(found.values()) == [160, 160, 240, 240]


def test_outliers_are_scores_above_five_times_their_mean():
    weights = {"0.weight": torch.ones(10, 10), "1.weight": torch.ones(10, 10)}
    scores = {"0.weight": torch.ones(10, 10), "1.weight": torch.ones(10, 10)}
    scores["1.weight"][0, 0] = 100.0
    found = kept(
        weights, Allocated(pm.FixedRatio(0.5), by="outliers", spread=0.1), saliency=lambda n, w: scores[n]
    )
    assert found == {"0.weight": 40, "1.weight": 60}


def test_a_heavy_tail_of_the_spectrum_keeps_more():
    torch.manual_seed(0)
    noise = torch.randn(30, 30)
    heavy = torch.diag(torch.arange(1.0, 31.0).pow(-2.0)) + 1e-3 * torch.randn(30, 30)
    found = kept({"0.weight": noise, "1.weight": heavy}, Allocated(pm.FixedRatio(0.5), by="alpha", spread=0.1))
    assert found == {"0.weight": 360, "1.weight": 540}


@pytest.mark.parametrize("by", ALLOCATIONS)
@pytest.mark.parametrize("scope", ["layer", "neuron"])
@pytest.mark.parametrize("budget", [pm.FixedRatio(0.3), pm.Sap(), pm.Sap(p=1, q=2), pm.FixedRatio(1.0)])
def test_the_network_keeps_what_the_budget_keeps_of_it(by, scope, budget):
    torch.manual_seed(0)
    weights = {f"{i}.weight": torch.randn(8 * (i + 1), 40) ** (2 * i + 1) for i in range(4)}
    masks = {name: torch.rand(w.shape) < 0.9 for name, w in weights.items()} if scope == "layer" else None
    expected = sum(kept(weights, budget, masks=masks, scope="global").values())
    found = sum(kept(weights, Allocated(budget, by=by, spread=0.05), masks=masks, scope=scope).values())
    units = sum(len(w) for w in weights.values()) if scope == "neuron" else len(weights)
    assert abs(found - expected) <= units / 2  # each is rounded


@pytest.mark.parametrize("by", ALLOCATIONS)
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_a_file_is_cut_like_the_network_in_memory(tmp_path, by, scope):
    torch.manual_seed(0)
    weights = {f"{i}.weight": torch.randn(8 * (i + 1), 40) ** (2 * i + 1) for i in range(3)}
    pm.save(tmp_path / "model.safetensors", weights)
    budget = Allocated(pm.FixedRatio(0.6), by=by)
    cut = prune_checkpoint(
        tmp_path / "model.safetensors", tmp_path / "cut.safetensors", scope=scope, budget=budget
    )
    assert {layer.name: layer.after for layer in cut.layers} == kept(weights, budget, scope=scope)


def test_a_pruner_shares_every_cut_anew():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.Linear(20, 20))
    model[1].weight.data.pow_(5)
    pruner = pm.Pruner(model, scope="layer", budget=Allocated(pm.FixedRatio(0.5)))
    for density in (0.5, 0.25, 0.125):
        pruner.step()
        assert pruner.density == pytest.approx(density, abs=2 / 800)
        assert pruner.masks["1.weight"].sum() > pruner.masks["0.weight"].sum()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Allocated(pm.FixedRatio(0.5), by="size"), "by must be one of index, uniform, .* got 'size'"),
        (lambda: Allocated(pm.FixedRatio(0.5), spread=0.6), "spread must be between 0 and 0.5, got spread=0.6"),
        (lambda: kept(NETWORK, Allocated(pm.FixedRatio(0.5)), scope="global"), "use scope 'layer' or 'neuron'"),
    ],
)
def test_what_cannot_be_shared_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("outer", [Allocated, lambda budget: Partly(budget, 0.5)])
def test_shares_within_another_budget_are_refused(outer):
    with pytest.raises(TypeError, match=r"Allocated\(.*\) shares a cut between layers, so no other budget"):
        outer(Allocated(pm.Sap()))


def test_a_single_unit_has_no_layers_to_share_between():
    with pytest.raises(TypeError, match="shares a cut between layers, so it needs all of them"):
        Allocated(pm.FixedRatio(0.5))([1.0, 2.0])
