"""Channels that are dead, and how they are found and kept."""

import re
import warnings

import torch
from compact_cases import TwoLayers, X, compacted, settle_
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from palmette.compression.compaction.compact import compact


def test_unread_neurons_are_removed_and_then_the_neurons_only_they_read():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    model[4].weight.data[:, 3:] = 0  # two of the five are not read
    model[2].weight.data[:3, 1:4] = 0  # three of the six are read by these two only
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"0.weight": (3, 4), "2.weight": (3, 3), "4.weight": (2, 3)}


def test_neuron_with_only_constant_inputs_is_dead():
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 2))
    model[0].weight.data[:3] = 0
    model[2].weight.data[0, 3:] = 0  # it reads only constants
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"0.weight": (3, 4), "2.weight": (4, 3), "4.weight": (2, 4)}


def test_one_neuron_stays_if_all_are_dead():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].weight.data.zero_()
    _, layers = compacted(model, torch.randn(2, 4), notes=("2 dead channels stay: they reach the output",))
    assert layers == {"0.weight": (1, 4), "2.weight": (2, 1)}


def test_layers_without_channels_are_unchanged():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch: nothing to initialise
        model = nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3), nn.ReLU(), nn.Linear(3, 2))
    _, layers = compacted(model, torch.randn(2, 4), notes=("2 dead channels stay: they reach the output",))
    assert layers == {"1.weight": (1, 0), "3.weight": (2, 1)}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, 6, 3, padding=1)
        self.conv1 = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.conv2(F.relu(self.norm(self.conv1(x)))))
        return self.head(x.mean((2, 3)))


def test_residual_sum_loses_a_channel_only_if_both_sides_are_dead():
    model = settle_(Residual())
    model.conv1.weight.data[:3] = 0
    model.norm.bias.data[:3], model.norm.weight.data[:3] = -9.0, 0.1  # dead at 0 after the ReLU
    model.stem.weight.data[:3] = 0  # dead on one side: 0, 1, 2; on the other: 1, 2, 3
    model.conv2.weight.data[1:4] = 0
    model.stem.bias.data[:3] = 0  # nonzero constants would stay, since conv1 pads
    small, layers = compacted(model, X)
    assert layers == {
        "stem.weight": (4, 4, 3, 3),
        "conv1.weight": (5, 4, 3, 3),
        "conv2.weight": (4, 5, 3, 3),
        "head.weight": (3, 4),
    }
    assert compacted(small, X)[1] == {}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.twice, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        x = (self.one(x) * self.scale).relu()
        return self.head(self.twice(self.twice(x).relu()).relu())


def test_layer_called_twice_loses_channels_dead_in_both_calls():
    model = Shared()
    model.one.weight.data[:3] = model.one.bias.data[:3] = 0
    model.twice.weight.data[1:4] = 0
    model.twice.bias.data[1:4] = -1
    small, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"one.weight": (4, 4), "twice.weight": (4, 4), "head.weight": (2, 4)}
    assert small.scale.shape == (4,)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


def test_tied_weight_stays_tied_and_inputs_of_a_layer_norm_stay():
    model = Tied()
    model.up.weight.data[5:] = 0
    model.embed.weight.data[:, 0] = 0
    model.down.weight.data[0], model.down.bias.data[0] = 0, 0
    small, layers = compacted(model, torch.randint(11, (2, 5)))
    assert layers == {"up.weight": (5, 6), "down.weight": (6, 5)}
    assert small.head.weight is small.embed.weight
    small.head.weight = nn.Parameter(model.head.weight.detach().clone())
    note = "1 dead channel stays: it reaches layer_norm (layer_norm in norm)"
    assert compacted(small, torch.randint(11, (2, 5)), notes=(note,))[1] == {}


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x).sort(1).values).relu())


def test_operation_that_is_not_followed_is_named():
    model = Sorting()
    model.a.weight.data[0] = 0
    model.b.weight.data[:2] = 0
    note = "1 dead channel stays: it reaches sort (sort)"
    _, layers = compacted(model, torch.randn(2, 4), notes=(note,))
    assert layers == {"b.weight": (3, 5), "c.weight": (2, 3)}


class Choosing(TwoLayers):
    def forward(self, x):
        h = self.a(x).relu()
        return torch.cond(x.sum() > 0, lambda h: self.b(h), lambda h: -self.b(h), (h,))


def test_branch_is_unchanged_and_still_works():
    model, x = Choosing(), torch.randn(2, 4)
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0
    _, report = compact(model, x)
    assert report.notes == ("3 dead channels stay: they reach cond (cond)",)
    with torch.no_grad():
        assert model(x).shape == (2, 2)


class Autocast(TwoLayers):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(self.a(x))


def test_dead_neurons_under_autocast_are_named():
    model = Autocast()
    model.a.weight.data[:3] = 0
    small, report = compact(model, torch.randn(2, 4))
    assert report.layers == {}
    (note,) = report.notes
    assert re.fullmatch(r"3 dead channels stay: they reach \w+ \(wrap_with_autocast\)", note)
    assert torch.equal(small.a.weight, model.a.weight)


def test_dead_neurons_under_weight_norm_are_named():
    model = nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 2))
    model[0].parametrizations.weight.original0.data[:3] = 0
    note = "3 dead channels stay: they reach _weight_norm (_weight_norm in 0.parametrizations.weight.0)"
    _, layers = compacted(model, torch.randn(2, 4), notes=(note,))
    assert layers == {}
