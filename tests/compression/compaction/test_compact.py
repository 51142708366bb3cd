import copy
import re
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import palmette as pm
from palmette.compression.compaction.compact import compact
from palmette.training.models import build

LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "resnet50", "wresnet28x8")]
X = torch.randn(3, 4, 9, 9, generator=torch.Generator().manual_seed(0))


def settle_(model, seed=0):
    """Norms as after training: no shift, scale or statistic that is 0 or 1 by chance of initialisation."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
            module.weight.data.copy_(torch.randn(module.num_features, generator=generator))
            module.bias.data.copy_(torch.randn(module.num_features, generator=generator))
    return model


@torch.no_grad()
def same_outputs(model, small, *inputs):
    model, small = copy.deepcopy(model).eval(), copy.deepcopy(small).eval()
    a, b = model(*inputs), small(*inputs)
    return bool((a - b).abs().max() <= 1e-5 * max(1, a.abs().max()))


def compacted(model, *inputs, notes=()):
    """The smaller model, after what holds for all of them."""
    before = {n: t.clone() for n, t in model.state_dict().items()}
    small, report = compact(model, inputs)
    assert report.notes == notes
    assert type(small) is type(model)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    for _ in range(2):
        others = [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]
        assert same_outputs(model, small, *others)
    assert report.flops[1] <= report.flops[0]
    assert report.parameters[1] == sum(t.numel() for t in small.state_dict().values())
    return small, {n: after for n, (_, after) in report.layers.items()}


def test_dead_neurons_go_and_their_constants_are_added_to_the_next_bias():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    model[0].weight.data[1:] = 0
    model[0].bias.data[:] = torch.tensor([0.0, 5.0, -5.0])  # relu: the second is always 5, the third always 0
    model[2].weight.data[:] = torch.tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])
    small, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"0.weight": (1, 4), "2.weight": (2, 1)}
    assert small[2].bias.tolist() == [10.0, 0.0]
    assert (small[0].out_features, small[2].in_features) == (1, 1)


def test_neurons_that_nobody_reads_go_and_so_do_those_that_only_they_read():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    model[4].weight.data[:, 3:] = 0  # of the five, two are not read
    model[2].weight.data[:3, 1:4] = 0  # and of the six, three are read by these two only
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"0.weight": (3, 4), "2.weight": (3, 3), "4.weight": (2, 3)}


def test_a_neuron_behind_dead_neurons_is_dead():
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 2))
    model[0].weight.data[:3] = 0
    model[2].weight.data[0, 3:] = 0  # it reads only constants
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"0.weight": (3, 4), "2.weight": (4, 3), "4.weight": (2, 4)}


def test_one_neuron_stays_where_all_are_dead():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].weight.data.zero_()
    _, layers = compacted(model, torch.randn(2, 4), notes=("2 dead channels stay: they reach the output",))
    assert layers == {"0.weight": (1, 4), "2.weight": (2, 1)}


def test_a_batch_norm_whose_scale_is_zero_makes_its_channel_dead():
    model = settle_(
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3, bias=False))
    )
    model[1].weight.data[2:4] = 0
    model[1].bias.data[2:4] = torch.tensor([1.0, -1.0])
    small, layers = compacted(model, X)
    assert layers == {"0.weight": (4, 4, 3, 3), "3.weight": (5, 4, 3, 3)}
    assert small[1].num_features == 4
    assert small[1].running_var.shape == (4,)
    assert small[3].bias is not None  # the constant of a ReLU of 1, which the layer had no bias for


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
def test_channels_stay_that_reach_a_batch_norm_with_computed_numbers(computed, how):
    model = ComputedNorm(computed, how).eval()
    model.conv.weight.data[:4] = 0
    small, report = pm.compact(model, torch.randn(2, 3, 8, 8))
    assert report.layers == {}
    assert report.notes == ("4 dead channels stay: they reach batch_norm (batch_norm)",)
    assert same_outputs(model, small, torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(("padding", "left"), [(0, 3), (1, 4)])
def test_a_constant_that_meets_padding_with_zeros_stays(padding, left):
    model = nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 3, padding=padding))
    model[0].weight.data[:2] = 0
    model[0].bias.data[:2] = torch.tensor([1.0, -1.0])  # at the edges the first is not the same everywhere
    _, layers = compacted(model, X)
    assert layers["0.weight"] == (left, 4, 3, 3)


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
    (nn.ConstantPad2d(1, 1.0), 4),  # 1 is what the one constant is, but the other is 0
    (nn.Dropout2d(), 3),
    (nn.PReLU(5), 3),
    (nn.Sequential(nn.PReLU(), nn.ReLU(inplace=True)), 3),
    (nn.Sequential(nn.Hardswish(), nn.SiLU(), nn.Sigmoid(), nn.ELU(), nn.LeakyReLU(), nn.Softplus()), 3),
]


class Between(nn.Module):
    """A branch for each of them, after a convolution and before another."""

    def __init__(self):
        super().__init__()
        self.before = nn.ModuleList(nn.Conv2d(4, 5, 3) for _ in BETWEEN)
        self.between = nn.ModuleList(module for module, _ in BETWEEN)
        self.after = nn.ModuleList(nn.Conv2d(5, 2, 2) for _ in BETWEEN)

    def forward(self, x):
        branches = zip(self.before, self.between, self.after, strict=True)
        return torch.cat([c(b(a(x).relu())).flatten(1) for a, b, c in branches], 1)


def test_constants_are_followed_through_what_keeps_them_constant():
    model = Between()
    for conv in model.before:
        conv.weight.data[:2] = 0
        conv.bias.data[:2] = torch.tensor([1.0, -1.0])
    _, layers = compacted(model, X)
    found = {repr(module): layers[f"before.{i}.weight"][0] for i, (module, _) in enumerate(BETWEEN)}
    assert found == {repr(module): left for module, left in BETWEEN}


def test_a_channel_takes_all_its_places_along_when_flattened():
    model = nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 49, 2))
    model[0].weight.data[[0, 3]] = 0
    _, layers = compacted(model, X)
    assert layers == {"0.weight": (3, 4, 3, 3), "3.weight": (2, 3 * 49)}


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


def test_through_a_residual_sum_a_channel_goes_only_if_both_sides_are_dead():
    model = settle_(Residual())
    model.conv1.weight.data[:3] = 0
    model.norm.bias.data[:3], model.norm.weight.data[:3] = -9.0, 0.1  # dead at 0 after the ReLU
    model.stem.weight.data[:3] = 0  # dead on one side: 0, 1, 2; on the other: 1, 2, 3
    model.conv2.weight.data[1:4] = 0
    model.stem.bias.data[:3] = 0  # or conv1, which pads, reads constants that are not zero
    small, layers = compacted(model, X)
    assert layers == {
        "stem.weight": (4, 4, 3, 3),
        "conv1.weight": (5, 4, 3, 3),
        "conv2.weight": (4, 5, 3, 3),
        "head.weight": (3, 4),
    }
    assert compacted(small, X)[1] == {}


class Concatenated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 5, 3)
        self.b = nn.Conv2d(4, 6, 3)
        self.c = nn.Conv2d(5 + 6 + 4, 3, 1)

    def forward(self, x):
        return self.c(torch.cat([self.a(x).relu(), self.b(x).tanh(), x[:, :, 1:-1, 1:-1]], 1))


def test_through_a_concatenation_each_side_loses_its_own():
    model = Concatenated()
    model.a.weight.data[:2] = 0
    model.b.weight.data[3:] = 0
    model.c.weight.data[:, 12] = 0  # a channel of the images: they stay as they are
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
def test_of_a_slice_goes_what_its_borders_do_not_count(part, left, read, stay):
    model = Sliced(part)
    model.a.weight.data[[1, 4]] = 0
    small, _ = compacted(model, torch.randn(2, 4), notes=(f"{stay} slice_1 (slice)",) if stay else ())
    assert (small.a.out_features, small.b.in_features) == (left, read)


class Halved(nn.Module):
    """Half of the channels by code that asks how many there are."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x):
        x = self.a(x).relu()
        return self.b(x[:, : x.shape[1] // 2])


def test_a_slice_that_moves_with_the_number_of_channels_is_left_alone():
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
def test_equal_chunks_lose_the_same(inplace):
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


def test_a_split_by_a_fixed_size_is_named_and_one_by_the_size_there_is_followed():
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
    """Half of the channels go on as they are, as in a ShuffleNet."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(3, 3), nn.Linear(6, 2)

    def forward(self, x):
        one, two = self.a(x).relu().chunk(2, 1)
        return self.c(torch.cat([one, self.b(two).relu()], 1))


def test_equal_chunks_lose_as_many_each_and_the_rest_is_named():
    model = Branched()
    model.a.weight.data[[0, 2, 4]] = 0  # two of one half, one of the other, in another place
    note = "1 dead channel stays: it reaches chunk (chunk)"
    _, layers = compacted(model, torch.randn(2, 4), notes=(note,))
    assert layers == {"a.weight": (4, 4), "b.weight": (3, 2), "c.weight": (2, 5)}


def test_layers_without_channels_are_left_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch: nothing to initialise
        model = nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3), nn.ReLU(), nn.Linear(3, 2))
    _, layers = compacted(model, torch.randn(2, 4), notes=("2 dead channels stay: they reach the output",))
    assert layers == {"1.weight": (1, 0), "3.weight": (2, 1)}


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolutions_lose_channels_with_what_comes_before(multiplier):
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


def test_grouped_convolutions_lose_whole_groups():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 2, 1)
    )
    model[2].weight.data[3:6] = 0  # the second of four groups
    model[2].weight.data[7] = 0  # and one channel of the third
    small, layers = compacted(model, X)
    assert layers == {"0.weight": (6, 4, 1, 1), "2.weight": (9, 2, 3, 3), "4.weight": (2, 9, 1, 1)}
    assert (small[2].groups, small[2].in_channels, small[2].out_channels) == (3, 6, 9)


def test_transposed_convolutions():
    model = nn.Sequential(
        nn.Conv2d(4, 5, 1), nn.ReLU(), nn.ConvTranspose2d(5, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 2, 1)
    )
    model[0].weight.data[0], model[0].bias.data[0] = 0, -1
    model[2].weight.data[:, 4:] = 0
    small, layers = compacted(model, X)
    assert layers == {"0.weight": (4, 4, 1, 1), "2.weight": (4, 4, 3, 3), "4.weight": (2, 4, 1, 1)}
    assert (small[2].in_channels, small[2].out_channels) == (4, 4)


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


def test_a_gate_of_zero_makes_a_channel_dead_whatever_it_is_multiplied_with():
    model = Gated()
    model.conv.weight.data[:2], model.conv.bias.data[:2] = 0, -1
    model.gate.weight.data[3:] = 0
    _, layers = compacted(model, X)
    assert layers["conv.weight"] == (4, 4, 3, 3)
    assert layers["excite.weight"] == (4, 3, 1, 1)
    assert layers["gate.weight"] == layers["up.weight"] == (3, 4)
    assert layers["down.weight"] == (2, 3)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.twice, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        x = (self.one(x) * self.scale).relu()
        return self.head(self.twice(self.twice(x).relu()).relu())


def test_a_layer_that_is_called_twice_loses_what_is_dead_both_times():
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


def test_a_tied_weight_stays_tied_and_what_a_layer_norm_reads_stays():
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


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 5, 3), nn.Linear(5 * 25, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu().view(-1, 125))


def test_code_that_fixes_the_number_of_channels_keeps_them_and_the_rest_goes():
    model = Fixed()
    model.a.weight.data[:2] = 0
    model.b.weight.data[:2] = 0
    small, report = compact(model, X)
    assert {n: after for n, (_, after) in report.layers.items()} == {
        "a.weight": (4, 4, 3, 3),
        "b.weight": (5, 4, 3, 3),
    }
    assert len(report.notes) == 1
    assert report.notes[0].startswith("Left alone: b.weight, b.bias, c.weight: RuntimeError: ")
    assert same_outputs(model, small, X)


class Averaged(nn.Module):
    """Divides by how many channels there are."""

    def __init__(self, size):
        super().__init__()
        self.a, self.b, self.size = nn.Linear(4, 6), nn.Linear(6, 2), size

    def forward(self, x):
        x = self.a(x).relu()
        return self.b(x) * self.size / x.shape[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4])
def test_code_that_computes_with_the_number_of_channels_keeps_them_however_small_the_outputs_are(size, dtype):
    model = Averaged(size).to(dtype)
    model.a.weight.data[:3] = 0
    small, report = compact(model, torch.randn(2, 4, dtype=dtype))
    assert report.notes == ("Left alone: a.weight, a.bias, b.weight: the outputs are not the same",)
    assert torch.equal(small.a.weight, model.a.weight)


class Unused(nn.Module):
    """A layer whose output nobody uses; where something is done in place, it is not in the trace."""

    def __init__(self, inplace):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))
        self.inplace = inplace

    def forward(self, x):
        x = F.relu(self.a(x), inplace=self.inplace)
        self.b(x)
        return self.d(self.c(x).relu())


@pytest.mark.parametrize("inplace", [False, True])
def test_code_that_runs_for_nothing_is_not_broken(inplace):
    model = Unused(inplace)
    model.a.weight.data[:2] = 0
    model.c.weight.data[1:] = 0
    small, report = compact(model, torch.randn(2, 4))
    layers = {n: after for n, (_, after) in report.layers.items()}
    if inplace:
        assert layers == {"c.weight": (1, 4), "d.weight": (4, 1)}
        assert report.notes[0].startswith("Left alone: a.weight, a.bias, c.weight: RuntimeError: ")
    else:
        assert layers == {"a.weight": (2, 4), "b.weight": (1, 2), "c.weight": (1, 2), "d.weight": (4, 1)}
        assert report.notes == ()
    assert same_outputs(model, small, torch.randn(2, 4))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else x


def test_a_model_that_cannot_be_traced_is_left_alone_and_the_reason_is_told(capfd):
    model = Branching()
    model.layer.weight.data[0] = 0
    small, report = compact(model, torch.ones(2, 4))
    (note,) = report.notes
    assert re.match(
        r"Nothing was removed: torch.export cannot trace the model at test_compact.py, line \d+, "
        r"'return self.layer.x. if .*': \w+: .+",
        note,
    )
    assert len(note) < 400
    assert report.layers == {}
    assert torch.equal(small.layer.weight, model.layer.weight)
    assert capfd.readouterr() == ("", "")


class Silent(nn.Module):
    """Fails without a word on other sizes than it was made for, or under the tracer."""

    error = KeyError()

    def __init__(self, traced):
        super().__init__()
        self.a, self.b, self.traced = nn.Linear(4, 6), nn.Linear(6, 2), traced

    def forward(self, x):
        if torch.compiler.is_exporting() if self.traced else x.shape[1] != 4 or len(self.a.weight) != 6:
            raise self.error
        return self.b(self.a(x).relu())


def test_an_error_that_says_nothing_is_told_by_its_kind():
    for traced, note in (
        (True, r"Nothing was removed: torch.export cannot trace the model at .*: KeyError"),
        (False, "Left alone: a.weight, a.bias, b.weight: KeyError"),
    ):
        model = Silent(traced)
        model.a.weight.data[:3] = 0
        assert re.fullmatch(note, compact(model, torch.ones(2, 4))[1].notes[0])
    with pytest.raises(ValueError, match=r"the model fails on the example inputs: KeyError$"):
        compact(Silent(traced=False), torch.ones(2, 5))


def test_an_error_of_several_lines_is_told_whole(monkeypatch):
    monkeypatch.setattr(Silent, "error", RuntimeError("sizes differ:\n\t3 is not 6"))
    model = Silent(traced=False)
    model.a.weight.data[:3] = 0
    (note,) = compact(model, torch.ones(2, 4))[1].notes
    assert note == "Left alone: a.weight, a.bias, b.weight: RuntimeError: sizes differ: 3 is not 6"


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x).sort(1).values).relu())


def test_a_node_that_is_not_followed_is_named_and_the_rest_goes():
    model = Sorting()
    model.a.weight.data[0] = 0
    model.b.weight.data[:2] = 0
    note = "1 dead channel stays: it reaches sort (sort)"
    _, layers = compacted(model, torch.randn(2, 4), notes=(note,))
    assert layers == {"b.weight": (3, 5), "c.weight": (2, 3)}


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)


class Casting(TwoLayers):
    """Computes with more bits, as norms and losses do."""

    def forward(self, x):
        return self.b(self.a(x).double().exp().float().T.T)


def test_channels_go_through_a_change_of_dtype():
    model = Casting()
    model.a.weight.data[:3] = 0
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (2, 4), "b.weight": (2, 2)}


class Rounding(TwoLayers):
    def forward(self, x):
        return self.b(self.a(x).bfloat16().float())


def test_constants_are_rounded_with_their_dtype():
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
def test_what_makes_other_numbers_of_channels_keeps_them(kind, node):
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


def test_through_a_pool_that_sums_zeros_go_and_other_constants_stay():
    model = Summing()
    model.a.weight.data[:2] = 0
    model.a.bias.data[:2] = torch.tensor([0.0, 5.0])
    _, layers = compacted(model, X)
    assert layers == {"a.weight": (4, 4, 3, 3), "b.weight": (2, 4, 1, 1)}


class Scaled(TwoLayers):
    def forward(self, x):
        return self.b((self.a(x) * x.abs().max().item()).relu())


def test_numbers_that_are_taken_out_of_tensors_are_followed():
    model = Scaled()
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0
    _, layers = compacted(model, torch.randn(2, 4))
    assert layers == {"a.weight": (2, 4), "b.weight": (2, 2)}


class Choosing(TwoLayers):
    def forward(self, x):
        h = self.a(x).relu()
        return torch.cond(x.sum() > 0, lambda h: self.b(h), lambda h: -self.b(h), (h,))


def test_a_branch_is_left_alone_and_goes_on_working():
    model, x = Choosing(), torch.randn(2, 4)
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0
    _, report = compact(model, x)
    assert report.notes == ("3 dead channels stay: they reach cond (cond)",)
    with torch.no_grad():
        assert model(x).shape == (2, 2)


@dataclass
class Answer:
    logits: torch.Tensor


class Answering(Scaled):
    def forward(self, x):
        return Answer(super().forward(x))


def test_outputs_may_be_in_a_plain_dataclass():
    model, x = Answering(), torch.randn(2, 4)
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0
    small, report = compact(model, x)
    assert report.layers["a.weight"] == ((5, 4), (2, 4))
    assert torch.allclose(small(x).logits, model(x).logits, atol=1e-5)
    assert "forward" not in vars(model) | vars(small)


class Autocast(TwoLayers):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(self.a(x))


def test_dead_neurons_inside_of_what_is_not_followed_are_named():
    model = Autocast()
    model.a.weight.data[:3] = 0
    small, report = compact(model, torch.randn(2, 4))
    assert report.layers == {}
    (note,) = report.notes
    assert re.fullmatch(r"3 dead channels stay: they reach \w+ \(wrap_with_autocast\)", note)
    assert torch.equal(small.a.weight, model.a.weight)


def test_dead_neurons_under_a_weight_norm_are_named():
    model = nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 2))
    model[0].parametrizations.weight.original0.data[:3] = 0
    note = "3 dead channels stay: they reach _weight_norm (_weight_norm in 0.parametrizations.weight.0)"
    _, layers = compacted(model, torch.randn(2, 4), notes=(note,))
    assert layers == {}


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "transformer", *LARGER])
def test_our_models_with_half_of_their_neurons_dead(name):
    model = settle_(build(name, shape=(3, 8, 8), classes=10))
    generator = torch.Generator().manual_seed(1)
    for layer, weight in pm.prunable(model).items():
        if not layer.startswith(("head", "linear")):
            weight.tensor.data[torch.rand(len(weight.tensor), generator=generator) < 0.5] = 0
    images = torch.randn(2, 3, 8, 8)
    small, report = compact(model, images)
    assert not any(note.startswith(("Left alone", "Nothing")) for note in report.notes)
    assert same_outputs(model, small, images)
    assert report.flops[1] < 0.9 * report.flops[0]
    assert report.parameters[1] < 0.9 * report.parameters[0]


def test_neurons_that_pruning_killed_go():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    model[0].weight.data[10:] *= 1e-3
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="global")
    pruner.step()
    assert int((model[0].weight == 0).all(1).sum()) == 30
    _, layers = compacted(model, torch.randn(4, 20))
    assert layers["0.weight"] == (10, 20)
    assert layers["2.weight"][1] == 10


def test_training_goes_on_and_the_mode_of_each_module_is_kept():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    model[1].eval()
    model[3].weight.requires_grad_(False)
    model[0].weight.data[:2] = 0
    small, _ = compact(model, torch.randn(4, 4))
    assert (
        [m.training for m in small.modules()]
        == [m.training for m in model.modules()]
        == [True, True, False, True, True]
    )
    assert [p.requires_grad for p in small.parameters()] == [p.requires_grad for p in model.parameters()]
    small(torch.randn(4, 4)).sum().backward()
    assert small[0].weight.grad.shape == (4, 4)


class Counts(nn.Module):
    """Keeps count of its calls, and works on its inputs where they are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x.mul_(2)).relu()) + self.calls


