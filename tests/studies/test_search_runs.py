"""Searches with a user's training function whose score is a known function of the density."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from own_digits import one_thread, states_are_equal  # noqa: F401
from torch import nn

import palmette as pm
from palmette.cli import main
from palmette.errors import RunDamaged
from palmette.studies.folder import RunDir
from palmette.studies.retraining import prune_and_retrain
from palmette.studies.trainers.snapshots import Snapshots

LEAST = 0.07  # networks with fewer weights are bad


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 10))


def train(model):
    """One step on random inputs, so that no two rounds are equal."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()


def density(model):
    found = [p for p in model.parameters() if p.dim() > 1]
    return sum(int((p != 0).sum()) for p in found) / sum(p.numel() for p in found)


def score(model):
    return 0.9 - 0.05 * LEAST / max(density(model), 1e-9) if density(model) >= LEAST else 0.2


OPTIONS = {"tolerance": 0.1, "say": None}
BUDGETS = {"interpolate": None, "sap": pm.Sap(eta=0.6), "half": pm.FixedRatio(0.5)}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_search_brackets_the_known_limit(scope, budget):
    given = network()
    limit = prune_and_retrain(given, train, score, scope=scope, budget=BUDGETS[budget], **OPTIONS)
    assert limit.bad_density < LEAST <= limit.density
    assert limit.confirmed
    assert limit.model is given
    assert density(given) == limit.density == limit.records[limit.round]["retrained"]["density"]
    if scope != "neuron":  # a neuron has few weights, and no cut may lie between both ends
        assert limit.stopped == "the bracket is closed"
        assert limit.density <= 1.1 * limit.bad_density
    for record in limit.records[1:]:
        kept = limit.records[record["search"]["start"]]["retrained"]["kept"]
        assert record["retrained"]["kept"] < kept
        assert record["good"] == (record["retrained"]["density"] >= LEAST)
    both = [r["search"]["repeats"] for r in limit.records if r["search"]["repeats"] is not None]
    assert [limit.records[r]["retrained"]["density"] for r in both] == [limit.density, limit.bad_density]


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("least", [1, 2])
def test_search_of_a_tiny_network_ends_one_weight_apart(count, least):
    def change(model):
        model.weight.data += 0.01 * torch.randn(())

    model = nn.Linear(count, 1, bias=False)
    model.weight.data = torch.arange(1.0, count + 1)[None]
    limit = prune_and_retrain(model, change, lambda m: float((m.weight != 0).sum() >= least), **OPTIONS)
    assert limit.density == least / count
    assert limit.bad_density == (None if least == 1 else 1 / count)
    assert limit.confirmed


def test_search_ends_where_every_neuron_has_one_weight_left():
    limit = prune_and_retrain(network(), train, lambda model: 0.5, scope="neuron", **OPTIONS)
    assert limit.density == 30 / 840
    assert (limit.stopped, limit.bad_density) == ("no smaller cut is possible", None)


def test_cut_of_a_few_weights_is_at_least_one():
    def change(model):
        model.weight.data += 0.01 * torch.randn(())

    def at_the_tolerance(model):  # so that the next cut is small: 6 weights / 1.1 are 5.45
        kept = int((model.weight != 0).sum())
        return 0.9 if kept == 8 else 0.8 if kept >= 5 else 0.0

    model = nn.Linear(8, 1, bias=False)
    model.weight.data = torch.arange(1.0, 9.0)[None]
    limit = prune_and_retrain(model, change, at_the_tolerance, **OPTIONS)
    assert (limit.density, limit.bad_density, limit.confirmed) == (5 / 8, 4 / 8, True)


def test_smaller_scores_may_be_better():
    def loss(model):
        return 50 * (1 - score(model))

    limit = prune_and_retrain(network(), train, loss, tolerance=5.0, maximize=False, say=None)
    assert limit.bad_density < LEAST <= limit.density <= 1.1 * limit.bad_density
    assert limit.score.value > limit.dense_score.value
    relative = prune_and_retrain(network(), train, loss, tolerance="80%", maximize=False, say=None)
    assert relative.bad_density < LEAST <= relative.density <= 1.1 * relative.bad_density


@pytest.mark.parametrize("tolerance", ["12%", "not-worse:0.95"])
def test_several_numbers_have_an_error(tolerance):
    def answers(model):
        right = round(100 * score(model))
        return torch.tensor([1.0] * right + [0.0] * (100 - right))

    lines = []
    limit = prune_and_retrain(network(), train, answers, tolerance=tolerance, say=lines.append)
    assert limit.bad_density < LEAST <= limit.density <= 1.1 * limit.bad_density
    assert limit.dense_score == pm.studies.search.Estimate(0.9, pytest.approx(math.sqrt(0.9 * 0.1 / 99)))
    assert "standard error of the difference at most" in lines[-1]


