from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palmette as pm
from palmette.compression.flops import flops_per_image
from palmette.training.models import MODELS, build

FASHION, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "weights"
CHECKPOINTS = Path(os.environ.get("PALMETTE_CHECKPOINTS", SHARED))

# model, shape, classes: parameters; comments give the sizes of Table 3.
COUNTS = {
    ("linear", FASHION, 10): 784 * 10 + 10,  # 7.9 K
    ("mlp", FASHION, 10): 784 * 128 + 128 + 128 * 256 + 256 + 256 * 10 + 10,  # 136.1 K
    ("cnn", FASHION, 10): 1_556_874,  # 1.6 M
    ("resnet18", FASHION, 10): 11_171_018,  # 11.2 M
    ("linear", CIFAR, 10): 30_730,  # 30.7 K
    ("mlp", CIFAR, 10): 428_938,  # 428.9 K
    ("cnn", CIFAR, 10): 1_558_026,  # 1.6 M
    ("resnet18", CIFAR, 10): 11_172_170,  # 11.2 M
    ("wresnet28x8", CIFAR, 100): 23_401_012,  # 23.4 M in Zagoruyko & Komodakis 2016, Table 5
    ("resnet50", TINY, 200): 23_902_472,
    ("resnet20", CIFAR, 10): 269_722,  # 0.27 M in He et al. 2016a, Table 6
    ("resnet56", CIFAR, 10): 853_018,  # 0.85 M
    ("transformer", CIFAR, 10): 311_146,
}

# Table 3: size, FLOPs, and how many FLOPs the paper counts for one multiplication.
TABLE_3 = {
    ("linear", FASHION): (7.9e3, 3.9e6, 2),
    ("mlp", FASHION): (136.1e3, 67.8e6, 2),
    ("cnn", FASHION): (1.6e6, 20.1e9, 2),
    ("resnet18", FASHION): (11.2e6, 114.4e9, 1),
    ("linear", CIFAR): (30.7e3, 15.4e6, 2),
    ("mlp", CIFAR): (428.9e3, 214.2e6, 2),
    ("cnn", CIFAR): (1.6e6, 29.4e9, 2),
    ("resnet18", CIFAR): (11.2e6, 139.4e9, 1),
}


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "shape", "classes"), COUNTS)
def test_parameter_counts(name, shape, classes):
    with torch.device("meta"):
        model = MODELS[name](shape=shape, classes=classes)
    assert size(model) == COUNTS[name, shape, classes]


@pytest.mark.parametrize(("name", "shape"), TABLE_3)
def test_parameter_counts_round_to_table_3(name, shape):
    paper = TABLE_3[name, shape][0]
    unit = 1e6 if paper >= 1e6 else 1e3
    assert abs(COUNTS[name, shape, 10] - paper) <= 0.05 * unit


@pytest.mark.parametrize(("name", "shape"), TABLE_3)
def test_flops_of_250_images_equal_table_3(name, shape):
    """The paper also counts norms and the like (at most 1 %), and ResNet18 by multiplications only."""
    _, paper, per_multiplication = TABLE_3[name, shape]
    ours = 250 * flops_per_image(build(name, shape=shape, classes=10), shape=shape) * per_multiplication / 2
    assert ours == pytest.approx(paper, rel=0.01)


def test_flops_of_small_models_equal_a_count_by_hand():
    assert flops_per_image(build("linear", shape=FASHION, classes=10), shape=FASHION) == 2 * 784 * 10
    products = 784 * 128 + 128 * 256 + 256 * 10
    assert flops_per_image(build("mlp", shape=FASHION, classes=10), shape=FASHION) == 2 * products
    products = 64 * (48 * 96) + 4 * 64 * (4 * 96 * 96 + 2 * 96 * 192) + 4 * (2 * 64 * 64 * 96) + 96 * 10
    assert flops_per_image(build("transformer", shape=CIFAR, classes=10), shape=CIFAR) == 2 * products


@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 10), ((2, 13, 9), 3)])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_any_shape_and_number_of_classes(name, shape, classes):
    model = build(name, shape=shape, classes=classes)
    scores = model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (2, classes)
    F.cross_entropy(scores, torch.tensor([0, classes - 1])).backward()
    assert scores.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 40), (3, 65, 7)])
def test_images_of_any_shape_have_at_most_64_patches(shape):
    model = build("transformer", shape=shape, classes=2)
    assert model(torch.rand(2, *shape)).shape == (2, 2)
    assert len(model.place) <= 64


def test_patches_cover_every_pixel():
    model = build("transformer", shape=(2, 11, 9), classes=2)
    image = torch.rand(1, 2, 11, 9)
    cut = F.unfold(F.pad(image, model.fill), model.patch, stride=model.patch)
    assert float(cut.sum()) == pytest.approx(float(image.sum()), rel=1e-5)
    assert cut.shape == (1, 2 * 2 * 2, 6 * 5)


@pytest.mark.parametrize("name", MODELS)
def test_all_linear_and_convolution_weights_are_prunable(name):
    with torch.device("meta"):
        model = MODELS[name](shape=(3, 8, 8), classes=7)
    layers = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert set(pm.prunable(model)) == layers
    last = list(pm.prunable(model).values())[-1]
    assert last.shape[0] == 7
    # For the paper's models, all that has more than one dimension; the Transformer's places are not weights.
    several = {n for n, p in model.named_parameters() if p.dim() > 1}
    assert several - layers == ({"place"} if name == "transformer" else set())


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "resnet20", "transformer"])
def test_initial_weights_match_the_authors_code(name):
    for module in build(name, shape=CIFAR, classes=10, seed=3).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            wide = 5 / math.sqrt(2 * module.weight.numel())  # five standard errors
            assert float(module.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=wide)
            assert module.weight.abs().max() > 2 * math.sqrt(2 / fan_out)  # normal, not uniform
        if isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            assert 0.98 * bound < float(module.weight.detach().abs().max()) <= bound
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            assert not module.bias.any()
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()


