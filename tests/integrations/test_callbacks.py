"""PalmetteCallback in real trainers: stops by validation or training loss, restores and resumes exactly."""

import math
from pathlib import Path

import pytest
import torch
from digits_trainers import STEPS, L, Module, fit, fit_with_lightning
from killing import killed_in
from own_digits import X, Y, assert_zero, one_thread, states_are_equal  # noqa: F401
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import palmette as pm
from palmette.integrations import lightning as of_lightning
from palmette.integrations import transformers as of_transformers
from palmette.integrations.callbacks import Cutting
from palmette.pruning.stopping import AccuracyDrops, ScoreDrops

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:training ended without"),
    pytest.mark.filterwarnings("error:at the end of training"),
    pytest.mark.filterwarnings("error:.*palmette.pt"),
]
CALLBACKS = {"transformers": of_transformers.PalmetteCallback, "lightning": of_lightning.PalmetteCallback}
LIBRARY = pytest.mark.parametrize("library", CALLBACKS)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def pruning(library, lines=None, **options):
    say = None if lines is None else lines.append
    return CALLBACKS[library](**{"epochs": [1, 2, 3], "budget": pm.FixedRatio(0.5), "say": say} | options)


def by_score(library, lines=None, **options):
    monitor = "eval_score" if library == "transformers" else "score"
    return pruning(library, lines, **{"monitor": monitor, "maximize": True} | options)


SCORES = {"score": [0.9, 0.895, 0.5, 0.6, 0.9]}  # the second cut, after epoch 2, is too large


@LIBRARY
def test_the_network_before_a_cut_that_was_too_large_is_restored_bit_for_bit(tmp_path, library):
    lines = []
    run = fit(library, tmp_path, by_score(library, lines), SCORES)
    seen, name = run.seen, "eval_score" if library == "transformers" else "score"
    assert equal(seen.after[3], seen.before[2])
    assert not equal(seen.before[3], seen.before[2])
    assert seen.densities == {0: 1.0, 1: 0.5, 2: 0.25, 3: 0.5, 4: 0.5}
    assert len(run.pruner.decisions) == 1
    assert_zero(run.pruner)
    assert not equal(run.model.state_dict(), seen.after[3])  # training has continued
    assert (
        lines[0]
        == f"palmette: cuts end when {name} is more than 0.01 below 0.9000, its value before the first cut"
    )
    assert lines[1].startswith(
        "palmette: after epoch 1 the cut takes 50.0% of what was kept, 50.0% of the weights"
    )
    assert lines[2].endswith(f"; {name} 0.8950)")
    assert lines[3:] == [
        f"palmette: after epoch 3 {name} 0.5000 is more than 0.01 below 0.9000: the weights before the cut after "
        "epoch 2, 50.0% of them, are restored, and no more cuts are made"
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return {name: fit(name, tmp_path_factory.mktemp("whole"), by_score(name), SCORES) for name in CALLBACKS}


@LIBRARY
@pytest.mark.parametrize(
    "dies_at", [15, 20, 26]
)  # the checkpoint is before a cut, before and after the restoration
def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path, whole, library, dies_at):
    assert killed_in(lambda: fit(library, tmp_path, by_score(library), SCORES, dies_at=dies_at))
    resumed = fit(library, tmp_path, by_score(library), SCORES, resume=True)
    assert min(resumed.seen.after) == dies_at // STEPS
    assert resumed.pruner.density == 0.5
    assert states_are_equal(resumed.model, whole[library].model)


@LIBRARY
def test_the_last_network_is_judged_at_the_end(tmp_path, library):
    lines = []
    run = fit(library, tmp_path, by_score(library, lines), {"score": [0.9, 0.9, 0.9, 0.9, 0.2]})
    assert equal(run.model.state_dict(), run.seen.before[3])
    assert run.pruner.density == 0.25
    assert "palmette: at the end of training " in lines[-1]
    assert lines[-1].endswith(
        "0.2000 is more than 0.01 below 0.9000: the weights before the cut after epoch 3, 25.0% of them, are "
        "restored, and no more cuts are made"
    )


@LIBRARY
def test_a_restored_network_that_is_worse_at_the_end_is_said(tmp_path, library):
    with pytest.warns(
        UserWarning, match=r"end of training .*score 0.2000 is more than 0.01 below .*no better netw"
    ):
        fit(library, tmp_path, by_score(library), {"score": [0.9, 0.1, 0.9, 0.9, 0.2]})


