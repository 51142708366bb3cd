"""One training on real digits by the trainers of Transformers and Lightning, with scripted scores."""

import copy
from types import SimpleNamespace

import pytest
import torch
from killing import die
from own_digits import HELD_OUT, X, Y, assert_zero, network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

EPOCHS, STEPS = 5, 6  # steps of an epoch
OPTIMIZER = {"lr": 0.01, "weight_decay": 0.1}


class Net(nn.Module):
    """Model for the Trainer of Transformers."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, images, labels):
        logits = self.net(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Module(L.LightningModule):
    """The same for Lightning."""

    def __init__(self, scores):
        super().__init__()
        self.net, self.scores = network(), scores

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, number):
        for name, values in self.scores.items():
            self.log(name, values[self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), **OPTIMIZER)


class Seen:
    """States and densities at the start of each epoch, before and after the callback."""

    def __init__(self, callback, dies_at=None):
        self.callback, self.before, self.after, self.densities = callback, {}, {}, {}
        self.dies_at = dies_at  # a step

    def look(self, step, model, states):
        if step == self.dies_at:
            die()
        assert_zero(self.callback.pruner)
        if step % STEPS == 0:
            states[step // STEPS] = copy.deepcopy(model.state_dict())
            self.densities[step // STEPS] = self.callback.pruner.density


def watchers(library, seen):
    def first(model, step):
        seen.look(step, model, seen.before)

    def then(model, step):
        seen.look(step, model, seen.after)

    def watcher(look):
        if library == "lightning":
            made = L.Callback()
            made.on_train_batch_start = lambda trainer, module, *_: look(module, trainer.global_step)
        else:
            made = transformers.TrainerCallback()
            made.on_step_begin = lambda args, state, control, model, **_: look(model, state.global_step)
        return made

    return watcher(first), watcher(then)


def fit(library, folder, callback, scores=None, *, resume=False, dies_at=None, epochs=EPOCHS, **options):
    """Train on 600 digits; `scores` are scripted: name -> value by epoch."""
    seen = Seen(callback, dies_at)
    before, after = watchers(library, seen)
    run = fit_with_lightning if library == "lightning" else fit_with_transformers
    model = run(folder, [before, callback, after], scores or {}, resume, epochs, options)
    return SimpleNamespace(model=model, seen=seen, pruner=callback.pruner)


def fit_with_transformers(folder, callbacks, scores, resume, epochs, options):
    def metrics(_):
        return {name: values[round(trainer.state.epoch) - 1] for name, values in scores.items()}

    arguments = transformers.TrainingArguments(
        str(folder), num_train_epochs=epochs, per_device_train_batch_size=100, use_cpu=True, report_to=[],
        disable_tqdm=True, learning_rate=OPTIMIZER["lr"], weight_decay=OPTIMIZER["weight_decay"],
        lr_scheduler_type="constant", save_strategy="epoch", eval_strategy="epoch" if scores else "no", **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Net(), arguments, callbacks=callbacks, compute_metrics=metrics if scores else None,
        train_dataset=[{"images": x, "labels": y} for x, y in zip(X[:600], Y[:600], strict=True)],
        eval_dataset=[{"images": x, "labels": y} for x, y in zip(*(part[:4] for part in HELD_OUT), strict=True)],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model


def fit_with_lightning(folder, callbacks, scores, resume, epochs, options):
    saves = L.callbacks.ModelCheckpoint(folder, save_last=True)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[*callbacks, saves], default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
    module = Module(scores)
    data = DataLoader(TensorDataset(X[:600], Y[:600]), 100, shuffle=True)
    held_out = DataLoader(TensorDataset(*HELD_OUT), 1000) if scores else None
    trainer.fit(module, data, held_out, ckpt_path=str(folder / "last.ckpt") if resume else None)
    return module
