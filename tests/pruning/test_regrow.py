"""Masks that may come back: as many weights as before may be non-zero after every step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.errors import NotHeld, ParameterGone
from palmette.pruning.cut import regrow


def fixed(values):
    return lambda name, weight: torch.tensor(values)


def randomly(name, weight):
    return torch.rand_like(weight)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


X, Y = torch.eye(8), torch.arange(8) % 4


def loss(model, batch=(X, Y)):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_the_smallest_go_and_the_largest_scores_come_back():
    weights = {"w": torch.tensor([[5.0, 1.0, 3.0, 0.0, 0.0, 0.0]])}
    masks = {"w": torch.tensor([[True, True, True, False, False, False]])}
    found = regrow(weights, masks, scope="layer", share=1 / 3, by=fixed([[9.0, 0.0, 9.0, 2.0, -3.0, 1.0]]))
    assert found["w"].int().tolist() == [[1, 0, 1, 0, 1, 0]]  # 1 goes, and -3 is the largest score
    same = regrow(weights, masks, scope="layer", share=1 / 3, by=fixed([[0.0, 7.0, 0.0, 2.0, -3.0, 1.0]]))
    assert same["w"].int().tolist() == [[1, 1, 1, 0, 0, 0]]
    assert masks["w"].int().tolist() == [[1, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 1.0])
def test_each_unit_keeps_its_number(scope, share):
    torch.manual_seed(0)
    weights = {"a": torch.randn(6, 9), "b": torch.randn(4, 3, 2, 2)}
    masks, _ = pm.prune(weights, scope=scope, budget=pm.FixedRatio(0.7))
    found = regrow(weights, masks, scope=scope, share=share, by=randomly)
    assert found.kept == masks.kept
    if scope != "global":
        for name in weights:
            axes = list(range(1, weights[name].dim())) if scope == "neuron" else list(range(weights[name].dim()))
            assert torch.equal(found[name].sum(axes), masks[name].sum(axes))


def test_ties_come_back_from_the_last():
    masks = {"w": torch.tensor([[True, False, False, False]])}
    found = regrow({"w": torch.ones(1, 4)}, masks, scope="layer", share=1.0, by=fixed([[1.0, 1.0, 1.0, 1.0]]))
    assert found["w"].int().tolist() == [[0, 0, 0, 1]]


def test_rigl_brings_back_where_the_loss_would_fall_fastest():
    model = nn.Linear(4, 1, bias=False)
    model.weight.data.copy_(torch.tensor([[3.0, 2.0, 1.0, 1.0]]))
    pruner = pm.Pruner(model, scope="layer", budget=pm.FixedRatio(0.5))
    pruner.step()
    found = pm.gradients(model, lambda model, x: model(x).mean(), [torch.tensor([[1.0, 1.0, 5.0, -9.0]])])
    assert pruner.regrow(0.5, by=found.magnitude) == 1
    assert pruner.masks["weight"].tolist() == [[True, False, False, True]]
    assert model.weight.tolist() == [[3.0, 0.0, 0.0, 0.0]]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=4),
}


def step(model, optimizer, *, ways=1, scaler=None):
    """A step of training, with gradients accumulated in so many parts."""

    def closure():
        optimizer.zero_grad()
        for x, y in zip(X.chunk(ways), Y.chunk(ways), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=scaler is not None):
                value = loss(model, (x, y)) / ways
            (value if scaler is None else scaler.scale(value)).backward()
        return value

    if scaler is None:
        optimizer.step(closure)
    else:
        closure()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("ways", [1, 4])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_more_than_k_are_non_zero_after_every_step_of_rigl_and_set(kind, ways):
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    pruner = pm.Pruner(model, scope="layer", budget=pm.FixedRatio(0.8), hold=optimizer)
    pruner.step()
    k, seen = pruner.masks.kept, set()
    for number in range(12):
        step(model, optimizer, ways=ways)
        if number % 3 == 2:
            pruner.regrow(0.3, by=pm.gradients(model, loss, [(X, Y)]).magnitude if number < 6 else randomly)
        pruner.check()
        assert pruner.masks.kept == k
        assert sum(int(w.tensor.count_nonzero()) for w in pruner.weights.values()) <= k
        seen.add(str(pruner.masks.state_dict()))
    assert len(seen) == 5


def test_weights_that_come_back_start_from_zero_without_momentum_and_are_trained():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    pruner = pm.Pruner(model, scope="layer", budget=pm.FixedRatio(0.5), hold=optimizer)
    pruner.step()
    for _ in range(3):
        step(model, optimizer)
    before = pruner.masks
    assert pruner.regrow(0.5, by=randomly) > 0
    new = pruner.masks["0.weight"] & ~before["0.weight"]
    state = optimizer.state[model[0].weight]
    assert not model[0].weight[new].any()
    assert not state["exp_avg"][new].any()
    step(model, optimizer)
    assert model[0].weight[new].any()


def test_amp_copies_and_saved_states_hold_the_new_masks():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = pm.Pruner(model, scope="layer", budget=pm.FixedRatio(0.5), hold=optimizer)
    pruner.step()
    scaler = torch.amp.GradScaler("cpu")
    step(model, optimizer, scaler=scaler)
    pruner.regrow(0.3, by=randomly)
    step(model, optimizer, scaler=scaler)
    pruner.check()
    copied = copy.deepcopy(pruner)
    other = pm.Pruner(network(), scope="layer")
    other.load_state_dict(pruner.state_dict())
    torch.manual_seed(1)  # other scores than those of the first regrow
    for one in (copied, other):
        assert one.masks == pruner.masks
        optimizer = torch.optim.SGD(one.model.parameters(), lr=0.1, momentum=0.9)
        one.hold(optimizer)
        one.regrow(0.2, by=randomly)
        step(one.model, optimizer)
        one.check()
        assert one.masks.kept == pruner.masks.kept
    assert copied.masks != pruner.masks
    pruner.check()


@pytest.mark.parametrize("scope", ["layer", "global", "2:4"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_exactly_k_are_non_zero_after_every_step_of_top_k(kind, scope):
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    density = 0.5 if scope == "2:4" else 0.25
    sparse = pm.TopK(model, hold=optimizer, budget=pm.Densities([density]), scope=scope)
    total = sparse.masks.total
    for _ in range(6):
        step(model, optimizer, ways=2)
        assert sum(int(w.tensor.count_nonzero()) for w in pm.prunable(model).values()) == round(total * density)
    assert sparse.masks.density == density


def test_top_k_keeps_the_largest_of_a_dense_update():
    model = nn.Linear(4, 1, bias=False)
    model.weight.data.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    sparse = pm.TopK(model, hold=optimizer, budget=pm.Densities([0.5]))
    assert model.weight.tolist() == [[4.0, 3.0, 0.0, 0.0]]
    model.weight.grad = torch.tensor([[0.0, 2.0, -2.0, 0.5]])
    optimizer.step()  # 4, 1, 2, -0.5
    assert model.weight.tolist() == [[4.0, 0.0, 2.0, 0.0]]
    sparse.budget = pm.Densities([0.25])
    model.weight.grad = torch.zeros(1, 4)
    optimizer.step()
    assert model.weight.tolist() == [[4.0, 0.0, 0.0, 0.0]]


def test_top_k_notices_an_optimizer_whose_step_is_never_called(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = pm.TopK(model, hold=optimizer, budget=pm.Densities([0.25]), scope="layer")
    step(model, optimizer)
    sparse.check()
    with torch.no_grad():  # as the second step of SAM
        model[0].weight += 1
    with pytest.raises(NotHeld, match=r"96 pruned weights \(0.weight\) are no longer zero: .* make a TopK"):
        sparse.check()
    with pytest.warns(UserWarning, match="96 pruned weights"):
        pm.save(tmp_path / "a.safetensors", model)


@pytest.mark.parametrize("make", [pm.Movement, lambda model, hold: pm.TopK(model, hold=hold, budget=pm.Sap())])
def test_an_optimizer_of_another_model_or_none_is_refused(make):
    with pytest.raises(ParameterGone, match="this SGD updates none of the pruned parameters"):
        make(network(), torch.optim.SGD(network().parameters()))
    with pytest.raises(TypeError, match=r"hold needs a torch\.optim\.Optimizer, got int"):
        make(network(), 3)


def test_what_cannot_be_regrown_is_refused():
    model = network()
    pruner = pm.Pruner(model, scope="2:4")
    pruner.step()
    with pytest.raises(ValueError, match="scope '2:4' keeps 2 of every 4 weights"):
        pruner.regrow(0.3, by=randomly)
    images = torch.zeros(1, 8)
    with pytest.raises(ValueError, match="whole channels, which do not come back"):
        pm.Pruner(network(), scope="channel", inputs=images).regrow(0.3, by=randomly)
    pruner = pm.Pruner(network(), scope="layer", budget=pm.FixedRatio(0.5))
    pruner.step()
    before = pruner.masks
    with pytest.raises(ValueError, match=r"ratio must be between 0 and 1, got ratio=1\.5"):
        pruner.regrow(1.5, by=randomly)
    with pytest.raises(ValueError, match="score"):
        pruner.regrow(0.5, by=lambda name, weight: torch.full_like(weight, torch.nan))
    assert pruner.masks == before
