"""Pruning around a training loop of one's own, on real digits: masks held, killed and resumed, errors told."""

import copy
import re
from pathlib import Path

import pytest
import torch
from own_digits import OPTIONS, UNSCORED, X, Y, evaluate, network, quick, train, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import palmette as pm
from palmette.studies.folder import RunDir
from palmette.studies.trainers.auto_hold import AutoHold

# Masks


OPTIMIZERS = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.5),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pruned_weights_are_zero_after_every_step_of_an_inner_optimizer(name):
    zeros = []

    def watched(model):
        pruned = weights(model) == 0
        optimizer = OPTIMIZERS[name](model)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            assert not weights(model)[pruned].any()
        zeros.append(int(pruned.sum()))

    pm.prune_and_retrain(network(), watched, **UNSCORED)
    assert zeros == [0, 1184, 1776, 2072]  # half of 2368, half of what is left, …


def test_two_optimizers_and_a_gradient_scaler_are_held():
    def watched(model):
        pruned = weights(model) == 0
        scaler = torch.amp.GradScaler("cpu")
        made = [torch.optim.AdamW(model[0].parameters()), torch.optim.SGD(model[4].parameters(), lr=0.1)]
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(X), Y)
            scaler.scale(loss).backward()
            for optimizer in made:
                scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            assert not weights(model)[pruned].any()

    pm.prune_and_retrain(network(), watched, **UNSCORED)


def test_manual_updates_are_masked_at_the_end_of_a_round():
    def by_hand(model):
        nn.functional.cross_entropy(model(X), Y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad + 0.01)
        model.zero_grad()

    model = pm.prune_and_retrain(network(), by_hand, evaluate, **OPTIONS).model
    assert int((weights(model) == 0).sum()) == 2072


def test_optimizer_of_another_model_is_ignored():
    other = nn.Linear(4, 4)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)

    def both(model):
        other(torch.ones(1, 4)).sum().backward()
        theirs.step()  # in every round, and nobody minds
        quick(model)

    pm.prune_and_retrain(network(), both, **UNSCORED)
    assert not theirs._optimizer_step_post_hooks


def test_hooks_are_removed_after_an_error():
    from torch.optim import optimizer as module

    before = len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)
    with pytest.raises(ZeroDivisionError):
        pm.prune_and_retrain(network(), lambda model: 1 / 0, **UNSCORED)
    assert (len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)) == before


# What is good


def test_sparsest_network_within_the_tolerance_is_returned():
    given, lines = network(), []
    limit = pm.prune_and_retrain(
        given, train, evaluate, budget=pm.FixedRatio(0.6), tolerance=0.03, rounds=8, say=lines.append
    )
    assert limit.model is given
    assert int((weights(given) == 0).sum()) == round((1 - limit.density) * 2368)
    scores = [record["validation"]["score"] for record in limit.records]
    assert scores[limit.round] >= scores[0] - 0.03
    assert limit.density == limit.records[limit.round]["retrained"]["density"]
    assert limit.bad_density < limit.density
    assert (len(lines), lines[-2:]) == (len(scores) + 2, [str(limit), limit.precision])
    given.eval()
    assert float(evaluate(given)) == scores[limit.round]


def test_without_scores_the_last_network_is_returned():
    model, heights, lines = nn.Linear(8, 1, bias=False), iter((9, 8, 7, 6)), []

    def set_weights(model):
        model.weight.data = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, next(heights)]])

    limit = pm.prune_and_retrain(
        model, set_weights, budget=pm.FixedRatio(0.2), stop=pm.AtDensity(0.7), say=lines.append
    )
    assert int((model.weight == 0).sum()) == 3  # one of eight, of seven, of six
    assert float(model.weight.detach().max()) == 6
    assert (limit.density, limit.bad_density, limit.confirmed, limit.round) == (5 / 8, None, False, 3)
    assert lines[-1] == "62% of the weights remain; 3 retrainings (density 0.6250 has reached 0.7)"


def test_number_that_train_returns_is_the_score():
    calls = []

    def returns(model):
        quick(model)
        calls.append(1)
        return 0.9 if float((weights(model) == 0).float().mean()) < 0.6 else 0.87

    limit = pm.prune_and_retrain(network(), returns, budget=pm.FixedRatio(0.5), rounds=2, say=None)
    assert (limit.density, limit.bad_density, limit.tolerance.by) == (0.5, 0.25, 0.02)
    assert (limit.dense_score.value, limit.score.value, limit.bad_score.value) == (0.9, 0.9, 0.87)
    assert [record["validation"] for record in limit.records] == [None] * 3


