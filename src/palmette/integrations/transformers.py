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

from palmette.errors import RunDamaged, extra
from palmette.files import replaced
from palmette.integrations.callbacks import Cutting, sharded_by

with extra("transformers", "PalmetteCallback needs Transformers"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_KEY = "palmette"  # masks and decisions, in the trainer_state.json of a checkpoint
_PROGRESS = "palmette progress"  # plain values, which change in every step
_KEPT = "palmette.pt"  # file in a checkpoint: the network before the last cut


class PalmetteCallback(Cutting, TrainerCallback):  # type: ignore[misc]
    """Prune the model of a `Trainer` at given steps or epochs; pruned weights stay exactly zero.

    Use it as ``Trainer(..., callbacks=[PalmetteCallback(epochs=[1, 2, 3])])``. It works with the optimizers of the
    Trainer, mixed precision, clipping and gradient accumulation. Names and shapes of weights are unchanged: plain
    `from_pretrained` loads what `save_pretrained` writes. A cut is made after the Trainer has evaluated and saved.

    Masks and decisions are in `trainer_state.json` of every checkpoint, the network before the last cut is in its
    `palmette.pt`, and ``trainer.train(resume_from_checkpoint=True)`` resumes exactly.

    The monitored metric is by default ``args.metric_for_best_model``, or ``"eval_loss"``. Without evaluations the
    training loss judges: the Trainer also logs it at each cut, halfway between cuts and with each checkpoint. With
    ``load_best_model_at_end`` the best model is judged and not replaced.

    Args: as for `palmette.integrations.callbacks.Cutting`.
    """

    _logged_at = 0  # step of the last training loss

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Set up the masks before the first step, from the checkpoint if one is resumed."""
        for name in ("fsdp", "deepspeed"):
            if setting := getattr(args, name, None):
                raise sharded_by(f"{name}={setting!r}")
        saved = state.stateful_callbacks.get(_KEY)
        if state.global_step == 0 and saved is not None:
            raise ValueError(
                "this Trainer has two PalmetteCallbacks, and a checkpoint keeps the masks of one: give all steps "
                "or epochs to the same callback"
            )
        if state.global_step > 0 and saved is None:
            warnings.warn(
                f"the checkpoint of step {state.global_step} was saved without PalmetteCallback: pruning starts "
                "now",
                stacklevel=2,
            )
        best = args.metric_for_best_model
        self._judge.watch(best or "eval_loss", larger=bool(best and args.greater_is_better), prefix="eval_")
        progress = state.stateful_callbacks.get(_PROGRESS, {})
        self._begin(kwargs["model"], None if saved is None else {**_decoded(saved), **progress}, state.global_step)
        self._logged_at = state.global_step
        if saved is not None and (token := progress.get("kept")):
            self._kept = _kept_in(_folder(args, state), token)
        self._hold([kwargs["optimizer"]])
        self._save_in(state, masks=True)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Judge and cut if a cut is due."""
        if self._cut_if_due(verbose=state.is_world_process_zero):
            self._save_in(state, masks=True)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note a due cut; an epoch ends with its last step."""
        self._step_done(state, control, None if state.epoch is None or state.epoch % 1 else int(state.epoch))

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note a due cut if no step was known to be the last, as in a stream of data."""
        # The Trainer also calls this in the middle of an epoch, when `max_steps` are done.
        over = state.epoch is not None and not control.should_training_stop
        self._step_done(state, control, math.ceil(state.epoch) if over else None)

    def _step_done(self, state: TrainerState, control: TrainerControl, epoch: int | None) -> None:
        due, last = self._note_due(state.global_step, epoch), state.global_step >= state.max_steps
        # The Trainer does not save the sum of losses since it last logged: log with each checkpoint.
        if not self._judge.off and (due or last or control.should_save or self._halfway(state)):
            control.should_log = True
        self._save_in(state)

    def _halfway(self, state: TrainerState) -> bool:
        """Whether half of the steps between the last cut and the next are done, as far as that is known."""
        per_epoch = state.global_step / state.epoch if state.epoch else math.inf
        cuts = [*self._steps, *(round(epoch * per_epoch) for epoch in self._epochs if per_epoch < math.inf)]
        following = min((n for n in cuts if n > state.global_step), default=state.max_steps)
        return bool(state.global_step == (self._cut_at + following) // 2)

    def on_log(self, args: Any, state: TrainerState, *_: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        """Take the mean training loss since the last log."""
        if self._made is not None and "loss" in logs and state.global_step > self._logged_at:
            self._judge.trained(float(logs["loss"]), state.global_step - self._logged_at)
            self._logged_at = state.global_step
            self._save_in(state)

    def on_evaluate(self, args: Any, state: TrainerState, *_: Any, metrics: dict[str, Any], **kwargs: Any) -> None:
        """Take the metrics, unless no step has followed the last cut."""
        if self._made is not None and state.global_step > self._cut_at:
            self._judge.evaluated(metrics)
            self._save_in(state)

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Add the network before the last cut to the checkpoint, and look whether the masks hold."""
        self._check()
        folder = _folder(args, state)
        if self._kept is not None and args.should_save and folder.is_dir():
            with replaced(folder / _KEPT) as partial:
                torch.save(self._kept, partial)

    def _save_in(self, state: TrainerState, *, masks: bool = False) -> None:
        """Put the state where the Trainer saves it."""
        if masks:
            state.stateful_callbacks[_KEY] = _encoded({"pruner": self.pruner.state_dict()})
        kept = None if self._kept is None else self._kept["id"]
        state.stateful_callbacks[_PROGRESS] = {**self._progress(), "kept": kept}

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Judge the network; restore the masks of the best model if the Trainer has loaded it."""
        loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if loaded:
            self._use_masks_of(Path(state.best_model_checkpoint))
        if self._judge_at_end(verbose=state.is_world_process_zero, restore=not loaded):
            self._save_in(state, masks=True)
        self._end()

    def _use_masks_of(self, best: Path) -> None:
        now = self.pruner.density
        saved = json.loads((best / "trainer_state.json").read_text(encoding="utf-8"))
        if (masks := saved["stateful_callbacks"].get(_KEY)) is not None:
            self.pruner.load_state_dict(_decoded(masks)["pruner"])
        self._judge.restart()
        for metrics in saved["log_history"]:
            if self._judge.name in metrics:
                self._judge.evaluated(metrics)
        if self.pruner.density > now:
            warnings.warn(
                f"load_best_model_at_end has restored {best}, from before the last cut: "
                f"{self.pruner.density:.1%} of its weights remain, not {now:.1%}. To keep the last, leave "
                "load_best_model_at_end out",
                stacklevel=3,
            )


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Folder of the checkpoint of the current step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _kept_in(folder: Path, token: str) -> dict[str, Any] | None:
    """Network before the last cut, from the folder of a checkpoint."""
    file = folder / _KEPT
    kept = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
    if kept.get("id") == token:
        return dict(kept)
    warnings.warn(
        f"{file} is missing or belongs to another checkpoint: if the last cut turns out to be too large, the "
        "network before it cannot be restored. Resume from a checkpoint in output_dir",
        stacklevel=3,
    )
    return None


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
