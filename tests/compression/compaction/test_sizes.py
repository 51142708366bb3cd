"""A file of a compacted model has the sizes of its layers, and loads into a new model of its class."""

import copy
import json
import pickle
import subprocess
import sys
import zlib

import pytest
import torch
from compact_cases import X, compacted
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import palmette as pm
from palmette.errors import MaskMismatch, PackedDamaged
from palmette.training.models import build


def metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


class Sizes(nn.Module):
    """Every kind of layer with sizes, one of which the model's own code reads."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.prelu = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.PReLU(6)
        self.depthwise, self.up = nn.Conv2d(6, 6, 3, groups=6), nn.ConvTranspose2d(6, 8, 2)
        self.b, self.head = nn.Linear(8, 5, bias=False), nn.Linear(5, 2)

    def forward(self, x):
        x = self.up(self.depthwise(self.prelu(self.norm(self.a(x)))))
        assert self.a.out_channels == 6  # the size of one layer serves to compute with another
        return self.head(self.b(x.mean((2, 3))).relu())


def made_smaller():
    torch.manual_seed(0)
    model = Sizes().eval()
    pm.Pruner(model, scope="channel", inputs=X, budget=pm.FixedRatio(0.5)).step()
    return compacted(model, X)[0]


def test_a_new_model_becomes_as_small_and_gives_the_same_outputs(tmp_path):
    small, path = made_smaller(), tmp_path / "small.safetensors"
    pm.save(path, small)
    fresh = pm.load(path, Sizes().eval())
    assert torch.equal(fresh(X), small(X))
    assert fresh.depthwise.groups == len(fresh.depthwise.weight) < 6
    assert fresh.a.out_channels == 6 > len(fresh.a.weight)
    assert {n: vars(m).get("in_features") for n, m in fresh.named_modules()} == {
        n: vars(m).get("in_features") for n, m in small.named_modules()
    }
    fresh.train()(X).sum().backward()
    assert all(p.grad is not None for p in fresh.parameters())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_and_what_was_loaded_save_their_sizes_too(tmp_path, copied):
    small, paths = made_smaller(), [tmp_path / f"{i}.safetensors" for i in range(2)]
    pm.save(paths[0], copied(small))
    pm.save(paths[1], pm.load(paths[0], Sizes()))
    assert metadata(paths[0]) == metadata(paths[1])


def test_a_bias_that_compaction_added_is_loaded(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)).eval()
    model[0].weight.data[0], model[0].bias.data[0] = 0, 1.0  # a constant, which moves into a new bias
    small, _ = pm.compact(model, torch.ones(1, 4))
    assert small[2].bias is not None
    pm.save(tmp_path / "small.safetensors", small)
    new = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)).eval()
    pm.load(tmp_path / "small.safetensors", new)
    assert torch.equal(new(torch.eye(4)), small(torch.eye(4)))


def test_tied_weights_stay_one_tensor(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.a, self.b, self.last = (nn.Linear(*size) for size in ((3, 4), (4, 4), (4, 4), (4, 1)))
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.last(self.b(self.a(self.first(x))))

    model = Tied().eval()
    pm.Pruner(model, scope="channel", inputs=torch.ones(1, 3), budget=pm.FixedRatio(0.5)).step()
    small, _ = pm.compact(model, torch.ones(1, 3))
    pm.save(tmp_path / "small.safetensors", small)
    fresh = pm.load(tmp_path / "small.safetensors", Tied().eval())
    assert fresh.a.weight is fresh.b.weight
    assert len(fresh.a.weight) == 2


@pytest.mark.slow
def test_a_fresh_process_loads_a_compacted_resnet(tmp_path):
    torch.manual_seed(0)
    model, x = build("resnet20", shape=(3, 16, 16), classes=10).eval(), torch.randn(2, 3, 16, 16)
    pm.Pruner(model, scope="channel", inputs=x, budget=pm.FixedRatio(0.5)).step()
    small, _ = pm.compact(model, x)
    pm.save(tmp_path / "small.safetensors", small)
    torch.save((x, small(x).detach()), tmp_path / "outputs.pt")
    code = """if True:
        import torch, palmette as pm
        from palmette.training.models import build
        model = pm.load("small.safetensors", build("resnet20", shape=(3, 16, 16), classes=10)).eval()
        x, wanted = torch.load("outputs.pt")
        assert torch.equal(model(x), wanted)
        print(len(model.layer1[0].conv1.weight))
    """
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.strip() == str(len(small.layer1[0].conv1.weight)), said.stderr


# Refusals.


def test_files_of_other_models_have_no_sizes_and_must_fit(tmp_path):
    pm.save(tmp_path / "dense.safetensors", nn.Linear(4, 2))
    assert metadata(tmp_path / "dense.safetensors").keys() == {"format", "tensors", "crc32"}
    with pytest.raises(MaskMismatch, match=r"of another shape: weight \(\(2, 4\) instead of \(3, 4\)\)"):
        pm.load(tmp_path / "dense.safetensors", nn.Linear(4, 3))


def test_a_file_of_a_larger_or_another_model_changes_nothing(tmp_path):
    small, path = made_smaller(), tmp_path / "small.safetensors"
    pm.save(path, small)
    narrow = Sizes()
    narrow.head = nn.Linear(5, 1)
    other = Sizes()
    other.prelu = nn.BatchNorm2d(6)
    for model, said in ((narrow, "head.weight"), (other, "num_parameters of 'prelu', which is BatchNorm2d")):
        before = {n: t.clone() for n, t in model.state_dict().items()}
        with pytest.raises(MaskMismatch, match=said):
            pm.load(path, model)
        assert {n: t.shape for n, t in model.state_dict().items()} == {n: t.shape for n, t in before.items()}


@pytest.mark.parametrize("sizes", ['{"": {"forward": 3}}', '{"": {"weight": 3}}', '{"a.b": {"out_features": 3}}'])
def test_only_sizes_are_set_on_a_model(tmp_path, sizes):
    path, model = tmp_path / "a.safetensors", nn.Linear(4, 2)
    pm.save(path, model)
    about = metadata(path) | {"sizes": sizes, "sizes_crc32": str(zlib.crc32(sizes.encode()))}
    save_file(load_file(path), path, about)
    with pytest.raises(MaskMismatch, match="the sizes in this file are of another model"):
        pm.load(path, model)
    assert model(torch.ones(4)).shape == (2,)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "are invalid"),
        ('{"a": 3}', "are invalid"),
        ('{"a": {"out_channels": -1}}', "are invalid"),
        ('{"a": {"out_channels": 1.5}}', "are invalid"),
        (None, "checksum of its layer sizes"),
    ],
)
def test_damaged_sizes_are_named(tmp_path, sizes, said):
    path = tmp_path / "small.safetensors"
    pm.save(path, made_smaller())
    about = metadata(path) | {"sizes_crc32": "1"}
    if sizes is not None:
        about |= {"sizes": sizes, "sizes_crc32": str(zlib.crc32(sizes.encode()))}
    save_file(load_file(path), path, about)
    with pytest.raises(PackedDamaged, match=said):
        pm.load(path, Sizes())
    assert json.loads(about["tensors"]).keys() == pm.load(path).keys()  # the tensors are whole
