"""The folder of a run around one's own training: killed and resumed bit for bit, read by others, and its own."""

import copy
import io
import json
import re
import shutil
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from earlier_folders import back_to, unseal
from killing import die, killed_in
from own_digits import OPTIONS, X, Y, evaluate, network, one_thread, states_are_equal, test, train  # noqa: F401
from torch import nn

import palmette as pm
from palmette.cli import main
from palmette.errors import MaskMismatch, RunBusy, RunDamaged
from palmette.pruning.budgets import Budget
from palmette.studies.experiment import read_spec
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.trainers.resuming import digest

test.__test__ = False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return pm.prune_and_retrain(network(), train, evaluate, test=test, folder=folder, **OPTIONS).model, folder


def same(one, other):
    """All but the timings; networks are compared elsewhere."""
    names = sorted(str(p.relative_to(one)) for p in one.rglob("*") if p.is_file())
    assert names == sorted(str(p.relative_to(other)) for p in other.rglob("*") if p.is_file())
    masks = [name for name in names if name.endswith(".safetensors")]
    assert len(masks) == len(RunDir(one).records())
    assert all(pm.Masks.load(one / name) == pm.Masks.load(other / name) for name in masks)
    plain = {name for name in names if not name.endswith(".pt")}
    plain -= {*masks, "timings.jsonl", "finished.json", "experiment.toml", "records.jsonl"}
    assert json.dumps(RunDir(one).records()) == json.dumps(RunDir(other).records())  # seals name the run
    specs = [replace(read_spec(folder / "experiment.toml"), run="") for folder in (one, other)]
    assert specs[0] == specs[1]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in plain)


def test_killed_and_resumed_run_is_bit_for_bit_the_same(whole, tmp_path):
    calls = iter(range(9))

    def dies(model):
        train(model, epochs=1 if (call := next(calls)) == 2 else 2)
        if call == 2:
            die()

    assert killed_in(
        lambda: pm.prune_and_retrain(network(), dies, evaluate, test=test, folder=tmp_path / "run", **OPTIONS)
    )
    records = RunDir(tmp_path / "run").records()
    assert [r["round"] for r in records] == [0, 1]
    trainings = []

    def counted(model):
        trainings.append(train(model))

    fresh = network(seed=1)  # what it is filled with is in the folder, the random numbers too
    torch.manual_seed(7)
    model = pm.prune_and_retrain(fresh, counted, evaluate, test=test, folder=tmp_path / "run", **OPTIONS).model
    assert len(trainings) == 2
    assert states_are_equal(model, whole[0])
    assert same(whole[1], tmp_path / "run")


@pytest.mark.parametrize(("rewind", "call"), [("init", 0), ("init", 3), ("fine-tune", 1)])
def test_run_interrupted_in_any_round_is_the_same(tmp_path, rewind, call):
    options = OPTIONS | {"rewind": rewind}
    plain = pm.prune_and_retrain(network(), train, evaluate, folder=tmp_path / "plain", **options).model
    calls = iter(range(9))

    def interrupted(model):
        train(model, epochs=1 if (now := next(calls)) == call else 2)
        if now == call:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pm.prune_and_retrain(network(), interrupted, evaluate, folder=tmp_path / "run", **options)
    model = pm.prune_and_retrain(network(1), train, evaluate, folder=tmp_path / "run", **options).model
    assert states_are_equal(model, plain)
    assert same(tmp_path / "plain", tmp_path / "run")


@pytest.mark.parametrize("name", ["save_masks", "save_checkpoint", "append_record", "append_timing", "finish"])
def test_run_killed_while_writing_is_the_same(whole, tmp_path, monkeypatch, name):
    after, write = iter(range(9)), getattr(RunDir, name)

    def dies(self, *arguments):
        if next(after) == (0 if name == "finish" else 2):
            raise KeyboardInterrupt
        return write(self, *arguments)

    monkeypatch.setattr(RunDir, name, dies)
    with pytest.raises(KeyboardInterrupt):
        pm.prune_and_retrain(network(), train, evaluate, test=test, folder=tmp_path, **OPTIONS)
    monkeypatch.undo()
    model = network(0 if name == "finish" else 1)  # a finished run answers for its own weights only
    model = pm.prune_and_retrain(model, train, evaluate, test=test, folder=tmp_path, **OPTIONS).model
    assert states_are_equal(model, whole[0])
    assert same(whole[1], tmp_path)


