from __future__ import annotations

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.pruning.methods import SCOPES
from palmette.pruning.scopes import groups_of
from palmette.pruning.weights import Weight, tensors_of


def groups(weights, scope, kept=None):
    return groups_of(weights, tensors_of(weights), kept or {}, scope)


TWO_LAYERS = {"a": Weight(torch.randn(3, 4)), "b": Weight(torch.randn(5, 2, 2, 2))}


@pytest.mark.parametrize(
    ("scope", "units"),
    [
        ("neuron", {"a": (3, 4), "b": (5, 8)}),
        ("layer", {"a": (1, 12), "b": (1, 40)}),
        ("global", {"global": (1, 52)}),
    ],
)
def test_units_of_each_scope(scope, units):
    assert {g.name: (g.weights.n, g.weights.width) for g in groups(TWO_LAYERS, scope)} == units


@pytest.mark.parametrize("scope", SCOPES)
def test_masks_come_back_in_the_shape_of_the_parameters(scope):
    marks = {name: torch.rand(w.tensor.shape) < 0.5 for name, w in TWO_LAYERS.items()}
    back = {}
    for group in groups(TWO_LAYERS, scope, marks):
        back |= group.masks([kept for kept in group.scores.kept if kept is not None])
    assert all(torch.equal(back[name], marks[name]) for name in marks)


@pytest.mark.parametrize("scope", SCOPES)
def test_weights_in_index_order_are_not_copied(scope):
    pointers = {w.tensor.data_ptr() for w in TWO_LAYERS.values()}
    seen = {s.data_ptr() for g in groups(TWO_LAYERS, scope) for s in (*g.weights.segments, *g.scores.segments)}
    assert seen == pointers


@pytest.mark.parametrize("scope", ["Neuron", "filter", "", None, 3, ["neuron"]])
def test_an_unknown_scope_is_refused(scope):
    model = nn.Linear(2, 2)
    for call in (
        lambda: pm.prune({"w": torch.ones(2, 2)}, scope=scope, budget=pm.Sap()),
        lambda: pm.Pruner(model, scope=scope),
    ):
        with pytest.raises(ValueError, match="'neuron', 'layer', 'global'") as error:
            call()
        assert repr(scope) in str(error.value)


# What each scope loses. Weights 1, 2, 3, … in index order: the smallest are the first.


def counting(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def test_a_convolution_loses_a_fifth_of_the_fan_in_of_every_neuron():
    convolution = nn.Conv2d(3, 64, 3)
    assert convolution.weight.shape == (64, 3, 3, 3)
    masks, decision = pm.prune(pm.prunable(convolution), scope="neuron", budget=pm.FixedRatio(0.2))
    lost = (~masks["weight"]).flatten(1).sum(1)
    assert lost.tolist() == [5] * 64  # floor(27 * 0.2)
    assert decision.cut == 320


@pytest.mark.parametrize(
    "layer",
    [nn.ConvTranspose2d(8, 6, 3, groups=2), nn.ConvTranspose1d(10, 4, 5), nn.Conv2d(8, 6, 3, groups=2)],
    ids=["grouped transposed", "transposed", "grouped"],
)
def test_every_neuron_of_any_convolution_loses_the_same_count(layer):
    (weight,) = pm.prunable(layer).values()
    masks, _ = pm.prune({"w": weight}, scope="neuron", budget=pm.FixedRatio(0.2))
    rows = weight.rows(masks["w"])
    assert (~rows).sum(1).tolist() == [rows.shape[1] // 5] * rows.shape[0]


@pytest.mark.parametrize(
    ("scope", "of_a", "of_b"),
    [
        ("neuron", [0, 1, 2, 3, 4, 10, 11, 12, 13, 14], [0, 1, 4, 5]),
        ("layer", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3]),
        ("global", [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7]),  # all of b is at most 4
    ],
)
def test_half_of_two_layers_by_scope(scope, of_a, of_b):
    weights = {"a": counting(2, 10), "b": counting(2, 4) / 2}
    masks, decision = pm.prune(weights, scope=scope, budget=pm.FixedRatio(0.5))
    assert (~masks["a"]).flatten().nonzero()[:, 0].tolist() == of_a
    assert (~masks["b"]).flatten().nonzero()[:, 0].tolist() == of_b
    assert decision.cut == 14


def test_ties_go_in_the_order_of_layers():
    weights = {"late": torch.ones(1, 4), "early": torch.ones(1, 4)}
    masks, _ = pm.prune(weights, scope="global", budget=pm.FixedRatio(0.75))
    assert masks["late"].tolist() == [[False] * 4]
    assert masks["early"].tolist() == [[False, False, True, True]]
