"""PalmetteCallback in the Trainer of Lightning: a small network on real digits, killed and resumed."""

import logging
import math
from pathlib import Path

import pytest
import torch
from killing import die, killed_in
from own_digits import HELD_OUT, X, Y, assert_zero, network, one_thread, states_are_equal  # noqa: F401
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import palmette as pm
from palmette.errors import MaskMismatch, ParameterGone

# On their own imports, and on parts of torch, both libraries warn.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error:training ended without")]
L = pytest.importorskip("lightning.pytorch")
from palmette.integrations.lightning import PalmetteCallback  # noqa: E402

HALF = pm.FixedRatio(0.5)
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Digits(L.LightningModule):
    """As people write it; dropout and the order of the data draw random numbers."""

    def __init__(self, optimizer="adamw", dies_at=None, net=None):
        super().__init__()
        self.net, self.kind, self.dies_at = net or network(), optimizer, dies_at
        self.accuracies = []

    def training_step(self, batch, number):
        if self.global_step == self.dies_at:
            die()
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        if self.automatic_optimization:
            return loss
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
        return None

    def validation_step(self, batch, number):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        if self.kind == "two":
            self.automatic_optimization = False
            first, *rest = self.net.children()
            others = [p for module in rest for p in module.parameters()]
            return [torch.optim.AdamW(first.parameters(), lr=0.01), torch.optim.SGD(others, lr=0.1, momentum=0.9)]
        if self.kind == "sgd":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)]
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.5)


class Watches(L.Callback):
    """Looks at the pruned weights before and after every batch."""

    def __init__(self, callback):
        self.callback, self.densities = callback, []

    def on_train_batch_start(self, trainer, module, *_):
        assert_zero(self.callback.pruner)

    def on_train_batch_end(self, trainer, module, *_):
        assert_zero(self.callback.pruner)
        self.densities.append(self.callback.pruner.density)


