"""PalmetteCallback in the Trainer of Transformers: a small GPT-2 from scratch, on the text of our own pages."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from killing import die, killed_in
from own_digits import assert_zero, one_thread, states_are_equal  # noqa: F401

import palmette as pm
from palmette.errors import MaskMismatch, RunDamaged

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from palmette.integrations.transformers import PalmetteCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
TEXT = torch.tensor(list((Path(__file__).parents[2] / "README.md").read_bytes()[:2048])).reshape(64, 32)
DATA = [{"input_ids": row, "labels": row} for row in TEXT]
HALF = pm.FixedRatio(0.5)


def gpt2(layers=1, width=16):
    """Letters in, letters out; dropout is on, so that random numbers count."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=32, n_embd=width, n_layer=layers, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


class Watches(TrainerCallback):
    """Looks at the pruned weights after every step, and dies when told."""

    def __init__(self, callback, dies_at=None):
        self.callback, self.dies_at, self.densities = callback, dies_at, []

    def on_optimizer_step(self, args, state, control, **kwargs):
        assert_zero(self.callback.pruner)

    def on_step_end(self, args, state, control, **kwargs):
        assert_zero(self.callback.pruner)
        self.densities.append(self.callback.pruner.density)
        if state.global_step == self.dies_at:
            die()


def trainer(folder, callback, *, model=None, dies_at=None, optimizers=(None, None), **options):
    """Eight steps an epoch, each over two batches of four."""
    options = {
        "num_train_epochs": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "use_cpu": True,
        "learning_rate": 1e-2, "weight_decay": 0.1, "save_steps": 4, "logging_steps": 8, "report_to": [],
        "disable_tqdm": True,
    } | options  # fmt: skip
    watch = Watches(callback, dies_at)
    made = Trainer(
        model or gpt2(),
        TrainingArguments(str(folder), **options),
        train_dataset=DATA,
        eval_dataset=DATA[:8],
        callbacks=[callback, watch],
        optimizers=optimizers,
    )
    return made, watch


SLOW = pytest.mark.slow
OPTIMIZERS = [("adamw_torch", True), ("sgd", False), pytest.param("adafactor", True, marks=SLOW)]