@LIBRARY
def test_a_network_that_recovers_before_the_next_cut_is_good(tmp_path, library):
    run = fit(library, tmp_path, by_score(library, epochs=[1, 3]), {"score": [0.9, 0.1, 0.9, 0.1, 0.9]})
    assert run.pruner.density == 0.25


@LIBRARY
def test_without_evaluations_the_training_loss_judges(tmp_path, library):
    lines = []
    hard = pruning(library, lines, epochs=[2, 4], budget=pm.FixedRatio(0.98))
    run = fit(library, tmp_path, hard)
    assert lines[0].startswith("palmette: cuts end when the training loss is more than 0.05 above ")
    assert "palmette: after epoch 4 the training loss " in lines[-1]
    assert run.seen.densities[3] < 0.03
    assert run.pruner.density == 1.0
    assert equal(run.seen.after[4], run.seen.before[2])


@LIBRARY
def test_judged_by_the_training_loss_it_resumes_exactly(tmp_path, library):
    def run(folder, lines, **options):
        # The checkpoint of step 18 is neither at a cut nor halfway between cuts, where losses are logged.
        callback = pruning(library, lines, epochs=[1, 4], budget=pm.FixedRatio(0.98), tolerance=0.0)
        return fit(library, tmp_path / folder, callback, **options)

    whole, resumed = [], []
    model = run("whole", whole).model
    assert killed_in(lambda: run("part", [], dies_at=21))
    assert states_are_equal(run("part", resumed, resume=True).model, model)
    assert resumed == whole[2:]
    assert "after epoch 4 " in resumed[0]
    assert "the training loss" in resumed[0]


@LIBRARY
def test_a_validation_loss_is_the_default_where_there_is_one(tmp_path, library):
    name, losses = ("val_loss", [0.4, 0.6, 0.6]) if library == "lightning" else ("other", [1.0, 1.0, 1.0])
    lines = []
    options = {"tolerance": 0.1 if library == "lightning" else 0.0, "budget": pm.FixedRatio(0.98)}
    run = fit(library, tmp_path, pruning(library, lines, epochs=[1], **options), {name: losses}, epochs=3)
    assert lines[0].startswith(
        f"palmette: cuts end when {'val' if library == 'lightning' else 'eval'}_loss is more"
    )
    assert run.pruner.density == 1.0


@LIBRARY
def test_an_infinite_tolerance_judges_nothing_and_keeps_nothing(tmp_path, library):
    lines = []
    callback = by_score(library, lines, tolerance=math.inf)
    run = fit(library, tmp_path, callback, SCORES)
    assert run.pruner.density == 0.125
    assert callback._kept is None
    assert len(lines) == 3


@LIBRARY
def test_a_stop_rule_ends_the_cuts_and_the_judge_restores_after_it(tmp_path, library):
    lines = []
    callback = by_score(library, lines, stop=pm.AtDensity(0.3))
    run = fit(library, tmp_path, callback, {"score": [0.9, 0.9, 0.4, 0.9, 0.9]})
    assert lines[-2] == "palmette: no more cuts, because density 0.2500 has reached 0.3"
    assert "0.4000 is more than 0.01 below 0.9000" in lines[-1]
    assert run.seen.densities == {0: 1.0, 1: 0.5, 2: 0.25, 3: 0.5, 4: 0.5}


def test_without_a_loss_nobody_judges_and_that_is_said(tmp_path):
    class Silent(Module):
        automatic_optimization = False

        def training_step(self, batch, number):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, number))
            optimizer.step()

    lines = []
    callback = pruning("lightning", lines, epochs=[1])
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Silent({}), DataLoader(TensorDataset(X[:600], Y[:600]), 100))
    assert callback.pruner.density == 0.5
    assert lines[0].startswith("palmette: neither val_loss nor a training loss is known before the first cut: the")
    assert len(lines) == 2


def test_averages_restart_from_the_restored_weights(tmp_path):
    average = L.callbacks.EMAWeightAveraging()
    callback = by_score("lightning")
    scores = {"score": [0.9, 0.2]}  # judged at the end, when the average is copied to the module
    model = fit_with_lightning(tmp_path, [callback, average], scores, False, 2, {})
    assert callback.pruner.density == 1.0
    assert all(torch.equal(p, model.get_parameter(n)) for n, p in average._average_model.module.named_parameters())
    assert not any((weight.tensor == 0).any() for weight in callback.pruner.weights.values())


