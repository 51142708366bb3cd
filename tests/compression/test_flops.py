from __future__ import annotations

import torch
from torch import nn

from palmette.compression.flops import flops_per_image
from palmette.training.models import build


def test_attention_of_torch_is_counted():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = nn.Sequential(nn.Flatten(2), nn.Linear(16, 8), layer)
    products = 3 * 16 * 8 + 3 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 3 * 3 * 8
    assert flops_per_image(model, shape=(3, 4, 4)) == 2 * products


def test_torch_cond_counts_its_larger_branch_and_still_works():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.large, self.small, (x.flatten(1),))

    model = Branching()
    assert flops_per_image(model, shape=(1, 2, 2)) == 2 * (4 * 8 + 8 * 2)
    assert model(torch.ones(3, 1, 2, 2)).shape == (3, 2)


def test_counting_does_not_change_the_model():
    model = build("cnn", shape=(1, 8, 8), classes=3)
    model.norm2.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flops_per_image(model, shape=(1, 8, 8))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
