"""Operations between layers: pools, reshapes, slices, chunks, concatenations, casts."""

import pytest
import torch
from compact_cases import TwoLayers, X, compacted
from torch import nn
from torch.nn import functional as F

import palmette as pm
from palmette.compression.compaction.compact import compact

BETWEEN = [
    (nn.MaxPool2d(3, 2, padding=1), 3),
    (nn.AvgPool2d(3, 2), 3),
    (nn.AvgPool2d(3, 2, padding=1), 4),
    (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), 3),
    (nn.AdaptiveAvgPool2d(2), 3),
    (nn.Upsample(scale_factor=2), 3),
    (nn.Upsample(scale_factor=2, mode="bilinear"), 3),
    (nn.ZeroPad2d(1), 4),
    (nn.ReflectionPad2d(1), 3),
    (nn.ConstantPad2d(1, 1.0), 4),  # equals one of the two constants, not the other
    (nn.Dropout2d(), 3),
    (nn.PReLU(5), 3),
    (nn.Sequential(nn.PReLU(), nn.ReLU(inplace=True)), 3),
    (nn.Sequential(nn.Hardswish(), nn.SiLU(), nn.Sigmoid(), nn.ELU(), nn.LeakyReLU(), nn.Softplus()), 3),
]


class Between(nn.Module):
    """A branch for each module of `BETWEEN`, between two convolutions."""

    def __init__(self):
        super().__init__()
        self.before = nn.ModuleList(nn.Conv2d(4, 5, 3) for _ in BETWEEN)
        self.between = nn.ModuleList(module for module, _ in BETWEEN)
        self.after = nn.ModuleList(nn.Conv2d(5, 2, 2) for _ in BETWEEN)

    def forward(self, x):
        branches = zip(self.before, self.between, self.after, strict=True)
        return torch.cat([c(b(a(x).relu())).flatten(1) for a, b, c in branches], 1)


def test_constants_are_followed_through_activations_pools_and_pads():
    model = Between()
    for conv in model.before:
        conv.weight.data[:2] = 0
        conv.bias.data[:2] = torch.tensor([1.0, -1.0])
    _, layers = compacted(model, X)
    found = {repr(module): layers[f"before.{i}.weight"][0] for i, (module, _) in enumerate(BETWEEN)}
    assert found == {repr(module): left for module, left in BETWEEN}


def test_flattened_channel_is_removed_with_all_its_positions():
    model = nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 49, 2))
    model[0].weight.data[[0, 3]] = 0
    _, layers = compacted(model, X)
    assert layers == {"0.weight": (3, 4, 3, 3), "3.weight": (2, 3 * 49)}


class Concatenated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 5, 3)
        self.b = nn.Conv2d(4, 6, 3)
        self.c = nn.Conv2d(5 + 6 + 4, 3, 1)

    def forward(self, x):
        return self.c(torch.cat([self.a(x).relu(), self.b(x).tanh(), x[:, :, 1:-1, 1:-1]], 1))


def test_concatenation_loses_dead_channels_of_each_side():
    model = Concatenated()
    model.a.weight.data[:2] = 0
    model.b.weight.data[3:] = 0
    model.c.weight.data[:, 12] = 0  # a channel of the images, which stay
    _, layers = compacted(model, X)
    assert layers == {"a.weight": (3, 4, 3, 3), "b.weight": (3, 4, 3, 3), "c.weight": (3, 10, 1, 1)}


