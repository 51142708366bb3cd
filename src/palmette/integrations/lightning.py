"""Pruning in the `Trainer` of Lightning: a callback that cuts at given steps or epochs and holds the masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from palmette.errors import extra
from palmette.integrations.callbacks import Cutting, sharded_by
from palmette.studies.trainers.randomness import random_state, set_random_state

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    with extra("lightning", "PalmetteCallback needs Lightning"):
        from pytorch_lightning import Callback, LightningModule, Trainer

_SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


class PalmetteCallback(Cutting, Callback):  # type: ignore[misc]
    """Prune the module of a Lightning `Trainer` at given steps or epochs; pruned weights stay exactly zero.

    Use it as ``Trainer(..., callbacks=[PalmetteCallback(epochs=[1, 2, 3])])``. It works with the module's
    optimizers, manual optimization, mixed precision, clipping, gradient accumulation and averages of weights. The
    `state_dict` of the module is unchanged and loads without palmette. A cut is made after the Trainer has
    validated and saved. The monitored metric is by default ``"val_loss"``, if validation logs it.

    Masks, decisions and the network before the last cut are in every checkpoint, and
    ``trainer.fit(module, ckpt_path="last")`` resumes exactly.
    Lightning's checkpoints lack the state of random number generators, which this callback adds for a training in
    one process: resumed from the end of an epoch, it has the same weights, bit for bit, as one that was never
    interrupted. In the middle of an epoch, Lightning restarts the data, unless the data loader has a state.

    Args: as for `palmette.integrations.callbacks.Cutting`.
    """

    _saved: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the random state of a checkpoint before the data loader draws from it."""
        if self._saved is not None and trainer.world_size == 1:  # a checkpoint has the state of one process
            set_random_state(self._saved["random"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set up the masks before the first step, from the checkpoint if one is resumed."""
        if (strategy := type(trainer.strategy).__name__) in _SHARDED:
            raise sharded_by(strategy)
        self._judge.watch("val_loss", larger=False)
        self._begin(pl_module, self._saved, trainer.global_step)
        if self._saved is not None:
            self._kept = self._saved.get("kept")
        self._saved = None
        self._hold(trainer.optimizers)
        self._change_averages(trainer, restart=False)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Judge and cut if a cut is due."""
        if self._cut_if_due(verbose=trainer.is_global_zero, agree=_mean_over_processes(trainer)):
            self._change_averages(trainer, restart=self._ended != "")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Note the loss and a due cut; an epoch ends with its last batch."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not self._judge.off and isinstance(loss, Tensor) and loss.numel() == 1:
            # Lightning divides the loss by the number of batches in a step.
            self._judge.trained(loss.detach().float().reshape(()) * trainer.accumulate_grad_batches)
        self._note_due(trainer.global_step, trainer.current_epoch + 1 if trainer.is_last_batch else None)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the metrics, unless no step has followed the last cut."""
        if self._made is not None and trainer.state.fn == "fit" and trainer.global_step > self._cut_at:
            self._judge.evaluated(trainer.callback_metrics)

    def _change_averages(self, trainer: Trainer, *, restart: bool) -> None:
        """Apply the masks to averages of the weights that other callbacks keep, or set them to the weights."""
        kept = [item for callback in trainer.callbacks for item in vars(callback).items()]
        for name, average in kept:
            if isinstance(average, AveragedModel):
                average = average.module
            elif name != "_average_model" or average is None:  # its name in StochasticWeightAveraging
                continue
            parameters = dict(average.named_parameters())
            if self.pruner.masks.keys() <= parameters.keys():  # an average of the whole module
                if restart:
                    for at, value in self.pruner.model.named_parameters():
                        parameters[at].data.copy_(value.detach())
                self.pruner.masks.apply_(parameters)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the network, and warn about cuts that were not made."""
        if self._judge_at_end(verbose=trainer.is_global_zero, agree=_mean_over_processes(trainer)):
            self._change_averages(trainer, restart=True)
        self._end()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set up the masks of a finished training, which Lightning resumes without a step."""
        if self._saved is not None:
            self._begin(pl_module, self._saved, trainer.global_step)
            self._kept, self._saved = self._saved.get("kept"), None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Look whether the masks hold."""
        if self._made is not None:
            self._check()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {} if self._made is None else {**self._state(), "kept": self._kept, "random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until training starts, when the weights are loaded."""
        self._saved = state_dict or None


def _mean_over_processes(trainer: Trainer) -> Callable[[float], float]:
    """Mean of a score over the processes of `trainer`, so that all of them decide alike."""
    if trainer.world_size == 1:
        return float
    device = trainer.strategy.root_device
    return lambda score: float(trainer.strategy.reduce(torch.tensor(score, device=device), reduce_op="mean"))
