"""Who trains what next: every run once, all workers busy, nobody waits for the last."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from palmette.studies.experiment import Experiment
from palmette.studies.scheduler import TRIES, Schedule, kind


def fleet(count, **settings):
    return {
        Path(f"{settings.get('model', 'cnn')}-{s}"): Experiment(**{"model": "cnn"} | settings, seed=s)
        for s in range(count)
    }


def all_crews(schedule):
    found = []
    while (crew := schedule.next()) is not None:
        found.append(crew)
    return found


def test_a_fleet_of_96_uses_all_of_eight_workers_alike():
    assert [len(crew.runs) for crew in all_crews(Schedule([fleet(96, model="mlp")], 8))] == [12] * 8


def test_workers_go_to_fleets_by_the_work_they_have():
    small, large = fleet(60, model="mlp"), fleet(60)
    guess = {kind(small[Path("mlp-0")]): 1.0, kind(large[Path("cnn-0")]): 18.0}
    crews = all_crews(Schedule([small, large], 10, guess=guess))
    assert Counter(next(iter(crew.runs.values())).model for crew in crews) == {"mlp": 1, "cnn": 9}
    assert len(crews[-1].runs) == 60  # the most work first, the least last


def test_how_long_an_epoch_takes_was_measured_for_the_optimizer_it_was_measured_with():
    sgd, adam = fleet(1), fleet(1, optimizer="adam")
    schedule = Schedule([sgd, adam], 1)
    of_sgd, of_adam = (kind(next(iter(runs.values()))) for runs in (sgd, adam))
    schedule.seconds |= {of_sgd: 1.0, of_adam: 2.0}
    assert (schedule.cost(of_sgd), schedule.cost(of_adam)) == (1.0, 2.0)
    assert len({kind(e) for e in fleet(9).values()}) == 1


def test_networks_that_are_stacked_are_not_split_into_ones():
    assert [len(crew.runs) for crew in all_crews(Schedule([fleet(12, model="mlp")], 100))] == [4, 4, 4]
    assert [len(crew.runs) for crew in all_crews(Schedule([fleet(12)], 100))] == [1] * 12


def test_with_a_size_crews_are_those_of_one_process_and_stay_together():
    schedule = Schedule([fleet(10)], 100, size=4)
    crews = all_crews(schedule)
    assert [list(crew.runs) for crew in crews] == [list(fleet(10))[i : i + 4] for i in (0, 4, 8)]
    assert schedule.to_share(50) == []
    schedule.given_back(crews[0], crews[0].runs, idle=50)
    assert [list(crew.runs) for crew in all_crews(schedule)] == [list(fleet(10))[:4]]


def test_the_crew_with_the_most_left_shares_with_idle_workers():
    schedule = Schedule([fleet(8), fleet(4, model="resnet18")], 2)
    one, other = all_crews(schedule)
    assert (len(one.runs), len(other.runs)) == (8, 4)
    assert schedule.to_share(1) == [one]
    assert schedule.to_share(1) == []  # it was asked
    schedule.given_back(one, one.runs, idle=1)
    assert sorted(len(crew.runs) for crew in all_crews(schedule)) == [4, 4]


def test_nobody_shares_while_others_wait_or_in_its_last_round():
    schedule = Schedule([fleet(8), fleet(8, batch=100)], 1)
    crew = schedule.next()
    assert schedule.to_share(1) == []
    schedule.next()
    for folder in crew.runs:
        schedule.reached(folder, 30)
    assert crew not in schedule.to_share(2)


def test_what_must_wait_is_not_given_out_before():
    schedule = Schedule([fleet(1)], 1)
    crew = schedule.next(now=5.0)
    schedule.given_back(crew, crew.runs, at=7.0)
    assert schedule
    assert schedule.next(now=6.9) is None
    assert list(schedule.next(now=7.0).runs) == list(crew.runs)


@pytest.mark.parametrize("bad", [0, 5, 11])
def test_the_one_that_kills_its_crew_is_found_and_no_other_is_set_aside(bad):
    schedule, done, aside, tries = Schedule([fleet(12)], 1), [], [], Counter()
    while crew := schedule.next():
        tries.update(list(crew.runs))
        if Path(f"cnn-{bad}") in crew.runs:
            aside += schedule.failed(crew, crew.runs)
        else:
            done += crew.runs
            schedule.given_back(crew, {})
    assert aside == [Path(f"cnn-{bad}")]
    assert sorted(done) == sorted(set(fleet(12)) - set(aside))
    assert tries[aside[0]] >= TRIES
    assert not schedule


def test_a_run_that_gets_on_between_failures_is_never_set_aside():
    schedule = Schedule([fleet(1)], 1)
    for rounds in range(1, 10):
        crew = schedule.next()
        assert schedule.failed(crew, crew.runs) == []
        schedule.reached(Path("cnn-0"), rounds)
    for _ in range(TRIES - 1):
        crew = schedule.next()
        assert schedule.failed(crew, crew.runs) == []
    crew = schedule.next()
    assert schedule.failed(crew, crew.runs) == [Path("cnn-0")]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_run_is_trained_by_one_crew_at_a_time_and_to_its_end(seed):
    chance = random.Random(seed)
    work = [fleet(chance.randint(1, 30), batch=b, model=chance.choice(["mlp", "cnn"])) for b in (50, 100, 250)]
    work = [{Path(f"{i}-{folder}"): e for folder, e in part.items()} for i, part in enumerate(work)]
    everyone = {folder for part in work for folder in part}
    schedule, over, flying = Schedule(work, 6, chance.choice([None, None, 5])), set(), []
    while schedule:
        while len(flying) < 6 and (crew := schedule.next()):
            flying.append(crew)
        at_work = [folder for crew in flying for folder in crew.runs]
        assert len(at_work) == len(set(at_work))
        schedule.to_share(6 - len(flying))
        crew = flying.pop(chance.randrange(len(flying)))
        left = {folder: e for folder, e in crew.runs.items() if chance.random() < 0.7}
        for folder in crew.runs:
            schedule.reached(folder, 1)
        over |= crew.runs.keys() - left.keys()
        if chance.random() < 0.2:
            over |= set(schedule.failed(crew, left))
        else:
            schedule.given_back(crew, left, idle=5 - len(flying))
    assert over == everyone