def test_run_killed_while_claiming_starts_again(whole, tmp_path, monkeypatch):
    def dies(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDir, "write_text", dies)
    with pytest.raises(KeyboardInterrupt):
        pm.prune_and_retrain(network(), train, evaluate, test=test, folder=tmp_path, **OPTIONS)
    monkeypatch.undo()
    pm.prune_and_retrain(network(), train, evaluate, test=test, folder=tmp_path, **OPTIONS)
    assert same(whole[1], tmp_path)


def test_good_model_of_a_killed_process_is_returned(tmp_path):
    calls = iter(range(9))

    def interrupted(model):
        train(model)
        if next(calls) == 2:
            raise KeyboardInterrupt

    def falls(model):  # below a third of the weights
        return 0.9 if float((model[0].weight == 0).float().mean()) < 2 / 3 else 0.1

    options = OPTIONS | {"tolerance": 0.1, "folder": tmp_path, "rounds": 2}
    with pytest.raises(KeyboardInterrupt):
        pm.prune_and_retrain(network(), interrupted, falls, **options)
    model = pm.prune_and_retrain(network(1), train, falls, **options).model
    assert [record["good"] for record in RunDir(tmp_path).records()] == [True, True, False]
    assert int((model[0].weight == 0).sum() + (model[4].weight == 0).sum()) == 1184


def test_finished_run_returns_its_model_at_once(whole):
    def never(model):
        raise AssertionError

    model = pm.prune_and_retrain(network(), never, evaluate, test=test, folder=whole[1], **OPTIONS).model
    assert states_are_equal(model, whole[0])
    assert len([*(whole[1] / "checkpoints").iterdir()]) == 1
    plain = network(1)
    plain.load_state_dict(torch.load(whole[1] / "good.pt")["state_dict"])
    assert states_are_equal(plain, whole[0])


def test_buffers_made_by_the_forward_pass_are_ignored(tmp_path):
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.register_buffer("grows", torch.ones(0), persistent=False)

        def forward(self, x):
            if not hasattr(self, "made"):
                self.register_buffer("made", torch.ones(64), persistent=False)
            self.grows = torch.ones(max(len(x), len(self.grows)))
            return self.net(x * self.made)

    options = OPTIONS | {"rewind": "init", "rounds": 1, "folder": tmp_path}
    one = pm.prune_and_retrain(Caches(), train, evaluate, **options).model
    other = pm.prune_and_retrain(Caches(), train, evaluate, **options).model
    assert states_are_equal(one, other)


def test_records_are_read_by_other_commands(whole):
    table = pm.read_runs(whole[1])
    assert table["density"].tolist() == [1.0, 0.5, 0.25, 0.125]
    assert table["data"].tolist() == ["own data"] * 4
    assert table["model"].tolist() == ["own:Sequential"] * 4
    assert table["validation_accuracy"].notna().all()
    model = copy.deepcopy(whole[0]).eval()
    assert table["validation_accuracy"].iloc[-1] == pytest.approx(float(evaluate(model)))
    assert table["test_accuracy"].iloc[-1] == pytest.approx(float(test(model)))
    masks = pm.Masks.load(whole[1] / "masks" / "round-03.safetensors", like=pm.prunable(model))
    assert masks.density == 0.125
    assert len(pm.read_runs(whole[1], layers=True)) == 8
    for command in (["show", str(whole[1])], ["table", str(whole[1])]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_records_make_a_report(whole, tmp_path):
    done = CliRunner().invoke(main, ["report", str(whole[1]), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert "own:Sequential on own data" in (tmp_path / "page.html").read_text()


def test_score_outside_0_1_is_recorded_as_a_score(tmp_path):
    def minus_loss(model):
        with torch.no_grad():
            return -nn.functional.cross_entropy(model(X), Y)

    options = OPTIONS | {"tolerance": 0.9, "folder": tmp_path / "run", "test": evaluate}
    pm.prune_and_retrain(network(), train, minus_loss, **options)
    last = RunDir(tmp_path / "run").records()[-1]["validation"]
    assert last["accuracy"] is None
    assert last["score"] < 0
    done = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert "another score decides a search" in (tmp_path / "page.html").read_text()


def test_loss_and_perplexity_are_shown_as_scores_everywhere(tmp_path):
    def loss(model):
        with torch.no_grad():
            return nn.functional.cross_entropy(model(X), Y)

    options = {"tolerance": "50%", "maximize": False, "rounds": 1, "folder": tmp_path / "run"}
    pm.prune_and_retrain(network(), train, loss, test=lambda model: 100 * loss(model).exp(), **options)
    records = RunDir(tmp_path / "run").records()
    held_out, test_score = (f"{records[0][part]['score']:.4f}" for part in ("validation", "test"))
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "run")], env={"COLUMNS": "120"}).output
    assert re.search(r"round +test density .* held-out verdict", shown)
    assert re.search(rf"0 +{test_score} 100.00% .* {held_out} +good", shown)
    assert "accuracy" not in shown
    many = CliRunner().invoke(main, ["show", str(tmp_path)]).output
    assert re.search(r"run +round +score", many)
    table = CliRunner().invoke(main, ["table", str(tmp_path)])
    assert f"| dense | 100 | Interpolate | 1 | {test_score} |" in table.output
    done = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert f"dense {test_score}." in page
    assert "dense score" in page
    assert "Test accuracy" not in page


