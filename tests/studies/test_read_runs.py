"""Many runs as one table."""

from __future__ import annotations

import dataclasses
import json
import lzma
import shutil
import sys
import tarfile

import pandas as pd
import pytest
from click.testing import CliRunner

import palmette as pm
from palmette.cli import main
from palmette.errors import RunDamaged
from palmette.studies.folder import RunDir, find_runs

TICKET = pm.Experiment(method="lottery-ticket", model="linear", epochs=1, rounds=2, validation=100)
SAP = pm.Experiment(model="linear", epochs=0, rounds=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    pm.run(TICKET, folder / TICKET.id)
    pm.run(SAP, folder / "deeper" / "still" / SAP.id)
    (folder / "notes").mkdir()
    (folder / "notes" / "experiment.toml").write_text("epochs = 3\n")
    return folder


def test_table_has_a_row_per_run_and_round(folder):
    table = pm.read_runs(folder)
    assert table[["id", "round"]].values.tolist() == [
        [SAP.id, 0], [SAP.id, 1], [TICKET.id, 0], [TICKET.id, 1], [TICKET.id, 2],
    ]  # fmt: skip
    assert {f.name for f in dataclasses.fields(pm.Experiment)} <= set(table.columns)
    ticket = table[table.method == "lottery-ticket"]
    assert ticket.kept.tolist() == [640, 512, 410]
    assert ticket.cut_weights.tolist() == [128, 102, 82]
    assert ticket.pruned_kept.tolist() == [512, 410, 328]
    assert ticket.stopped.tolist()[-1] == "2 rounds are done"
    assert (ticket.seconds > 0).all()
    assert (ticket.images_per_second > 0).all()
    for record, (_, row) in zip(RunDir(folder / TICKET.id).records(), ticket.iterrows(), strict=True):
        assert row.test_accuracy == record["test"]["accuracy"]
        assert row.train_loss == record["train"]["loss"]
        assert row.validation_accuracy == record["validation"]["accuracy"]
        assert row.pq_index == record["retrained"]["pq_index"]
        assert row.gini_index == record["retrained"]["gini_index"]
        assert row.dead_neurons == record["retrained"]["dead_neurons"]
        assert row.pruned_test_accuracy == record["pruned"]["test"]["accuracy"]
        assert row.pruned_pq_index_difference == record["pruned"]["pq_index_difference"]


def test_missing_values_are_nan(folder):
    sap = pm.read_runs(folder / "deeper")
    assert sap.validation_accuracy.isna().all()
    assert sap.train_loss.isna().all()  # nothing was trained


def test_table_has_a_row_per_layer_on_request(folder):
    table = pm.read_runs(folder / TICKET.id, layers=True)
    assert table.layer.tolist() == ["head.weight"] * 3
    assert table.kept.tolist() == [640, 512, 410]
    assert table.cut_weights.tolist() == [128, 102, 82]
    assert {"id", "round", "density", "pq_index", "gini_index", "dead_neurons", "seed"} <= set(table.columns)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run in"):
        pm.read_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder at"):
        pm.read_runs(tmp_path / "none")


def test_run_in_nested_folders_is_found_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert {run.path.name for run in find_runs(folder)} == {SAP.id, TICKET.id}
    assert len(find_runs(folder, "deeper", folder / TICKET.id)) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("records.jsonl", "{\n"),
        ("records.jsonl", '{"round": 0}\n'),
        ("records.jsonl", '{"round": 0, "retrained": 3}\n'),
        ("experiment.toml", "p = 9\n"),
    ],
)
def test_a_damaged_run_is_named(tmp_path, name, content):
    pm.run(SAP, tmp_path / "good")
    pm.run(SAP, tmp_path / "bad")
    (tmp_path / "bad" / name).write_text(content)
    with pytest.raises(RunDamaged, match="bad"):
        pm.read_runs(tmp_path)


def test_run_without_timings_is_read(tmp_path):
    pm.run(SAP, tmp_path / "run")
    before = pm.read_runs(tmp_path)
    (tmp_path / "run" / "timings.jsonl").write_text("nothing\n")
    after = pm.read_runs(tmp_path)
    assert after["seconds"].isna().all()
    assert after["test_accuracy"].tolist() == before["test_accuracy"].tolist()


