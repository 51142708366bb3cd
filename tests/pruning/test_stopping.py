from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.pruning.decision import UnitDecisions
from palmette.pruning.stopping import AccuracyDrops, RoundSummary, ScoreDrops, read_rules, rule_text, why_stop


def decision(index=0.3, kept=100, cut=20, total=100):
    unit = UnitDecisions(
        "global", total, torch.tensor([kept]), torch.tensor([index]), torch.tensor([80.0]), torch.tensor([cut])
    )
    return pm.Decision("global", "any budget", index, (unit,))


def indices(*values):
    return [decision(index=value) for value in values]


@pytest.mark.parametrize(
    ("rule", "decisions", "reason"),
    [
        (pm.IndexTurnsUp(), [], None),
        (pm.IndexTurnsUp(), indices(0.3), None),
        (pm.IndexTurnsUp(), indices(0.3, 0.2, 0.3), None),
        (pm.IndexTurnsUp(), indices(0.3, 0.2, 0.2, 0.3), None),
        (pm.IndexTurnsUp(), indices(0.3, 0.2, 0.3, 0.1, 0.2), None),
        (
            pm.IndexTurnsUp(),
            indices(0.3, 0.2, 0.25, 0.3),
            "the PQ Index has risen 2 times in a row, to 0.3000",
        ),
        (pm.IndexTurnsUp(1), indices(0.2, 0.3), "the PQ Index has risen once, to 0.3000"),
        (pm.IndexTurnsUp(1), indices(math.nan, 0.3), None),
        (pm.IndexTurnsUp(1), indices(0.3, math.nan), None),
        (pm.SmallCut(), [], None),
        (pm.SmallCut(), [decision(cut=1)], None),
        (pm.SmallCut(), [decision(kept=1000, cut=9)], "the last cut took 0.90% of what was kept"),
        (pm.SmallCut(0.5), [decision(cut=49), decision(cut=50)], None),
        (pm.SmallCut(0.5), [decision(cut=50), decision(cut=49)], "the last cut took 49.00% of what was kept"),
        (pm.SmallCut(0), [decision(cut=0)], None),
        (pm.SmallCut(), [decision(kept=0, cut=0)], None),
        (pm.AtDensity(0.5), [], None),
        (pm.AtDensity(0.5), [decision(kept=71, cut=20)], None),
        (pm.AtDensity(0.5), [decision(kept=70, cut=20)], "density 0.5000 has reached 0.5"),
        (pm.AfterSteps(2), indices(0.3), None),
        (pm.AfterSteps(2), indices(0.3, 0.3), "2 steps are done"),
        (pm.AfterSteps(0), [], "0 steps are done"),
    ],
)
def test_a_rule_says_why_it_is_enough(rule, decisions, reason):
    assert rule([d.summary(step) for step, d in enumerate(decisions, start=1)]) == reason


def scores(*values):
    return [RoundSummary(round=t, density=1.0, validation=value) for t, value in enumerate(values)]


@pytest.mark.parametrize(
    ("rule", "history", "reason"),
    [
        (AccuracyDrops(0.01), [], None),
        (AccuracyDrops(0.01), scores(0.95, 0.945), None),
        (AccuracyDrops(0.01), scores(None, None), None),
        (AccuracyDrops(0.01), scores(0.95, 0.2, 0.96), None),
        (
            AccuracyDrops(0.01),
            scores(0.95, 0.92),
            "accuracy 0.9200 on validation images is more than 0.01 below 0.9500",
        ),
        (ScoreDrops(1), scores(-2.0), None),
        (ScoreDrops(1), scores(-2.0, -3.0), None),
        (ScoreDrops(1), scores(-2.0, -3.5), "score -3.5000 is worse than -2.0000 by more than 1"),
        (ScoreDrops(1), scores(-2.0, math.nan), "score nan is worse than -2.0000 by more than 1"),
        (ScoreDrops(), scores(0.95, 0.94), None),
        (ScoreDrops(), scores(0.95, 0.93), "score 0.9300 is worse than 0.9500 by more than 0.01"),
        (ScoreDrops("10%"), scores(0.5, 0.44), "score 0.4400 is worse than 0.5000 by more than 10%"),
        (ScoreDrops(1, maximize=False), scores(2.0, 3.5), "score 3.5000 is worse than 2.0000 by more than 1"),
        (ScoreDrops(1, maximize=False), scores(2.0, 0.5), None),
        (ScoreDrops(patience=2), scores(0.9, 0.1), None),
        (ScoreDrops(patience=2), scores(0.9, 0.1, 0.9), None),
        (ScoreDrops(patience=2), scores(0.9, 0.1, 0.2), "score 0.2000 is worse than 0.9000 by more than 0.01"),
    ],
)
def test_rules_about_scores_compare_with_the_dense_network(rule, history, reason):
    assert rule(history) == reason


def test_a_rule_about_the_network_comes_before_one_about_the_cut():
    history = [RoundSummary(round=0, density=0.1, kept=100, cut=0)]
    rules = [pm.SmallCut(0.5), pm.AtDensity(0.2)]
    assert why_stop(rules, history) == "density 0.1000 has reached 0.2"
    assert why_stop(rules[:1], history) == "the last step cut nothing"
    assert why_stop([], [RoundSummary(round=0, density=1.0)]) is None


