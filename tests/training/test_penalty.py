"""The PQ Index as a penalty: its value, its gradient, and what training with it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.training.penalty import PQPenalty


def linear(*rows, dtype=torch.float64):
    model = nn.Linear(len(rows[0]), len(rows), bias=False, dtype=dtype)
    model.weight.data.copy_(torch.tensor(rows))
    return model


def test_the_penalty_is_one_minus_the_index_of_the_weights_that_are_not_zero():
    model = linear([1.0, -4.0, 0.0])
    assert PQPenalty(model, strength=1.0)().item() == pytest.approx(0.9)
    assert 1 - pm.pq_index([1.0, 4.0]) == pytest.approx(0.9)


@pytest.mark.parametrize(("p", "q"), [(0.5, 1.0), (1.0, 2.0), (0.3, 1.5)])
@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_the_penalty_is_the_mean_over_the_units_of_a_scope(p, q, scope):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    first, last = model[0].weight.detach(), model[2].weight.detach()
    units = {
        "neuron": [*first, *last],
        "layer": [first, last],
        "global": [torch.cat([first.flatten(), last.flatten()])],
    }[scope]
    expected = sum(1 - float(pm.pq_index(unit, p=p, q=q)) for unit in units) / len(units)
    assert PQPenalty(model, strength=3.0, p=p, q=q, scope=scope)().item() == pytest.approx(3 * expected, rel=1e-12)


@pytest.mark.parametrize(("p", "q"), [(0.5, 1.0), (1.0, 2.0), (0.3, 1.5), (1.0, 3.0)])
@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_the_gradient_is_that_of_finite_differences(p, q, scope):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
    for layer in model:
        layer.weight.data += layer.weight.data.sign() * 0.1  # above the floor of the gradient
    penalty = PQPenalty(model, strength=2.0, p=p, q=q, scope=scope)
    penalty().backward()
    for layer in model:
        w, step = layer.weight.data, 1e-6
        for place in [(0, 0), (1, 3), (2, 2)]:
            before = w[place].item()
            w[place] = before + step
            above = penalty().item()
            w[place] = before - step
            slope = (above - penalty().item()) / (2 * step)
            w[place] = before
            assert layer.weight.grad[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_the_gradient_changes_the_shape_of_the_weights_and_not_their_size():
    model = linear([0.5, -1.0, 2.0, 0.25])
    PQPenalty(model, strength=1.0)().backward()
    assert (model.weight * model.weight.grad).sum().item() == pytest.approx(0.0, abs=1e-15)
    pulled = (model.weight.grad * model.weight.sign())[0]
    assert pulled[3] > pulled[0] > pulled[1] > 0 > pulled[2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [1e-30, 1.0, 0.0], [1e-45, 1e30, 2e30], [5e-324, 5e-324, 0.0]])
def test_zeros_and_tiny_weights_have_finite_gradients(row, dtype):
    model = linear(row, [1.0, 2.0, 3.0], dtype=dtype)
    penalty = PQPenalty(model, strength=1.0, scope="neuron")()
    penalty.backward()
    assert penalty.isfinite()
    assert model.weight.grad.isfinite().all()
    assert not model.weight.grad[model.weight == 0].any()


def test_pruned_weights_stay_zero_and_the_others_become_sparser():
    torch.manual_seed(0)
    model = nn.Linear(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), hold=optimizer)
    pruner.step()
    before = pm.pq_index(model.weight.detach(), kept=pruner.masks["weight"])
    penalty = PQPenalty(model, strength=100.0)
    for _ in range(20):
        optimizer.zero_grad()
        penalty().backward()
        optimizer.step()
    pruner.check()
    assert pm.pq_index(model.weight.detach(), kept=pruner.masks["weight"]) > before + 0.05


def test_weight_norm_gets_gradients_for_direction_and_gain():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    PQPenalty(layer, strength=1.0)().backward()
    assert all(p.grad is not None and p.grad.any() for n, p in layer.named_parameters() if n != "bias")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strength": 0.0}, "strength must be above 0 and finite, got strength=0.0"),
        ({"strength": float("nan")}, "strength must be above 0"),
        ({"strength": 1.0, "p": 2.0}, "p"),
        ({"strength": 1.0, "scope": "row"}, "scope must be one of"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PQPenalty(nn.Linear(2, 2), **arguments)
