from __future__ import annotations

import pytest
import torch
from torch import nn

from palmette.compression.flops import flops_of, flops_per_image
from palmette.training.models import build


def test_attention_of_torch_is_counted():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = nn.Sequential(nn.Flatten(2), nn.Linear(16, 8), layer)
    products = 3 * 16 * 8 + 3 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 3 * 3 * 8
    assert flops_per_image(model, shape=(3, 4, 4)) == 2 * products


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}, {"batch_first": True}])
def test_recurrent_layers_are_counted(cell, gates, options):
    layer, inputs = cell(5, 7, **options), torch.zeros(4, 6, 5)
    second = 7 + 7 if "num_layers" in options else 0
    products = 4 * 6 * gates * 7 * ((1 + ("bidirectional" in options)) * (5 + 7) + second)
    assert flops_of(lambda: layer(inputs)) == 2 * products
    packed = nn.utils.rnn.pack_padded_sequence(inputs, [4, 3, 3, 2, 2, 1])  # 15 of 24 steps
    if "batch_first" not in options:
        assert flops_of(lambda: layer(packed)) == 2 * products * 15 // 24


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
