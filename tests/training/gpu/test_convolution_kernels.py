"""Fused convolutions on a CUDA device."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

import palmette as pm
from palmette.training.data.images import Images
from palmette.training.gpu.convolution import fuse_convolutions
from palmette.training.loop import Training, arithmetic, autocast
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def block(channels, width, *, bias=True, pool=True):
    pools = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=bias), nn.BatchNorm2d(width), nn.ReLU(), *pools,
        nn.Conv2d(width, 70, 3, padding=1), nn.BatchNorm2d(70), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(70, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


MODELS = {
    "colours": lambda: (block(3, 64), (3, 32, 32)),
    "grey, odd": lambda: (block(1, 10), (1, 27, 29)),
    "no bias, no pool": lambda: (block(3, 8, bias=False, pool=False), (3, 9, 8)),
    "four channels": lambda: (block(4, 5), (4, 12, 12)),
    "cnn": lambda: (build("cnn", shape=(3, 32, 32), classes=10, seed=0), (3, 32, 32)),
    "cnn, grey": lambda: (build("cnn", shape=(1, 28, 28), classes=10, seed=0), (1, 28, 28)),
    "resnet18": lambda: (build("resnet18", shape=(3, 32, 32), classes=10, seed=0), (3, 32, 32)),
}


@pytest.mark.filterwarnings(
    "ignore:.*does not have a deterministic implementation", "ignore:.*no current CUDA context"
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_fused_convolutions_are_as_accurate_as_torch(make, precision):
    torch.manual_seed(0)
    model, shape = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    model = model.cuda().to(memory_format=torch.channels_last).train()
    x = torch.randn(64, *shape, device="cuda").contiguous(memory_format=torch.channels_last)
    exact, usual, fast = copy.deepcopy(model).double(), copy.deepcopy(model), copy.deepcopy(model).to("meta")
    assert fuse_convolutions(fast)
    with arithmetic(precision, torch.device("cuda")), autocast(precision, torch.device("cuda")):
        ours = functional_call(fast, {**dict(model.named_parameters()), **dict(model.named_buffers())}, (x,))
        theirs = usual(x)
    truth = exact(x.double())
    gradients = torch.randn_like(truth)
    with arithmetic(precision, torch.device("cuda")):
        found = torch.autograd.grad(ours, list(model.parameters()), gradients.to(ours.dtype), allow_unused=True)
        others = torch.autograd.grad(theirs, list(usual.parameters()), gradients.to(theirs.dtype))
    wanted = torch.autograd.grad(truth, list(exact.parameters()), gradients)

    def far(values, true):
        values, true = values.detach().double(), true.detach().double()
        return float((values - true).norm() / (true.norm() + 1e-9))

    # About as accurate as torch.
    assert far(ours, truth) < 2 * far(theirs, truth) + 1e-6
    for (name, _), own, other, true in zip(model.named_parameters(), found, others, wanted, strict=True):
        if float(true.norm()) > 1e-6:
            assert far(own, true) < 2 * far(other, true) + 1e-5, name
        else:  # the bias of a convolution before a norm
            assert not own.any(), name
    for (name, own), true in zip(model.named_buffers(), exact.buffers(), strict=True):
        assert far(own, true) < (1e-5 if precision == "float32" else 2e-2), name


@pytest.mark.parametrize("name", ["cnn", "resnet20"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_epoch_equals_torchs_optimizer(name, precision):
    """Masked, clipped and with momentum, compared with the same steps without the kernels."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (96, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.arange(96) % 4
    known = {"classes": 4, "name": "CIFAR10", "mean": (0.5,) * 3, "sd": (0.25,) * 3, "augment": True}
    images = Images(pixels, labels, pixels[:9], labels[:9], **known)
    recipe = Recipe(batch=32, precision=precision, clip=0.5)
    models = []
    for plain in (False, True):
        model = build(name, shape=(3, 16, 16), classes=4, seed=0).cuda()
        pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="layer")
        pruner.step()
        optimizer = recipe.make_optimizer(model.parameters())
        for number in range(2):  # the second resumes from the optimizer state
            training = Training([Member(model, optimizer, 0, masks=pruner.masks)], images, recipe)
            assert training.network._fused_optimizer is not None
            if plain:
                training.network._fused_optimizer = training.network._fast = None
                training.network._used = training.network._parameters
            training.epoch(number)
        assert all(bool((model.get_parameter(n)[~m] == 0).all()) for n, m in pruner.masks.items())
        models.append(model)
    for (key, ours), theirs in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        most = 1e-4 if precision == "float32" else 0.05
        assert torch.allclose(ours.double(), theirs.double(), rtol=most, atol=most), key