def test_network_without_a_finite_score_is_bad(tmp_path):
    def undefined(model):
        return 0.9 if density(model) >= LEAST else math.nan

    plain = prune_and_retrain(network(), train, undefined, **OPTIONS)
    limit = prune_and_retrain(network(), train, undefined, folder=tmp_path, **OPTIONS)
    assert limit.bad_density < LEAST <= limit.density
    assert (limit.density, limit.bad_density) == (plain.density, plain.bad_density)
    again = prune_and_retrain(network(), train, undefined, folder=tmp_path, **OPTIONS)
    assert (again.density, again.round) == (limit.density, limit.round)
    shown = CliRunner().invoke(main, ["show", str(tmp_path)])
    assert re.search(r"none +too few\n", shown.stdout), shown.stderr


@pytest.mark.parametrize("returned", [torch.ones(2, 2), [1.0, 2.0], "done", True, None])
def test_train_may_return_anything_but_a_score(returned):
    def returns(model):
        train(model)
        return returned

    limit = prune_and_retrain(network(), returns, score, rounds=1, **OPTIONS)
    assert limit.records[0]["train"]["score"] is None


def test_train_that_sets_the_seed_is_told():
    def seeded(model):
        torch.manual_seed(0)
        train(model)

    with pytest.warns(UserWarning, match="train gave the same network twice.*does it set the random seed"):
        prune_and_retrain(network(), seeded, score, **OPTIONS)


def test_stop_rule_ends_a_search_with_the_good_network():
    limit = prune_and_retrain(network(), train, score, stop=pm.AtDensity(0.3), **OPTIONS)
    assert (limit.density, limit.bad_density, limit.confirmed) == (0.25, None, False)
    assert limit.stopped == "density 0.2500 has reached 0.3"


def test_discarded_networks_leave_no_trace_in_the_next_round():
    starts = []

    def watched(model):
        starts.append([p.detach().clone() for p in model.parameters()])
        train(model)

    limit = prune_and_retrain(network(), watched, score, budget=pm.FixedRatio(0.5), rounds=6, **OPTIONS)
    assert [record["good"] for record in limit.records][:5] == [True, True, True, True, False]  # 1, 1/2, … 1/16
    first, second = starts[4], starts[5]  # both are cut from round 3, the second less
    for one, other in zip(first, second, strict=True):
        kept = one != 0
        assert torch.equal(one[kept], other[kept])


# Folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return prune_and_retrain(network(), train, score, folder=folder, **OPTIONS), folder


def is_same(limit, folder, whole):
    expected, there = whole
    assert RunDir(folder).records() == RunDir(there).records()  # their seals name the run
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in there.iterdir())
    assert (limit.density, limit.round, limit.score) == (expected.density, expected.round, expected.score)
    return states_are_equal(limit.model, expected.model)


def test_folder_changes_nothing(whole):
    assert states_are_equal(prune_and_retrain(network(), train, score, **OPTIONS).model, whole[0].model)
    assert not RunDir(whole[1]).networks.exists()


WRITES = [
    *((RunDir, "save_masks", number) for number in (0, 3)),
    *((RunDir, "save_checkpoint", number) for number in (1, 4)),
    *((RunDir, "append_record", number) for number in (0, 4, 5)),
    *((RunDir, "write_sealed", number) for number in range(14)),
    (Snapshots, "answer", 0),
    (RunDir, "finish", 0),
]


@pytest.mark.parametrize(("kind", "name", "number"), WRITES)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_search_killed_at_any_write_is_the_same(whole, tmp_path, monkeypatch, kind, name, number, after):
    calls, write = iter(range(99)), getattr(kind, name)

    def dies(self, *arguments):
        now = next(calls) == number
        if now and not after:
            raise KeyboardInterrupt
        result = write(self, *arguments)
        if now:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(kind, name, dies)
    with pytest.raises(KeyboardInterrupt):
        prune_and_retrain(network(), train, score, folder=tmp_path, **OPTIONS)
    monkeypatch.undo()
    limit = prune_and_retrain(network(), train, score, folder=tmp_path, **OPTIONS)
    assert is_same(limit, tmp_path, whole)


@pytest.mark.parametrize("call", range(10))
def test_search_interrupted_in_any_round_is_the_same(whole, tmp_path, call):
    assert [r["search"]["repeats"] is not None for r in whole[0].records] == [False] * 8 + [True] * 2
    interrupted_run(tmp_path, call)
    limit = prune_and_retrain(network(1), train, score, folder=tmp_path, **OPTIONS)
    assert is_same(limit, tmp_path, whole)