def test_weights_depend_on_the_seed_only():
    first = build("cnn", shape=(1, 8, 8), classes=3, seed=1).state_dict()
    torch.rand(17)
    again = build("cnn", shape=(1, 8, 8), classes=3, seed=1).state_dict()
    other = build("cnn", shape=(1, 8, 8), classes=3, seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", ["mlp", "transformer", "users_own:good"])
def test_building_does_not_change_the_callers_generator(name, users_own):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build(name, shape=(1, 8, 8), classes=3, seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_a_block_with_zero_convolutions_is_the_identity():
    block = build("resnet18", shape=CIFAR, classes=10).stages[0][1].eval()
    for conv in block.convs:
        nn.init.zeros_(conv.weight)
    x = torch.randn(1, 64, 5, 5)
    assert torch.equal(block(x), x)


def test_option_a_shortcut_subsamples_and_pads_channels():
    block = build("resnet20", shape=CIFAR, classes=10).layer2[0].eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 16, 5, 5)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_published_weights_of_resnet20_load_strictly():
    path = CHECKPOINTS / "resnet20-12fca82f.th"
    if not path.is_file():
        pytest.skip("resnet20-12fca82f.th is not there; PALMETTE_CHECKPOINTS names the folder it lies in")
    saved = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = build("resnet20", shape=CIFAR, classes=10).eval()
    model.load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})
    assert torch.equal(model.linear.weight, saved["module.linear.weight"])
    noise = torch.randn(8, *CIFAR, generator=torch.Generator().manual_seed(0))
    # Batch norm's statistics match the trained weights, so that noise gives scores of a sane size.
    assert 0.1 < float(model(noise).detach().std()) < 20


OWN = """
import torch
from torch import nn
def good(*, shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
def flat(*, shape, classes): return nn.Linear(3, classes)
def nothing(*, shape, classes): return "a model"
def narrow(*, shape, classes): return good(shape=shape, classes=classes - 1)
def pair(*, shape, classes): return Pair()
def positional(inputs): return nn.Linear(inputs, 2)
class Pair(nn.Module):
    def forward(self, x): return x, x
class Made(nn.Sequential):
    def __init__(self, shape, classes): super().__init__(good(shape=shape, classes=classes))
three = 3
"""


@pytest.fixture
def users_own(tmp_path, monkeypatch):
    (tmp_path / "users_own.py").write_text(OWN)
    (tmp_path / "users_bad.py").write_text("1 / 0")
    (tmp_path / "users_old.py").write_text("import torch\ntorch.no_such_function")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("users_own", "users_bad", "users_old"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["users_own:good", "users_own:Made"])
def test_a_users_model_is_imported_and_seeded(users_own, name):
    first, again = (build(name, shape=(1, 2, 3), classes=4, seed=1) for _ in range(2))
    assert first.training
    assert size(first) == 6 * 4 + 4
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


REFUSED = {
    "resnet19": "no model 'resnet19'; there are linear, mlp, cnn, .*module:function",
    "users_own:": "'module:function', got 'users_own:'",
    ":good": "'module:function', got ':good'",
    "no_such_module:good": "model 'no_such_module:good': module 'no_such_module' cannot be imported .*PYTHONPATH",
    "users_bad:good": r"model 'users_bad:good': .* \(ZeroDivisionError: division by zero\)",
    "users_old:good": "module 'users_old' cannot be imported .*no attribute 'no_such_function'",
    "users_own:goood": "model 'users_own:goood': module 'users_own' was imported, but has no 'goood'",
    "users_own:three": "model 'users_own:three': three must be a function",
    "users_own:flat": r"model 'users_own:flat' fails on two images of shape \(1, 8, 8\): RuntimeError: ",
    "users_own:positional": r".* called as positional\(shape=\(channels, height, width\), classes=number\)",
    "torch:zeros": r"model 'torch:zeros': zeros must be a function that can be called as zeros\(shape=",
    "users_own:nothing": "model 'users_own:nothing' must return a torch.nn.Module, got str",
    "users_own:narrow": r"'users_own:narrow' must give one score per class: .*\(2, 3\), got shape \(2, 2\)",
    "users_own:pair": "model 'users_own:pair' must give .* got tuple",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unusable_model_is_named_with_its_problem(users_own, name):
    with pytest.raises((ValueError, TypeError), match=REFUSED[name]):
        build(name, shape=(1, 8, 8), classes=3)


def test_too_small_images_are_refused():
    with pytest.raises(
        ValueError, match=r"cnn needs images of at least 8x8 pixels, got 28x7 \(shape=\(1, 28, 7\)\)"
    ):
        MODELS["cnn"](shape=(1, 28, 7), classes=10)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((28, 28), 10, r"needs shape=\(channels, height, width\), three numbers from 1, got \(28, 28\)"),
        ((0, 28, 28), 10, r"three numbers from 1, got \(0, 28, 28\)"),
        ((1, 28.0, 28), 10, r"three numbers from 1, got \(1, 28.0, 28\)"),
        ((1, 28, 28), 1, "needs two or more classes, a whole number, got classes=1"),
        ((1, 28, 28), True, "got classes=True"),
    ],
)
def test_invalid_shapes_and_classes_are_refused(name, shape, classes, message):
    with pytest.raises(ValueError, match=f"{name} .*{message}"):
        MODELS[name](shape=shape, classes=classes)