def test_buffers_and_inputs_stay_as_they_were():
    model, inputs = Counts(), torch.randn(4, 8)
    model.first.weight.data[:4] = 0
    before = inputs.clone()
    small, report = pm.compact(model, inputs)
    assert report.layers["first.weight"] == ((8, 8), (4, 8))
    assert float(model.calls) == float(small.calls) == 0
    assert torch.equal(inputs, before)


def test_sixteen_bits():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).bfloat16()
    model[0].weight.data[3:] = 0
    small, report = compact(model, torch.randn(5, 8).bfloat16())
    assert report.layers["0.weight"] == ((16, 8), (3, 8))
    assert small[2].bias.dtype == torch.bfloat16


def test_an_encoder_layer_of_pytorch_keeps_its_heads_and_loses_neurons():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model.linear1.weight.data[:10] = 0
    _, layers = compacted(model, torch.randn(2, 5, 8))
    assert layers == {"linear1.weight": (6, 8), "linear2.weight": (8, 6)}


@pytest.mark.slow
def test_inputs_by_name_and_a_model_of_transformers():
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    sizes = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 30}
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=16, **sizes))
    gpt2.transformer.h[0].mlp.c_fc.weight.data[:, :20] = 0
    llama = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=32, **sizes)
    )
    llama.model.layers[0].mlp.gate_proj.weight.data[:20] = 0
    inputs = {"input_ids": torch.arange(5)[None]}
    for model, weight in ((gpt2, "c_fc"), (llama, "gate_proj")):
        small, report = compact(model, inputs)
        (name,) = [n for n in report.layers if weight in n]
        assert sorted(report.layers[name][1]) == [8, 12]
        with torch.no_grad():
            a, b = (m.eval()(**inputs).logits for m in (model, small))
        assert torch.allclose(a, b, atol=1e-5)


def test_a_model_that_is_not_one_and_inputs_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="the model that TorchScript was made of, got a ScriptModule"):
        compact(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), torch.ones(1, 2))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got dict"):
        compact({}, X)
    with pytest.raises(ValueError, match="the model fails on the example inputs: RuntimeError: "):
        compact(nn.Linear(3, 2), torch.ones(2, 4))
    with pytest.raises(ValueError, match="the weights must have values, got 'weight' on the meta device"):
        compact(nn.Linear(3, 2, device="meta"), torch.ones(2, 3, device="meta"))
