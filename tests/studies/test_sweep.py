"""Grids of experiments: what a file stands for, and how all of it is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from observers import EndsAfter, records_are_the_same

from palmette.cli.table import densities
from palmette.errors import NotFinite, NotWritten, RunBusy, RunInterrupted
from palmette.studies import sweep
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir

SMALL = {"model": "linear", "rounds": 1, "epochs": 1}


def grid(tmp_path, text):
    (tmp_path / "grid.toml").write_text(text)
    return sweep.read(tmp_path / "grid.toml")


# What a file stands for


def test_lists_that_are_nested_too_deep_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"grid\.toml: its lists are nested too deep$"):
        grid(tmp_path, f"[axes]\nseed = {'[' * 5000}")


def test_first_axis_of_a_grid_changes_slowest(tmp_path):
    found = grid(tmp_path, '[base]\nepochs = 3\n[axes]\nseed = [4, 7]\nscope = ["layer", "global"]\n')
    assert found == [Experiment(epochs=3, seed=s, scope=c) for s in (4, 7) for c in ("layer", "global")]


def test_seeds_may_be_written_as_on_the_command_line():
    assert [e.seed for e in sweep.experiments({"axes": {"seed": "0..3,7"}})] == [0, 1, 2, 3, 7]


def test_setting_of_another_method_is_left_out_and_duplicates_run_once():
    axes = {"method": ["sap", "lottery-ticket"], "eta": [0, 0.1], "ratio": [0.2, 0.5]}
    assert sweep.experiments({"axes": axes}) == [
        Experiment(),
        Experiment(eta=0.1),
        Experiment(method="lottery-ticket"),
        Experiment(method="lottery-ticket", ratio=0.5),
    ]


def test_a_setting_of_another_optimizer_is_left_out_too():
    found = sweep.experiments({"base": {"momentum": 0.5}, "axes": {"optimizer": ["sgd", "adam"]}})
    assert found == [Experiment(momentum=0.5), Experiment(optimizer="adam")]


def test_variants_go_together_and_are_combined_with_every_axis(tmp_path):
    found = grid(
        tmp_path,
        '[axes]\nseed = "0..1"\n[[variants]]\np = 0.5\nq = 1\n[[variants]]\np = 1\nq = 2\n'
        '[[variants]]\nmethod = "one-shot"\nratio = 0.3\n',
    )
    three = ({}, {"p": 1, "q": 2}, {"method": "one-shot", "ratio": 0.3})
    assert found == [Experiment(**settings, seed=seed) for seed in (0, 1) for settings in three]


def test_axes_override_base():
    assert sweep.experiments({"base": {"eta": 0.3}, "variants": [{"eta": 0.1}, {}]}) == [
        Experiment(eta=0.1), Experiment(eta=0.3),
    ]  # fmt: skip


def test_the_grid_on_the_page_has_24_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    found = grid(tmp_path, re.search(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    assert len(found) == len({e.id for e in found}) == 24


@pytest.mark.slow
def test_the_densities_on_the_page_are_reached_by_the_slowest_of_its_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    runs = grid(tmp_path, re.search(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    slowest = [e for e in runs if (e.method, e.p, e.scope, e.seed) == ("sap", 0.5, "neuron", 0)]
    (folder,) = sweep.run(slowest, tmp_path / "runs")
    wanted = re.findall(r"^palmette table runs --at (\S+)", page, re.MULTILINE)
    assert len(wanted) == 2
    assert RunDir(folder).records()[-1]["retrained"]["density"] < min(densities(wanted[0]))
    assert wanted[0] == wanted[1]


@pytest.mark.parametrize("content", ["", "# later\n", "[base]\n[axes]\n", "[[variants]]\n"])
def test_an_empty_grid_is_refused_with_what_a_grid_needs(tmp_path, content):
    with pytest.raises(
        ValueError, match=r"grid\.toml: a grid needs at least one setting.*\[base\].*\[axes\].*\[\[variants"
    ):
        grid(tmp_path, content)


def test_settings_that_all_share_make_a_grid_of_one():
    assert sweep.experiments({"base": {"epochs": 3}}) == [Experiment(epochs=3)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"axes": {"p": [0.5, 1], "q": [1, 2]}}, "p = 1, q = 1: .*p != q"),
        ({"axes": {"scope": ["layer", "row"]}}, "scope = 'row': "),
        ({"base": {"epochs": -1}}, "base: epochs must be at least 0"),
        ({"axes": {"epochs": ["many"]}}, "epochs = 'many': epochs must be a whole number"),
        ({"base": {"epochs": [1, 2]}}, r"epochs in \[base\] must be one value"),
        ({"axes": {"epochs": 3}}, r"epochs in \[axes\] must be a list"),
        ({"axes": {"epochs": []}}, r"epochs in \[axes\] must be a list"),
        ({"axes": {"epochs": [[1]]}}, r"epochs in \[axes\] must be a list"),
        ({"axes": {"seed": "3..1"}}, "rising ranges"),
        ({"axes": {"learning-rte": [0.1]}}, "did you mean 'learning_rate'"),
        ({"axes": {"lr": [0.1]}}, "'lr', which is not a setting; there are data, model, .*, learning_rate, "),
        ({"axes": {"seed": "0..100000"}}, "rising ranges of up to 100,000, .* got '0..100000'"),
        ({"epochs": 3}, r"got epochs = 3; settings that all share belong below \[base\]"),
        ({"grid": {}}, "tables base, axes, variants, got grid"),
        ({"axes": [1]}, r"\[axes\] must be a table"),
        ({"base": 3}, r"\[base\] must be a table"),
        ({"variants": {"p": 1}}, r"\[\[variants\]\] must be tables"),
        ({"variants": [3]}, r"\[\[variants\]\] must be a table of settings, got 3"),
        ({"axes": {"eta": [0]}, "variants": [{"eta": 0.1}]}, r"eta is in \[axes\] and in \[\[variants\]\]"),
        ({"variants": [{"method": "one-shot", "p": 1}]}, "method = 'one-shot', p = 1: p belongs to method sap"),
        ({"axes": {"ratio": [0.1, 0.2]}}, "ratio belongs to method lottery-ticket or one-shot, which no comb"),
        ({"axes": {"seed": "0..99999", "scope": ["layer", "global"]}}, "100,000 combinations, got 200,000"),
    ],
)
def test_invalid_combination_is_named_before_anything_runs(content, said):
    with pytest.raises((TypeError, ValueError), match=said):
        sweep.experiments(content)


def test_errors_name_the_grid_file(tmp_path):
    with pytest.raises(ValueError, match=r"grid\.toml: Expected"):
        grid(tmp_path, "[axes\n")
    with pytest.raises(TypeError, match=r"grid\.toml: p in"):
        grid(tmp_path, "[axes]\np = 1\n")
    with pytest.raises(FileNotFoundError, match=r"no grid at .*other\.toml"):
        sweep.read(tmp_path / "other.toml")


# How it is run


def test_fleets_of_two_models_run_once(tmp_path):
    planned = [Experiment(**SMALL | {"model": m, "seed": s}) for s in (0, 1) for m in ("linear", "mlp")]
    watch = EndsAfter()
    outcomes = sweep.run([*planned, planned[0]], tmp_path, observer=watch)
    assert outcomes == {tmp_path / e.id: "1 round is done" for e in planned}
    assert len(watch.records) == 4 * 2
    again = EndsAfter()
    assert sweep.run(planned, tmp_path, observer=again) == outcomes
    assert again.records == []


TOUCHY = """
import torch
from torch import nn