@pytest.mark.parametrize(("optim", "bf16"), OPTIMIZERS)
def test_pruned_weights_are_zero_after_every_step(tmp_path, optim, bf16):
    callback = PalmetteCallback(steps=[2, 4], tolerance=math.inf, budget=HALF, say=None)
    made, watch = trainer(tmp_path, callback, optim=optim, bf16=bf16, max_steps=6, save_strategy="no")
    made.train()
    assert watch.densities == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_training_goes_on_and_the_trained_model_loads_without_palmette(tmp_path, capsys):
    callback = PalmetteCallback(epochs=[1], budget=HALF, scope="neuron")
    made, watch = trainer(tmp_path, callback, num_train_epochs=4, save_strategy="no")
    made.train()
    assert watch.densities == [1.0] * 8 + [0.5] * 24
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert losses[-1] < losses[2] < losses[0]
    assert "palmette: after epoch 1 the cut takes 50.0% of what was kept" in capsys.readouterr().out

    made.model.save_pretrained(tmp_path / "small")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "small")
    assert states_are_equal(loaded, made.model)
    zeros = {n: int((p == 0).sum()) for n, p in loaded.named_parameters() if n in callback.pruner.masks}
    assert zeros == {n: m.numel() // 2 for n, m in callback.pruner.masks.items()}


def test_the_neurons_of_conv1d_are_its_columns_and_tied_embeddings_are_left_alone(tmp_path):
    callback = PalmetteCallback(steps=[1], budget=HALF, scope="neuron", say=None)
    made, _ = trainer(tmp_path, callback, max_steps=2, save_strategy="no")
    made.train()
    masks = callback.pruner.masks
    assert len(masks) == 4
    for name, mask in masks.items():
        assert ".c_" in name
        assert (mask.sum(0) == mask.shape[0] // 2).all()  # every output lost half of its inputs
        assert not (mask.sum(1) == mask.shape[1] // 2).all()  # an input has no such count
    model = made.model
    assert model.lm_head.weight is model.transformer.wte.weight
    assert int((model.lm_head.weight == 0).sum()) == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    made, _ = trainer(tmp_path_factory.mktemp("whole"), callback())
    made.train()
    return made


def callback():
    return PalmetteCallback(steps=[3, 6, 11], tolerance=5.0, budget=HALF, say=None)


# After a cut that is saved, or not yet; in both epochs.
@pytest.mark.parametrize("dies_at", [10, pytest.param(5, marks=SLOW), pytest.param(15, marks=SLOW)])
def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path, whole, dies_at):
    assert killed_in(lambda: trainer(tmp_path, callback(), dies_at=dies_at)[0].train())
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*"))[-1] != "checkpoint-16"
    resumed = callback()
    torch.manual_seed(9)
    made, watch = trainer(tmp_path, resumed, model=gpt2())
    made.train(resume_from_checkpoint=True)
    assert len(watch.densities) == 16 - dies_at // 4 * 4
    assert watch.densities[-1] == 0.125
    assert states_are_equal(made.model, whole.model)
    assert [d.cut for d in resumed.pruner.decisions] == [1536, 768, 384]


def test_a_cut_due_at_a_checkpoint_is_made_after_it_and_when_it_is_resumed(tmp_path):
    of_epochs = PalmetteCallback(epochs=[1], budget=HALF, say=None)
    made, watch = trainer(tmp_path, of_epochs, max_steps=9, save_steps=8)
    made.train()
    assert watch.densities == [1.0] * 8 + [0.5]
    saved = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-8")
    assert not any((weight.tensor == 0).any() for weight in pm.prunable(saved).values())
    again, watch = trainer(
        tmp_path, PalmetteCallback(epochs=[1], budget=HALF, say=None), max_steps=9, save_steps=8
    )
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert watch.densities == [0.5]
    assert states_are_equal(again.model, made.model)


class Stream(torch.utils.data.IterableDataset):
    """Two steps an epoch; nobody knows that before it ends."""

    def __iter__(self):
        return iter(DATA[:16])


def test_epochs_of_a_stream_end_where_its_data_do(tmp_path):
    callback = PalmetteCallback(epochs=[1, 2, 3], tolerance=5.0, budget=HALF, say=None)
    made, watch = trainer(tmp_path, callback, max_steps=5, save_strategy="epoch")
    made.train_dataset = Stream()
    with pytest.warns(UserWarning, match="without the cuts after epoch 3: it ended before them"):
        made.train()
    assert watch.densities == [1.0, 1.0, 0.5, 0.5, 0.25]
    saved = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-4")
    zeros = sum(int((weight.tensor == 0).sum()) for weight in pm.prunable(saved).values())
    assert zeros == callback.pruner.masks.total // 2


@SLOW
def test_training_once_more_keeps_the_masks(tmp_path):
    first = PalmetteCallback(steps=[1], budget=HALF, say=None)
    made, _ = trainer(tmp_path, first, max_steps=2, save_strategy="no")
    made.train()
    pruner = first.pruner
    made.train()
    assert first.pruner is pruner
    assert_zero(pruner)
    assert pruner.density == 0.5  # step 1 has been cut


def test_masks_of_before_are_held_from_the_first_step(tmp_path):
    model = gpt2()
    masks, _ = pm.prune(pm.prunable(model), scope="layer", budget=HALF)
    held = PalmetteCallback(steps=[1], budget=HALF, masks=masks, say=None)
    made, watch = trainer(tmp_path, held, model=model, max_steps=3, save_strategy="no")
    made.train()
    assert watch.densities == [0.5, 0.25, 0.25]


def test_a_rule_ends_the_cuts_and_not_the_training(tmp_path):
    lines = []
    stops = PalmetteCallback(
        steps=range(1, 9), tolerance=math.inf, budget=HALF, stop=pm.AtDensity(0.3), say=lines.append
    )
    made, watch = trainer(tmp_path, stops, max_steps=8, save_strategy="no")
    made.train()
    assert watch.densities == [1.0, 0.5] + [0.25] * 6
    assert lines[-1] == "palmette: no more cuts, because density 0.2500 has reached 0.3"


def test_the_best_model_is_brought_back_with_its_own_masks(tmp_path):
    best = PalmetteCallback(steps=[2, 6], tolerance=math.inf, budget=pm.FixedRatio(0.9), say=None)
    options = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True, "max_steps": 8}
    # The largest loss is called the best, and so it is the earlier one.
    made, _ = trainer(tmp_path, best, metric_for_best_model="eval_loss", greater_is_better=True, **options)
    with pytest.warns(UserWarning, match="from before the last cut: 10.0% of its weights remain, not 1.0%"):
        made.train()
    assert best.pruner.density == pytest.approx(0.1, abs=1e-3)
    assert_zero(best.pruner)


# What goes wrong


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two-steps")
    trainer(folder, PalmetteCallback(steps=[1], budget=HALF, say=None), max_steps=2, save_steps=2)[0].train()
    return folder


@pytest.fixture
def saved(two_steps, tmp_path):
    """A copy, whose state may be changed."""
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    return tmp_path / "checkpoint-2" / "trainer_state.json"


def test_a_checkpoint_of_other_weights_is_refused(tmp_path, saved):
    other = PalmetteCallback(steps=[1], exclude=["*.c_proj.weight"], say=None)
    made, _ = trainer(tmp_path, other, max_steps=4)
    with pytest.raises(
        MaskMismatch, match=r"step 2 cannot be resumed: .* not in this model: .*Resume with the model, inc"
    ):
        made.train(resume_from_checkpoint=True)


def test_a_damaged_checkpoint_is_named(tmp_path, saved):
    state = json.loads(saved.read_text())
    text = state["stateful_callbacks"]["palmette"]
    for damaged in (text[:-40], 7):
        state["stateful_callbacks"]["palmette"] = damaged
        saved.write_text(json.dumps(state))
        made, _ = trainer(tmp_path, callback(), max_steps=4)
        with pytest.raises(RunDamaged, match=r"masks in trainer_state.json are damaged .*older checkpoint"):
            made.train(resume_from_checkpoint=True)


def test_a_second_callback_is_refused(tmp_path):
    made, _ = trainer(tmp_path, callback())
    made.add_callback(PalmetteCallback(steps=[3], include=["*.c_fc.weight"], say=None))
    with pytest.raises(ValueError, match=r"two PalmetteCallbacks.*give all steps or epochs to the same callback"):
        made.train()


def test_a_checkpoint_without_masks_is_gone_on_from_and_said(tmp_path, saved):
    state = json.loads(saved.read_text())
    del state["stateful_callbacks"]["palmette"]
    saved.write_text(json.dumps(state))
    late = PalmetteCallback(steps=[3], tolerance=math.inf, budget=HALF, say=None)
    made, watch = trainer(tmp_path, late, max_steps=4)
    with (
        pytest.warns(UserWarning, match="step 2 was saved without PalmetteCallback: pruning starts now"),
        pytest.warns(UserWarning, match="zeros .* count as pruned before and stay"),
    ):
        made.train(resume_from_checkpoint=True)
    assert watch.densities == [0.5, 0.25]


def test_cuts_that_were_not_reached_are_said(tmp_path):
    made, _ = trainer(tmp_path, PalmetteCallback(steps=[1, 50, 90], say=None), max_steps=2, save_strategy="no")
    with pytest.warns(UserWarning, match="without the cuts after step 50, step 90: it ended before"):
        made.train()


def test_an_optimizer_of_another_model_is_said(tmp_path):
    other = torch.optim.SGD(gpt2().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(other)
    made, _ = trainer(tmp_path, PalmetteCallback(steps=[1], say=None), optimizers=(other, schedule), max_steps=2)
    with pytest.warns(UserWarning, match="no optimizer updates a weight that is pruned"):
        made.train()


def test_weights_in_pieces_are_refused(tmp_path):
    made, _ = trainer(tmp_path, callback())
    made.args.fsdp = ["full_shard"]
    with pytest.raises(
        ValueError,
        match=r"fsdp=\['full_shard'\] shards them; train with one process or DDP, or .*FSDP2",
    ):
        made.train()


WRONG = {
    "neither": ({}, ValueError, r"say either after which steps .* or after which epochs"),
    "both": ({"steps": [1], "epochs": [1]}, ValueError, r"got steps=\[1\], epochs=\[1\]"),
    "text": ({"steps": "100"}, TypeError, r"steps must be whole numbers such as \[1, 2, 3\], got '100'"),
    "zero": ({"epochs": [0, 1]}, ValueError, r"epochs must be whole numbers of at least 1"),
    "nested": ({"steps": [[1, 2]]}, ValueError, r"steps must be whole numbers of at least 1, .* got \[\[1, 2\]\]"),
    "half": ({"epochs": [0.5]}, ValueError, r"epochs must be whole numbers of at least 1"),
    "none": ({"steps": []}, ValueError, r"steps must be whole numbers of at least 1"),
    "scope": ({"steps": [1], "scope": "heads"}, ValueError, r"scope must be one of"),
    "budget": ({"steps": [1], "budget": 0.5}, TypeError, r"budget must be a Budget such as"),
    "include": ({"steps": [1], "include": "*.weight"}, TypeError, r"include must be a list of patterns"),
    "stop": ({"steps": [1], "stop": 0.1}, TypeError, r"stop must be a rule such as"),
    "say": (
        {"steps": [1], "say": True},
        TypeError,
        r"say must be a function that takes a line, or None .* True",
    ),
    "masks": (
        {"steps": [1], "masks": "a.safetensors"},
        TypeError,
        r"masks must be boolean tensors by name, got str",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_refused_before_training(name):
    options, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        PalmetteCallback(**options)


def test_there_is_no_pruner_before_training():
    with pytest.raises(RuntimeError, match="no Pruner before training has begun"):
        callback().pruner  # noqa: B018


def test_the_example_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs/trainers.md").read_text()
    example = text.partition("## Transformers\n")[2].partition("```py\n")[2].partition("```")[0]
    names = {}
    exec(example, names)
    assert len(names["callback"].pruner.decisions) == 2
    assert states_are_equal(names["model"], names["trainer"].model)
