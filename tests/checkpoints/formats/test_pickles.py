"""PyTorch's own files."""

import re
from zipfile import ZipFile

import pytest
import torch
from checkpoint_files import NESTINGS, assert_holds, net
from torch import nn

import palmette as pm
from palmette.checkpoints.open import open_checkpoint
from palmette.errors import NotReadable


@pytest.mark.parametrize("nesting", NESTINGS)
def test_weights_are_found_in_any_nesting(tmp_path, nesting):
    model = net()
    torch.save(NESTINGS[nesting](model.state_dict()), tmp_path / "a.pt")
    assert_holds(open_checkpoint(tmp_path / "a.pt"), model)


def test_both_networks_of_a_file_are_measured(tmp_path):
    model = net()
    other = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save({"generator": model.state_dict(), "discriminator": other}, tmp_path / "a.pt")
    names = {weight.name.partition(".")[0] for weight in open_checkpoint(tmp_path / "a.pt").weights}
    assert names == {"generator", "discriminator"}


@pytest.mark.parametrize("zipped", [True, False])
def test_zipped_and_legacy_files_are_read(tmp_path, zipped):
    model = net()
    torch.save(model.state_dict(), tmp_path / "a.th", _use_new_zipfile_serialization=zipped)
    assert_holds(open_checkpoint(tmp_path / "a.th"), model)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "nesting", [{"state_dict": {}}, {"epoch": 3, "model": {}, "optimizer": {"0": torch.ones(5)}}]
)
def test_every_kind_of_tensor_is_read_in_parts(tmp_path, nesting, zipped):
    dtypes = DTYPES if zipped else DTYPES[:4]
    state = {f"{i}.weight": torch.randn(24, 10).to(dtype) for i, dtype in enumerate(dtypes)}
    state |= {"view.weight": state["1.weight"][4:9], "turned.weight": state["1.weight"].t()}
    state |= {"tied.weight": state["0.weight"], "parameter.weight": nn.Parameter(torch.ones(2, 3))}
    state |= {"bias": torch.ones(3), "sparse": torch.eye(3).to_sparse(), "counter": torch.tensor(3)}
    saved = {key: state if value == {} else value for key, value in nesting.items()}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    found = open_checkpoint(tmp_path / "a.pt")
    names = [*(f"{i}.weight" for i in range(len(dtypes))), "view.weight", "turned.weight", "parameter.weight"]
    assert [(w.name, w.dtype, w.shape) for w in found.weights] == [
        (name, state[name].dtype, tuple(state[name].shape)) for name in names
    ]
    assert found.aliases == {"tied.weight": "0.weight"}
    assert [one.bytes for one in found.left_out if one.name == "tied.weight"] == [0]
    for weight in found.weights:
        assert torch.equal(weight.read(1, 2), state[weight.name][1:2])


def test_dicts_that_hold_one_another_are_not_followed_for_ever(tmp_path):
    twice = {"w.weight": torch.ones(2, 2)}
    for _ in range(60):
        twice = {"a": twice, "b": twice}
    endless = {"w.weight": torch.ones(2, 2)}
    endless["again"] = {"and": endless, "w.weight": torch.ones(2, 2)}
    for name, saved in (("twice", twice), ("endless", endless)):
        torch.save(saved, tmp_path / f"{name}.pt")
        with pytest.raises(NotReadable, match=r"its dicts (contain one another|are nested more than 64 deep)"):
            open_checkpoint(tmp_path / f"{name}.pt")


def test_tensors_of_more_values_than_the_file_are_left_out(tmp_path):
    wide = torch.ones(1, 1).expand(10**6, 10**6)
    torch.save({"wide.weight": wide, "fc.weight": torch.ones(2, 2)}, tmp_path / "a.pt")
    assert [w.name for w in open_checkpoint(tmp_path / "a.pt").weights] == ["fc.weight"]