class Touchy(nn.Module):
    # one of an odd seed fails
    def __init__(self, inputs, classes):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        self.odd = torch.initial_seed() % 2 == 1

    def forward(self, x):
        if self.odd:
            raise RuntimeError("an odd network")
        return self.linear(x.flatten(1))

def network(shape, classes):
    return Touchy(shape[0] * shape[1] * shape[2], classes)
"""


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path):
    good = [Experiment(**SMALL), Experiment(**SMALL | {"method": "one-shot"})]
    bad = Experiment(**SMALL | {"learning_rate": 1e30, "clip": None, "epochs": 3})
    outcomes = sweep.run([good[0], bad, good[1]], tmp_path)
    assert isinstance(outcomes[tmp_path / bad.id], NotFinite)
    assert [outcomes[tmp_path / e.id] for e in good] == ["1 round is done"] * 2
    assert list(outcomes) == [tmp_path / e.id for e in (good[0], bad, good[1])]


def test_a_fleet_that_cannot_begin_does_not_stop_the_next(tmp_path):
    bad = [Experiment(**SMALL | {"data": "nowhere.npz", "seed": seed}) for seed in (0, 1)]
    good, watch = Experiment(**SMALL), EndsAfter()
    outcomes = sweep.run([*bad, good], tmp_path, observer=watch)
    assert all(isinstance(outcomes[tmp_path / e.id], FileNotFoundError) for e in bad)
    assert outcomes[tmp_path / good.id] == "1 round is done"
    assert [name for name, _ in watch.outcomes] == [e.id for e in (*bad, good)]


def test_a_network_that_raises_fails_alone(tmp_path, monkeypatch):
    (tmp_path / "touchy.py").write_text(TOUCHY)
    monkeypatch.syspath_prepend(tmp_path)
    planned = [Experiment(**SMALL | {"model": "touchy:network", "seed": seed}) for seed in (0, 1, 2)]
    watch = EndsAfter()
    outcomes = sweep.run(planned, tmp_path / "together", observer=watch)
    assert "an odd network" in str(outcomes[tmp_path / "together" / planned[1].id])
    assert sorted(name for name, _ in watch.outcomes) == sorted(e.id for e in planned)
    for e in (planned[0], planned[2]):
        assert outcomes[tmp_path / "together" / e.id] == "1 round is done"
        sweep.run([e], tmp_path / "alone")
        one, two = (RunDir(tmp_path / name / e.id).records() for name in ("together", "alone"))
        assert [r["test"]["loss"] for r in one] == pytest.approx([r["test"]["loss"] for r in two], rel=1e-4)


def test_finished_runs_of_a_failed_fleet_stay_finished(tmp_path, monkeypatch):
    done, other = Experiment(**SMALL), Experiment(**SMALL | {"seed": 1})
    sweep.run([done], tmp_path)

    def fails(*args, **kwargs):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(sweep, "run_together", fails)
    outcomes = sweep.run([done, other], tmp_path)
    assert outcomes[tmp_path / done.id] == "1 round is done"
    assert str(outcomes[tmp_path / other.id]) == "no kernel image"


def test_a_full_disk_ends_the_sweep(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise NotWritten("no room")

    monkeypatch.setattr(sweep, "run_together", full)
    with pytest.raises(NotWritten):
        sweep.run([Experiment(**SMALL)], tmp_path)


@pytest.mark.parametrize("epochs", [0, 1, 2, 3])
def test_interrupted_sweep_resumes_to_the_same_records(tmp_path, epochs):
    planned = [Experiment(**SMALL), Experiment(**SMALL | {"batch": 100})]
    with pytest.raises(RunInterrupted):
        sweep.run(planned, tmp_path / "broken", observer=EndsAfter(epochs))
    for name in ("broken", "whole"):
        sweep.run(planned, tmp_path / name)
    records_are_the_same(tmp_path, planned)


def test_custom_engine_receives_fleets_by_folder(tmp_path):
    seen = []

    def engine(work, **options):
        seen.extend(work)
        return {folder: "trained elsewhere" for fleet in work for folder in fleet}

    planned = [Experiment(**SMALL | {"model": m, "seed": s}) for s in (0, 1) for m in ("linear", "mlp")]
    outcomes = sweep.run(planned, tmp_path, engine=engine)
    assert [list(fleet.values()) for fleet in seen] == [planned[::2], planned[1::2]]
    assert list(outcomes) == [tmp_path / e.id for e in planned]


def test_only_the_lock_of_a_lost_machine_is_taken(tmp_path):
    run, again = RunDir(tmp_path / "run"), RunDir(tmp_path / "run")
    with run.lock():  # which a network file system may keep when its machine is gone
        run.lock_file.write_text("process 7 on lost\n")
        assert not again.free_from({"other"})
        with pytest.raises(RunBusy, match="process 7 on lost"), again.lock():
            pass
        assert again.free_from({"lost"})
        with again.lock():
            assert again.owner() != "process 7 on lost"
    assert not again.free_from({"lost"})
