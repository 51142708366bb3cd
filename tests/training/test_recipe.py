from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from palmette.training.recipe import Recipe


def test_defaults_are_the_papers_table():
    recipe = Recipe()
    assert (recipe.epochs, recipe.batch, recipe.learning_rate, recipe.momentum) == (200, 250, 0.1, 0.9)
    assert (recipe.nesterov, recipe.weight_decay, recipe.schedule, recipe.clip) == (True, 5e-4, "cosine", 1.0)


def test_cosine_schedule_equals_torchs_per_epoch():
    recipe = Recipe(epochs=7, learning_rate=0.3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    for epoch in range(8):
        assert recipe.learning_rate_at(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-15)
        optimizer.step()
        schedule.step()


def test_step_schedule_and_warm_up():
    steps = Recipe(epochs=8, learning_rate=1.0, schedule="step")
    assert [round(steps.learning_rate_at(e), 10) for e in range(8)] == [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]
    rising = Recipe(epochs=8, learning_rate=1.0, schedule="constant", warm_up=4)
    assert [rising.learning_rate_at(e) for e in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": -1},
        {"batch": 0},
        {"optimizer": "lion"},
        {"schedule": "linear"},
        {"precision": "float16"},
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"weight_decay": math.nan},
        {"clip": 0.0},
        {"clip_over": "some"},
        {"clip": None, "clip_over": "all"},
        {"label_smoothing": 1.0},
    ],
    ids=str,
)
def test_invalid_settings_are_named(wrong):
    name = list(wrong)[-1]
    with pytest.raises(ValueError, match=name):
        Recipe(**wrong)
