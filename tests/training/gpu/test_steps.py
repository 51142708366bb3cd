"""Training on a CUDA device: fused steps, graphs, fleets, determinism."""

import copy
import dataclasses

import pytest
import torch
from observers import EndsAfter, records_are_the_same

import palmette as pm
from palmette.errors import RunInterrupted
from palmette.studies.experiment import Experiment
from palmette.studies.running import run_together
from palmette.training.data import load
from palmette.training.fleet import Fleet
from palmette.training.loop import Training
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def augmented(digits):
    return dataclasses.replace(digits, augment=True)


def members(name, images, recipe, *, count=3, device="cuda"):
    found = []
    for seed in range(count):
        model = build(name, shape=images.shape, classes=10, seed=seed).to(device)
        pruner = pm.Pruner(model, budget=pm.FixedRatio(0.2 * seed), scope="layer")
        pruner.step()
        found.append(Member(model, recipe.make_optimizer(model.parameters()), seed, seed, pruner.masks))
    return found


def apart(one, other):
    """Largest difference of two members' weights."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(float((a.detach().cpu() - b.detach().cpu()).abs().max()) for a, b in pairs)


RECIPES = [
    Recipe(),
    Recipe(clip=None),
    Recipe(clip=0.01, nesterov=False),
    Recipe(clip=0.01, clip_over="all"),
    Recipe(momentum=0.0, weight_decay=0.0),
    Recipe(label_smoothing=0.1),
    Recipe(optimizer="adamw", learning_rate=0.01),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: ",".join(f"{k}={v}" for k, v in vars(r).items())[40:])
@pytest.mark.parametrize("set_", ["digits", "augmented"])
def test_a_step_on_the_gpu_equals_a_step_on_the_cpu(request, recipe, set_):
    images, recipe = request.getfixturevalue(set_), dataclasses.replace(recipe, batch=1500)
    here, there = members("mlp", images, recipe, device="cpu"), members("mlp", images, recipe)
    ours, theirs = Training(here, images, recipe).epoch(0), Training(there, images, recipe).epoch(0)
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.accuracy == pytest.approx(other.accuracy, abs=2 / 1500)
    if recipe.optimizer == "sgd":
        assert max(apart(a, b) for a, b in zip(here, there, strict=True)) < 1e-5
    for one, other in zip(here, there, strict=True):
        # Adam divides by the size of a gradient, which may be rounding error only.
        near = [
            (a - b.cpu()).abs() < 1e-5
            for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
        ]
        assert sum(int(n.sum()) for n in near) > 0.999 * sum(n.numel() for n in near)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["linear", "mlp", "transformer"])
def test_a_stacked_step_equals_the_steps_of_members_alone(augmented, name, precision):
    recipe = Recipe(batch=1500, precision=precision)
    together, alone = (members(name, augmented, recipe) for _ in range(2))
    Training(together, augmented, recipe).epoch(0)
    for member in alone:
        Training([member], augmented, recipe).epoch(0)
    most = max(apart(a, b) for a, b in zip(together, alone, strict=True))
    assert most < (1e-5 if precision == "float32" else 2e-3)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "transformer"])
def test_training_is_deterministic_and_masks_hold(augmented, name):
    recipe = Recipe(precision="bfloat16")
    fleets = [members(name, augmented, recipe, count=2) for _ in range(2)]
    for fleet in fleets:
        training = Fleet(fleet, augmented, recipe)
        for epoch in range(2):
            training.epoch(epoch)
        assert training.notes == []
    for one, other in zip(*fleets, strict=True):
        assert apart(one, other) == 0
        for weight, mask in one.masks.items():
            assert int(one.model.get_parameter(weight)[~mask.cuda()].count_nonzero()) == 0


def test_a_graph_of_steps_equals_single_steps(augmented):
    recipe = Recipe(batch=100)
    (graph,), (eager,) = members("mlp", augmented, recipe, count=1), members("mlp", augmented, recipe, count=1)
    first, second = Training([graph], augmented, recipe), Training([eager], augmented, recipe)
    second._is_captured = True  # prevents the capture
    assert first.epoch(0) == second.epoch(0)
    assert first._steps_per_call > 1
    assert apart(graph, eager) == 0


class Waiting(torch.nn.Module):
    """Model that synchronises with the device, which a CUDA graph cannot."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        x = self.head(x.flatten(1))
        return x if float(x.sum()) < 1e9 else x * 2


def test_a_model_that_cannot_be_captured_trains_with_a_note(digits):
    recipe = Recipe()
    model = Waiting().cuda()
    training = Fleet([Member(model, recipe.make_optimizer(model.parameters()), 0)], digits, recipe)
    before = copy.deepcopy(model.state_dict())
    assert training.epoch(0)[0].accuracy > training.epoch(1)[0].accuracy - 1
    assert not torch.equal(before["head.weight"], model.head.weight)
    assert "cannot be captured as a CUDA graph" in training.notes[0]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_an_interrupted_fleet_resumes_exactly(tmp_path, model):
    base = Experiment(model=model, epochs=2, rounds=2)
    changes = ({}, {"method": "one-shot"}, {"method": "lottery-ticket", "seed": 1})
    fleet = [dataclasses.replace(base, **change) for change in changes]
    run_together({tmp_path / "whole" / e.id: e for e in fleet}, device="cuda")
    for epochs in (3, 9, 12, 99):
        try:
            run_together({tmp_path / "broken" / e.id: e for e in fleet}, device="cuda", observer=EndsAfter(epochs))
        except RunInterrupted:
            continue
    records_are_the_same(tmp_path, fleet)


def test_a_fleet_too_large_for_memory_is_halved(tmp_path, monkeypatch):
    epoch, tried = Fleet.epoch, []

    def scarce(self, number, **settings):
        tried.append(len(self.trainings[0].members))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return epoch(self, number, **settings)

    monkeypatch.setattr(Fleet, "epoch", scarce)
    fleet = [Experiment(epochs=1, rounds=1, seed=seed) for seed in range(4)]
    observer = EndsAfter()
    run_together({tmp_path / e.id: e for e in fleet}, device="cuda", observer=observer)
    assert tried == [4, 2, 2, 2, 2]
    assert len(observer.outcomes) == 4
    assert "trying 2 at once" in observer.said[0]
