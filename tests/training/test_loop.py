"""The training loop, on real digits and small models."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import palmette as pm
from palmette.training import loop
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.loop import Training, evaluate
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.random_streams import mix, random_order
from palmette.training.recipe import Recipe


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def trained(digits, recipe, *, seed=0, epochs=None, model=None):
    model = model or build("mlp", shape=digits.shape, classes=10, seed=seed)
    training = Training([Member(model, recipe.make_optimizer(model.parameters()), seed)], digits, recipe)
    scores = [training.epoch(e)[0] for e in range(recipe.epochs if epochs is None else epochs)]
    return model, training, scores


def test_an_epoch_equals_a_plain_loop(digits):
    recipe = Recipe(epochs=2, batch=400)
    model, _, scores = trained(digits, recipe)
    other = build("mlp", shape=digits.shape, classes=10, seed=0)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for epoch in range(2):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * epoch / 2))
        for batch in random_order([mix(0, 0, epoch)], 1500)[0].split(400):
            x = (digits.train_images[batch].float() / 255 - digits.mean[0]) / digits.sd[0]
            optimizer.zero_grad()
            functional.cross_entropy(other(x), digits.train_labels[batch]).backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            optimizer.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert scores[1].loss < scores[0].loss


@pytest.mark.parametrize("clip_over", ["kept", "all"])
@pytest.mark.parametrize("stacked", [False, True])
def test_clipping_counts_the_gradients_of_kept_or_of_all_weights(digits, clip_over, stacked):
    recipe = Recipe(batch=1500, clip=0.001, clip_over=clip_over, learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    model = build("mlp", shape=digits.shape, classes=10, seed=0)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.9))
    pruner.step()
    before = [p.detach().clone() for p in model.parameters()]
    member = Member(model, recipe.make_optimizer(model.parameters()), 0, masks=pruner.masks)
    Training([member], digits, recipe, stacked=stacked).epoch(0)
    # Without momentum and decay, at a learning rate of 1, the norm of the step is that of the clipped gradient.
    steps = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
    norm = float(torch.linalg.vector_norm(torch.cat([s.flatten() for s in steps])))
    if clip_over == "kept":
        assert norm == pytest.approx(0.001, rel=1e-2)
    else:
        assert norm < 0.0009  # pruned weights have a share of the norm
    for name, mask in pruner.masks.items():
        assert int(model.get_parameter(name)[~mask].count_nonzero()) == 0


@pytest.mark.parametrize("change", [{}, {"optimizer": "adamw", "learning_rate": 0.01}, {"precision": "bfloat16"}])
def test_training_learns_digits(digits, change):
    model, _, _ = trained(digits, Recipe(epochs=20, **change))
    score = evaluate(model, digits.test_images, digits.test_labels, Preparation(digits))
    assert score.accuracy > 0.9
    assert model.training


def test_a_batch_larger_than_the_data_is_the_whole_data(digits):
    whole, largest = (trained(digits, Recipe(epochs=1, batch=size))[0].head.weight for size in (1500, 2**62))
    assert torch.equal(whole, largest)


def normed(*, pixels=1):
    """Model with batch norm over maps of so many pixels per side."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 9 - pixels), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * pixels**2, 10)
    )


@pytest.mark.parametrize(("batch", "other"), [(1499, 1500), (1, 2)])
def test_a_last_batch_of_one_image_is_refused_with_batch_norm(digits, batch, other):
    with pytest.raises(ValueError, match=f"batch={batch} of 1500 training images .* batch={other} does not"):
        trained(digits, Recipe(epochs=1, batch=batch), model=normed(), epochs=0)
    trained(digits, Recipe(epochs=1, batch=other), model=normed())


def test_a_last_batch_of_one_image_is_accepted_without_a_training_norm(digits):
    recipe = Recipe(epochs=1, batch=1499)
    frozen = normed()
    frozen[1].train = lambda mode=True: frozen[1]  # as in fine-tuning
    frozen[1].training = False
    for model in (None, normed(pixels=2), frozen):
        trained(digits, recipe, model=model)
    trained(digits, Recipe(epochs=0, batch=1499), model=normed())


def test_weights_depend_on_the_seed(digits):
    recipe = Recipe(epochs=2)
    first, again, other = (trained(digits, recipe, seed=s)[0].head.weight for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_resuming_from_a_saved_epoch_is_exact(digits):
    recipe = Recipe(epochs=4)
    whole, _, _ = trained(digits, recipe)
    half, training, _ = trained(digits, recipe, epochs=2)
    saved = copy.deepcopy((half.state_dict(), training.members[0].optimizer.state_dict()))
    torch.rand(7)  # other random draws do not matter
    model = build("mlp", shape=digits.shape, classes=10, seed=99)
    model.load_state_dict(saved[0])
    optimizer = recipe.make_optimizer(model.parameters())
    optimizer.load_state_dict(saved[1])
    training = Training([Member(model, optimizer, 0)], digits, recipe)
    for epoch in (2, 3):
        training.epoch(epoch)
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_masks_hold_during_training(digits):
    recipe = Recipe(epochs=3)
    model = build("mlp", shape=digits.shape, classes=10)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="global")
    pruner.step()
    member = Member(model, recipe.make_optimizer(model.parameters()), 0, masks=pruner.masks)
    training = Training([member], digits, recipe)
    for epoch in range(3):
        training.epoch(epoch)
        for name, mask in pruner.masks.items():
            assert int(model.get_parameter(name)[~mask].count_nonzero()) == 0


def test_evaluation_counts_every_image_and_changes_nothing(digits, monkeypatch):
    model = build("cnn", shape=digits.shape, classes=10)
    before = copy.deepcopy(model.state_dict())
    whole = evaluate(model, digits.test_images, digits.test_labels, Preparation(digits))
    monkeypatch.setattr(loop, "_TEST_BATCH", 100)
    parts = evaluate(model, digits.test_images, digits.test_labels, Preparation(digits))
    assert whole.accuracy == parts.accuracy
    assert whole.loss == pytest.approx(parts.loss, rel=1e-5)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_gradients_and_momenta_get_the_layout_of_their_parameter(digits):
    recipe, models = Recipe(batch=1500), []
    for saved in (False, True):
        model = build("cnn", shape=digits.shape, classes=10, seed=0).to(memory_format=torch.channels_last)
        optimizer = recipe.make_optimizer(model.parameters())
        if saved:
            for parameter in model.parameters():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros(parameter.shape)
        Training([Member(model, optimizer, 0)], digits, recipe).epoch(0)
        for parameter, known in optimizer.state.items():
            assert known["momentum_buffer"].stride() == parameter.stride() == parameter.grad.stride()
        models.append(model)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
