"""Brackets, steps and answers of a search: functions of the attempts, checked by hand."""

from __future__ import annotations

import math

import pytest

from palmette.pruning.budgets import Allocated, FixedRatio, Partly, Sap
from palmette.pruning.targets import Bisect, Interpolate
from palmette.pruning.tolerance import Estimate, Tolerance
from palmette.studies.search import (
    Attempt,
    Limit,
    Step,
    attempts_of,
    bracket,
    budget_to,
    next_step,
    shown_densities,
)

TOLERANCE = Tolerance(0.1)


def attempts(*rows, total=100):
    """Attempts of rows (kept, score), with start and repeats if they have more."""
    found = []
    for number, (kept, score, *more) in enumerate(rows):
        start, repeats = [*more, None, None][:2]
        score = score if isinstance(score, Estimate) else Estimate(score)
        start = start if start is not None or not number else 0
        found.append(Attempt(round=number, kept=kept, total=total, score=score, start=start, repeats=repeats))
    return found


def ends(rows, tolerance=TOLERANCE, total=100):
    found = bracket(attempts(*rows, total=total), tolerance)
    return found.good.kept, found.bad and found.bad.kept, found.best, found.closed


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(100, 0.9)], (100, None, 0, False)),
        ([(100, 0.9), (50, 0.85)], (50, None, 1, False)),
        ([(100, 0.9), (50, 0.5)], (100, 50, 0, False)),
        ([(100, 0.9), (50, 0.85), (20, 0.5), (30, 0.85), (25, 0.7)], (30, 25, 3, False)),
        ([(100, 0.9), (22, 0.85), (20, 0.5)], (22, 20, 1, True)),  # 22 is 1.1 times 20
        ([(100, 0.9), (23, 0.85), (20, 0.5)], (23, 20, 1, False)),
        ([(100, 0.9), (3, 0.85), (2, 0.5)], (3, 2, 1, True)),  # one weight apart
        ([(100, 0.9), (1, 0.85)], (1, None, 1, True)),  # nothing is left to cut
        ([(100, 0.9), (40, 0.5), (30, 0.85), (20, 0.5)], (30, 20, 2, False)),  # a bad network above counts little
        ([(100, 0.9), (50, math.nan), (60, 0.9)], (60, 50, 2, False)),
        ([(100, 0.9), (50, math.inf), (60, 0.9)], (60, 50, 2, False)),
    ],
)
def test_bracket_is_the_sparsest_good_network_and_the_densest_bad_one_below(rows, expected):
    assert ends(rows) == expected


CLOSED = [(100, 0.9), (22, 0.81, 0), (20, 0.7, 1)]


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [
        ([(22, 0.80, 0, 1)], (22, 20, 1, True)),  # mean 0.805, and the first was better
        ([(22, 0.85, 0, 1)], (22, 20, 3, True)),
        ([(22, 0.78, 0, 1)], (100, 22, 0, False)),  # mean 0.795: refuted
        ([(22, 0.80, 0, 1), (20, 0.79, 1, 2)], (22, 20, 1, True)),
        ([(22, 0.80, 0, 1), (20, 0.95, 1, 2)], (20, None, 4, False)),  # mean 0.825: good after all
    ],
)
def test_the_mean_of_both_trainings_decides(repeats, expected):
    assert ends([*CLOSED, *repeats]) == expected


def test_a_refuted_network_gives_way_to_the_earlier_good_one():
    rows = [(100, 0.9), (50, 0.9, 0), (22, 0.81, 1), (20, 0.7, 2), (22, 0.7, 1, 2)]
    assert ends(rows) == (50, 22, 1, False)
    assert next_step(attempts(*rows), TOLERANCE, rounds=9) == Step(1, density=math.sqrt(0.5 * 0.22))


def test_smaller_scores_are_better_if_asked():
    rows = [(100, 2.0), (50, 2.05), (20, 2.2)]
    assert ends(rows, Tolerance(0.1, maximize=False)) == (50, 20, 1, False)
    assert ends([*rows, (50, 1.9, 0, 1)], Tolerance(0.1, maximize=False))[2] == 3


def test_the_best_training_of_a_good_mean_is_good_by_itself():
    tolerance = Tolerance(0.975, "not-worse")  # 1.96 standard errors
    first, second = Estimate(0.8, 0.01), Estimate(0.7, 0.2)  # only the second is within its own noise
    assert ends([(100, Estimate(0.9, 0.0)), (50, first), (50, second, 0, 1)], tolerance) == (50, None, 2, False)


