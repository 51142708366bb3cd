"""Members stacked into one tensor train as each would alone."""

import copy
import dataclasses

import pytest
import torch
from observers import EndsAfter, records_are_the_same
from torch import nn

import palmette as pm
from palmette.errors import NotFinite, RunInterrupted
from palmette.studies.engine import Observer
from palmette.studies.experiment import Experiment
from palmette.studies.fleet_trainer import FleetRun
from palmette.studies.folder import RunDir
from palmette.studies.running import fleets, run, run_together
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.fleet import Fleet
from palmette.training.loop import Score, Training, evaluate, evaluate_all
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
        for key, known in one.optimizer.state_dict()["state"].items():
            for name, ours in known.items():
                theirs = other.optimizer.state_dict()["state"][key][name]
                torch.testing.assert_close(ours, theirs, rtol=10 * tolerance, atol=10 * tolerance)


RECIPES = {
    "the paper's": Recipe(),
    "no clipping": Recipe(clip=None),
    "strict clipping": Recipe(clip=0.01),
    "no decay": Recipe(weight_decay=0.0),
    "no momentum": Recipe(momentum=0.0),
    "plain momentum": Recipe(nesterov=False),
    "label smoothing": Recipe(label_smoothing=0.1),
    "adam": Recipe(optimizer="adam", learning_rate=0.01),
    "adamw": Recipe(optimizer="adamw", learning_rate=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_one_step_of_a_fleet_is_one_step_of_each_member_alone(digits, recipe, masked):
    recipe = dataclasses.replace(recipe, batch=1500)
    together, alone = (members("mlp", digits, recipe, masked=masked) for _ in range(2))
    scores = Training(together, digits, recipe).epoch(0)
    for member, score in zip(alone, scores, strict=True):
        found = Training([member], digits, recipe).epoch(0)[0]
        assert (found.loss, found.accuracy) == pytest.approx((score.loss, score.accuracy), abs=1e-5)
    agree(together, alone, 1e-5)


@pytest.mark.parametrize("name", ["linear", "mlp", pytest.param("transformer", marks=pytest.mark.slow)])
def test_every_stackable_model_trains_as_if_alone(digits, name):
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


def test_a_model_with_norms_and_buffers_is_stacked_too(digits):
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


def test_a_member_does_not_notice_who_else_is_trained(digits):
    recipe = Recipe(epochs=3)
    few, many = members("mlp", digits, recipe, count=2), members("mlp", digits, recipe, count=5)
    first, second = Training(few, digits, recipe), Training(many, digits, recipe)
    for epoch in range(3):
        ours, theirs = first.epoch(epoch), second.epoch(epoch)
        for one, other in zip(ours, theirs[:2], strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_a_member_that_diverges_leaves_the_others_alone(digits):
    recipe = Recipe()
    sound, sick = members("mlp", digits, recipe), members("mlp", digits, recipe)
    with torch.no_grad():
        sick[1].model.head.weight.fill_(float("nan"))
    good, bad = Training(sound, digits, recipe).epoch(0), Training(sick, digits, recipe).epoch(0)
    assert bad[1].loss != bad[1].loss
    assert (bad[0], bad[2]) == (good[0], good[2])


def test_a_fleet_goes_on_from_what_its_members_optimizers_know(digits):
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
        for member, (weights, known) in zip(broken, saved, strict=True):
            member.model.load_state_dict(weights)
            member.optimizer.load_state_dict(known)
    for one, other in zip(whole, broken, strict=True):
        for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_convolutions_and_dropout_are_not_stacked(digits):
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


def experiments(**changes):
    base = Experiment(epochs=2, rounds=4, batch=500, **changes)
    methods = ({}, {"p": 1.0, "q": 2.0}, {"method": "lottery-ticket"}, {"method": "one-shot"})
    return [dataclasses.replace(base, seed=seed, **method) for method in methods for seed in (0, 1)]


@pytest.mark.parametrize("rewind", ["init", "epoch:1", "learning-rate", "fine-tune"])
def test_the_records_of_a_fleet_are_those_of_its_members_alone(tmp_path, rewind):
    runs = [dataclasses.replace(e, rounds=2) for e in experiments(rewind=rewind)]
    outcomes = run_together({tmp_path / "fleet" / e.id: e for e in runs})
    assert set(outcomes.values()) == {"2 rounds are done"}
    for e in runs:
        alone, together = run(e, tmp_path / "alone" / e.id).records(), RunDir(tmp_path / "fleet" / e.id).records()
        assert [r["cut"]["weights"] for r in alone][:2] == [r["cut"]["weights"] for r in together][:2]
        for one, other in zip(alone, together, strict=True):
            assert list(one) == list(other)
            assert one["retrained"]["pq_index"] == pytest.approx(other["retrained"]["pq_index"], abs=1e-3)
            assert one["test"]["accuracy"] == pytest.approx(other["test"]["accuracy"], abs=0.05)


def test_the_dense_network_of_a_seed_is_trained_once(tmp_path, monkeypatch):
    trained, epoch = [], Fleet.epoch

    def seen(self, *args, **options):
        trained.append([(m.seed, m.round) for training in self.trainings for m in training.members])
        return epoch(self, *args, **options)

    monkeypatch.setattr(Fleet, "epoch", seen)
    runs = [dataclasses.replace(e, rounds=1, epochs=1) for e in experiments(model="linear")]
    run_together({tmp_path / e.id: e for e in runs})
    assert trained == [[(0, 0), (1, 0)], [(e.seed, 1) for e in runs]]
    for seed in (0, 1):
        first, *others = (RunDir(tmp_path / e.id).records()[0] for e in runs if e.seed == seed)
        assert all(other["test"] == first["test"] and other["train"] == first["train"] for other in others)
        assert len({record["cut"]["weights"] for record in (first, *others)}) > 1


def test_a_fleet_that_is_ended_anywhere_leaves_the_records_of_one_that_is_not(tmp_path):
    runs = [
        dataclasses.replace(e, stop="density:0.6") for e in experiments(model="linear")
    ]  # some end before others
    run_together({tmp_path / "whole" / e.id: e for e in runs})
    for epochs in (5, 16, 23, 31, None):
        try:
            run_together({tmp_path / "broken" / e.id: e for e in runs}, observer=EndsAfter(epochs), save_every=1)
        except RunInterrupted:
            continue
    records_are_the_same(tmp_path, runs)


@pytest.mark.parametrize("rewind", ["init", "epoch:1"])
def test_a_run_whose_dense_network_was_trained_in_another_can_go_on_without_that_one(tmp_path, rewind):
    runs = experiments(model="linear", rewind=rewind)
    others = runs[2:]  # of each seed, the first is left behind
    run_together({tmp_path / "whole" / e.id: e for e in others})
    with pytest.raises(RunInterrupted, match="round 0 after 1 of 2 epochs"):
        run_together({tmp_path / "broken" / e.id: e for e in runs}, observer=EndsAfter(1))
    run_together({tmp_path / "broken" / e.id: e for e in others})
    records_are_the_same(tmp_path, others)


class Dies(Observer):
    """Ends the process, as it were, when a record is written for the n-th time."""

    def __init__(self, after):
        self.after = after

    def recorded(self, experiment, record):
        self.after -= 1
        if self.after == 0:
            raise SystemExit


@pytest.mark.parametrize(("saves", "size"), [(3, None), (11, None), (20, 3)])
def test_a_fleet_that_dies_while_some_are_saved_and_others_not_ends_the_same(tmp_path, monkeypatch, saves, size):
    runs = [dataclasses.replace(e, stop="density:0.6") for e in experiments(model="linear")]
    run_together({tmp_path / "whole" / e.id: e for e in runs}, size=size)
    save, left = FleetRun.save, [saves]

    def dying(self, company):
        left[0] -= 1
        if left[0] == 0:
            raise SystemExit
        save(self, company)

    with monkeypatch.context() as patch:
        patch.setattr(FleetRun, "save", dying)
        with pytest.raises(SystemExit):
            run_together({tmp_path / "broken" / e.id: e for e in runs}, size=size)
    with pytest.raises(SystemExit):
        run_together({tmp_path / "broken" / e.id: e for e in runs}, observer=Dies(5), size=size)
    run_together({tmp_path / "broken" / e.id: e for e in runs}, size=size)
    records_are_the_same(tmp_path, runs)


def test_a_member_of_a_fleet_can_be_finished_alone_or_in_another(tmp_path):
    runs = experiments()
    with pytest.raises(RunInterrupted):
        run_together({tmp_path / e.id: e for e in runs}, observer=EndsAfter(24))
    run(runs[0], tmp_path / runs[0].id)
    new = dataclasses.replace(runs[0], seed=7)
    outcomes = run_together({tmp_path / e.id: e for e in [*runs, new]}, size=3)
    assert len(outcomes) == 9
    assert all(len(RunDir(tmp_path / e.id).records()) == 5 for e in [*runs, new])


def test_one_experiment_in_two_folders_at_a_time_is_refused(tmp_path):
    one = pm.Experiment(model="linear", epochs=1, rounds=1)
    with pytest.raises(ValueError, match=f"{one.id} is to be run in 2 folders; at one time it has one"):
        run_together({tmp_path / "a": one, tmp_path / "b": one})
    assert not list(tmp_path.iterdir())


def test_a_run_that_diverges_is_reported_and_the_others_go_on_untouched(tmp_path, monkeypatch):
    runs = experiments()[:3]
    run_together({tmp_path / "sound" / e.id: e for e in runs})
    after_epoch = FleetRun.after_epoch

    def sick(self, train):
        after_epoch(self, Score(float("nan"), 0.1) if self.experiment.seed == 1 and self.round == 2 else train)

    monkeypatch.setattr(FleetRun, "after_epoch", sick)
    outcomes = run_together({tmp_path / "sick" / e.id: e for e in runs})
    assert [type(outcomes[tmp_path / "sick" / e.id]) for e in runs] == [str, NotFinite, str]
    assert len(RunDir(tmp_path / "sick" / runs[1].id).records()) == 2
    assert "diverged" in (tmp_path / "sick" / runs[1].id / "failure.txt").read_text()
    for e in (runs[0], runs[2]):
        sound, sick_ = (RunDir(tmp_path / folder / e.id).records() for folder in ("sound", "sick"))
        assert [r["cut"] for r in sound] == [r["cut"] for r in sick_]


def test_what_shares_data_model_and_recipe_is_one_fleet():
    longer = [dataclasses.replace(e, epochs=3) for e in experiments()]
    runs = [*experiments(), *longer, Experiment(model="cnn"), Experiment(validation=10, seed=1)]
    assert [len(fleet) for fleet in fleets(runs)] == [8, 8, 1, 1]


@pytest.mark.slow
def test_32_members_are_32_single_runs(tmp_path):
    """Three rounds of the MLP on FashionMNIST: mean accuracy, density and index within two standard errors."""
    try:
        load("FashionMNIST")
    except FileNotFoundError as error:
        pytest.skip(f"FashionMNIST is not here: {error}")
    runs = [Experiment(data="FashionMNIST", epochs=1, rounds=3, seed=seed, p=1.0, q=2.0) for seed in range(32)]
    run_together({tmp_path / "fleet" / e.id: e for e in runs})
    for e in runs:
        run(e, tmp_path / "alone" / e.id)
    fleet, alone = (pm.read_runs(tmp_path / folder).groupby("round") for folder in ("fleet", "alone"))
    for column in ("test_accuracy", "density", "pq_index", "pruned_test_accuracy"):
        apart = (fleet[column].mean() - alone[column].mean()).abs()
        error = (fleet[column].var() / 32 + alone[column].var() / 32) ** 0.5
        assert (apart <= 2 * error + 1e-12).all(), column
    assert list(fleet.size()) == [32] * 4