def interrupted_run(folder, call):
    calls = iter(range(99))

    def interrupted(model):
        train(model)
        if next(calls) == call:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_and_retrain(network(), interrupted, score, folder=folder, **OPTIONS)
    return RunDir(folder)


@pytest.mark.parametrize("call", range(1, 10))
def test_damaged_last_state_repeats_a_round(whole, tmp_path, call):
    rundir = interrupted_run(tmp_path, call)
    flip(rundir.checkpoint(rundir.checkpoint_numbers()[-1]))
    with pytest.warns(UserWarning, match="is damaged; using the one before it"):
        limit = prune_and_retrain(network(1), train, score, folder=tmp_path, **OPTIONS)
    assert is_same(limit, tmp_path, whole)


def flip(file):
    """Flip a bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_damaged_network_of_an_earlier_round_is_named(tmp_path):
    rundir = interrupted_run(tmp_path, 7)
    for file in rundir.networks.iterdir():
        flip(file)
    with pytest.raises(RunDamaged, match=r"the network of round \d+, '.*round-\d\d\.pt', is missing or damaged"):
        prune_and_retrain(network(), train, score, folder=tmp_path, **OPTIONS)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_flipped_bit_in_the_answer_is_never_returned(whole, tmp_path, place):
    shutil.copytree(whole[1], tmp_path / "run")
    file = tmp_path / "run" / "good.pt"
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 4
    file.write_bytes(content)
    with pytest.raises(RunDamaged, match=r"good\.pt', is missing or damaged"):
        prune_and_retrain(network(), train, score, folder=tmp_path / "run", **OPTIONS)


@pytest.mark.parametrize("harm", [flip, Path.unlink])
def test_the_network_of_its_round_replaces_a_damaged_answer(tmp_path, harm):
    options = OPTIONS | {"rounds": 3, "folder": tmp_path}
    whole = prune_and_retrain(network(), train, score, **options)
    content = RunDir(tmp_path).good.read_bytes()
    harm(RunDir(tmp_path).good)
    again = prune_and_retrain(network(), train, score, **options)
    assert states_are_equal(again.model, whole.model)
    assert str(again) == str(whole)
    mended = RunDir(tmp_path).good.read_bytes()
    assert len(mended) == len(content)
    RunDir(tmp_path).network(whole.round).unlink()
    assert states_are_equal(prune_and_retrain(network(), train, score, **options).model, whole.model)


def test_a_damaged_answer_is_shown(whole, tmp_path):
    run = shutil.copytree(whole[1], tmp_path / "run")
    shown = [CliRunner().invoke(main, ["show", str(run), "--json"]).stdout]
    flip(run / "good.pt")
    shown.append(CliRunner().invoke(main, ["show", str(run), "--json"]).stdout)
    assert [json.loads(one)["state"] for one in shown] == ["finished", "damaged"]
    told = f"the model that the run returned, {str(run / 'good.pt')!r}, is damaged"
    assert [json.loads(one)["damage"] for one in shown] == [None, told]


def test_other_tolerance_needs_another_folder(whole):
    with pytest.raises(RunDamaged, match=r"with tolerance='0.1', not tolerance='0.2'"):
        prune_and_retrain(network(), train, score, folder=whole[1], **OPTIONS | {"tolerance": 0.2})
    with pytest.raises(RunDamaged, match=r"with maximize=True, not maximize=False"):
        prune_and_retrain(network(), train, score, folder=whole[1], **OPTIONS, maximize=False)


@pytest.mark.parametrize("rewind", ["init", "learning-rate"])
def test_scores_before_retraining_are_those_that_training_starts_from(rewind):
    lines, scores = [], iter((0.1, 0.9, 0.9, 0.5, 0.5))  # untrained, dense, cut, retrained, cut
    options = {"tolerance": 0.1, "rewind": rewind, "rounds": 1, "say": lines.append}
    prune_and_retrain(network(), train, lambda model: next(scores), **options)
    told = [line for line in lines if "before retraining" in line or "retraining made it worse" in line]
    assert len(told) == (0 if rewind == "init" else 2)


def test_training_that_diverges_is_too_few(tmp_path):
    def diverges(model):
        train(model)
        if density(model) < LEAST:
            model[0].weight.data.mul_(torch.nan)

    model = network()
    limit = prune_and_retrain(model, diverges, lambda m: 0.9, folder=tmp_path, **OPTIONS)
    assert limit.bad_density < LEAST <= limit.density <= 1.1 * limit.bad_density
    assert limit.confirmed
    assert all(p.isfinite().all() for p in model.parameters())
    bad = [record for record in limit.records if not record["good"]]
    assert all(record["validation"] is None and record["search"]["score"] is None for record in bad)
