"""The loop over rounds, on real digits: Algorithm 1 by hand, methods side by side, interrupted and resumed."""

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from observers import EndsAfter

import palmette as pm
from palmette.errors import NotFinite, RunDamaged, RunInterrupted
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer
from palmette.studies.running import run
from palmette.training.data import load
from palmette.training.data.augment import Preparation
from palmette.training.loop import Training, evaluate
from palmette.training.members import Member
from palmette.training.models import build

SMALL = Experiment(epochs=3, rounds=3, batch=500)
METHODS = {
    "sap(.5,1)": SMALL,
    "sap(1,2)": dataclasses.replace(SMALL, p=1.0, q=2.0),
    "lottery ticket": dataclasses.replace(SMALL, method="lottery-ticket"),
    "one shot": dataclasses.replace(SMALL, method="one-shot"),
}


def test_ten_weights_are_pruned_as_algorithm_1_says(tmp_path):
    experiment = Experiment(model="tiny_models:ten_weights", epochs=0, rounds=2, batch=500)
    records = run(experiment, tmp_path / "run").records()
    # Magnitudes 9, 4, 4, 4, 1, 1, 1, 1, 0, 0: roots add up to 13, magnitudes to 25; r = 13 * 13 / 25 = 6.76.
    assert records[0]["retrained"]["pq_index"] == pytest.approx(1 - 169 / 250, rel=1e-14)
    assert records[0]["cut"]["weights"] == 3  # of 10 - 6.76 = 3.24: both zeros and the first 1
    # 9, 4, 4, 4, 1, 1, 1: 12 * 12 / 24 = 6 of 7 are to be kept.
    assert [record["retrained"]["kept"] for record in records] == [10, 7, 6]
    # 9, 4, 4, 4, 1, 1: 11 * 11 / 23 = 5.26 of 6 are to be kept, and 0.74 of a weight is none.
    assert [record["cut"]["weights"] for record in records] == [3, 1, 0]
    assert pm.Masks.load(tmp_path / "run" / "masks" / "round-02.safetensors")["2.weight"].flatten().tolist() == [
        True, False, False, True, True, True, False, False, True, True,
    ]  # fmt: skip
    assert records[-1]["stopped"] == "the last step cut nothing"


def test_wrong_experiment_or_device_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(TypeError, match="run takes an Experiment, got str"):
        run("digits", tmp_path / "run")
    with pytest.raises(ValueError, match="device 'gpu' cannot be used: networks train on cpu, cuda, mps or"):
        run(SMALL, tmp_path / "run", device="gpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", METHODS)
def test_records_equal_the_method_written_out(tmp_path, name):
    experiment = METHODS[name]
    records = run(experiment, tmp_path / "run").records()
    digits = load("digits")
    start = build("mlp", shape=digits.shape, classes=10, seed=0).state_dict()
    masks, dense = None, None
    for t, record in enumerate(records):
        model = build("mlp", shape=digits.shape, classes=10, seed=0)
        model.load_state_dict(start)
        optimizer = experiment.recipe.make_optimizer(model.parameters())
        if masks is not None:
            masks.apply_(pm.prunable(model))
        training = Training([Member(model, optimizer, 0, t, masks or {})], digits, experiment.recipe)
        for epoch in range(3):
            (score,) = training.epoch(epoch)
        weights = pm.prunable(model)
        assert record["train"] == {"loss": score.loss, "accuracy": score.accuracy}
        test = evaluate(model, digits.test_images, digits.test_labels, Preparation(digits))
        assert record["test"] == {"loss": test.loss, "accuracy": test.accuracy}
        dense = dense or {n: w.tensor.detach().clone() for n, w in weights.items()}
        saliency = pm.magnitude_of(dense) if experiment.method == "one-shot" else pm.magnitude
        masks, decision = pm.prune(weights, masks, scope="global", budget=experiment.budget, saliency=saliency)
        assert record["cut"]["weights"] == decision.cut
        assert record["pruned"]["kept"] == masks.kept
    assert len(records) == 4


def test_methods_of_one_seed_share_round_0_and_masks_only_shrink(tmp_path):
    runs = {name: run(e, tmp_path / e.id) for name, e in METHODS.items()}
    first = [r.records()[0] for r in runs.values()]
    assert all(record["test"] == first[0]["test"] for record in first)
    for rundir in runs.values():
        masks = [pm.Masks.load(rundir.mask(t)) for t in range(4)]
        for earlier, later in itertools.pairwise(masks):
            assert (earlier & later) == later
        assert len(rundir.checkpoint_numbers()) == 1


def test_a_one_shot_record_is_about_the_dense_weights(tmp_path):
    records = run(METHODS["one shot"], tmp_path / "run").records()
    assert records[0]["pruned"]["accuracy_difference"] == pytest.approx(
        records[0]["pruned"]["test"]["accuracy"] - records[0]["test"]["accuracy"], abs=1e-15
    )
    for before, after in itertools.pairwise(records):
        step = after["pruned"]["test"]["accuracy"] - before["pruned"]["test"]["accuracy"]
        assert after["pruned"]["accuracy_difference"] == pytest.approx(step, abs=1e-15)