def test_at_density_stops_with_a_retrained_network(tmp_path):
    model = pm.prune_and_retrain(
        network(), train, evaluate, **OPTIONS | {"stop": pm.AtDensity(0.3), "folder": tmp_path}
    ).model
    assert [r["retrained"]["density"] for r in RunDir(tmp_path).records()] == [1.0, 0.5, 0.25]
    assert int((weights(model) == 0).sum()) == 1776


def test_after_steps_trains_after_the_last_cut():
    trainings = []
    pm.prune_and_retrain(
        network(), lambda m: trainings.append(quick(m)), **UNSCORED | {"stop": pm.AfterSteps(2), "rounds": 30}
    )
    assert len(trainings) == 3


# Where a round starts


def test_init_rewinds_weights_and_buffers_and_learning_rate_does_not():
    first = copy.deepcopy(network().state_dict())
    seen = []

    def watched(model):
        seen.append(copy.deepcopy(model.state_dict()))
        quick(model)

    pm.prune_and_retrain(network(), watched, **UNSCORED | {"rewind": "init"})
    for state in seen[1:]:
        kept = state["0.weight"] != 0
        assert 0 < int(kept.sum()) < kept.numel()
        assert torch.equal(state["0.weight"][kept], first["0.weight"][kept])
        assert torch.equal(state["1.running_mean"], first["1.running_mean"])
    seen.clear()
    pm.prune_and_retrain(network(), watched, **UNSCORED)
    assert not torch.equal(seen[1]["1.running_mean"], first["1.running_mean"])


def test_fine_tune_uses_the_last_learning_rate_of_round_0():
    rates, shown = [], []

    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            rates.append([group["lr"] for group in self.param_groups])
            super().step(closure)

    def scheduled(model):
        groups = [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.2}]
        optimizer = Noting(groups, lr=0.8)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(3):
            nn.functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        shown.append(optimizer.param_groups[0]["lr"])

    pm.prune_and_retrain(network(), scheduled, **UNSCORED | {"rewind": "fine-tune", "rounds": 1})
    assert rates == [[0.8, 0.2], [0.4, 0.1], [0.2, 0.05], *[[0.2, 0.05]] * 3]
    assert shown == [0.1, 0.1]  # the schedule goes its own way
    rates.clear()
    pm.prune_and_retrain(network(), scheduled, **UNSCORED | {"rounds": 1})
    assert rates[3:] == rates[:3]


def test_tensor_learning_rate_changed_in_place_is_noted_before_the_change():
    model = network()
    met = AutoHold(pm.Pruner(model))
    rate = torch.tensor(0.4)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with met.round(note=True):
        optimizer.step()
        rate.fill_(0.1)
    assert met.rates == {"0.weight": pytest.approx(0.4)}
    seen = []
    again = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.7))
    again.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    with met.round(met.rates):
        again.step()
    assert isinstance(seen[0], torch.Tensor)
    assert float(seen[0]) == pytest.approx(0.4)
    assert float(again.param_groups[0]["lr"]) == pytest.approx(0.7)


def test_trained_model_is_cut_before_its_first_training():
    model, trainings = network(), []
    train(model)
    dense = float(evaluate(model))
    lines = []
    pm.prune_and_retrain(
        model, lambda m: trainings.append(train(m)), evaluate, **OPTIONS | {"trained": True, "say": lines.append}
    )
    assert len(trainings) == 3
    assert f"score {dense:.4f}" in lines[0]


def test_later_round_may_leave_weights_unchanged():
    calls = []

    def once(model):
        calls.append(1)
        if len(calls) == 1:
            quick(model)

    pm.prune_and_retrain(network(), once, **UNSCORED | {"rounds": 2})
    assert len(calls) == 3


def test_a_frozen_layer_is_pruned_while_others_are_trained():
    model = network()
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    found = pm.prune_and_retrain(model, quick, include=["0.weight"], **UNSCORED).model[0].weight
    assert int(found.count_nonzero()) == frozen.numel() // 8
    assert torch.equal(found, torch.where(found != 0, frozen, 0))


def test_given_masks_are_held_in_every_round():
    model = network()
    masks, _ = pm.prune(pm.prunable(model), scope="global", budget=pm.FixedRatio(0.5))
    zeros = []

    def watched(model):
        quick(model)
        zeros.append(int((weights(model) == 0).sum()))

    pm.prune_and_retrain(model, watched, **UNSCORED | {"masks": masks, "rounds": 1})
    assert zeros == [1184, 1776]


