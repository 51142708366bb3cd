"""Pruning in the `Trainer` of Transformers: a callback that cuts at given steps or epochs and holds the masks."""

from __future__ import annotations

import base64
import io
import json
import math
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch

from palmette.errors import RunDamaged
from palmette.integrations.callbacks import Cutting

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("PalmetteCallback needs Transformers: pip install 'palmette[transformers]'") from error

_KEY = "palmette"  # in the trainer_state.json of a checkpoint


class PalmetteCallback(Cutting, TrainerCallback):  # type: ignore[misc]
    """Prunes the model of a `Trainer` at given steps or epochs; what is pruned stays exactly zero.

    Use it as ``Trainer(..., callbacks=[PalmetteCallback(epochs=[1, 2, 3])])``. It works with the optimizers of the
    Trainer, mixed precision, clipping and gradient accumulation. Masks and decisions are in `trainer_state.json`
    of every checkpoint, and ``trainer.train(resume_from_checkpoint=True)`` resumes exactly. Names and shapes of
    weights are unchanged: plain `from_pretrained` loads what `save_pretrained` writes. A cut is made at the end of
    its step, before the Trainer evaluates and saves.

    Args: as for `palmette.integrations.callbacks.Cutting`.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Set up the masks before the first step, from the checkpoint if one is resumed."""
        for name in ("fsdp", "deepspeed"):
            if getattr(args, name, None):
                raise ValueError(
                    f"PalmetteCallback holds masks of whole parameters, and this Trainer cuts them in pieces "
                    f"({name}={getattr(args, name)!r}); train with one process or DDP"
                )
        saved = state.stateful_callbacks.get(_KEY)
        if state.global_step == 0 and saved is not None:
            raise ValueError(
                "this Trainer has two PalmetteCallbacks, and a checkpoint keeps the masks of one: give all steps "
                "or epochs to the same callback"
            )
        if state.global_step > 0 and saved is None:
            warnings.warn(
                f"the checkpoint of step {state.global_step} was saved without PalmetteCallback: pruning begins "
                "now",
                stacklevel=2,
            )
        self._begin(kwargs["model"], None if saved is None else _decoded(saved), state.global_step)
        self._hold([kwargs["optimizer"]])
        state.stateful_callbacks[_KEY] = _encoded(self._state())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Cut if one is due; an epoch ends with its last step, before a checkpoint is saved."""
        self._cut(state, None if state.epoch is None or state.epoch % 1 else int(state.epoch))

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Cut if one is due and no step was known to be the last, as in a stream of data."""
        # The Trainer also calls this in the middle of an epoch, when `max_steps` are done.
        over = state.epoch is not None and not control.should_training_stop
        self._cut(state, math.ceil(state.epoch) if over else None)

    def _cut(self, state: TrainerState, epoch: int | None) -> None:
        if self._cut_if_due(state.global_step, epoch, tell=state.is_world_process_zero):
            state.stateful_callbacks[_KEY] = _encoded(self._state())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Restore the masks of the model if the Trainer has loaded an earlier one as the best."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            now = self.pruner.density
            file = Path(state.best_model_checkpoint) / "trainer_state.json"
            best = json.loads(file.read_text(encoding="utf-8"))["stateful_callbacks"].get(_KEY)
            if best is not None:
                self.pruner.load_state_dict(_decoded(best)["pruner"])
            if self.pruner.density > now:
                warnings.warn(
                    f"load_best_model_at_end has brought back {state.best_model_checkpoint}, from before the last "
                    f"cut: {self.pruner.density:.1%} of its weights remain, not {now:.1%}. To keep the last, "
                    "leave load_best_model_at_end out",
                    stacklevel=2,
                )
        self._end()


def _encoded(state: dict[str, Any]) -> str:
    """State as text, because the Trainer stores the state of callbacks as JSON."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(zlib.compress(buffer.getvalue(), level=1)).decode()


def _decoded(text: str) -> dict[str, Any]:
    try:
        content = zlib.decompress(base64.b64decode(text, validate=True))
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except (ValueError, TypeError, zlib.error, RuntimeError) as error:
        raise RunDamaged(
            f"the masks in trainer_state.json are damaged ({error}); resume from an older checkpoint"
        ) from error
