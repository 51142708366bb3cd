"""Scores of a network in training, compared with those before the first cut."""

import json
import math

import pytest
import torch

from palmette.integrations.judging import Judge, Judgement, RecentMean
from palmette.pruning.tolerance import Tolerance


def judge(monitor=None, maximize=None, tolerance=None):
    made = Judge(monitor, maximize, tolerance)
    made.watch("eval_loss", larger=False, prefix="eval_")
    return made


def judged(made, *scores):
    """Verdicts on networks with these metrics or training losses."""
    verdicts = []
    for score in scores:
        made.restart()
        made.evaluated(score) if isinstance(score, dict) else made.trained(score)
        verdicts.append(made.verdict())
    return verdicts


@pytest.mark.parametrize("count", [1, 2, 64, 65, 1000, 4097])
def test_recent_mean_is_over_the_second_half(count):
    recent = RecentMean()
    for number in range(count):
        recent.add(torch.tensor(float(number)))
    assert len(recent.state()["pieces"]) <= 64
    assert recent.mean() == pytest.approx((count // 2 + count - 1) / 2, abs=count / 64)


def test_recent_mean_weighs_logs_by_their_steps():
    recent = RecentMean()
    for loss, steps in ((9.0, 100), (2.0, 50), (4.0, 50)):
        recent.add(loss, steps)
    assert recent.mean() == 3.0
    assert RecentMean().mean() is None


def test_recent_mean_resumes_exactly():
    losses = torch.rand(200, generator=torch.Generator().manual_seed(0))
    whole, first = RecentMean(), RecentMean()
    for loss in losses:
        whole.add(loss)
    for loss in losses[:77]:
        first.add(loss)
    resumed = RecentMean(**json.loads(json.dumps(first.state())))
    for loss in losses[77:]:
        resumed.add(loss)
    assert resumed.mean() == whole.mean()


def test_losses_may_rise_by_0_05():
    good, bad = (
        Judgement(True, "the training loss 0.4700"),
        "the training loss 0.4800 is more than 0.05 above 0.4200",
    )
    assert judged(judge(), 0.42, 0.47, 0.48)[1:] == [good, Judgement(False, bad)]


def test_scores_to_maximize_may_fall_by_0_01():
    of_accuracy = judge("accuracy", maximize=True)
    _, good, bad = judged(of_accuracy, *({"eval_accuracy": score} for score in (0.9, 0.89, 0.85)))
    assert good.good
    assert bad == Judgement(False, "eval_accuracy 0.8500 is more than 0.01 below 0.9000")


def test_a_tolerance_can_be_relative():
    assert (
        judged(judge(tolerance="10%"), 2.0, 2.3)[1].text
        == "the training loss 2.3000 is more than 10% above 2.0000"
    )


def test_the_last_evaluation_counts_and_comes_before_the_training_loss():
    made = judge()
    made.trained(0.1)
    made.evaluated({"eval_loss": 0.5})
    assert made.verdict().text == "eval_loss 0.5000"
    made.restart()
    for loss in (3.0, 0.51):
        made.evaluated({"eval_loss": loss})
    made.trained(9.0)
    assert made.verdict() == Judgement(True, "eval_loss 0.5100")
    made.restart()  # no evaluation before the next cut
    made.trained(9.0)
    assert made.verdict().text == "the training loss 9.0000 is more than 0.05 above 0.1000"


def test_a_tolerance_of_an_accuracy_is_not_one_of_the_training_loss():
    made = judge("accuracy", maximize=True, tolerance=0.5)
    assert judged(made, 0.4, 0.44)[1].good
    assert judged(made, 0.46)[0].text == "the training loss 0.4600 is more than 0.05 above 0.4000"


def test_a_score_that_is_not_a_number_is_bad():
    assert judged(judge(), 0.4, math.nan)[1] == Judgement(False, "the training loss is not a number")


def test_without_scores_nobody_judges():
    made = judge()
    assert made.verdict() == Judgement(None)
    assert made.rule() == (
        "neither eval_loss nor a training loss is known before the first cut: the network is not judged, and only "
        "stop ends the cuts"
    )
    assert judged(made, 9.0) == [Judgement(None)]


def test_a_metric_that_no_evaluation_has_is_named():
    made = judge("eval_f1", maximize=True)
    made.evaluated({"eval_loss": 0.1, "eval_accuracy": 0.9})
    with pytest.raises(
        ValueError, match=r"monitor='eval_f1' is not among the metrics .*: eval_accuracy, eval_loss"
    ):
        made.verdict()


def test_maximize_must_not_contradict_the_default_metric():
    with pytest.raises(ValueError, match=r"maximize=True contradicts the metric 'eval_loss'.*name the metric"):
        judge(maximize=True)
    judge(maximize=False)


def test_the_direction_of_a_tolerance_is_used_for_other_metrics():
    assert judged(
        judge("error", tolerance=Tolerance(0.1, maximize=False)), *({"eval_error": x} for x in (0.2, 0.4))
    )[1].text.endswith("is more than 0.1 above 0.2000")


def test_state_is_plain_and_restores_scores():
    made = judge()
    made.evaluated({"eval_loss": 0.5})
    made.trained(torch.tensor(0.25))
    made.verdict()
    other = judge()
    other.load(json.loads(json.dumps(made.state())))
    assert other.state() == made.state()
    assert other.verdict() == made.verdict()


WRONG = {
    "monitor": (("", None, None), TypeError, "monitor must be the name of a metric, such as 'eval_loss', got ''"),
    "direction": (
        ("eval_f1", None, None),
        ValueError,
        "say whether larger values of monitor='eval_f1' are better",
    ),
    "maximize": ((None, 1, None), TypeError, "maximize must be True, False or None, got 1"),
    "tolerance": (
        (None, None, "much"),
        ValueError,
        "tolerance must be points of the score such as 0.01.* got 'much'",
    ),
    "negative": ((None, None, -1.0), ValueError, "tolerance must be a number of at least 0"),
    "not-worse": ((None, None, "not-worse"), ValueError, "needs the standard error .* a callback does not know"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused(name):
    settings, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        Judge(*settings)