def test_missing_pandas_names_the_install_command(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'palmette\[report\]'"):
        pm.read_runs(folder)


def test_runs_in_an_archive_are_read(folder, tmp_path):
    study = tmp_path / "results" / "study"
    study.mkdir(parents=True)
    with tarfile.open(study / "runs.tar.xz", "w:xz") as file:
        file.add(folder, arcname=".")
    pd.testing.assert_frame_equal(pm.read_runs(tmp_path / "results"), pm.read_runs(folder))


def test_archive_may_be_given_directly(folder, tmp_path):
    with tarfile.open(tmp_path / "study.tar.xz", "w:xz") as file:
        file.add(folder, arcname=".")
    pd.testing.assert_frame_equal(pm.read_runs(tmp_path / "study.tar.xz"), pm.read_runs(folder))
    with pytest.raises(FileNotFoundError, match="no folder at"):
        pm.read_runs(tmp_path / "other.tar.xz")


def of_layer(record):
    return next(iter(record["retrained"]["layers"].values()))


DAMAGES = {
    "whole": (lambda record: record["retrained"].pop("density"), r"is not a record: KeyError\('density'\)"),
    "layer": (lambda record: of_layer(record).pop("gini_index"), r"is not a record: KeyError\('gini_index'\)"),
    "no number": (lambda record: of_layer(record).update(density=None), "is not a record: TypeError"),
    "layers": (lambda record: record["retrained"].update(layers={}), "lacks a layer in round 0"),
    "test": (lambda record: record.update(test=None), "is not a record: TypeError"),
    "round": (lambda record: record.update(round=1), "has missing or duplicate rounds"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_incomplete_record_is_reported_as_damaged(folder, tmp_path, damage):
    (tmp_path / "bad").mkdir()
    for name in ("experiment.toml", "records.jsonl"):
        (tmp_path / "bad" / name).write_bytes((folder / TICKET.id / name).read_bytes())
    record = json.loads((tmp_path / "bad" / "records.jsonl").read_text().splitlines()[0])
    spoil, said = DAMAGES[damage]
    del record["seal"]  # as in folders of earlier versions
    spoil(record)
    (tmp_path / "bad" / "records.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(RunDamaged, match=f"bad.*{said}"):
        pm.read_runs(tmp_path)


def test_rewritten_archive_is_read_again(folder, tmp_path):
    for within in (folder / TICKET.id, folder):
        with tarfile.open(tmp_path / "runs.tar.xz", "w:xz") as file:
            file.add(within, arcname=".")
        assert len(pm.read_runs(tmp_path)) == len(pm.read_runs(within))


def test_damaged_or_escaping_archive_is_refused(folder, tmp_path):
    archive = tmp_path / "cut" / "runs.tar.xz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:xz") as file:
        file.add(folder, arcname=".")
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(RunDamaged, match="is incomplete"):
        pm.read_runs(archive.parent)
    archive = tmp_path / "elsewhere" / "runs.tar.xz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:xz") as file:
        file.add(folder, arcname="../../elsewhere")
    with pytest.raises(RunDamaged, match="not an archive of runs"):
        pm.read_runs(archive.parent)


def test_a_damaged_archive_leaves_other_runs_readable(folder, tmp_path):
    runs = shutil.copytree(folder, tmp_path / "runs")
    (runs / "runs.tar.xz").write_bytes(b"no archive")
    for command in (["show"], ["table"], ["report", "-o", str(tmp_path / "page.html")]):
        done = CliRunner().invoke(main, [command[0], str(runs), *command[1:]])
        assert done.exit_code == 0, done.stderr
        assert "runs.tar.xz' is not an archive of runs" in " ".join((done.stdout + done.stderr).split())
    done = CliRunner().invoke(main, ["show", str(runs / "runs.tar.xz")])
    assert (done.exit_code, "is not an archive of runs" in done.stderr) == (2, True)


def member(name, size=0, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf() + bytes(-(-size // 512) * 512)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (member("records.jsonl", 1 << 24), "would unpack to over 1,"),
        (member("long", 1 << 24, tarfile.XHDTYPE), "would unpack to over 1,"),  # a header of 16 MiB
        (b"".join(member(f"{i}.txt") for i in range(2000)), "would unpack to over 1,"),
        (member("a/" * 2000 + "b"), "maximum recursion depth"),
        (member("a" * 300), "name too long"),
        (member("a") + member("a/b"), "Not a directory"),
    ],
    ids=["content", "header", "files", "folders", "name", "overlap"],
)
def test_archives_of_great_work_in_few_bytes_are_refused(tmp_path, content, said):
    (tmp_path / "runs.tar.xz").write_bytes(lzma.compress(content + bytes(1024)))
    assert (tmp_path / "runs.tar.xz").stat().st_size < 9000
    with pytest.raises(RunDamaged, match=rf"runs\.tar\.xz' is not an archive of runs, or is incomplete: .*{said}"):
        pm.read_runs(tmp_path)