@pytest.mark.parametrize("rewind", ["epoch:1", "learning-rate", "fine-tune"])
@pytest.mark.parametrize("method", ["sap", "one-shot"])
def test_every_rewind_can_be_interrupted_after_any_epoch(tmp_path, rewind, method):
    experiment = dataclasses.replace(SMALL, rewind=rewind, method=method, rounds=2, validation=100)
    whole = run(experiment, tmp_path / "whole").records_file.read_bytes()
    broken = tmp_path / "broken"

    class Stop(Exception):
        pass

    class Stopping(Observer):
        seen = 0

        def epoch(self, experiment, progress):
            Stopping.seen += 1
            if Stopping.seen % 2:
                raise Stop

    for _ in range(20):
        try:
            run(experiment, broken, observer=Stopping(), save_every=1)
            break
        except Stop:
            continue
    assert (broken / "records.jsonl").read_bytes() == whole


# Imports torch once, then runs the experiment of each seed it is sent in a process of its own.
RUNS = """
import os, sys, torch
from palmette.studies.experiment import Experiment
from palmette.studies.observer import Observer
from palmette.studies.running import run

torch.set_num_threads(1)  # none that a fork would lose
run(Experiment(epochs=1, rounds=1, batch=500), "warm")  # what is slow the first time
for line in sys.stdin:
    folder, seed = line.split()
    if (child := os.fork()) == 0:
        run(Experiment(epochs=3, rounds=15, batch=500, seed=int(seed)), folder, save_every=2)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def _lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_kill_9_at_twenty_random_moments_leaves_the_same_records(tmp_path):
    chance, hits, seed = random.Random(0), [], 0
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", RUNS], stdin=pipe, stdout=pipe, text=True, cwd=tmp_path) as runs:

        def start(folder):
            runs.stdin.write(f"{folder} {seed}\n")
            runs.stdin.flush()
            return int(runs.stdout.readline())

        while len(hits) < 20:
            child = start(f"broken-{seed}")
            records = tmp_path / f"broken-{seed}" / "records.jsonl"
            lines = _lines(records) + len(hits) % 3
            while _lines(records) < lines < 16:  # at any speed, the moments are in many rounds
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.05))
            with suppress(ProcessLookupError):  # it was faster
                os.kill(child, signal.SIGKILL)
            code = int(runs.stdout.readline())
            if code == -signal.SIGKILL:
                hits.append((seed, len(RunDir(tmp_path / f"broken-{seed}").records())))
            else:
                assert code == 0
                seed += 1
        for folder in ("broken", "whole"):
            for seed in range(hits[-1][0] + 1):
                start(f"{folder}-{seed}")
                assert int(runs.stdout.readline()) == 0
    assert len(set(hits)) >= 10  # rounds in which it was hit
    for seed in range(hits[-1][0] + 1):
        broken, whole = (RunDir(tmp_path / f"{folder}-{seed}") for folder in ("broken", "whole"))
        assert broken.records_file.read_bytes() == whole.records_file.read_bytes()
        assert len(whole.records()) == 16
        assert all(pm.Masks.load(broken.mask(t)) == pm.Masks.load(whole.mask(t)) for t in range(16))


def test_interrupted_run_resumes_to_the_same_records(tmp_path):
    whole = run(SMALL, tmp_path / "whole").records_file.read_bytes()
    recorded = []
    for epochs in itertools.count(1):
        observer = EndsAfter(epochs)
        try:
            run(SMALL, tmp_path / "broken", save_every=100, observer=observer)  # only the interruption saves
            break
        except RunInterrupted:
            assert len(observer.seen) == epochs
        finally:
            recorded += [round for _, round in observer.records]
    assert (tmp_path / "broken" / "records.jsonl").read_bytes() == whole
    assert recorded == [0, 1, 2, 3]


def test_a_loss_that_is_not_finite_ends_the_run_by_name(tmp_path):
    wild = dataclasses.replace(SMALL, learning_rate=1e38, clip=None)
    with pytest.raises(NotFinite, match=f"{wild.id} diverged: its training loss is .* in epoch . of round 0"):
        run(wild, tmp_path / "run")


def test_folder_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(run(SMALL, "some/where").records()) == 4
    assert not (tmp_path / "some" / "where" / "some").exists()


def test_a_finished_run_is_not_run_again_and_another_experiment_is_refused(tmp_path):
    first = run(SMALL, tmp_path / "run")
    before = first.records_file.stat().st_mtime_ns
    assert run(SMALL, tmp_path / "run").records_file.stat().st_mtime_ns == before
    with pytest.raises(RunDamaged, match=dataclasses.replace(SMALL, seed=1).id):
        run(dataclasses.replace(SMALL, seed=1), tmp_path / "run")


def test_a_rule_stops_a_run_and_says_why(tmp_path):
    experiment = dataclasses.replace(SMALL, method="lottery-ticket", stop="density:0.7", rounds=9)
    records = run(experiment, tmp_path / "run").records()
    assert [round(record["retrained"]["density"], 2) for record in records] == [1.0, 0.8, 0.64]
    assert records[-1]["stopped"].startswith("density 0.64")


def test_a_run_ends_when_accuracy_on_held_out_images_drops(tmp_path):
    experiment = dataclasses.replace(
        SMALL, method="one-shot", ratio=0.6, rounds=9, epochs=10, batch=250, stop="accuracy-drops:0.2"
    )
    records = run(experiment, tmp_path / "run").records()
    accuracies = [record["validation"]["accuracy"] for record in records]
    assert 1 < len(records) < 10
    assert accuracies[-1] < accuracies[0] - 0.2 <= min(accuracies[:-1])
    assert records[-1]["stopped"].startswith(f"accuracy {accuracies[-1]:.4f} on validation images")
    assert (accuracies[0] * 150) % 1 == pytest.approx(0, abs=1e-9)  # a tenth of the 1,500 images
