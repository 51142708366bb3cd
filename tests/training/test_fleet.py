"""Members stacked into one tensor train as if alone."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.loop import Training, evaluate, evaluate_all
from palmette.training.members import Member, stackable
from palmette.training.models import build
from palmette.training.recipe import Recipe


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def members(name, digits, recipe, *, count=3, masked=True, device="cpu"):
    found = []
    for seed in range(count):
        model = build(name, shape=digits.shape, classes=10, seed=seed).to(device)
        masks = {}
        if masked and seed:
            pruner = pm.Pruner(model, budget=pm.FixedRatio(0.2 * seed), scope="layer")
            pruner.step()
            masks = pruner.masks
        found.append(Member(model, recipe.make_optimizer(model.parameters()), seed, seed % 2, masks))
    return found


def agree(together, alone, tolerance):
    for one, other in zip(together, alone, strict=True):
        for (name, ours), theirs in zip(
            one.model.state_dict().items(), other.model.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
        for key, state in one.optimizer.state_dict()["state"].items():
            for name, ours in state.items():
                theirs = other.optimizer.state_dict()["state"][key][name]
                torch.testing.assert_close(ours, theirs, rtol=10 * tolerance, atol=10 * tolerance)


RECIPES = {
    "the paper's": Recipe(),
    "no clipping": Recipe(clip=None),
    "strict clipping": Recipe(clip=0.01),
    "clipping over all weights": Recipe(clip=0.01, clip_over="all"),
    "no decay": Recipe(weight_decay=0.0),
    "no momentum": Recipe(momentum=0.0),
    "plain momentum": Recipe(nesterov=False),
    "label smoothing": Recipe(label_smoothing=0.1),
    "adam": Recipe(optimizer="adam", learning_rate=0.01),
    "adamw": Recipe(optimizer="adamw", learning_rate=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_stacked_step_equals_the_steps_of_members_alone(digits, recipe, masked):
    recipe = dataclasses.replace(recipe, batch=1500)
    together, alone = (members("mlp", digits, recipe, masked=masked) for _ in range(2))
    scores = Training(together, digits, recipe).epoch(0)
    for member, score in zip(alone, scores, strict=True):
        found = Training([member], digits, recipe).epoch(0)[0]
        assert (found.loss, found.accuracy) == pytest.approx((score.loss, score.accuracy), abs=1e-5)
    agree(together, alone, 1e-5)


@pytest.mark.parametrize("name", ["linear", "mlp", pytest.param("transformer", marks=pytest.mark.slow)])
def test_stackable_models_train_as_if_alone(digits, name):
    digits = dataclasses.replace(
        digits, train_images=digits.train_images[:50], train_labels=digits.train_labels[:50]
    )
    recipe = Recipe(batch=50)
    together, alone = (members(name, digits, recipe) for _ in range(2))
    Training(together, digits, recipe).epoch(0)
    for member in alone:
        Training([member], digits, recipe).epoch(0)
    agree(together, alone, 1e-5)
    training = Training(together, digits, recipe)
    found = evaluate_all(training.network, digits.test_images, digits.test_labels, Preparation(digits))
    for member, score in zip(together, found, strict=True):
        want = evaluate(member.model, digits.test_images, digits.test_labels, Preparation(digits))
        assert score.accuracy == want.accuracy
        assert score.loss == pytest.approx(want.loss, rel=1e-5)


def test_norms_and_buffers_are_stacked(digits):
    def model(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    recipe = Recipe(batch=500)
    together, alone = (
        [Member(m := model(s), recipe.make_optimizer(m.parameters()), s) for s in range(3)] for _ in range(2)
    )
    Training(together, digits, recipe).epoch(0)
    for member in alone:
        Training([member], digits, recipe).epoch(0)
    agree(together, alone, 1e-4)


def test_pruned_weights_stay_zero_in_every_member(digits):
    recipe = Recipe()
    together = members("mlp", digits, recipe)
    training = Training(together, digits, recipe)
    for epoch in range(3):
        training.epoch(epoch)
    for member in together[1:]:
        for name, mask in member.masks.items():
            assert int(member.model.get_parameter(name)[~mask].count_nonzero()) == 0


def test_a_member_does_not_depend_on_the_size_of_the_fleet(digits):
    recipe = Recipe(epochs=3)
    few, many = members("mlp", digits, recipe, count=2), members("mlp", digits, recipe, count=5)
    first, second = Training(few, digits, recipe), Training(many, digits, recipe)
    for epoch in range(3):
        ours, theirs = first.epoch(epoch), second.epoch(epoch)
        for one, other in zip(ours, theirs[:2], strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_a_diverging_member_does_not_affect_others(digits):
    recipe = Recipe()
    sound, sick = members("mlp", digits, recipe), members("mlp", digits, recipe)
    with torch.no_grad():
        sick[1].model.head.weight.fill_(float("nan"))
    good, bad = Training(sound, digits, recipe).epoch(0), Training(sick, digits, recipe).epoch(0)
    assert bad[1].loss != bad[1].loss
    assert (bad[0], bad[2]) == (good[0], good[2])


def test_a_fleet_resumes_from_optimizer_states(digits):
    recipe = Recipe()
    whole, broken = members("mlp", digits, recipe), members("mlp", digits, recipe)
    training = Training(whole, digits, recipe)
    for epoch in range(4):
        training.epoch(epoch)
    for half in (range(2), range(2, 4)):
        training = Training(broken, digits, recipe)
        for epoch in half:
            training.epoch(epoch)
        saved = [copy.deepcopy((m.model.state_dict(), m.optimizer.state_dict())) for m in broken]
        broken = members("mlp", digits, recipe)
        for member, (weights, state) in zip(broken, saved, strict=True):
            member.model.load_state_dict(weights)
            member.optimizer.load_state_dict(state)
    for one, other in zip(whole, broken, strict=True):
        for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_convolutions_and_dropout_are_not_stackable(digits):
    assert stackable([build("mlp", shape=digits.shape, classes=10)])
    assert stackable([build("transformer", shape=digits.shape, classes=10)])
    assert not stackable([build("cnn", shape=digits.shape, classes=10)])
    assert not stackable([nn.Sequential(nn.Linear(2, 2), nn.Dropout())])
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert stackable([one, other])
    other.scale = 1.0001
    assert not stackable([one, other])
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert not stackable([tied])