def test_what_a_pickle_names_many_times_is_looked_at_briefly(tmp_path):
    """A key of 2^64 parts, a parameter of a parameter 99 times, and a tensor with 999 sizes of 2^62."""
    torch.save({"0.weight": torch.ones(2, 3)}, tmp_path / "a.pt")
    with ZipFile(tmp_path / "a.pt") as archive:
        whole = {name: archive.read(name) for name in archive.namelist()}
    name, program = next((name, data) for name, data in whole.items() if name.endswith("data.pkl"))
    key = re.search(rb"X\x01\0\0\x000q.", program)[0]
    nested, wide = (
        b"ctorch._utils\n_rebuild_parameter\nq\xf00N" + b"q\xf10h\xf0h\xf1\x85R" * 99,
        b"\x8a\x08" + b"\x3f" * 8,
    )
    other = b"X\x01\0\0\0v%ss."
    others = {
        "key": program.replace(key, b"K\x00" + b"q\xf0h\xf0\x86" * 64),
        "nested": program[:-1] + other % nested,
        "wide": program[:-1] + other % (b"ctorch._utils\n_rebuild_sparse_tensor\n((" + wide * 999 + b"ttR"),
    }
    for case, other in others.items():
        with ZipFile(tmp_path / f"{case}.pt", "w") as archive:
            for member, data in (whole | {name: other}).items():
                archive.writestr(member, data)
    with pytest.raises(NotReadable, match="damaged"):
        open_checkpoint(tmp_path / "key.pt")
    for case in ("nested", "wide"):
        found = open_checkpoint(tmp_path / f"{case}.pt")
        assert [w.name for w in found.weights] == ["0.weight"]
        assert [t.shape for t in found.left_out] == [()]


def test_views_of_the_same_bytes_are_bounded(tmp_path):
    whole = torch.ones(4000)
    state = {f"{i}.weight": whole[i:].view(1, -1) for i in range(600)}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(NotReadable, match=r"its tensors overlap: .* more than 16 times the file"):
        open_checkpoint(tmp_path / "a.pt")


def test_tensor_beyond_its_storage_is_damage(tmp_path):
    torch.save({"w.weight": torch.ones(16, 16)}, tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    assert whole.count(b"K\x10K\x10") == 1  # the shape
    (tmp_path / "a.pt").write_bytes(whole.replace(b"K\x10K\x10", b"K\x10K\x11"))
    with pytest.raises(NotReadable, match="it is damaged or truncated"):
        open_checkpoint(tmp_path / "a.pt")


def test_weight_and_mask_of_torch_prune_are_joined(tmp_path):
    from torch.nn.utils import prune

    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[2], "bias", amount=0.5)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    first, second = open_checkpoint(tmp_path / "a.pt").weights
    assert (first.name, second.name) == ("0.weight", "2.weight")
    assert torch.equal(first.kept(0, 4), model[0].weight_mask.bool())
    report = pm.how_compressible(tmp_path / "a.pt")
    assert (report.layers[0].entries, report.layers[0].d) == (32, 16)
    assert report.layers[0].pq_index == pytest.approx(
        float(pm.pq_index(model[0].weight_orig, kept=model[0].weight_mask.bool())), rel=1e-12
    )


def test_tied_output_layer_is_left_out(tmp_path):
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(9, 4), "fc": nn.Linear(4, 4), "lm_head": nn.Linear(4, 9)})
    model["lm_head"].weight = model["embed_tokens"].weight
    torch.save(model.state_dict(), tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert [w.name for w in checkpoint.weights] == list(pm.prunable(model)) == ["fc.weight"]
    assert {t.name: t.why for t in checkpoint.left_out}["lm_head.weight"] == "the same as embed_tokens.weight"


def test_weight_with_two_names_counts_once(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    torch.save(model.state_dict(), tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert [w.name for w in checkpoint.weights] == list(pm.prunable(model)) == ["0.weight"]
    assert checkpoint.aliases == {"2.weight": "0.weight"}


def test_patterns_match_either_name_of_a_tensor(tmp_path):
    linear = nn.Linear(3, 3)
    model = nn.ModuleDict({"one": linear, "two": linear, "head": nn.Linear(3, 2)})
    torch.save(model.state_dict(), tmp_path / "a.pt")
    for options in ({"include": ["two.*"]}, {"exclude": ["two.*"]}):
        found = open_checkpoint(tmp_path / "a.pt", **options)
        assert [w.name for w in found.weights] == list(pm.prunable(model, **options))
