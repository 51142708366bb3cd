"""Every byte of a run counts: damage is named, or changes nothing that is shown or resumed."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from earlier_folders import back_to, unseal
from torch import nn

import palmette as pm
from palmette.cli import main
from palmette.cli.show import _read
from palmette.errors import MaskMismatch, PalmetteError, RunDamaged, RunInterrupted
from palmette.studies.experiment import OwnExperiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer
from palmette.studies.record import Record, experiment_of
from palmette.studies.trainers.snapshots import read_good

TICKET = pm.Experiment(method="lottery-ticket", model="linear", epochs=2, rounds=2)
OTHER = pm.Experiment(method="lottery-ticket", model="linear", epochs=2, rounds=2, seed=1)
X, Y = torch.eye(12), torch.arange(12) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))


def search(folder, stop_at=None):
    """A search by `prune_and_retrain`, interrupted in the training of round `stop_at`."""
    rounds = iter(range(99))

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for _ in range(15):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
        if next(rounds) == stop_at:
            raise KeyboardInterrupt

    def evaluate(model):
        return (model(X).argmax(1) == Y).float().mean()

    return pm.prune_and_retrain(
        network(), train, evaluate, tolerance=0.2, budget=pm.FixedRatio(0.5), rounds=5, folder=folder, say=None
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    for experiment in (TICKET, OTHER):
        pm.run(experiment, folder / experiment.id)
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("found") / "run"
    return search(folder), folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(KeyboardInterrupt):
        search(folder, stop_at=3)
    return folder


def copy_of(folder, tmp_path):
    return RunDir(shutil.copytree(folder, tmp_path / "copy"), say=lambda text: None)


def shown(rundir):
    """Everything that `palmette show` prints about the run, and its masks, or "named"."""
    try:
        told = _read(rundir, bits=True)
        if told["damage"] is not None or told["seconds"] is None:
            return "named"
        masks = [pm.Masks.load(rundir.mask(t)) for t in range(told["rounds_done"])]
        good = read_good(rundir)["state_dict"] if rundir.good.exists() else {}
    except PalmetteError:
        return "named"
    return {**told, "bytes": None}, [m.digest for m in masks], {k: v.tolist() for k, v in good.items()}


def damages(folder, count, seed=0):
    """Bits to flip, of all files alike: file, byte and bit; all of the bytes if `count` is None.

    The state of a finished run is left out: only more rounds read it.
    """
    chance = random.Random(seed)
    ended = (folder / "finished.json").exists()
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]
    for file in sorted(f for f in files if not (ended and f.parent.name in ("checkpoints", "networks"))):
        size = file.stat().st_size
        for place in range(size) if count is None else sorted(chance.sample(range(size), min(count, size))):
            yield file.relative_to(folder), place, chance.randrange(8)


def flipped(rundir, name, place, bit):
    file = rundir.path / name
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def accepted(folder, tmp_path, count, outcome):
    """Flips after which `outcome` is neither "named" nor what it was; and how many were named and tried."""
    rundir = copy_of(folder, tmp_path)
    expected, silent, named, tried = outcome(rundir), [], 0, 0
    assert expected != "named"
    shutil.rmtree(rundir.path)
    shutil.copytree(folder, rundir.path)
    for damage in damages(folder, count):
        before = (rundir.path / damage[0]).read_bytes()
        flipped(rundir, *damage)
        now = outcome(RunDir(rundir.path, say=lambda text: None))
        named, tried = named + (now == "named"), tried + 1
        silent += [damage] if now not in ("named", expected) else []
        (rundir.path / damage[0]).write_bytes(before)
    return silent, named, tried


@pytest.mark.parametrize("count", [40, pytest.param(None, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_a_finished_run_is_accepted(finished, tmp_path, count):
    silent, named, tried = accepted(finished / TICKET.id, tmp_path, count, shown)
    assert silent == []
    assert named > 0.9 * tried > 200


@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_a_finished_search_is_accepted(found, tmp_path, count):
    silent, named, tried = accepted(found[1], tmp_path, count, shown)
    assert silent == []
    assert named > 0.9 * tried > 100


def resumed(rundir):
    """Records and model after resuming in a copy of the folder, or "named"."""
    copy = shutil.copytree(rundir.path, rundir.path.parent / "resumed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged state: the one before it is used
            limit = search(copy)
        return [*limit.records], [p.tolist() for p in limit.model.parameters()]
    except PalmetteError:
        return "named"
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("count", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_no_flipped_bit_changes_what_is_resumed(interrupted, found, tmp_path, count):
    names = {file.parent.name for file in interrupted.rglob("*") if file.is_file()}
    assert names == {"run", "masks", "checkpoints", "networks"}
    silent, named, tried = accepted(interrupted, tmp_path, count, resumed)
    assert silent == []
    assert tried > 10 * count
    assert named < tried  # some are mended: states by the state before, the last record by the state
    expected = [*found[0].records], [p.tolist() for p in found[0].model.parameters()]
    assert resumed(copy_of(interrupted, tmp_path / "whole")) == expected


# Lines


LINES = {
    "changed": lambda lines: [lines[0].replace(b'"accuracy": 0.', b'"accuracy": 0.9', 1), *lines[1:]],
    "missing": lambda lines: lines[1:],
    "missing in between": lambda lines: [lines[0], *lines[2:]],
    "doubled": lambda lines: [*lines, lines[-1]],
    "swapped": lambda lines: [lines[0], lines[2], lines[1]],
    "without its seal": lambda lines: [*lines[:2], lines[2][:-30] + b"}\n"],
    "missing at the end": lambda lines: lines[:-1],
    "all missing": lambda lines: [],
    "half of the last": lambda lines: [*lines[:-1], lines[-1][:99]],
}


def spoil_lines(run, damage):
    run.records_file.write_bytes(b"".join(LINES[damage](run.records_file.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize("damage", LINES)
def test_damaged_records_are_named(finished, tmp_path, damage):
    run = copy_of(finished / TICKET.id, tmp_path)
    spoil_lines(run, damage)
    for read in (run.records, lambda: pm.read_runs(tmp_path), lambda: _read(run)):
        with pytest.raises(RunDamaged, match=r"records\.jsonl'"):
            read()


@pytest.mark.parametrize("damage", ["missing at the end", pytest.param("changed", marks=pytest.mark.slow)])
def test_a_damaged_run_is_not_resumed_and_all_others_are_shown(finished, tmp_path, damage):
    shutil.copytree(finished, tmp_path / "runs")
    run = RunDir(tmp_path / "runs" / TICKET.id)
    spoil_lines(run, damage)
    with pytest.raises(RunDamaged, match=r"records\.jsonl'"):
        pm.run(TICKET, run.path)
    for command in ("table", "show", "report"):
        more = ["-o", str(tmp_path / "page.html")] if command == "report" else []
        done = CliRunner().invoke(main, [command, str(tmp_path / "runs"), *more])
        assert done.exit_code == 0, done.stderr
        assert f"{TICKET.id}/records.jsonl'" in done.stdout + done.stderr
    assert "1 finished" in CliRunner().invoke(main, ["show", str(tmp_path / "runs")]).stdout


def test_files_of_another_run_are_noticed(finished, tmp_path):
    for name in ("experiment.toml", "records.jsonl", "finished.json"):
        run = RunDir(shutil.copytree(finished / TICKET.id, tmp_path / name))
        shutil.copy(finished / OTHER.id / name, run.path)
        with pytest.raises(RunDamaged):
            _read(run)
    run = RunDir(shutil.copytree(finished / TICKET.id, tmp_path / "timings"))
    shutil.copy(finished / OTHER.id / "timings.jsonl", run.path)
    assert _read(run)["seconds"] is None


def test_records_of_a_run_with_the_same_settings_are_noticed(interrupted, tmp_path):
    """Two runs of `prune_and_retrain` may differ in their data alone."""
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "other", stop_at=3)
    for name in ("experiment.toml", "records.jsonl"):
        run = RunDir(shutil.copytree(interrupted, tmp_path / name))
        shutil.copy(tmp_path / "other" / name, run.path)
        for read in (lambda run=run: pm.read_runs(run.path), lambda run=run: search(run.path)):
            with pytest.raises(
                RunDamaged, match=r"line 1 of .*records\.jsonl' is damaged: .* belongs to another run"
            ):
                read()


def test_settings_that_cannot_be_read_leave_other_runs_readable(finished, tmp_path):
    runs = Path(shutil.copytree(finished, tmp_path / "runs"))
    file = runs / TICKET.id / "experiment.toml"
    for spoil in (lambda: file.write_text("seed." + "a." * 7000 + "b = 1"), lambda: (file.unlink(), file.mkdir())):
        spoil()
        done = CliRunner().invoke(main, ["show", str(runs)])
        assert done.exit_code == 0, done.exception
        assert "1 damaged, 1 finished" in done.stdout


def test_lost_lines_of_an_interrupted_run_are_named_and_mended_by_its_state(interrupted, found, tmp_path):
    run = copy_of(interrupted, tmp_path)
    lines = run.records_file.read_bytes().splitlines(keepends=True)
    run.records_file.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(
        RunDamaged, match=r"has 2 of 3 rounds: lines at its end are missing. Start the same command"
    ):
        _read(run)
    assert [*search(run.path).records] == [*found[0].records]
    run = copy_of(interrupted, tmp_path / "two")
    run.records_file.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(RunDamaged, match="lacks rounds"):
        search(run.path)
    with pytest.raises(RunDamaged, match="has 1 of 3 rounds"):
        _read(run)


def test_settings_are_compared_with_the_id_in_their_first_line(finished, tmp_path):
    run = copy_of(finished / TICKET.id, tmp_path)
    run.experiment.write_text(run.experiment.read_text().replace("seed = 0", "seed = 7"))
    with pytest.raises(
        RunDamaged, match=rf"experiment.toml' was changed: it was written for the run {TICKET.id}, .*-s7-"
    ):
        pm.read_runs(run.path)


def test_own_settings_without_their_checksum_are_damaged(tmp_path):
    spec = OwnExperiment(model="own:net", run="0123abcd")
    run = RunDir(tmp_path)
    run.write_text("experiment.toml", spec.to_toml())
    assert experiment_of(run) == spec
    text = spec.to_toml().partition("# sealed")[0]
    run.write_text("experiment.toml", text)
    with pytest.raises(RunDamaged, match=r"experiment.toml' was changed"):
        experiment_of(run)
    run.write_text("experiment.toml", text.replace("version = 5", "version = 4").replace('allocate = ""\n', ""))
    assert experiment_of(run) == spec


def test_deep_values_in_one_run_leave_the_others_readable(finished, tmp_path):
    for name, content in (("records.jsonl", "[" * 100_000 + "\n"), ("experiment.toml", "a = " + "[" * 100_000)):
        runs = Path(shutil.copytree(finished, tmp_path / name))
        (runs / TICKET.id / name).write_text(content)
        done = CliRunner().invoke(main, ["show", str(runs)])
        assert done.exit_code == 0, done.exception
        assert "1 damaged, 1 finished" in done.stdout


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("test", "accuracy"), 1.5, "accuracy 1.5"),
        (("pruned", "test", "accuracy"), -0.1, "accuracy -0.1"),
        (("retrained", "kept"), 641, "641 of 640 weights kept"),
        (("retrained", "density"), 1.2, "density 1.2"),
        (("retrained", "pq_index"), 7.0, "pq_index 7.0"),
        (("cut", "weights"), -1, "-1 of 640 weights cut"),
    ],
)
def test_impossible_values_are_damage(finished, path, value, said):
    record = RunDir(finished / TICKET.id).records()[0]
    *parts, last = path
    inner = record
    for part in parts:
        inner = inner[part]
    inner[last] = value
    with pytest.raises(ValueError, match=f"impossible value in round 0: {said}"):
        Record.from_json(record)


def test_a_score_that_is_no_accuracy_may_be_any_number(finished):
    record = RunDir(finished / TICKET.id).records()[0]
    record["test"] = {"loss": None, "accuracy": None, "score": -3.2}  # R²
    Record.from_json(record)


# Masks and states


def spoil_masks(run, how):
    one, other = run.mask(1), run.mask(2)
    content = one.read_bytes()
    if how == "swapped":
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif how == "missing":
        one.unlink()
    elif how == "torn":
        one.write_bytes(content[:-1])
    else:
        one.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


MASKS = {
    "swapped": "has the masks of another round or run",
    "missing": "is missing",
    "torn": "is damaged",
    "flipped": "is damaged",
}


@pytest.mark.parametrize("how", MASKS)
def test_damaged_masks_are_named_when_resuming_and_when_read(finished, interrupted, tmp_path, how):
    run = copy_of(interrupted, tmp_path)
    spoil_masks(run, how)
    with pytest.raises(
        RunDamaged, match=rf"round-01\.safetensors' {MASKS[how]}.*; restore it from a copy, or remove"
    ):
        search(run.path)
    run = copy_of(finished / TICKET.id, tmp_path / "finished")
    spoil_masks(run, how)
    told = _read(run, bits=True)
    assert f"round-01.safetensors' {MASKS[how]}" in told["damage"]
    assert told["damage"].count("is damaged") <= 1
    assert (told["state"], told["rounds_done"], len(told["records"])) == ("damaged", 3, 3)
    with pytest.raises(RunDamaged, match=MASKS[how]):
        run.load_masks(1)
    if how != "flipped":  # no number that is shown depends on a bit of a mask
        done = CliRunner().invoke(main, ["table", str(run.path)])
        assert MASKS[how] in done.stderr
        assert "the numbers of the run are intact" in done.stderr
        with pytest.raises(UserWarning, match=MASKS[how]):
            pm.read_runs(run.path)
    elif how == "flipped":
        with pytest.raises(MaskMismatch, match="does not fit its seal"):
            pm.Masks.load(run.mask(1))


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_masks_that_are_damaged_before_their_record_is_written_are_noticed(interrupted, tmp_path, how):
    run = copy_of(interrupted, tmp_path)
    *lines, last = run.records_file.read_bytes().splitlines(keepends=True)
    run.records_file.write_bytes(b"".join(lines))
    mask = run.mask(json.loads(last)["round"])
    content = bytearray(mask.read_bytes())
    content[-1] ^= 1
    mask.unlink() if how == "missing" else mask.write_bytes(content)
    with pytest.raises(RunDamaged, match=f"{mask.name}' {MASKS[how]}"):
        search(run.path)
    assert len(run.records(resuming=True)) == len(lines)


def test_a_copy_of_a_finished_run_may_lack_its_masks(finished, interrupted, tmp_path):
    run = copy_of(finished / TICKET.id, tmp_path)
    shutil.rmtree(run.mask(0).parent)
    assert _read(run, bits=True)["state"] == "finished"
    pm.run(TICKET, run.path)  # finds it finished
    longer = pm.Experiment(method="lottery-ticket", model="linear", epochs=2, rounds=3)
    interrupted = copy_of(interrupted, tmp_path / "interrupted")
    shutil.rmtree(interrupted.mask(0).parent)
    for resume in (lambda: pm.run(longer, run.path), lambda: search(interrupted.path), lambda: run.load_masks(0)):
        with pytest.raises(RunDamaged, match=r"round-00\.safetensors' is missing"):
            resume()


class Ends(Observer):
    def __init__(self, epochs):
        self.left = epochs

    def interrupts(self):
        self.left -= 1
        return self.left <= 0


def test_states_of_another_number_or_run_are_damaged(tmp_path):
    runs = {e: RunDir(tmp_path / e.id, say=lambda text: None) for e in (TICKET, OTHER)}
    for experiment, run in runs.items():
        with pytest.raises(RunInterrupted):
            pm.run(experiment, run.path, save_every=1, observer=Ends(4))
    first, second = runs.values()
    older, newest = first.checkpoint_numbers()
    shutil.copy(first.checkpoint(older), first.checkpoint(newest))
    assert first.load_checkpoint()[0] == older
    shutil.copy(second.checkpoint(older), first.checkpoint(older))
    with pytest.raises(RunDamaged, match="all 2 checkpoints are damaged"):
        first.load_checkpoint()


# Folders of earlier versions


def test_folders_without_seals_are_read_and_called_unsealed(finished, tmp_path):
    runs = Path(shutil.copytree(finished, tmp_path / "runs"))
    before = pm.read_runs(runs)
    unseal(run := RunDir(runs / TICKET.id))
    assert pm.read_runs(runs).equals(before)
    said = CliRunner().invoke(main, ["show", str(runs)]).stdout
    assert "2 finished; 1 unsealed;" in said
    alone = CliRunner().invoke(main, ["show", str(run.path)]).stdout
    assert "unsealed  written by an earlier version: damaged numbers go unnoticed" in alone
    told = json.loads(CliRunner().invoke(main, ["show", str(runs), "--json"]).stdout)
    assert {one["run"]: one["sealed"] for one in told} == {TICKET.id: False, OTHER.id: True}


def test_seals_of_a_resumed_run_cover_the_lines_that_had_none(finished, tmp_path):
    whole = RunDir(finished / TICKET.id).records()
    run = copy_of(finished / TICKET.id, tmp_path)
    unseal(run)
    back = run.records_file.read_text().splitlines(keepends=True)
    run.records_file.write_text(back[0])
    pm.run(TICKET, run.path)  # without a state, it starts again and finds its first record
    assert run.records() == [{k: v for k, v in whole[0].items() if k != "masks"}, *whole[1:]]
    assert run.sealed
    content = run.records_file.read_text()
    run.records_file.write_text(content.replace('"round": 0', '"round":  0', 1))
    with pytest.raises(RunDamaged, match=r"line 2 of .* is damaged: it was changed, lines before it"):
        run.records()


def test_a_finished_run_that_is_cut_back_can_be_made_again(finished, tmp_path):
    run = copy_of(finished / TICKET.id, tmp_path)
    whole = run.records_file.read_bytes()
    back_to(run, 1)
    pm.run(TICKET, run.path)
    assert run.records_file.read_bytes() == whole


def test_leftovers_of_a_kill_are_removed(tmp_path):
    run = RunDir(tmp_path)
    for name in ("masks/.tmpA1b2C3", "masks/round-00.safetensors.7.partial", "good.pt.7.partial"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with run.lock():
        assert sorted(file.name for file in tmp_path.rglob("*")) == ["lock", "masks"]