def test_training_score_that_decided_is_shown(tmp_path):
    def trained(model):
        train(model)
        return 0.00001234

    pm.prune_and_retrain(network(), trained, maximize=False, tolerance=0.1, rounds=1, folder=tmp_path)
    shown = CliRunner().invoke(main, ["show", str(tmp_path)]).output
    assert re.search(r"round +train density", shown)
    assert "score 1.23e-05, dense 1.23e-05" in shown


def test_run_with_a_custom_budget_is_recorded_and_read(tmp_path):
    class Half(Budget):
        p, q = 0.5, 1.0

        def _count(self, rows, sums):
            return sums.d / 2, sums.d // 2

        def __repr__(self):
            return "Half()"

    for name, budget, method in (("a", pm.TailMass(eta=0.1), "tail-mass"), ("b", Half(), "own:Half()")):
        options = OPTIONS | {"budget": budget, "rounds": 1, "folder": tmp_path / name}
        pm.prune_and_retrain(network(), train, evaluate, test=test, **options)
        assert [r["round"] for r in RunDir(tmp_path / name).records()] == [0, 1]
        (rundir,) = find_runs(tmp_path / name)
        assert read_spec(rundir.experiment).method == method
    done = CliRunner().invoke(main, ["table", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "Tail Mass" in done.output
    assert "Half()" in done.output


class Copied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x):
        return self.inner(x)


def other_width():
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10))


def test_folder_belongs_to_one_model_and_its_settings(whole, tmp_path):
    options = OPTIONS | {"test": test, "folder": whole[1]}
    with pytest.raises(
        MaskMismatch, match=r"0.weight \(\(32, 64\) instead of \(16, 64\)\).*started with, or another"
    ):
        pm.prune_and_retrain(other_width(), train, evaluate, **options)
    with pytest.raises(MaskMismatch, match=r"missing: inner.weight.*not in this model: 0.weight"):
        pm.prune_and_retrain(Copied(), train, evaluate, **options)
    with pytest.raises(RunDamaged, match=r"with rounds=3, not rounds=2; resume with the old settings, or give"):
        pm.prune_and_retrain(network(), train, evaluate, **options | {"rounds": 2})
    with pytest.raises(RunDamaged, match=r"method='lottery-ticket', ratio=0.5, not method='sap'"):
        pm.prune_and_retrain(network(), train, evaluate, **options | {"budget": pm.Sap()})
    with pytest.raises(
        RunDamaged, match=r"prunes 0.weight, 4.weight, not 0.weight; give the same include and exclude"
    ):
        pm.prune_and_retrain(network(), train, evaluate, **options | {"exclude": ["4.*"]})


def test_finished_run_answers_for_its_own_model_only(whole):
    options = OPTIONS | {"test": test, "folder": whole[1], "say": None}
    one, other = (digest(network(seed).state_dict()) for seed in (0, 1))
    words = f"a run of Sequential from the weights {one}, not of Sequential from {other}; pass the model as it was"
    for more in ({}, {"rounds": 4}):
        with pytest.raises(RunDamaged, match=words):
            pm.prune_and_retrain(network(1), train, evaluate, **options | more)
    assert read_spec(whole[1] / "experiment.toml").rounds == 3
    returned = pm.prune_and_retrain(network(), train, evaluate, **options).model
    assert states_are_equal(pm.prune_and_retrain(returned, train, evaluate, **options).model, whole[0])


