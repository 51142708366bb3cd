"""Training of a network, as a value. The paper's Table 3 is `Recipe()`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from palmette.measures.parameters import setting
from palmette.words import did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import nn

OptimizerName = Literal["sgd", "adam", "adamw"]
Schedule = Literal["cosine", "step", "constant"]
Precision = Literal["float32", "tf32", "bfloat16"]
ClipOver = Literal["kept", "all"]
TRAINING = "How it is trained"
"""The heading of these settings in the help."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    r"""Optimizer, schedule, epochs, batch, clipping and precision. The defaults are the paper's.

    Args:
        epochs: :math:`E`, of a round.
        batch: images per step; the last batch of an epoch may be smaller.
        optimizer: "sgd", "adam" or "adamw"; momentum and Nesterov belong to "sgd".
        learning_rate, momentum, nesterov, weight_decay: of the optimizer.
        schedule: "cosine" (to 0 at the end), "step" (a tenth after half and again after three quarters of the
            epochs) or "constant"; the learning rate changes from epoch to epoch, not within one.
        warm_up: epochs over which the learning rate rises linearly to what the schedule says.
        clip: largest norm of the gradient, or None.
        clip_over: weights whose gradients count in that norm: "kept", or "all", as in the authors' code, where
            gradients are masked after they are clipped, so that a sparse network takes smaller steps.
        label_smoothing: of the cross entropy.
        precision: "float32"; "tf32" for matrix products on GPUs that have it; "bfloat16" for autocast, with
            weights, their updates and the loss in float32.
        compile: whether the model is compiled, which pays from minutes of training on.

    >>> Recipe().learning_rate_at(0), Recipe().learning_rate_at(100)
    (0.1, 0.05)

    Diao et al. 2023, Table 3; clipping as in the authors' code.
    """

    epochs: int = setting(200, "Epochs per round.", TRAINING)
    batch: int = setting(250, "Images per step.", TRAINING)
    optimizer: OptimizerName = setting("sgd", "sgd, adam or adamw.", TRAINING)
    learning_rate: float = setting(0.1, "Learning rate of the first epoch.", TRAINING)
    momentum: float = setting(0.9, "Momentum of sgd.", TRAINING)
    nesterov: bool = setting(True, "Use Nesterov momentum, with sgd.", TRAINING)
    weight_decay: float = setting(5e-4, "Weight decay of the optimizer.", TRAINING)
    schedule: Schedule = setting(
        "cosine", "cosine, step (a tenth after 1/2 and 3/4 of the epochs) or constant.", TRAINING
    )
    warm_up: int = setting(0, "Epochs of linear learning-rate warm-up.", TRAINING)
    clip: float | None = setting(1.0, "Largest norm of the gradient, or none.", TRAINING)
    clip_over: ClipOver = setting(
        "kept", "Gradients that count in this norm: of kept weights, or of all (the paper).", TRAINING
    )
    label_smoothing: float = setting(0.0, "Label smoothing of the cross entropy.", TRAINING)
    precision: Precision = setting("float32", "Number format: float32, tf32 or bfloat16.", TRAINING)
    compile: bool = setting(False, "Use torch.compile; pays off after minutes of training.", TRAINING)

    def __post_init__(self) -> None:
        words = {"optimizer": OptimizerName, "schedule": Schedule, "clip_over": ClipOver, "precision": Precision}
        for name, kind in words.items():
            if (value := getattr(self, name)) not in get_args(kind):
                known = get_args(kind)
                hint = did_you_mean(str(value), known)
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}{hint}")
        rules = (
            ("epochs", self.epochs >= 0, "at least 0"),
            ("batch", self.batch >= 1, "at least 1"),
            ("warm_up", self.warm_up >= 0, "at least 0"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0 and finite"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("clip", self.clip is None or self.clip > 0, "above 0, or None for no clipping"),
            ("clip_over", self.clip is not None or self.clip_over == "kept", "'kept' without clipping"),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "at least 0 and below 1"),
        )
        for name, valid, rule in rules:
            if not valid:
                raise ValueError(f"{name} must be {rule}, got {name}={getattr(self, name)!r}")

    def learning_rate_at(self, epoch: int) -> float:
        r"""Learning rate of an epoch, counted from 0.

        For "cosine", :math:`\tfrac12 (1 + \cos(\pi\, epoch / E))` of the first.
        """
        rate = self.learning_rate
        if self.schedule == "cosine":
            rate *= (1 + math.cos(math.pi * epoch / max(1, self.epochs))) / 2
        elif self.schedule == "step":
            rate *= 0.1 ** ((epoch >= self.epochs / 2) + (epoch >= self.epochs * 3 / 4))
        return rate * min(1.0, (epoch + 1) / self.warm_up) if self.warm_up else rate

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A new optimizer, as each round has one."""
        import torch

        parameters = list(parameters)
        cuda = all(p.is_cuda for p in parameters)
        # Keep the learning rate on the GPU, where CUDA graphs read it.
        rate = torch.tensor(self.learning_rate, device=parameters[0].device) if cuda else self.learning_rate
        if self.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=rate,
                momentum=self.momentum,
                nesterov=self.nesterov and self.momentum > 0,
                weight_decay=self.weight_decay,
                fused=True,
            )
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=rate, weight_decay=self.weight_decay, fused=True, capturable=cuda)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of `optimizer`, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], float | int):
            group["lr"] = rate
        else:
            group["lr"].fill_(rate)
