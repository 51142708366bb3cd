"""Check a compacted model, and parts of models to compact."""

import copy

import torch
from torch import nn

from palmette.compression.compaction.compact import compact

X = torch.randn(3, 4, 9, 9, generator=torch.Generator().manual_seed(0))


def settle_(model, seed=0):
    """Give batch norms random shifts, scales and statistics, as after training."""
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
    """Compact a model, check the result, and return it with the shapes of its changed layers."""
    before = {n: t.clone() for n, t in model.state_dict().items()}
    small, report = compact(model, inputs)
    assert report.notes == notes
    assert type(small) is type(model)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    for _ in range(2):
        others = [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]
        assert same_outputs(model, small, *others)
    assert report.flops[1] <= report.flops[0]
    assert report.parameters[1] == sum(p.numel() for p in small.parameters())
    return small, {n: after for n, (_, after) in report.layers.items()}


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)
