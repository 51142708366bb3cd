"""Runs trained together in a fleet leave the records of runs alone, whatever interrupts them."""

import dataclasses

import pytest
from observers import EndsAfter, records_are_the_same

import palmette as pm
from palmette.errors import NotFinite, RunInterrupted
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer
from palmette.studies.running import fleets, run, run_together
from palmette.studies.trainers.fleet_trainer import FleetRun
from palmette.training.data import load
from palmette.training.fleet import Fleet
from palmette.training.loop import Score


def experiments(**changes):
    base = Experiment(epochs=2, rounds=4, batch=500, **changes)
    methods = ({}, {"p": 1.0, "q": 2.0}, {"method": "lottery-ticket"}, {"method": "one-shot"})
    return [dataclasses.replace(base, seed=seed, **method) for method in methods for seed in (0, 1)]


@pytest.mark.parametrize("rewind", ["init", "epoch:1", "learning-rate", "fine-tune"])
def test_records_of_a_fleet_equal_those_of_single_runs(tmp_path, rewind):
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


def test_the_dense_network_of_a_seed_trains_once(tmp_path, monkeypatch):
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


def test_an_interrupted_fleet_resumes_exactly(tmp_path):
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
def test_a_run_resumes_without_the_run_that_trained_its_dense_network(tmp_path, rewind):
    runs = experiments(model="linear", rewind=rewind)
    others = runs[2:]  # without the first of each seed
    run_together({tmp_path / "whole" / e.id: e for e in others})
    with pytest.raises(RunInterrupted, match="round 0 after 1 of 2 epochs"):
        run_together({tmp_path / "broken" / e.id: e for e in runs}, observer=EndsAfter(1))
    run_together({tmp_path / "broken" / e.id: e for e in others})
    records_are_the_same(tmp_path, others)


class Dies(Observer):
    """Simulates a crash when a record is written for the n-th time."""

    def __init__(self, after):
        self.after = after

    def recorded(self, experiment, record):
        self.after -= 1
        if self.after == 0:
            raise SystemExit


@pytest.mark.parametrize(("saves", "size"), [(3, None), (11, None), (20, 3)])
def test_a_crash_between_saves_of_members_leaves_the_same_records(tmp_path, monkeypatch, saves, size):
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


def test_a_member_can_finish_alone_or_in_another_fleet(tmp_path):
    runs = experiments()
    with pytest.raises(RunInterrupted):
        run_together({tmp_path / e.id: e for e in runs}, observer=EndsAfter(24))
    run(runs[0], tmp_path / runs[0].id)
    new = dataclasses.replace(runs[0], seed=7)
    outcomes = run_together({tmp_path / e.id: e for e in [*runs, new]}, size=3)
    assert len(outcomes) == 9
    assert all(len(RunDir(tmp_path / e.id).records()) == 5 for e in [*runs, new])


def test_one_experiment_in_two_folders_is_refused(tmp_path):
    one = pm.Experiment(model="linear", epochs=1, rounds=1)
    with pytest.raises(ValueError, match=f"{one.id} is given for 2 folders; a run has one folder at a time"):
        run_together({tmp_path / "a": one, tmp_path / "b": one})
    assert not list(tmp_path.iterdir())


def test_a_diverging_run_is_reported_and_others_continue(tmp_path, monkeypatch):
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


def test_runs_with_equal_data_model_and_recipe_form_a_fleet():
    longer = [dataclasses.replace(e, epochs=3) for e in experiments()]
    held_out = [Experiment(validation=10, seed=seed) for seed in (0, 1)]
    runs = [*experiments(), *longer, Experiment(model="cnn"), *held_out, Experiment(label_noise=0.1)]
    assert [len(fleet) for fleet in fleets(runs)] == [8, 8, 1, 2, 1]


@pytest.mark.slow
def test_32_members_match_32_single_runs(tmp_path):
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