def test_score_exactly_at_the_tolerance_is_good():
    by_density = {1.0: 0.91, 0.5: 0.90, 0.25: 0.8999}  # float32: 0.91 - 0.90 is more than 0.01

    def score(model):
        return torch.tensor(by_density[float((weights(model) != 0).float().mean())])

    limit = pm.prune_and_retrain(network(), quick, score, **OPTIONS | {"tolerance": None, "rounds": 2})
    assert [record["good"] for record in limit.records] == [True, True, False]
    assert (limit.density, limit.bad_density) == (0.5, 0.25)


def test_train_sees_the_original_module_modes():
    def watched(model):
        assert [m.training for m in model] == [True, False, True, True, True]
        quick(model)
        model.eval()

    def evaluated(model):
        assert not any(m.training for m in model.modules())
        model.train()
        return 0.5

    model = network()
    model[1].eval()  # people freeze batch norm so
    pm.prune_and_retrain(model, watched, evaluated, **OPTIONS)
    assert [m.training for m in model] == [True, False, True, True, True]


def test_error_in_evaluate_restores_module_modes():
    def fails(model):
        raise KeyError("no data")

    model = network()
    with pytest.raises(KeyError, match="no data"):
        pm.prune_and_retrain(model, quick, fails, **OPTIONS)
    assert all(m.training for m in model.modules())


def test_readme_adds_two_lines_to_a_training_loop():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = block.splitlines()
    added = [line for line in lines if line.startswith("+")]
    assert (len(lines), len(added)) == (4, 2)

    def run(code):
        model = network()
        names = {
            "pm": pm,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "train_epoch": steps,
            "accuracy": lambda model: 0.9,
        }
        exec("\n".join(line[1:] for line in code), names)
        return names

    without, pruned = run(line for line in lines if line not in added), run(lines)
    assert not (weights(without["model"]) == 0).any()
    assert len(pruned["pruner"].decisions) == 5
    zeros = weights(pruned["model"]) == 0
    assert int(zeros.sum()) == round((1 - pruned["pruner"].density) * zeros.numel()) > 1000


def steps(model, optimizer):
    for x, y in DataLoader(TensorDataset(X, Y), 100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("budget", [pm.FixedRatio(0.5), pm.Interpolate()])
def test_a_search_keeps_the_shares_of_layers(budget, tmp_path):
    def dense_enough(model):
        return float((weights(model) != 0).float().mean() > 0.4)

    options = {"tolerance": 0.1, "rounds": 3, "say": None, "folder": tmp_path, "scope": "layer"}
    shared = pm.Allocated(budget, by="erk")
    limit = pm.prune_and_retrain(network(), quick, dense_enough, budget=shared, **options)
    assert {record["good"] for record in limit.records[1:]} == {True, False}
    assert pm.read_runs(tmp_path)["allocate"].unique().tolist() == ["erk"]
    # ERK: a density of (32 + 64) / 2048 for the first layer to (10 + 32) / 320 for the last, or all of that.
    for t in (1, 2, 3):
        first, last = (float(mask.float().mean()) for mask in pm.Masks.load(RunDir(tmp_path).mask(t)).values())
        assert last == 1 or last / first == pytest.approx(2.8, rel=0.05)


# Saliencies by name


def test_dense_magnitude_ranks_by_the_trained_dense_network(tmp_path):
    folder = tmp_path / "run"
    options = UNSCORED | {"rounds": 2, "folder": folder}
    pm.prune_and_retrain(network(), train, saliency="dense-magnitude", **options)
    masks = [pm.Masks.load(RunDir(folder).mask(t)) for t in range(3)]
    dense = network()
    train(dense)
    expected, _ = pm.prune(pm.prunable(dense), scope="global", budget=pm.FixedRatio(0.5))
    assert masks[1] == expected
    ranked = pm.magnitude_of(pm.prunable(dense))
    expected, _ = pm.prune(
        pm.prunable(dense), masks[1], scope="global", budget=pm.FixedRatio(0.5), saliency=ranked
    )
    assert masks[2] == expected
    assert pm.read_runs(folder)["method"].unique().tolist() == ["one-shot"]


def test_a_saliency_that_needs_inputs_or_is_unknown_is_refused():
    with pytest.raises(ValueError, match=r"pass weighted_by_inputs\(input_norms"):
        pm.prune_and_retrain(network(), train, saliency="input-weighted", say=None)
    with pytest.raises(ValueError, match="saliency must be one of magnitude, dense-magnitude"):
        pm.prune_and_retrain(network(), train, saliency="size", say=None)


def test_a_pruned_model_keeps_its_zeros_and_says_so():
    model = network()
    pm.Pruner(model, budget=pm.FixedRatio(0.5)).step()
    with pytest.warns(UserWarning, match="count as pruned before and stay"):
        limit = pm.prune_and_retrain(model, quick, **(UNSCORED | {"rounds": 0}))
    assert limit.density == 0.5
