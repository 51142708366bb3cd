"""Pruning in the `Trainer` of Lightning: a callback that cuts at given steps or epochs and holds the masks."""

from __future__ import annotations

from typing import Any

from torch.optim.swa_utils import AveragedModel

from palmette.integrations.callbacks import Cutting
from palmette.studies.trainers.randomness import random_state, set_random_state

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:
        raise ImportError("PalmetteCallback needs Lightning: pip install 'palmette[lightning]'") from error

_SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


class PalmetteCallback(Cutting, Callback):  # type: ignore[misc]
    """Prunes the module of a Lightning `Trainer` at given steps or epochs; what is pruned stays exactly zero.

    Use it as ``Trainer(..., callbacks=[PalmetteCallback(epochs=[1, 2, 3])])``. It works with the module's
    optimizers, manual optimization, mixed precision, clipping, gradient accumulation and averages of weights. The
    `state_dict` of the module is unchanged and loads without palmette. A cut is made at the end of its step,
    before the Trainer validates and saves.

    Masks and decisions are in every checkpoint, and ``trainer.fit(module, ckpt_path="last")`` resumes exactly.
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
            raise ValueError(
                f"PalmetteCallback holds masks of whole parameters, and {strategy} cuts them in pieces; train "
                "with one process or DDP"
            )
        self._begin(pl_module, self._saved, trainer.global_step)
        self._saved = None
        self._hold(trainer.optimizers)
        self._mask_averages(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Cut if one is due; an epoch ends with its last batch, before a checkpoint is saved."""
        epoch = trainer.current_epoch + 1 if trainer.is_last_batch else None
        if self._cut_if_due(trainer.global_step, epoch, tell=trainer.is_global_zero):
            self._mask_averages(trainer)

    def _mask_averages(self, trainer: Trainer) -> None:
        """Apply the masks to averages of the weights that other callbacks keep."""
        kept = [item for callback in trainer.callbacks for item in vars(callback).items()]
        for name, average in kept:
            if isinstance(average, AveragedModel):
                average = average.module
            elif name != "_average_model" or average is None:  # its name in StochasticWeightAveraging
                continue
            parameters = dict(average.named_parameters())
            if self.pruner.masks.keys() <= parameters.keys():  # an average of the whole module
                self.pruner.masks.apply_(parameters)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn about cuts that were not made."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {} if self._made is None else {**self._state(), "random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until training starts, when the weights are loaded."""
        self._saved = state_dict or None
