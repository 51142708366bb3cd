"""Pruning in the `Trainer` of Lightning: a callback that cuts at given steps or epochs and holds the masks."""

from __future__ import annotations

from typing import Any

from torch.optim.swa_utils import AveragedModel

from palmette.integrations.callbacks import Cutting
from palmette.studies.randomness import random_state, set_random_state

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

    ``Trainer(..., callbacks=[PalmetteCallback(epochs=[1, 2, 3])])`` is all. It works with the module's optimizers,
    manual optimization, mixed precision, clipping, gradient accumulation and averages of weights. Masks and
    decisions are in every checkpoint, so that ``trainer.fit(module, ckpt_path="last")`` goes on exactly. The
    `state_dict` of the module stays its own, and loads without palmette. Lightning keeps no random numbers in its
    checkpoints: in a training by one process, the state of their generators is kept here too, so that one that is
    resumed from the end of an epoch has the same weights, bit for bit, as one that was never interrupted. In the
    middle of an epoch Lightning itself begins the data anew, unless the data loader has a state of its own.

    A cut is made when the step that it comes after is over, before the Trainer validates and saves.

    Args: as for `palmette.integrations.callbacks.Cutting`.
    """

    _saved: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The random numbers are those of the checkpoint, before the data loader draws the first of them."""
        if self._saved is not None and trainer.world_size == 1:  # a checkpoint has those of one process
            set_random_state(self._saved["random"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Masks are there before the first step, those of the checkpoint if one is resumed."""
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
        """Cut if it is time. The end of an epoch is that of its last batch, which a checkpoint may come after."""
        epoch = trainer.current_epoch + 1 if trainer.is_last_batch else None
        if self._cut_if_due(trainer.global_step, epoch, tell=trainer.is_global_zero):
            self._mask_averages(trainer)

    def _mask_averages(self, trainer: Trainer) -> None:
        """Averages of the weights, which other callbacks keep and put in their place, have the same zeros."""
        kept = [item for callback in trainer.callbacks for item in vars(callback).items()]
        for name, average in kept:
            if isinstance(average, AveragedModel):
                average = average.module
            elif name != "_average_model" or average is None:  # as StochasticWeightAveraging calls its own
                continue
            parameters = dict(average.named_parameters())
            if self.pruner.masks.keys() <= parameters.keys():  # it is of the whole module
                self.pruner.masks.apply_(parameters)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what was not cut."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {} if self._made is None else {**self._state(), "random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint kept; it is taken up when training starts, and the weights are there."""
        self._saved = state_dict or None
