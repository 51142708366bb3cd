"""Linear layers, convolutions and norms."""

import pytest
import torch
from compact_cases import X, compacted, same_outputs, settle_
from torch import nn
from torch.nn import functional as F

import palmette as pm


def test_constants_of_removed_neurons_are_added_to_the_next_bias():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    model[0].weight.data[1:] = 0
    model[0].bias.data[:] = torch.tensor([0.0, 5.0, -5.0])  # relu: the second is always 5, the third always 0
    model[2].weight.data[:] = torch.tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])
    small, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"0.weight": (1, 4), "2.weight": (2, 1)}
    assert small[2].bias.tolist() == [10.0, 0.0]
    assert (small[0].out_features, small[2].in_features) == (1, 1)


def test_batch_norm_with_zero_scale_makes_its_channel_dead():
    model = settle_(
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3, bias=False))
    )
    model[1].weight.data[2:4] = 0
    model[1].bias.data[2:4] = torch.tensor([1.0, -1.0])
    small, layers = compacted(model, X)
    assert layers == {"0.weight": (4, 4, 3, 3), "3.weight": (5, 4, 3, 3)}
    assert small[1].num_features == 4
    assert small[1].running_var.shape == (4,)
    assert small[3].bias is not None  # takes the constant relu(1)


class ComputedNorm(nn.Module):
    """A batch norm with one of its four vectors computed."""

    def __init__(self, computed, how):
        super().__init__()
        self.computed, self.how = computed, how
        self.conv, self.make, self.head = nn.Conv2d(3, 8, 3), nn.Linear(4, 8), nn.Linear(8, 2)
        self.given = nn.Parameter(torch.rand(4) + 0.5)
        self.plain = nn.Parameter(torch.rand(8) + 0.5)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        made = self.make(self.given).abs() if self.how == "by a layer" else self.plain * 2
        vectors = {"running_mean": self.mean, "running_var": self.var} | {self.computed: made}
        return self.head(F.batch_norm(self.conv(x), **vectors).mean((2, 3)))


@pytest.mark.parametrize("how", ["by a layer", "from a parameter"])
@pytest.mark.parametrize("computed", ["weight", "bias", "running_mean", "running_var"])
def test_batch_norm_with_computed_vectors_keeps_its_channels(computed, how):
    model = ComputedNorm(computed, how).eval()
    model.conv.weight.data[:4] = 0
    small, report = pm.compact(model, torch.randn(2, 3, 8, 8))
    assert report.layers == {}
    assert report.notes == ("4 dead channels stay: they reach batch_norm (batch_norm)",)
    assert same_outputs(model, small, torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(("padding", "left"), [(0, 3), (1, 4)])
def test_zero_padding_keeps_nonzero_constants(padding, left):
    model = nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 3, padding=padding))
    model[0].weight.data[:2] = 0
    model[0].bias.data[:2] = torch.tensor([1.0, -1.0])  # at the edges the first is not the same everywhere
    _, layers = compacted(model, X)
    assert layers["0.weight"] == (left, 4, 3, 3)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolution_loses_channels_with_the_layer_before(multiplier):
    model = settle_(
        nn.Sequential(
            nn.Conv2d(4, 6, 1),
            nn.ReLU(),
            nn.Conv2d(6, 6 * multiplier, 3, padding=1, groups=6),
            nn.BatchNorm2d(6 * multiplier),
            nn.ReLU(),
            nn.Conv2d(6 * multiplier, 3, 1, bias=False),
        )
    )
    model[0].weight.data[0] = 0
    model[0].bias.data[0] = -1  # dead before
    model[2].weight.data[multiplier : 2 * multiplier] = 0  # dead in the depthwise layer itself
    small, layers = compacted(model, X)
    m = multiplier
    assert layers == {"0.weight": (4, 4, 1, 1), "2.weight": (4 * m, 1, 3, 3), "5.weight": (3, 4 * m, 1, 1)}
    assert small[2].groups == 4


def test_grouped_convolution_loses_whole_groups():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 2, 1)
    )
    model[2].weight.data[3:6] = 0  # the second of four groups
    model[2].weight.data[7] = 0  # and one channel of the third
    small, layers = compacted(model, X)
    assert layers == {"0.weight": (6, 4, 1, 1), "2.weight": (9, 2, 3, 3), "4.weight": (2, 9, 1, 1)}
    assert (small[2].groups, small[2].in_channels, small[2].out_channels) == (3, 6, 9)


def test_transposed_convolution_loses_inputs_and_outputs():
    model = nn.Sequential(
        nn.Conv2d(4, 5, 1), nn.ReLU(), nn.ConvTranspose2d(5, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 2, 1)
    )
    model[0].weight.data[0], model[0].bias.data[0] = 0, -1
    model[2].weight.data[:, 4:] = 0
    small, layers = compacted(model, X)
    assert layers == {"0.weight": (4, 4, 1, 1), "2.weight": (4, 4, 3, 3), "4.weight": (2, 4, 1, 1)}
    assert (small[2].in_channels, small[2].out_channels) == (4, 4)


def test_encoder_layer_keeps_its_heads_and_loses_neurons():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model.linear1.weight.data[:10] = 0
    _, layers = compacted(model, torch.randn(2, 5, 8))
    assert layers == {"linear1.weight": (6, 8), "linear2.weight": (8, 6)}
