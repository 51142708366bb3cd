"""More rounds continue finished runs as if these had been longer from the start."""

from dataclasses import replace

import pytest
from own_digits import one_thread  # noqa: F401

from palmette.errors import RunDamaged
from palmette.studies import spec
from palmette.studies.experiment import Experiment
from palmette.studies.extending import start_from_shorter
from palmette.studies.folder import RunDir
from palmette.studies.record import read_runs
from palmette.studies.running import run

SHORT = Experiment(model="linear", epochs=2, rounds=1)
RUNS = {
    "init": {},
    "dense": {"method": "one-shot", "rewind": "epoch:1"},
    "kept": {"method": "lottery-ticket", "rewind": "learning-rate"},
    "search": {"tolerance": 0.02, "method": "interpolate"},
    "search of kept": {"tolerance": 0.02, "method": "interpolate", "rewind": "learning-rate"},
}


def without_the_cut_of_a_search(records):
    """The records, but for the cut after the last round of the short run, where it was a search."""
    searched = "search" in records[0]
    names = ("pruned", "cut") if searched else ()
    return [{k: v for k, v in r.items() if r["round"] != 1 or k not in names} for r in records]


def copied(planned, out):
    said = []
    start_from_shorter(planned, out, say=said.append)
    return said


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("place", ["same folder", "next to it"])
def test_longer_run_is_the_same_as_from_the_start(tmp_path, settings, place):
    short = replace(SHORT, **settings)
    longer = replace(short, rounds=4)
    scratch = run(longer, tmp_path / "scratch").records()
    rundir = run(short, tmp_path / "runs" / short.id)
    before = rundir.records_file.read_bytes()
    if place == "next to it":
        said = copied([longer, replace(longer, seed=1)], tmp_path / "runs")
        assert said == [f"{longer.id} continues a copy of {short.id}"]
        rundir = RunDir(tmp_path / "runs" / longer.id)
        assert [r["stopped"] for r in rundir.records()] == [None, None]
    run(longer, rundir.path)
    assert without_the_cut_of_a_search(rundir.records()) == without_the_cut_of_a_search(scratch)
    assert len(rundir.timings()) == len(scratch)
    if place == "next to it":
        assert RunDir(tmp_path / "runs" / short.id).records_file.read_bytes() == before
        assert copied([longer], tmp_path / "runs") == []


@pytest.mark.parametrize("place", ["same folder", "next to it"])
def test_a_run_of_an_earlier_version_is_extended(tmp_path, monkeypatch, place):
    rundir = run(SHORT, tmp_path / SHORT.id)
    before = rundir.records()
    monkeypatch.setattr(spec, "VERSION", spec.VERSION + 1)
    monkeypatch.setitem(spec.ADDED, spec.VERSION, {})
    longer = Experiment(**{**SHORT.settings(), "rounds": 3})
    assert SHORT.id in replace(longer, rounds=1).earlier_ids
    if place == "next to it":
        copied([longer], tmp_path)
        rundir = RunDir(longer.folder_in(tmp_path))
    run(longer, rundir.path)
    found = read_runs(rundir.path)
    assert found["id"].unique() == [longer.id]
    assert found["round"].tolist() == [0, 1, 2, 3]
    assert rundir.records()[:1] == before[:1]


def test_run_interrupted_after_it_was_extended_resumes(tmp_path, monkeypatch):
    rundir = run(SHORT, tmp_path)
    longer = replace(SHORT, rounds=3)
    monkeypatch.setattr(RunDir, "rewrite_records", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(longer, tmp_path)
    monkeypatch.undo()
    assert len(run(longer, tmp_path).records()) == 4
    assert [r["stopped"] for r in rundir.records()] == [None, None, None, "3 rounds are done"]


def test_only_more_rounds_extend_a_run_and_only_where_they_ended_it(tmp_path):
    rundir = run(replace(SHORT, stop="density:0.9", rounds=2), tmp_path)
    assert not rundir.checkpoints.exists()
    for other in (replace(SHORT, rounds=3), replace(SHORT, stop="density:0.9", rounds=3)):
        with pytest.raises(RunDamaged, match="holds the run"):
            run(other, tmp_path)


def test_the_longest_finished_run_is_continued_and_no_other_one(tmp_path):
    for rounds in (1, 2):
        run(replace(SHORT, rounds=rounds), tmp_path / replace(SHORT, rounds=rounds).id)
    run(replace(SHORT, rounds=3, eta=0.1), tmp_path / replace(SHORT, rounds=3, eta=0.1).id)
    longer = replace(SHORT, rounds=5)
    (said,) = copied([longer], tmp_path)
    assert said.startswith(longer.id)
    assert len(RunDir(tmp_path / longer.id).records()) == 3
