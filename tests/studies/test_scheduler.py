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


def all_batches(schedule):
    found = []
    while (batch := schedule.next()) is not None:
        found.append(batch)
    return found


def test_a_fleet_of_96_uses_all_of_eight_workers_alike():
    assert [len(batch.runs) for batch in all_batches(Schedule([fleet(96, model="mlp")], 8))] == [12] * 8


def test_workers_go_to_fleets_by_the_work_they_have():
    small, large = fleet(60, model="mlp"), fleet(60)
    guess = {kind(small[Path("mlp-0")]): 1.0, kind(large[Path("cnn-0")]): 18.0}
    batches = all_batches(Schedule([small, large], 10, guess=guess))
    assert Counter(next(iter(batch.runs.values())).model for batch in batches) == {"mlp": 1, "cnn": 9}
    assert len(batches[-1].runs) == 60  # the most work first, the least last


def test_measured_seconds_are_per_optimizer():
    sgd, adam = fleet(1), fleet(1, optimizer="adam")
    schedule = Schedule([sgd, adam], 1)
    of_sgd, of_adam = (kind(next(iter(runs.values()))) for runs in (sgd, adam))
    schedule.seconds |= {of_sgd: 1.0, of_adam: 2.0}
    assert (schedule.cost(of_sgd), schedule.cost(of_adam)) == (1.0, 2.0)
    assert len({kind(e) for e in fleet(9).values()}) == 1


def test_networks_that_are_stacked_are_not_split_into_ones():
    assert [len(batch.runs) for batch in all_batches(Schedule([fleet(12, model="mlp")], 100))] == [4, 4, 4]
    assert [len(batch.runs) for batch in all_batches(Schedule([fleet(12)], 100))] == [1] * 12


def test_batches_of_a_given_size_are_never_split():
    schedule = Schedule([fleet(10)], 100, size=4)
    batches = all_batches(schedule)
    assert [list(batch.runs) for batch in batches] == [list(fleet(10))[i : i + 4] for i in (0, 4, 8)]
    assert schedule.to_share(50) == []
    schedule.given_back(batches[0], batches[0].runs, idle=50)
    assert [list(batch.runs) for batch in all_batches(schedule)] == [list(fleet(10))[:4]]


def test_batch_with_the_most_work_is_split_for_idle_workers():
    schedule = Schedule([fleet(8), fleet(4, model="resnet18")], 2)
    one, other = all_batches(schedule)
    assert (len(one.runs), len(other.runs)) == (8, 4)
    assert schedule.to_share(1) == [one]
    assert schedule.to_share(1) == []  # it was asked
    schedule.given_back(one, one.runs, idle=1)
    assert sorted(len(batch.runs) for batch in all_batches(schedule)) == [4, 4]


def test_no_batch_is_split_while_others_wait_or_in_its_last_round():
    schedule = Schedule([fleet(8), fleet(8, batch=100)], 1)
    batch = schedule.next()
    assert schedule.to_share(1) == []
    schedule.next()
    for folder in batch.runs:
        schedule.reached(folder, 30)
    assert batch not in schedule.to_share(2)


def test_delayed_batch_is_not_started_early():
    schedule = Schedule([fleet(1)], 1)
    batch = schedule.next(now=5.0)
    schedule.given_back(batch, batch.runs, at=7.0)
    assert schedule
    assert schedule.next(now=6.9) is None
    assert list(schedule.next(now=7.0).runs) == list(batch.runs)


@pytest.mark.parametrize("bad", [0, 5, 11])
def test_only_the_run_that_kills_its_batch_is_set_aside(bad):
    schedule, done, aside, tries = Schedule([fleet(12)], 1), [], [], Counter()
    while batch := schedule.next():
        tries.update(list(batch.runs))
        if Path(f"cnn-{bad}") in batch.runs:
            aside += schedule.failed(batch, batch.runs)
        else:
            done += batch.runs
            schedule.given_back(batch, {})
    assert aside == [Path(f"cnn-{bad}")]
    assert sorted(done) == sorted(set(fleet(12)) - set(aside))
    assert tries[aside[0]] >= TRIES
    assert not schedule


def test_run_that_advances_between_failures_is_never_set_aside():
    schedule = Schedule([fleet(1)], 1)
    for rounds in range(1, 10):
        batch = schedule.next()
        assert schedule.failed(batch, batch.runs) == []
        schedule.reached(Path("cnn-0"), rounds)
    for _ in range(TRIES - 1):
        batch = schedule.next()
        assert schedule.failed(batch, batch.runs) == []
    batch = schedule.next()
    assert schedule.failed(batch, batch.runs) == [Path("cnn-0")]


@pytest.mark.parametrize("seed", range(20))
def test_every_run_is_in_one_batch_at_a_time_until_its_end(seed):
    chance = random.Random(seed)
    work = [fleet(chance.randint(1, 30), batch=b, model=chance.choice(["mlp", "cnn"])) for b in (50, 100, 250)]
    work = [{Path(f"{i}-{folder}"): e for folder, e in part.items()} for i, part in enumerate(work)]
    everyone = {folder for part in work for folder in part}
    schedule, over, flying = Schedule(work, 6, chance.choice([None, None, 5])), set(), []
    while schedule:
        while len(flying) < 6 and (batch := schedule.next()):
            flying.append(batch)
        at_work = [folder for batch in flying for folder in batch.runs]
        assert len(at_work) == len(set(at_work))
        schedule.to_share(6 - len(flying))
        batch = flying.pop(chance.randrange(len(flying)))
        left = {folder: e for folder, e in batch.runs.items() if chance.random() < 0.7}
        for folder in batch.runs:
            schedule.reached(folder, 1)
        over |= batch.runs.keys() - left.keys()
        if chance.random() < 0.2:
            over |= set(schedule.failed(batch, left))
        else:
            schedule.given_back(batch, left, idle=5 - len(flying))
    assert over == everyone
