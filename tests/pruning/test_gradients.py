"""Gradient saliencies: answers to compute in the head, and the formulas by torch.autograd on small networks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.pruning.gradients import in_order


def line(*weights):
    """A single neuron without a bias."""
    model = nn.Linear(len(weights), 1, bias=False)
    model.weight.data.copy_(torch.tensor([weights]))
    return model


def mean(model, x):
    return model(x).mean()


def half_square(model, x):
    return model(x).square().mean() / 2


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def data(count=6):
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.randint(3, (count,))


def score(saliency, model, name="weight"):
    return saliency(name, model.get_parameter(name))


def test_taylor_is_the_weight_times_its_gradient():
    model = line(2.0, -1.0)
    found = pm.gradients(model, mean, [torch.tensor([[1.0, 3.0]])])
    assert score(found.taylor, model).tolist() == [[2.0, -3.0]]


def test_snip_is_the_share_of_the_sensitivity_of_all_weights():
    model = line(2.0, -1.0)
    found = pm.gradients(model, mean, [torch.tensor([[1.0, 3.0]])])
    assert score(found.snip, model).abs().tolist() == [[pytest.approx(0.4), pytest.approx(0.6)]]


def test_fisher_is_half_the_squared_weight_times_the_mean_squared_gradient():
    model = line(2.0, -1.0)
    # Gradients 1 and -1 of the first weight cancel in the mean, not among the squares.
    found = pm.gradients(model, mean, [torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 4.0]])])
    assert score(found.taylor, model).tolist() == [[0.0, -3.0]]
    assert score(found.fisher, model).tolist() == [[2.0, 5.0]]


def test_grasp_prunes_first_what_slows_the_gradient_flow_when_kept():
    model = line(2.0, -1.0)
    # y = 1, the gradient is (1, 1), the Hessian is all ones: H g = (2, 2) and the scores are 4 and -2.
    found = pm.gradients(model, half_square, [torch.ones(1, 2)], hessian=True)
    assert found.flow["weight"].tolist() == [[2.0, 2.0]]
    masks, _ = pm.prune(pm.prunable(model), scope="layer", budget=pm.FixedRatio(0.5), saliency=found.grasp)
    assert masks["weight"].tolist() == [[True, False]]


def test_synflow_multiplies_the_magnitudes_along_each_path():
    model = nn.Sequential(line(2.0), nn.Linear(1, 1, bias=False), line(-3.0))
    model[1].weight.data.fill_(-0.5)
    saliency = pm.synflow(model, torch.zeros(4, 1))
    assert [score(saliency, model, f"{i}.weight").item() for i in range(3)] == [3.0, 3.0, 3.0]
    assert model[2].weight.item() == -3.0


def test_movement_prunes_first_what_moves_towards_zero():
    model = line(2.0, -1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    movement = pm.Movement(model, optimizer)
    with pytest.raises(ValueError, match="Movement has seen no step"):
        pm.prune(pm.prunable(model), scope="layer", budget=pm.FixedRatio(0.5), saliency=movement)
    for _ in range(2):  # weights (2, -1), then (1.5, -1.5), with gradients (1, 1)
        optimizer.zero_grad()
        mean(model, torch.ones(1, 2)).backward()
        optimizer.step()
    assert movement.sums["weight"].tolist() == [[-3.5, 2.5]]
    masks, _ = pm.prune(pm.prunable(model), scope="layer", budget=pm.FixedRatio(0.5), saliency=movement)
    assert masks["weight"].tolist() == [[False, True]]


def test_taylor_fisher_and_snip_follow_their_formulas_on_a_network():
    model, (x, y) = network(), data()
    found = pm.gradients(model, cross_entropy, zip(x.split(1), y.split(1), strict=True))
    weights = {n: p for n, p in model.named_parameters() if p.dim() == 2}
    losses = [cross_entropy(model, one) for one in zip(x.split(1), y.split(1), strict=True)]
    each = [torch.autograd.grad(loss, list(weights.values())) for loss in losses]
    total = 0.0
    for k, (name, weight) in enumerate(weights.items()):
        gradients = torch.stack([g[k] for g in each])
        taylor, fisher = weight * gradients.mean(0), weight**2 * gradients.square().mean(0) / 2
        torch.testing.assert_close(found.taylor(name, weight), taylor.detach())
        torch.testing.assert_close(found.fisher(name, weight), fisher.detach())
        total += float(found.snip(name, weight).abs().sum())
    assert total == pytest.approx(1)


def test_grasp_follows_its_formula_on_a_network_and_over_batches():
    model, (x, y) = network(), data()
    whole = pm.gradients(model, cross_entropy, [(x, y)], hessian=True)
    parts = pm.gradients(model, cross_entropy, iter(zip(x.split(2), y.split(2), strict=True)), hessian=True)
    names = ["0.weight", "2.weight"]
    sizes = [model.get_parameter(n).numel() for n in names]

    def loss(flat):
        values = {n: v.view_as(model.get_parameter(n)) for n, v in zip(names, flat.split(sizes), strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, values, x), y)

    flat = torch.cat([model.get_parameter(n).detach().flatten() for n in names])
    products = torch.func.hessian(loss)(flat) @ torch.func.grad(loss)(flat)
    for found in (whole, parts):
        flow = torch.cat([found.flow[n].flatten() for n in names])
        torch.testing.assert_close(flow, products.detach())
    order = torch.cat([whole.grasp(n, model.get_parameter(n)).flatten() for n in names]).argsort()
    assert torch.equal(order, (flat * torch.cat([whole.flow[n].flatten() for n in names])).argsort())


def test_synflow_follows_its_formula_on_a_network_with_batch_norm():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    twin = copy.deepcopy(model).double().eval()
    for parameter in twin.parameters():
        parameter.data.abs_()
    twin(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    saliency = pm.synflow(model, torch.randn(2, 4))
    for name in ("0.weight", "3.weight"):
        expected = twin.get_parameter(name).grad * twin.get_parameter(name)
        assert torch.equal(score(saliency, model, name), expected.detach())


def test_a_model_is_unchanged_by_its_gradients():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3)).requires_grad_(False)
    before, (x, y) = copy.deepcopy(model.state_dict()), data()
    found = pm.gradients(model, cross_entropy, [(x, y)], hessian=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert found.mean["0.weight"].any()


def test_held_masks_and_gradients_in_progress_are_left_alone():
    model, (x, y) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pm.Pruner(model, hold=optimizer, budget=pm.FixedRatio(0.5))
    pruner.step()
    cross_entropy(model, (x, y)).backward()
    before = model[0].weight.grad.clone()
    pruner.saliency = pm.gradients(model, cross_entropy, [(x, y)]).taylor
    assert torch.equal(model[0].weight.grad, before)
    pruner.step()
    assert pruner.density == pytest.approx(0.25, abs=0.02)


def test_a_saliency_per_cut_sees_the_model_before_each_cut():
    model, batch, seen = network(), data(), []

    def taylor(model):
        seen.append(copy.deepcopy(model))
        return pm.gradients(model, cross_entropy, [batch]).taylor

    pruner = pm.Pruner(model, saliency=pm.PerCut(taylor), budget=pm.FixedRatio(0.5), zeros="count")
    for number in range(2):
        before = pruner.masks
        pruner.step()
        scores = pm.gradients(seen[number], cross_entropy, [batch]).taylor
        weights = pm.prunable(seen[number])
        expected, _ = pm.prune(weights, before, scope="global", budget=pm.FixedRatio(0.5), saliency=scores)
        assert pruner.masks == expected
    with pytest.raises(TypeError, match=r"use it in a Pruner, or pass make\(model\)"):
        pm.prune(weights, scope="global", budget=pm.Sap(), saliency=pruner.saliency)


def test_prune_and_retrain_takes_a_saliency_per_cut():
    x, y = torch.eye(4), torch.arange(4) % 3
    cuts = []

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            cross_entropy(model, (x, y)).backward()
            optimizer.step()

    def fisher(model):
        cuts.append(model)
        return pm.gradients(model, cross_entropy, zip(x.split(1), y.split(1), strict=True)).fisher

    stop = pm.AfterSteps(2)
    given = {"budget": pm.FixedRatio(0.5), "saliency": pm.PerCut(fisher), "stop": stop, "say": None}
    limit = pm.prune_and_retrain(network(), train, **given)
    assert len(cuts) >= 2
    assert limit.density == pytest.approx(0.25, abs=0.02)


def test_layers_that_synflow_empties_in_one_cut_keep_weights_in_a_hundred():
    torch.manual_seed(0)
    saliency = pm.PerCut(lambda model: pm.synflow(model, torch.zeros(1, 16)))

    def left(budget, cuts):
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
        pruner = pm.Pruner(model, saliency=saliency, budget=budget)
        for _ in range(cuts):
            pruner.step()
        return [int(mask.sum()) for mask in pruner.masks.values()]

    at_once, slowly = left(pm.Densities([0.005]), 1), left(pm.Densities("geometric:0.005:100"), 100)
    assert sum(at_once) == sum(slowly) == round(0.005 * (16 * 16 + 16 * 256 + 256 * 4))
    assert 0 in at_once
    assert 0 not in slowly


def test_signed_scores_keep_their_order_and_their_ties():
    signed = torch.tensor([1.0, -1e-38, 0.0, -0.0, 1e-38, -1.0, 1.0 + 2**-23, -torch.inf, torch.inf])
    found = in_order(signed)
    assert found.min() >= 0
    assert torch.equal(found.argsort(stable=True), signed.argsort(stable=True))
    assert found[2] == found[3]


def test_what_has_no_gradients_is_refused():
    model, x = line(2.0, -1.0), torch.ones(1, 2)
    with pytest.raises(ValueError, match="gradients needs at least one batch, got none"):
        pm.gradients(model, mean, [])
    with pytest.raises(
        ValueError, match=r"loss must return a single number with a gradient, .*got shape \(3, 1\)"
    ):
        pm.gradients(model, lambda model, x: model(x), [torch.ones(3, 2)])
    with pytest.raises(ValueError, match="got float"):
        pm.gradients(model, lambda model, x: 0.5, [x])
    found = pm.gradients(model, mean, [x])
    with pytest.raises(ValueError, match="there are no gradients of 'other', only of weight"):
        pm.prune({"other": torch.ones(2, 2)}, scope="layer", budget=pm.Sap(), saliency=found.taylor)
    with pytest.raises(ValueError, match=r"grasp needs gradients\(…, hessian=True\)"):
        found.grasp("weight", model.weight)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))
    for call in (lambda: pm.gradients(normed, mean, [x]), lambda: pm.synflow(normed, x)):
        with pytest.raises(ValueError, match="weight norm trains a direction and a gain in place of"):
            call()