@pytest.mark.parametrize(
    ("rows", "rounds", "expected"),
    [
        ([(100, 0.9)], 9, Step(0)),
        ([(100, 0.9)], 0, Step(0, stop="all retrainings are used")),
        ([(100, 0.9), (50, 0.85)], 9, Step(1)),
        ([(100, 0.9), (25, 0.5)], 9, Step(0, density=0.5)),
        ([(100, 0.9), (25, 0.5), (50, 0.85)], 9, Step(2, density=math.sqrt(0.125))),
        ([(100, 0.9), (25, 0.5), (50, 0.85)], 2, Step(2, stop="all retrainings are used")),
        (CLOSED, 9, Step(0, repeats=1)),
        (CLOSED, 2, Step(1, stop="the bracket is closed, and all retrainings are used")),
        ([*CLOSED, (22, 0.85, 0, 1)], 9, Step(1, repeats=2)),
        ([*CLOSED, (22, 0.85, 0, 1), (20, 0.7, 1, 2)], 9, Step(3, stop="the bracket is closed")),
        ([(100, 0.9), (95, 0.5)], 9, Step(0, repeats=1)),  # the dense network is not trained again
        ([(100, 0.9), (95, 0.5, 0), (95, 0.5, 0, 1)], 9, Step(0, stop="the bracket is closed")),
        ([(100, 0.9), (1, 0.85)], 9, Step(0, repeats=1)),
    ],
)
def test_next_step_follows_from_the_attempts(rows, rounds, expected):
    assert next_step(attempts(*rows), TOLERANCE, rounds=rounds) == expected


def test_a_budget_of_densities_names_the_first_cut_too():
    assert next_step(attempts((100, 0.9)), TOLERANCE, rounds=9, target=Interpolate()) == Step(0, density=0.25)
    step = next_step(attempts((100, 0.9), (25, 0.5)), TOLERANCE, rounds=9, target=Bisect())
    assert step == Step(0, density=0.5)
    assert next_step(attempts((8, 0.9), total=8), TOLERANCE, rounds=9, target=Bisect()) == Step(0, density=1 / 8)


def test_ends_are_trained_again_if_no_cut_lies_between():
    rows = [(100, 0.9), (60, 0.85, 0), (50, 0.5, 1)]
    more = {"rounds": 9, "narrow": True}
    assert next_step(attempts(*rows), TOLERANCE, **more) == Step(0, repeats=1)
    rows.append((60, 0.9, 0, 1))
    assert next_step(attempts(*rows), TOLERANCE, **more) == Step(1, repeats=2)
    rows.append((50, 0.5, 1, 2))
    assert next_step(attempts(*rows), TOLERANCE, **more) == Step(3, stop="no cut lies between both ends")
    assert Limit.of(attempts(*rows), TOLERANCE, stopped="no cut lies between both ends").confirmed


def test_search_ends_if_no_smaller_cut_is_possible():
    more = {"rounds": 9, "narrow": True}
    assert next_step(attempts((100, 0.9)), TOLERANCE, **more) == Step(0, stop="no smaller cut is possible")
    rows = [(100, 0.9), (60, 0.85, 0)]
    assert next_step(attempts(*rows), TOLERANCE, **more) == Step(0, repeats=1)
    rows.append((60, 0.9, 0, 1))
    step = next_step(attempts(*rows), TOLERANCE, **more)
    assert step == Step(2, stop="no smaller cut is possible")
    found = Limit.of(attempts(*rows), TOLERANCE, stopped=step.stop)
    assert found.confirmed
    assert str(found).endswith("fewer were not tried; 2 retrainings (no smaller cut is possible)")


def test_wide_bracket_is_not_confirmed():
    rows = [*CLOSED, (22, 0.78, 0, 1)]  # refutes the good end: the dense network and 22% are left
    found = Limit.of(attempts(*rows), TOLERANCE, stopped="all retrainings are used")
    assert (found.density, found.bad_density, found.confirmed) == (1.0, 0.22, False)


def test_network_without_a_score_has_no_standard_error():
    rows = [(100, Estimate(0.9, 0.01)), (25, Estimate(math.nan))]
    step = next_step(attempts(*rows), Tolerance.parse("not-worse"), rounds=9, target=Interpolate())
    assert 0.25 < step.density < 1


def known(total, least, noise=lambda number: 0.0):
    """Attempts of a whole search where networks of at least `least` weights are good."""
    done, step = attempts((total, 1.0), total=total), None
    while step is None or step.stop is None:
        step = next_step(done, TOLERANCE, rounds=60, target=Interpolate())
        if step.stop is None:
            kept = {a.round: a.kept for a in done}
            start = kept[step.start]
            wanted = math.ceil(step.density * total) if step.density else kept[step.repeats]
            now = kept[step.repeats] if step.repeats is not None else min(wanted, start - 1)
            score = Estimate(1.0 - 0.05 * least / now + noise(len(done)) if now >= least else 0.0)
            place = {"start": step.start, "repeats": step.repeats}
            done.append(Attempt(round=len(done), kept=now, total=total, score=score, **place))
    return done, step