def fit(folder, callback, module=None, *, validate=True, resume=None, seed=3, **options):
    """Six batches an epoch."""
    watch = Watches(callback)
    saves = L.callbacks.ModelCheckpoint(folder, save_last=True)
    trainer = L.Trainer(
        **{"max_epochs": 3} | options,
        accelerator="cpu",
        callbacks=[saves, callback, watch],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    data = DataLoader(TensorDataset(X[:600], Y[:600]), 100, shuffle=True)
    held_out = DataLoader(TensorDataset(*HELD_OUT), 150) if validate else None
    module = module or Digits()
    torch.manual_seed(seed)  # of the order of the data
    trainer.fit(module, data, held_out, ckpt_path=resume)
    return module, watch


SETTINGS = {
    "adamw, clipped": ("adamw", {"gradient_clip_val": 1.0}),
    "sgd, accumulated, bfloat16": ("sgd", {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}),
    "two by hand": ("two", {}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_pruned_weights_are_zero_after_every_step(tmp_path, name):
    optimizer, options = SETTINGS[name]
    callback = PalmetteCallback(epochs=[1, 2], tolerance=math.inf, budget=HALF, say=None)
    _, watch = fit(tmp_path, callback, Digits(optimizer), **options)
    assert watch.densities == [1.0] * 6 + [0.5] * 6 + [0.25] * 6


def test_cuts_at_steps_count_those_of_the_optimizer_and_are_told(tmp_path, capsys):
    callback = PalmetteCallback(steps=[2], budget=HALF)
    _, watch = fit(tmp_path, callback, max_epochs=1, accumulate_grad_batches=2, validate=False)
    assert watch.densities == [1.0] * 4 + [0.5] * 2
    assert "palmette: after step 2 the cut takes 50.0% of what was kept, 50.0% of the" in capsys.readouterr().out


def callback():
    return PalmetteCallback(steps=[4, 8, 13], tolerance=5.0, budget=HALF, say=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("whole"), callback())[0]


@pytest.mark.parametrize("dies_at", [7, 16])  # in the middle of epochs 2 and 3; a cut is lost, and made again
def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path, whole, dies_at):
    assert killed_in(lambda: fit(tmp_path, callback(), Digits(dies_at=dies_at)))
    resumed = callback()
    module, watch = fit(tmp_path, resumed, seed=8, resume=str(tmp_path / "last.ckpt"))
    assert len(watch.densities) == 18 - dies_at // 6 * 6
    assert resumed.pruner.density == 0.125
    assert [d.cut for d in resumed.pruner.decisions] == [1184, 592, 296]
    assert states_are_equal(module, whole)


def test_a_checkpoint_holds_a_plain_state_dict_and_one_bit_per_weight(tmp_path):
    module, _ = fit(tmp_path, PalmetteCallback(steps=[4], tolerance=math.inf, budget=HALF, say=None), max_epochs=1)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    plain = Digits()
    plain.load_state_dict(checkpoint["state_dict"])
    assert states_are_equal(plain, module)
    assert int((plain.net[0].weight == 0).sum() + (plain.net[4].weight == 0).sum()) == 1184
    bits = checkpoint["callbacks"]["PalmetteCallback"]["pruner"]["masks"]["bits"]
    assert bits["net.0.weight"].numel() == 64 * 32 // 8


def test_a_cut_is_made_after_validation_and_what_is_validated_is_saved(tmp_path):
    seen = []

    class Validates(Digits):
        def on_validation_start(self):
            seen.append(int((self.net[0].weight == 0).sum()))

    cuts = PalmetteCallback(epochs=[1, 2], tolerance=math.inf, budget=HALF, scope="layer", say=None)
    fit(tmp_path, cuts, Validates())
    assert seen == [0, 1024, 1536]
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert int((saved["net.0.weight"] == 0).sum()) == 1536


def test_the_older_package_of_lightning_will_do_too(tmp_path):
    old = pytest.importorskip("pytorch_lightning")

    class Old(old.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), weight_decay=0.5)

    for name in ("pytorch_lightning", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    callback = PalmetteCallback(steps=[2], budget=HALF, say=None)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = old.Trainer(max_steps=3, callbacks=[callback], default_root_dir=tmp_path, **quiet)
    trainer.fit(Old(), DataLoader(TensorDataset(X, Y), 100))
    assert callback.pruner.density == 0.5
    assert_zero(callback.pruner)


# What goes wrong


def test_a_checkpoint_of_other_weights_is_refused(tmp_path):
    fit(tmp_path, PalmetteCallback(steps=[4], budget=HALF, say=None), max_epochs=1)
    other = PalmetteCallback(epochs=[1], exclude=["net.4.*"], say=None)
    with pytest.raises(
        MaskMismatch, match=r"step 6 cannot be resumed: .*not in this model: net.4.weight. Resume with the"
    ):
        fit(tmp_path, other, resume=str(tmp_path / "last.ckpt"))


def test_a_checkpoint_without_masks_is_gone_on_from(tmp_path):
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Digits(), DataLoader(TensorDataset(X[:600], Y[:600]), 100))
    trainer.save_checkpoint(tmp_path / "dense.ckpt")
    late = PalmetteCallback(steps=[11], tolerance=math.inf, budget=HALF, say=None)
    _, watch = fit(tmp_path, late, max_epochs=2, resume=str(tmp_path / "dense.ckpt"))
    assert watch.densities == [1.0] * 5 + [0.5]


def test_a_finished_run_that_is_resumed_has_its_pruner(tmp_path):
    whole = callback()
    fit(tmp_path, whole)
    again = callback()
    module, _ = fit(tmp_path, again, resume=str(tmp_path / "last.ckpt"))
    assert again.pruner.model is module
    assert again.pruner.masks == whole.pruner.masks
    assert str(again.pruner.decisions) == str(whole.pruner.decisions)
    again.pruner.check()


def test_a_step_of_one_of_two_optimizers_is_counted_and_not_passed_over(tmp_path):
    _, watch = fit(tmp_path, PalmetteCallback(steps=[3], budget=HALF, say=None), Digits("two"), max_epochs=1)
    assert watch.densities == [1.0] * 2 + [0.5] * 4


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["EMAWeightAveraging", "StochasticWeightAveraging"])
def test_averages_of_the_weights_have_the_same_zeros(tmp_path, name, first):
    pruning = PalmetteCallback(epochs=[1, 2], tolerance=math.inf, budget=HALF, say=None)
    average = (
        L.callbacks.EMAWeightAveraging() if name[0] == "E" else L.callbacks.StochasticWeightAveraging(0.01, 1)
    )
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [average, pruning] if first else [pruning, average]
    trainer = L.Trainer(max_epochs=4, default_root_dir=tmp_path, callbacks=callbacks, **options)
    trainer.fit(Digits(), DataLoader(TensorDataset(X[:600], Y[:600]), 100))
    assert pruning.pruner.density == 0.25
    assert_zero(pruning.pruner)


def test_a_layer_that_is_replaced_while_it_is_trained_is_named(tmp_path):
    class Replaces(Digits):
        def on_train_batch_start(self, batch, number):
            if self.global_step == 3:
                self.net[0] = nn.Linear(64, 32)

    with pytest.raises(ParameterGone, match=r"'net.0.weight' was replaced by another parameter"):
        fit(tmp_path, PalmetteCallback(steps=[4], say=None), Replaces())


def test_cuts_that_were_not_reached_are_said(tmp_path):
    with pytest.warns(UserWarning, match="without the cuts after epoch 1, epoch 5: it ended before them"):
        fit(tmp_path, PalmetteCallback(epochs=[1, 5], say=None), max_epochs=1)


def test_weights_that_nobody_trains_are_said(tmp_path):
    class Frozen(Digits):
        def configure_optimizers(self):
            return torch.optim.SGD(self.net[1].parameters(), lr=0.1)

    with pytest.warns(UserWarning, match="no optimizer updates a weight that is pruned: all of them are frozen"):
        fit(tmp_path, PalmetteCallback(steps=[4], say=None), Frozen(), max_epochs=1)


def test_weights_in_pieces_are_refused():
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer._accelerator_connector.strategy = L.strategies.FSDPStrategy()
    with pytest.raises(ValueError, match=r"FSDPStrategy shards them; train with .* DDP, or .*FSDP2"):
        callback().on_train_start(trainer, Digits())


def test_the_example_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs/trainers.md").read_text()
    example = text.partition("## Lightning\n")[2].partition("```py\n")[2].partition("```")[0]
    names = {"__name__": "page"}
    exec(example, names)
    assert len(names["callback"].pruner.decisions) == 2
    assert_zero(names["callback"].pruner)