def test_resuming_says_that_the_run_keeps_its_own_weights(tmp_path):
    calls, said = iter(range(9)), []

    def interrupted(model):
        train(model)
        if next(calls) == 1:
            raise KeyboardInterrupt

    options = OPTIONS | {"rounds": 1, "say": said.append, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        pm.prune_and_retrain(network(), interrupted, evaluate, **options)
    said.clear()
    pm.prune_and_retrain(network(1), train, evaluate, **options)
    assert said[0].endswith("; it resumes with its own")
    calls, options = iter([0, 1]), options | {"folder": tmp_path / "2", "trained": True, "rounds": 2}
    with pytest.raises(KeyboardInterrupt):
        pm.prune_and_retrain(network(), interrupted, evaluate, **options)
    with pytest.raises(RunDamaged, match=r"from the weights .*; pass the model as it was then"):
        pm.prune_and_retrain(network(1), train, evaluate, **options)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rewind": "init"},
        {"rewind": "fine-tune", "saliency": "dense-magnitude"},
        {"evaluate": None, "tolerance": None, "stop": pm.AtDensity(0.001), "budget": pm.FixedRatio(0.5)},
    ],
)
def test_more_rounds_continue_as_one_long_run_would(tmp_path, more):
    options = {"evaluate": evaluate, "tolerance": 0.02, "say": None} | more
    long = pm.prune_and_retrain(network(), train, rounds=5, folder=tmp_path / "long", **options)
    short = pm.prune_and_retrain(network(), train, rounds=2, folder=tmp_path / "run", **options)
    assert short.retrainings == 2
    extended = pm.prune_and_retrain(network(), train, rounds=5, folder=tmp_path / "run", **options)
    assert states_are_equal(extended.model, long.model)
    assert str(extended) == str(long)
    one, two = (RunDir(tmp_path / name).records() for name in ("long", "run"))
    for a, b in zip(one, two, strict=True):
        after = 3 if "saliency" in more else 2  # dense weights: a record reads the one before it
        # The short search did not cut again after its last round.
        last = {"pruned", "cut"} if 2 <= a["round"] <= after and a.get("search") else {}
        assert {k: v for k, v in a.items() if k not in last} == {k: v for k, v in b.items() if k not in last}
    found = pm.prune_and_retrain(network(), train, rounds=5, folder=tmp_path / "run", **options)
    assert str(found) == str(long)


def test_more_rounds_change_nothing_where_a_rule_ended_the_run(tmp_path):
    options = {"stop": pm.AtDensity(0.6), "budget": pm.FixedRatio(0.5), "folder": tmp_path}
    first = pm.prune_and_retrain(network(), train, rounds=3, **options)
    said = []
    again = pm.prune_and_retrain(network(), train, rounds=9, say=said.append, **options)
    assert said[0].startswith("already finished")
    assert str(again) == str(first)
    assert not (tmp_path / "checkpoints").exists()


def test_damage_in_a_folder_is_named(tmp_path):
    run, options = tmp_path / "run", OPTIONS | {"rounds": 1}
    pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)
    shutil.rmtree(run / "networks")  # which would replace the answer
    other = io.BytesIO()
    torch.save({"w": torch.ones(2)}, other)
    for content in ((run / "good.pt").read_bytes()[:100], b"", b"a line of text\n", other.getvalue()):
        (run / "good.pt").write_bytes(content)
        with pytest.raises(RunDamaged, match=r"good\.pt', is missing or damaged; remove .* again$"):
            pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)
    (run / "good.pt").unlink()
    with pytest.raises(RunDamaged, match=r"good\.pt', is missing"):
        pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)
    back_to(RunDir(run), 1)
    with pytest.raises(RunDamaged, match="records but no state to resume from"):
        pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)
    (run / "settings.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(RunDamaged, match="a run of an earlier version"):
        pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)
    (run / "settings.json").unlink()
    (run / "experiment.toml").write_text("epochs =")
    with pytest.raises(RunDamaged, match="has no readable settings"):
        pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)
    for content in (pm.Experiment().to_toml(), None):
        (run / "experiment.toml").unlink()
        if content:
            (run / "experiment.toml").write_text(content)
        with pytest.raises(RunDamaged, match="another kind of run"):
            pm.prune_and_retrain(network(), train, evaluate, folder=run, **options)