@pytest.mark.parametrize(
    "text", ["index-turns-up:2", "small-cut:0.01", "density:0.05", "accuracy-drops:0.01", "auto"]
)
def test_a_rule_is_read_from_its_text_and_written_as_it(text):
    (rule,) = read_rules(text).values()
    assert rule_text(rule) == text
    assert rule_text(lambda history: None) is None


@pytest.mark.parametrize(
    ("rule", "name", "bad"),
    [
        *((pm.IndexTurnsUp, "patience", bad) for bad in (0, -1, 1.5, "2")),
        *((pm.SmallCut, "below", bad) for bad in (-0.1, 1.1, math.nan, "0.1")),
        *((pm.AtDensity, "density", bad) for bad in (-0.1, 5, math.nan, None)),
        *((pm.AfterSteps, "steps", bad) for bad in (-1, 2.5, "3")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name_and_value(rule, name, bad):
    with pytest.raises(ValueError) as error:
        rule(**{name: bad})
    assert f"{name}={bad!r}" in str(error.value)


def linear():
    torch.manual_seed(0)
    return nn.Linear(10, 10)


def test_a_pruner_goes_on_until_a_rule_says_why_not():
    pruner = pm.Pruner(linear(), scope="neuron", budget=pm.FixedRatio(0.5), stop=pm.AtDensity(0.3))
    assert pruner.stopped == ""
    while not pruner.stopped:
        pruner.step()
    assert len(pruner.decisions) == 2  # 5 of 10 go, then 2 of 5
    assert pruner.stopped == "density 0.3000 has reached 0.3"


def test_the_first_of_several_rules_to_speak_is_heard():
    rules = [pm.AfterSteps(9), lambda history: "enough" if history else None, pm.AfterSteps(1)]
    pruner = pm.Pruner(linear(), stop=rules)
    pruner.step()
    assert pruner.stopped == "enough"


def test_a_step_that_cuts_nothing_always_ends_it():
    pruner = pm.Pruner(linear(), budget=pm.FixedRatio(0), stop=())
    pruner.step()
    assert pruner.stopped == "the last step cut nothing"


@pytest.mark.parametrize("budget", [pm.Sap(), pm.FixedRatio(0.5), pm.TailMass(), pm.FixedRatio(1)], ids=str)
@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_the_default_rules_end_every_loop(budget, scope):
    pruner = pm.Pruner(linear(), budget=budget, scope=scope)
    while not pruner.stopped:
        pruner.step(score=0.5 + 0.5 * pruner.density)
        assert len(pruner.decisions) < 40
    assert pruner.decisions[-1].density_after == pruner.density
    assert len(pruner.decisions) == 2  # the first cut loses more than 0.01


def test_a_step_whose_score_ends_the_loop_cuts_nothing():
    pruner, by_step = pm.Pruner(linear(), budget=pm.FixedRatio(0.5)), iter((0.9, 0.895, 0.88))
    while not pruner.stopped:
        pruner.step(score=next(by_step))
    assert [decision.score for decision in pruner.decisions] == [0.9, 0.895, 0.88]
    assert [round(100 * decision.density_after) for decision in pruner.decisions] == [50, 25, 25]
    assert pruner.stopped == "score 0.8800 is worse than 0.9000 by more than 0.01"


def test_scores_do_not_change_the_number_of_steps():
    for more in ({}, {"score": 0.9}):
        pruner = pm.Pruner(linear(), budget=pm.FixedRatio(0.5), stop=pm.AfterSteps(2))
        while not pruner.stopped:
            pruner.step(**more)
        assert (len(pruner.decisions), pruner.density) == (2, 0.25)


def test_a_loop_without_scores_is_refused():
    pruner = pm.Pruner(linear())
    pruner.step()
    assert pruner.stopped == ""
    pruner.step()
    with pytest.raises(ValueError, match=r"no score says when to stop: pass one, as in pruner.step\(score="):
        _ = pruner.stopped


def test_a_score_without_a_scale_needs_a_tolerance():
    with pytest.raises(ValueError, match=r"the score 91 is not in \[0, 1\]: set a tolerance"):
        ScoreDrops()(scores(91.0, 90.0))


def test_the_score_on_training_data_decides_without_held_out_data():
    history = [RoundSummary(round=t, density=1.0, train=score) for t, score in enumerate((0.9, 0.885, 0.87))]
    assert ScoreDrops()(history[:2]) is None
    assert ScoreDrops()(history) == "score 0.8700 is worse than 0.9000 by more than 0.02"


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused(score):
    with pytest.raises(ValueError, match="score must be a finite number"):
        pm.Pruner(linear()).step(score=score)


def test_masks_that_are_given_may_have_reached_the_density_already():
    masks = pm.Masks({"weight": torch.tensor([[True, False, False, False]])})
    pruner = pm.Pruner(nn.Linear(4, 1), masks=masks, stop=pm.AtDensity(0.25))
    assert pruner.stopped == "density 0.2500 has reached 0.25"