@pytest.mark.parametrize("total", [2, 3, 8, 100, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.05, 0.4, 0.95, 1.0])
def test_search_ends_at_the_true_limit(total, share):
    least = max(1, round(share * total))
    done, step = known(total, least)
    found = Limit.of(done, TOLERANCE, stopped=step.stop)
    assert step.stop == "the bracket is closed"
    assert found.confirmed
    assert found.density >= least / total
    if found.bad_density is None:
        assert (least, found.density) == (1, 1 / total)
    else:
        good, bad = round(found.density * total), round(found.bad_density * total)
        assert bad < least <= good <= max(1.1 * bad, bad + 1)
    assert len(done) <= 20


def test_limit_of_attempts_has_the_mean_scores():
    rows = [*CLOSED, (22, 0.85, 0, 1), (20, 0.6, 1, 2)]
    found = Limit.of(attempts(*rows), TOLERANCE, stopped="the bracket is closed")
    assert (found.density, found.bad_density, found.retrainings, found.round) == (0.22, 0.2, 4, 3)
    assert (found.score.value, found.bad_score.value) == (pytest.approx(0.83), pytest.approx(0.65))
    assert found.confirmed
    assert str(found) == (
        "within 0.1 of dense down to 22% of the weights; 20% is too few; 4 retrainings (each end trained twice)"
    )


def test_limit_says_what_it_does_not_know():
    found = Limit.of(attempts((100, 0.9), (50, 0.5)), TOLERANCE, stopped="all retrainings are used")
    assert not found.confirmed
    assert str(found) == "no cut was good enough; 50% is too few; 1 retraining (all retrainings are used)"
    none = Limit.of(attempts((100, 0.9)), TOLERANCE, stopped="all retrainings are used")
    assert (none.confirmed, none.bad_density, none.retrainings) == (False, None, 0)


def test_precision_asks_for_more_data_if_the_noise_hides_the_loss():
    rows = [(100, Estimate(0.9, 0.03)), (50, Estimate(0.85, 0.04))]
    found = Limit.of(attempts(*rows), TOLERANCE, stopped="")
    assert found.precision == "score 0.8500, dense 0.9000; standard error of the difference at most 0.0500"
    noisy = Limit.of(attempts(*rows), Tolerance(0.05), stopped="")
    assert noisy.precision.endswith("0.0500; too few held-out data to measure such a loss")
    plain = Limit.of(attempts((100, 0.9)), TOLERANCE, stopped="")
    assert plain.precision == "score 0.9000, dense 0.9000"


def test_precision_of_not_worse_says_how_much_passes_as_noise():
    rows = [(100, Estimate(0.9, 0.03)), (50, Estimate(0.85, 0.04))]
    found = Limit.of(attempts(*rows), Tolerance(0.95, "not-worse"), stopped="")
    assert (found.round, found.caution) == (1, "")  # 0.05 is less than 1.645 times 0.05
    assert found.precision.endswith("difference at most 0.0500; losses up to 0.0822 pass as noise")


def test_precision_compares_the_first_failure_where_no_cut_was_good():
    rows = [(100, Estimate(0.9, 0.03)), (50, Estimate(0.5, 0.04))]
    found = Limit.of(attempts(*rows), TOLERANCE, stopped="")
    assert found.round == 0
    assert "standard error of the difference at most 0.0500" in found.precision


@pytest.mark.parametrize(
    ("densities", "shown"),
    [
        ((1.0, 0.5), ["100%", "50%"]),
        ((0.043, 0.039), ["4.3%", "3.9%"]),
        ((0.04, 0.039), ["4%", "3.9%"]),
        ((0.0394, 0.0391), ["3.94%", "3.91%"]),
        ((0.996, 1.0), ["99.6%", "100%"]),
        ((0.00123,), ["0.12%"]),
        ((0.5, 0.5, None), ["50%", "50%", "none"]),
        ((0.0,), ["0%"]),
    ],
)
def test_densities_are_shown_with_digits_that_tell_them_apart(densities, shown):
    assert shown_densities(*densities)[: len(shown)] == shown


def test_a_score_that_json_cannot_hold_is_read_as_nan():
    step = {"score": None, "error": None, "start": 0, "repeats": None}
    (found,) = attempts_of([{"round": 1, "search": step, "retrained": {"kept": 5, "total": 10}}])
    assert math.isnan(found.score.value)
    assert ends([(10, 0.9), (5, found.score)], total=10) == (10, 5, 0, False)


@pytest.mark.parametrize(
    ("usual", "after", "expected"),
    [
        (Sap(), 20, Partly(Sap(), 0.5)),  # half of its cut
        (Sap(), 75, FixedRatio(0.375)),  # it would cut less
        (Interpolate(), 0, FixedRatio(0.375)),
        (Allocated(Sap(), by="erk"), 40, Allocated(FixedRatio(0.375), by="erk")),
        (Allocated(Bisect(), spread=0.1), 0, Allocated(FixedRatio(0.375), spread=0.1)),
    ],
)
def test_a_cut_to_a_density_keeps_the_shares_of_layers(usual, after, expected):
    assert budget_to(0.5, 80, 100, usual, after) == expected