def test_settings_may_be_numpy_numbers_and_fractions(tmp_path):
    rules = [pm.AtDensity(Fraction(1, 2)), pm.SmallCut(np.float32(0.25)), pm.AfterSteps(np.int64(1))]
    options = {"rounds": np.int64(3), "tolerance": np.float32(0.5), "stop": rules, "folder": tmp_path}
    pm.prune_and_retrain(network(), train, evaluate, **OPTIONS | options)
    found = read_spec(tmp_path / "experiment.toml")
    assert (found.rounds, found.stop, found.tolerance) == (1, "density:0.5,small-cut:0.25", "0.5")


def test_a_folder_in_use_is_refused(tmp_path):
    with RunDir(tmp_path).lock(), pytest.raises(RunBusy, match="in use by process"):
        pm.prune_and_retrain(network(), train, folder=tmp_path, **OPTIONS)


def test_other_commands_say_what_a_run_lacks(tmp_path):
    with pytest.raises(ZeroDivisionError):
        pm.prune_and_retrain(network(), lambda m: train(m) or 1 / 0, evaluate, folder=tmp_path / "new", **OPTIONS)
    pm.prune_and_retrain(network(), train, evaluate, folder=tmp_path / "done", **OPTIONS | {"rounds": 1})
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "new")])
    assert f"call prune_and_retrain again, as before, with folder='{tmp_path / 'new'}'" in shown.output
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "done")])
    score = RunDir(tmp_path / "done").records()[-1]["validation"]["score"]
    assert re.search(rf"    1  50.00% .* {score:.4f} ", shown.output)
    refused = CliRunner().invoke(main, ["report", str(tmp_path / "done"), "-o", str(tmp_path / "page.html")])
    assert refused.exit_code != 0
    assert (
        "has no test score; prune_and_retrain takes a function `test`" in str(refused.exception) + refused.output
    )


TOML = """
data = "own data"
model = "own:Sequential"
method = "lottery-ticket"
ratio = 0.5
rounds = 3
rewind = "learning-rate"
stop = "small-cut:0.01,accuracy-drops:1.0"
epochs = 0
"""


def as_version_1(folder):
    """Rewrite a folder as version 1 wrote it."""
    rundir = RunDir(folder)
    unseal(rundir)
    rundir.write_text("experiment.toml", TOML)
    rundir.write_text("settings.json", json.dumps({"settings": {}, "tensors": {}, "weights": []}))
    lines = [json.loads(line) for line in rundir.records_file.read_text().splitlines()]
    lines = [{k: v for k, v in line.items() if k not in ("search", "version")} for line in lines]
    rundir.records_file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_folder_of_version_1_cannot_resume(whole, tmp_path):
    shutil.copytree(whole[1], tmp_path / "run")
    as_version_1(tmp_path / "run")
    with pytest.raises(
        RunDamaged, match="a run of an earlier version, which cannot be resumed; give another folder"
    ):
        pm.prune_and_retrain(network(), train, evaluate, test=test, folder=tmp_path / "run", **OPTIONS)


def test_folders_of_version_1_are_read_as_distinct_runs(whole, tmp_path):
    shutil.copytree(whole[1], tmp_path / "a")
    shutil.copytree(whole[1], tmp_path / "b")
    times = RunDir(tmp_path / "b").timings_file
    times.write_text(times.read_text().replace('"seconds": ', '"seconds": 1', 1))  # another time
    for name in "ab":
        as_version_1(tmp_path / name)
    assert pm.read_runs(tmp_path)["id"].nunique() == 2
    done = CliRunner().invoke(main, ["table", str(tmp_path)])
    assert done.exit_code == 0, done.output
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    done = CliRunner().invoke(main, ["table", str(tmp_path)])
    assert "one run is in" in done.output
    done = CliRunner().invoke(main, ["show", str(tmp_path / "a")])
    assert "finished: all retrainings are used" in done.output


def test_settings_of_a_folder_without_rounds_can_be_corrected(tmp_path):
    def fails(model):
        raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        pm.prune_and_retrain(network(), fails, lambda m: 0.9, tolerance=0.5, folder=tmp_path, say=None)
    limit = pm.prune_and_retrain(
        network(), train, lambda m: 0.9, tolerance=0.1, rounds=1, folder=tmp_path, say=None
    )
    assert limit.tolerance.by == 0.1
    said = []
    again = pm.prune_and_retrain(
        network(), train, lambda m: 0.9, tolerance=0.1, rounds=1, folder=tmp_path, say=said.append
    )
    assert said[0] == f"already finished in '{tmp_path}'; nothing is trained"
    assert str(again) == str(limit)
