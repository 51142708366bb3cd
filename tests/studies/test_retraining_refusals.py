"""What a user can do wrong around one's own training, and what is said then."""

import copy
import importlib
import math
import sys
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from own_digits import OPTIONS, UNSCORED, X, Y, evaluate, network, quick, train, weights
from torch import nn

import palmette as pm
from palmette.errors import MaskMismatch, NotFinite, NothingToPrune, ParameterGone
from palmette.pruning.targets import Interpolate
from palmette.studies.folder import RunDir
from palmette.studies.trainers.auto_hold import AutoHold


def test_optimizer_made_outside_is_refused_and_the_run_resumes_after_a_fix(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def outside(model):
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()

    with pytest.raises(ValueError, match=r"this SGD has trained in an earlier round.*inside train"):
        pm.prune_and_retrain(model, outside, evaluate, folder=tmp_path, **OPTIONS)
    assert len(RunDir(tmp_path).records()) == 1
    pm.prune_and_retrain(model, train, evaluate, folder=tmp_path, **OPTIONS)
    assert len(RunDir(tmp_path).records()) == 4


def test_optimizer_kept_after_training_holds_the_good_masks():
    kept = []

    def keeps(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        kept.append(optimizer)

    model = pm.prune_and_retrain(
        network(), keeps, lambda m: 1.0 - 0.4 * (len(kept) > 2), **OPTIONS | {"tolerance": 0.1}
    ).model
    zeros = int((weights(model) == 0).sum())
    assert zeros == 1184  # round 1 is the last good one
    kept[-1].step()
    assert int((weights(model) == 0).sum()) == zeros


def trains_a_copy(model):
    quick(copy.deepcopy(model))


def replaces_a_layer(model):
    quick(model)
    model[0] = nn.Linear(64, 32)


def adds_a_layer(model):
    quick(model)
    model.append(nn.Linear(10, 10))


def returns_another(model):
    quick(model)
    return network()


NO_SCORE = {"evaluate": None, "tolerance": None}
WRONG = {
    "copy": (trains_a_copy, {}, ValueError, "left every parameter unchanged.*train a copy.*trained=True"),
    "replaced": (replaces_a_layer, {}, ParameterGone, "'0.weight' was replaced .* by train.*before"),
    "added": (adds_a_layer, {}, ParameterGone, r"'5\.weight' was added, by train.*before"),
    "another": (returns_another, {}, ValueError, "train the given model in place"),
    "no train": (None, {}, TypeError, "train must be a function that takes the model, got None"),
    "evaluate": (train, {"evaluate": 0.9}, TypeError, "evaluate must be a function"),
    "say": (train, {"say": True}, TypeError, "say must be a function that takes a line, got True"),
    "no number": (train, {"evaluate": lambda m: None}, TypeError, "evaluate must return one number.*got None"),
    "percent": (train, {"evaluate": lambda m: 91.7, "tolerance": None}, ValueError, "tolerance=1.0 for accuracy"),
    "loss": (train, {"evaluate": lambda m: -2.3, "tolerance": None}, ValueError, "with maximize=False for a loss"),
    "nan": (train, {"evaluate": lambda m: float("nan")}, ValueError, "a finite number for the dense"),
    "masks": (train, {"masks": {"0.weight": torch.ones(2, 2) > 0}}, MaskMismatch, "missing: 4.weight; of another"),
    "no score": (train, NO_SCORE, ValueError, "there is no score of the model: pass evaluate, let train"),
    "no trained score": (train, NO_SCORE | {"trained": True}, ValueError, "no score of the trained model"),
    "not-worse": (train, {"tolerance": "not-worse"}, ValueError, "one number per example"),
    "target": (train, NO_SCORE | UNSCORED | {"budget": Interpolate()}, ValueError, "needs a tolerance"),
    "tolerance": (train, {"tolerance": -1}, ValueError, "at least 0, got tolerance=-1"),
    "rounds": (train, {"rounds": 2.5}, ValueError, "rounds must be a whole number of at least 0, got rounds=2.5"),
    "epoch": (train, {"rewind": "epoch:3"}, ValueError, "train runs all epochs in one call.*use 'init'"),
    "rewind": (train, {"rewind": "back"}, ValueError, "rewind must be 'init', 'learning-rate' or 'fine"),
    "rewind kind": (train, {"rewind": 3}, TypeError, "rewind must be"),
    "init": (train, {"rewind": "init", "trained": True}, ValueError, "no initial weights to rewind to"),
    "fine-tune": (train, {"rewind": "fine-tune", "trained": True}, ValueError, "no last learning rate"),
    "stop": (train, {"stop": "density"}, TypeError, "stop must be a rule such as"),
    "scope": (train, {"scope": "network"}, ValueError, "scope must be one of"),
    "include": (train, {"include": ["nothing"]}, NothingToPrune, "include has the pattern 'nothing'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_argument_is_refused_with_the_way_out(name, tmp_path):
    trains, options, kind, text = WRONG[name]
    options = OPTIONS | {"evaluate": evaluate, "folder": tmp_path} | options
    with pytest.raises(kind, match=text):
        pm.prune_and_retrain(network(), trains, **options)


class Remembering(nn.Linear):
    seen = None

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state


@pytest.mark.parametrize(
    "value", [{"path": Path("x")}, Fraction(1, 2), lambda: None], ids=["path", "own", "local"]
)
def test_extra_state_that_cannot_be_saved_is_refused_before_training(value, tmp_path):
    model = network()
    model[4] = Remembering(32, 10)
    model[4].seen = value
    with pytest.raises(
        TypeError, match=r"'4\._extra_state' could not be read back.* Give only these in get_extra_state$"
    ):
        pm.prune_and_retrain(model, lambda m: pytest.fail("it trains"), folder=tmp_path / "run", **OPTIONS)
    assert not list((tmp_path / "run").glob("*.json"))


def test_good_model_has_the_extra_state_of_its_round():
    def remembers(model):
        train(model)
        model[4].seen.append("trained")

    model = network()
    model[4] = Remembering(32, 10)
    model[4].seen = []
    options = OPTIONS | {"tolerance": 0.1, "rounds": 1}
    pm.prune_and_retrain(model, remembers, lambda m: float((weights(m) != 0).float().mean()), **options)
    assert model[4].seen == ["trained"]  # by round 0; round 1 is not good


def path_in_extra_state(*, shape, classes):
    model = nn.Sequential(nn.Flatten(), Remembering(math.prod(shape), classes))
    model[1].seen = Path("x")
    return model


def test_run_with_extra_state_that_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"'1\._extra_state' could not be read back"):
        pm.run(pm.Experiment(model=f"{__name__}:path_in_extra_state"), tmp_path / "run")


def test_diverged_network_is_put_back_to_the_last_good_one(tmp_path):
    rounds = iter(range(9))

    def diverges(model):
        train(model)
        if next(rounds) == 2:
            model[0].weight.data.fill_(float("nan"))

    model = network()
    with pytest.raises(NotFinite, match=r"diverged in round 2.*restored to that of round 1"):
        pm.prune_and_retrain(model, diverges, folder=tmp_path, **UNSCORED)
    assert bool(weights(model).isfinite().all())
    assert int((weights(model) == 0).sum()) == 1184
    assert "diverged" in (tmp_path / "failure.txt").read_text()
    pm.prune_and_retrain(model, train, folder=tmp_path, **UNSCORED)
    assert not (tmp_path / "failure.txt").exists()


def test_divergence_is_raised_if_it_cannot_be_written(tmp_path):
    def diverges(model):
        model[0].weight.data.fill_(float("nan"))
        (tmp_path / "failure.txt").mkdir()

    with pytest.raises(NotFinite, match="diverged in round 0"):
        pm.prune_and_retrain(network(), diverges, folder=tmp_path, **UNSCORED)


def test_model_that_changes_dtype_or_device_in_train_keeps_its_masks():
    def moves(model):
        model.double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pruned = weights(model) == 0
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X.double()), Y).backward()
            optimizer.step()
            assert not weights(model)[pruned].any()
        model.float()

    model = pm.prune_and_retrain(network(), moves, evaluate, **OPTIONS).model
    assert int((weights(model) == 0).sum()) == 2072


def test_compiled_model_is_unwrapped():
    model = network()
    wrapped = torch.compile(model, backend="eager")
    assert pm.prune_and_retrain(wrapped, lambda m: quick(model), **UNSCORED).model is wrapped
    assert int((weights(model) == 0).sum()) == 2072


def test_optimizer_that_is_not_held_causes_a_warning():
    model = network()
    forgotten = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5))
    for _ in range(2):
        nn.functional.cross_entropy(model(X), Y).backward()
        forgotten.step()
        with (
            pytest.warns(UserWarning, match=r"pruned weights \(0.weight, 4.weight\) are no")
            if pruner.decisions
            else (nullcontext())
        ):
            pruner.step()
    assert pruner.density == 0.25
    assert int((weights(model) == 0).sum()) == 1776


def test_met_ignores_optimizers_of_unpruned_weights():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 2))
    pruner = pm.Pruner(model)
    met = AutoHold(pruner)
    with met.round(note=True):
        of_embedding = torch.optim.SGD(model[0].parameters(), lr=0.3)
        model(torch.tensor([1])).sum().backward()
        of_embedding.step()
    assert met.rates == {"0.weight": 0.3}
    assert not of_embedding._optimizer_step_post_hooks


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_missing_library_names_the_install_command(library, monkeypatch):
    for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"palmette.integrations.{library}", raising=False)
    with pytest.raises(
        ImportError, match=rf"PalmetteCallback needs {library.title()}: pip install 'palmette\[{library}"
    ):
        importlib.import_module(f"palmette.integrations.{library}")
