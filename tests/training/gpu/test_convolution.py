"""Which convolutions are fused on a GPU; their results are tested in test_convolution_kernels.py."""

import pytest
import torch
from torch import nn

from palmette.training.gpu.convolution import fuse_convolutions
from palmette.training.members import _has_fused_layout
from palmette.training.models import build


def changed(model):
    fuse_convolutions(model)
    return {name for name, module in model.named_modules() if "forward" in vars(module)}


def layers(*, norm=None, relu=None, pool=None):
    norm, relu, pool = norm or nn.BatchNorm2d(8), relu or nn.ReLU(), pool or nn.MaxPool2d(2)
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm, relu, pool)


def test_convolution_norm_relu_and_pool_are_fused():
    assert changed(layers()) == {"0", "1", "2", "3"}
    cnn = changed(build("cnn", shape=(3, 32, 32), classes=10))
    assert cnn == {f"{kind}{i}" for kind in ("conv", "norm", "relu") for i in (1, 2, 3, 4)} | {
        "pool1",
        "pool2",
        "pool3",
    }


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, stride=1), nn.AvgPool2d(2)]
)
def test_other_pools_are_not_fused(pool):
    assert changed(layers(pool=pool)) == {"0", "1", "2"}


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(8, affine=False),
        nn.BatchNorm2d(8, momentum=None),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.InstanceNorm2d(8),
    ],
)
def test_other_norms_are_not_fused(norm):
    assert not fuse_convolutions(layers(norm=norm))


def test_shared_or_hooked_modules_are_not_fused():
    relu = nn.ReLU()
    twice = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), relu, nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), relu)
    assert not changed(twice)
    hooked = layers()
    hooked[1].register_forward_hook(lambda module, inputs, output: None)
    assert not changed(hooked)


def test_the_first_convolution_becomes_a_matrix_product():
    assert changed(build("resnet18", shape=(3, 32, 32), classes=10)) == {"stem"}
    assert not changed(nn.Sequential(nn.Conv2d(3, 8, 5), nn.Conv2d(8, 8, 3, padding=1)))
    assert not fuse_convolutions(build("mlp", shape=(1, 8, 8), classes=10))


def test_layouts_that_the_fused_optimizer_accepts():
    weight = torch.zeros(4, 3, 3, 3)
    assert _has_fused_layout(weight)
    assert _has_fused_layout(weight.to(memory_format=torch.channels_last))
    assert _has_fused_layout(torch.zeros(4, 8, 1, 1).to(memory_format=torch.channels_last))
    assert _has_fused_layout(torch.zeros(()))
    assert _has_fused_layout(torch.zeros(3, 4).T)
    assert not _has_fused_layout(weight[:, :2])
    assert not _has_fused_layout(torch.zeros(3, 1).expand(3, 4))
    assert not _has_fused_layout(weight.double())