def test_accumulated_batches_do_not_change_the_loss(tmp_path):
    lines = []
    fit("lightning", tmp_path, pruning("lightning", lines, epochs=[1]), epochs=2, accumulate_grad_batches=3)
    assert 2.0 < float(lines[0].partition(" above ")[2].partition(",")[0]) < 2.5  # log 10 = 2.3


def test_a_best_model_of_transformers_is_judged_and_not_replaced(tmp_path):
    callback = pruning("transformers", epochs=[1, 2])
    options = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True}
    scores = {"score": [0.5, 0.6, 0.9, 0.8, 0.7]}
    run = fit("transformers", tmp_path, callback, scores, **options)
    assert callback._judge.name == "eval_score"  # the metric of the best model is the default
    assert run.pruner.density == 0.25
    assert equal(run.model.state_dict(), run.seen.before[3])


def test_a_best_model_that_is_too_bad_is_said(tmp_path):
    options = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": False}
    worst = by_score("transformers", epochs=[1])
    with pytest.warns(
        UserWarning, match=r"0.2000 is more than 0.01 below 0.9000; the training library has chosen"
    ):
        fit("transformers", tmp_path, worst, {"score": [0.9, 0.9, 0.2]}, epochs=3, **options)


def test_a_cut_without_a_score_is_said_and_does_not_replace_the_kept_network(tmp_path):
    lines = []
    callback = by_score("lightning", lines, epochs=[2, 3, 4])
    callback._judge.trained = lambda loss, steps=1: None  # validation alone, every second epoch
    scores = {"score": [0.0, 0.9, 0.0, 0.4, 0.9]}
    run = fit("lightning", tmp_path, callback, scores, check_val_every_n_epoch=2)
    assert lines[2].endswith("; not judged)")
    assert "the weights before the cut after epoch 2, 100.0% of them, are restored" in lines[3]
    assert equal(run.seen.after[4], run.seen.before[2])


def test_a_checkpoint_without_the_network_before_the_cut_is_said(tmp_path):
    scores = {"score": [0.9, 0.9, 0.1]}
    fit("transformers", tmp_path, by_score("transformers", epochs=[1]), scores, epochs=2)
    (tmp_path / "checkpoint-12" / "palmette.pt").unlink()
    with (
        pytest.warns(UserWarning, match=r"palmette.pt is missing .*cannot be restored"),
        pytest.warns(UserWarning, match="score 0.1000 is more than 0.01 below 0.9000; no better network is kept"),
    ):
        fit("transformers", tmp_path, by_score("transformers", epochs=[1]), scores, epochs=3, resume=True)


@LIBRARY
def test_scope_channel_is_refused_and_its_masks_are_the_way(library):
    with pytest.raises(ValueError, match=r"has no example inputs to find channels with: .* its masks as masks="):
        pruning(library, scope="channel")


@LIBRARY
@pytest.mark.parametrize("rule", [ScoreDrops(), AccuracyDrops(0.01)])
def test_rules_about_scores_are_refused(library, rule):
    with pytest.raises(ValueError, match=r"compares scores by monitor and tolerance, not by stop=\w+Drops"):
        pruning(library, stop=rule)


@LIBRARY
def test_the_example_of_repeated_fits_on_the_page_runs(tmp_path, monkeypatch, library):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs/trainers.md").read_text()
    part = text.partition(f"## {library.title()}\n")[2].partition("\n## ")[0]
    names = {"__name__": "page"}
    for block in part.split("```py\n")[1:]:
        exec(block.partition("```")[0], names)
    limit = names["limit"]
    assert limit.retrainings == 2
    assert limit.dense_score.value > 0


@LIBRARY
def test_pruned_weights_that_something_else_changes_are_said_when_a_checkpoint_is_saved(library):
    made = pruning(library)
    made._begin(model := torch.nn.Linear(8, 8), None, 0)
    made.pruner.step()
    made._check()
    torch.nn.init.ones_(model.weight)
    call, given = getattr(made, "on_save_checkpoint", made._check), (None, model, {})
    if library == "transformers":
        arguments = of_transformers.TrainingArguments("none", report_to=[], use_cpu=True)
        call, given = made.on_save, (arguments, of_transformers.TrainerState())
    with pytest.warns(UserWarning, match=r"32 pruned weights \(weight\) are no longer zero"):
        call(*given)


def test_a_model_that_something_else_has_sharded_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(torch.nn.Linear(4, 2), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match=r"this training shards them; .* DDP, or .*FSDP2"):
            Cutting(steps=[1])._begin(model, None, 0)
    finally:
        dist.destroy_process_group()