class Sliced(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.a, self.b = part, nn.Linear(4, 6), nn.Linear(len(range(6)[part]), 2)

    def forward(self, x):
        return self.b(self.a(x).relu()[:, self.part])


@pytest.mark.parametrize(
    ("part", "left", "read", "stay"),
    [  # channels 1 and 4 are dead; those between a border and the end that it is counted from stay
        (slice(None, 3), 3, 3, "1 dead channel stays: it reaches"),
        (slice(3, None), 5, 2, "3 dead channels stay: they reach"),
        (slice(-3, None), 3, 3, "1 dead channel stays: it reaches"),
        (slice(None, -3), 5, 2, "3 dead channels stay: they reach"),
        (slice(2, 5), 5, 3, "3 dead channels stay: they reach"),
        (slice(1, -1), 4, 2, "2 dead channels stay: they reach"),
        (slice(-9, 9), 4, 4, None),
        (slice(None, None, 2), 6, 3, "2 dead channels stay: they reach"),
    ],
)
def test_slice_keeps_channels_that_its_borders_count(part, left, read, stay):
    model = Sliced(part)
    model.a.weight.data[[1, 4]] = 0
    small, _ = compacted(model, torch.randn(2, 4), notes=(f"{stay} slice_1 (slice)",) if stay else ())
    assert (small.a.out_features, small.b.in_features) == (left, read)


class Halved(nn.Module):
    """Takes half of the channels, computed from their number."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x):
        x = self.a(x).relu()
        return self.b(x[:, : x.shape[1] // 2])


def test_slice_computed_from_the_channel_count_is_unchanged():
    model = Halved()
    small, report = compact(model, torch.randn(2, 4))
    assert report.layers == {}
    assert report.notes[0].startswith("Left alone: a.weight, a.bias")
    assert torch.equal(small.a.weight, model.a.weight)


class Chunked(nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.a, self.b, self.inplace = nn.Linear(4, 6), nn.Linear(3, 2), inplace

    def forward(self, x):
        values, gates = F.relu(self.a(x), inplace=self.inplace).chunk(2, 1)
        return self.b(values * gates.exp())


@pytest.mark.parametrize("inplace", [False, True])
def test_multiplied_chunks_lose_the_same_channels(inplace):
    model = Chunked(inplace)
    model.a.weight.data[[1, 3]], model.a.bias.data[[1, 3]] = 0, 0  # the value of the second, the gate of the first
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (4, 4), "b.weight": (2, 2)}


class Split(Chunked):
    size = 3

    def forward(self, x):
        x = F.relu(self.a(x))
        values, gates = x.split(self.size or x.shape[1] // 2, 1)
        return self.b(values * gates.exp())


def test_split_by_a_fixed_size_is_named_and_by_a_relative_size_followed():
    model = Split(inplace=False)
    model.a.weight.data[[1, 3]], model.a.bias.data[[1, 3]] = 0, 0
    _, report = pm.compact(model, torch.randn(2, 4))
    assert report.layers == {}
    (note,) = report.notes
    assert note.startswith(
        "Left alone: a.weight, a.bias, b.weight: split (split) may ask for parts of a fixed size"
    )
    model.size = None
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (4, 4), "b.weight": (2, 2)}


class Branched(nn.Module):
    """Half of the channels skip a layer, as in a ShuffleNet."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(3, 3), nn.Linear(6, 2)

    def forward(self, x):
        one, two = self.a(x).relu().chunk(2, 1)
        return self.c(torch.cat([one, self.b(two).relu()], 1))


def test_chunks_lose_equally_many_and_the_rest_is_named():
    model = Branched()
    model.a.weight.data[[0, 2, 4]] = 0  # two of one half, one of the other, in another place
    note = "1 dead channel stays: it reaches chunk (chunk)"
    _, layers = compacted(model, torch.randn(2, 4), notes=(note,))
    assert layers == {"a.weight": (4, 4), "b.weight": (3, 2), "c.weight": (2, 5)}


class Gated(nn.Module):
    """Squeeze and excitation, then a gated pair of layers as in Llama."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3)
        self.squeeze = nn.Conv2d(6, 3, 1)
        self.excite = nn.Conv2d(3, 6, 1)
        self.gate, self.up, self.down = nn.Linear(6, 7, bias=False), nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, x):
        x = self.conv(x).relu()
        x = x * self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        x = x.permute(0, 2, 3, 1)
        return self.down(F.silu(self.gate(x)) * self.up(x)).mean((1, 2))


def test_zero_gate_makes_a_channel_dead():
    model = Gated()
    model.conv.weight.data[:2], model.conv.bias.data[:2] = 0, -1
    model.gate.weight.data[3:] = 0
    _, layers = compacted(model, X)
    assert layers["conv.weight"] == (4, 4, 3, 3)
    assert layers["excite.weight"] == (4, 3, 1, 1)
    assert layers["gate.weight"] == layers["up.weight"] == (3, 4)
    assert layers["down.weight"] == (2, 3)


class Casting(TwoLayers):
    """Computes in float64 between two layers."""

    def forward(self, x):
        return self.b(self.a(x).double().exp().float().T.T)


def test_channels_are_followed_through_casts():
    model = Casting()
    model.a.weight.data[:3] = 0
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (2, 4), "b.weight": (2, 2)}


class Rounding(TwoLayers):
    def forward(self, x):
        return self.b(self.a(x).bfloat16().float())


def test_casts_round_constants():
    model = Rounding()
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0.1  # which is 0.10009765625
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (2, 4), "b.weight": (2, 2)}


class Bits(TwoLayers):
    def forward(self, x):
        return self.b(self.a(x).view(torch.int32).view(torch.float32))


class ComputedBias(TwoLayers):
    def forward(self, x):
        return self.b(F.linear(x, self.a.weight, self.a.bias * 2).relu())


@pytest.mark.parametrize(("kind", "node"), [(Bits, "view (view)"), (ComputedBias, "linear (linear)")])
def test_reinterpreted_bits_and_computed_biases_keep_channels(kind, node):
    model = kind()
    model.a.weight.data[:3] = 0
    _, layers = compacted(model, torch.randn(2, 4), notes=(f"3 dead channels stay: they reach {node}",))
    assert layers == {}


class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 5, 3), nn.Conv2d(5, 2, 1)

    def forward(self, x):
        return self.b(F.avg_pool2d(self.a(x), 2, divisor_override=1))


def test_summing_pool_loses_zeros_and_keeps_other_constants():
    model = Summing()
    model.a.weight.data[:2] = 0
    model.a.bias.data[:2] = torch.tensor([0.0, 5.0])
    _, layers = compacted(model, X)
    assert layers == {"a.weight": (4, 4, 3, 3), "b.weight": (2, 4, 1, 1)}


class Scaled(TwoLayers):
    def forward(self, x):
        return self.b((self.a(x) * x.abs().max().item()).relu())


def test_channels_scaled_by_item_are_followed():
    model = Scaled()
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (2, 4), "b.weight": (2, 2)}
