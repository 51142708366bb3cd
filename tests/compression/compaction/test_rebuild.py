"""Smaller copies of models whose code depends on the number of channels."""

import pytest
import torch
from compact_cases import X, same_outputs
from torch import nn
from torch.nn import functional as F

from palmette.compression.compaction.compact import compact


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 5, 3), nn.Linear(5 * 25, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu().view(-1, 125))


def test_view_with_a_fixed_size_keeps_its_channels_only():
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
    """Divides by the number of channels."""

    def __init__(self, size):
        super().__init__()
        self.a, self.b, self.size = nn.Linear(4, 6), nn.Linear(6, 2), size

    def forward(self, x):
        x = self.a(x).relu()
        return self.b(x) * self.size / x.shape[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4])
def test_division_by_the_channel_count_keeps_channels_even_if_outputs_are_small(size, dtype):
    model = Averaged(size).to(dtype)
    model.a.weight.data[:3] = 0
    small, report = compact(model, torch.randn(2, 4, dtype=dtype))
    assert report.notes == ("Left alone: a.weight, a.bias, b.weight: the outputs are not the same",)
    assert torch.equal(small.a.weight, model.a.weight)


class Unused(nn.Module):
    """A layer with unused output, which the trace lacks if an operation on a view is in place."""

    def __init__(self, activation):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))
        self.activation = activation

    def forward(self, x):
        x = self.activation(self.a(x))
        self.b(x)
        return self.d(self.c(x).relu())


@pytest.mark.parametrize("activation", ["relu", "relu_", "relu_ of a view"])
def test_layer_with_unused_output_still_runs(activation):
    functions = {"relu": F.relu, "relu_": F.relu_, "relu_ of a view": lambda x: F.relu_(x.view(2, 4))}
    model = Unused(functions[activation])
    model.a.weight.data[:2] = 0
    model.c.weight.data[1:] = 0
    small, report = compact(model, torch.randn(2, 4))
    layers = {n: after for n, (_, after) in report.layers.items()}
    if activation == "relu_ of a view":
        assert layers == {"c.weight": (1, 4), "d.weight": (4, 1)}
        assert report.notes[0].startswith("Left alone: a.weight, a.bias, c.weight: RuntimeError: ")
    else:
        assert layers == {"a.weight": (2, 4), "b.weight": (1, 2), "c.weight": (1, 2), "d.weight": (4, 1)}
        assert report.notes == ()
    assert same_outputs(model, small, torch.randn(2, 4))


def test_copy_trains_and_keeps_the_mode_of_each_module():
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
