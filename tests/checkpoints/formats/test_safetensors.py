"""Safetensors files, their masks, and packed files."""

import json
import math

import pytest
import torch
from checkpoint_files import assert_holds, net
from safetensors.torch import load_file, save_file
from torch import nn

import palmette as pm
from palmette.checkpoints.formats import raw
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.prune import prune_checkpoint
from palmette.errors import NotReadable

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("past_cache", [0, math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_read_in_parts(tmp_path, monkeypatch, dtype, past_cache):
    monkeypatch.setattr(raw, "PAST_CACHE", past_cache)
    model = net().to(dtype)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert_holds(checkpoint, model)
    conv = next(w for w in checkpoint.weights if w.name == "conv.weight")
    assert torch.equal(conv.read(3, 7), model.conv.weight[3:7])
    assert [len(part.values) for part in conv.parts(chunk=1)] == [1] * 12  # 72 entries each: whole bytes of a mask


def test_damaged_masks_are_named(tmp_path):
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    (tmp_path / "a.masks.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"a.masks.safetensors next to it is damaged"):
        open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_flipped_bit_of_a_cut_file_is_noticed(tmp_path, dtype):
    save_file({"a.weight": torch.randn(3, 5).to(dtype), "b.bias": torch.randn(3)}, tmp_path / "a.safetensors")
    cut, masks = tmp_path / "cut.safetensors", tmp_path / "cut.masks.safetensors"
    prune_checkpoint(tmp_path / "a.safetensors", cut, budget=pm.FixedRatio(0.4))
    masks.unlink()  # which would notice some
    whole = cut.read_bytes()
    sealed = whole.index(b'"a.weight"'), len(whole)
    for byte in range(*sealed):
        for bit in (0, 6):
            cut.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
            try:
                found = open_checkpoint(cut)
            except NotReadable:
                continue
            assert whole[byte : byte + 1] == b" ", byte  # between header and tensors, where it changes nothing
            assert [w.name for w in found.weights] == ["a.weight"]


def test_a_damaged_cut_file_is_named_and_a_resaved_one_is_read(tmp_path):
    save_file(net().state_dict(), tmp_path / "a.safetensors")
    cut = prune_checkpoint(tmp_path / "a.safetensors", tmp_path / "cut.safetensors").weights_file
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(NotReadable, match="it is damaged: its content does not fit its seal") as raised:
        pm.how_compressible(cut)
    assert "save it without the metadata 'palmette-seal'" in str(raised.value)
    state = load_file(cut)
    save_file(state, cut)
    assert open_checkpoint(cut).weights


@pytest.mark.parametrize("text", [b"", b"{", b"\xff"])
def test_damaged_config_is_named(tmp_path, text):
    save_file({"lm_head.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(NotReadable, match=r"could not be read: config.json next to it is damaged$"):
        open_checkpoint(tmp_path)


def test_float8_is_measured_by_its_values(tmp_path):
    w = torch.randn(16, 16)
    save_file({"w": w.to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    (layer,) = pm.how_compressible(tmp_path / "a.safetensors").layers
    assert layer.pq_index == pytest.approx(float(pm.pq_index(w.to(torch.float8_e4m3fn).float())), rel=1e-12)
    assert (layer.dtype, layer.bytes) == ("float8_e4m3fn", 256)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([1] * 65, "'w' has 65 axes; a tensor has at most 64"),
        ([0] + [1 << 62] * 100_000, "'w' has 100,001 axes"),
        ([0, 1 << 40, 1 << 40], r"'w' has 2\^63 entries or more"),
    ],
)
def test_shapes_that_no_tensor_has_are_refused_at_once(tmp_path, shape, said):
    size = 0 if 0 in shape else 4
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(NotReadable, match=said):
        pm.how_compressible(tmp_path / "a.safetensors")


def test_tensors_of_unknown_dtype_are_left_out(tmp_path):
    head = {"a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    head |= {"b.weight": {"dtype": "F4", "shape": [4, 2], "data_offsets": [16, 20]}}
    text = json.dumps(head).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(20))
    found = open_checkpoint(tmp_path / "a.safetensors")
    assert [w.name for w in found.weights] == ["a.weight"]
    assert [(t.name, t.bytes) for t in found.left_out] == [("b.weight", 4)]
    with pytest.raises(ValueError, match=r"'b\.weight' has dtype F4, which is not read"):
        prune_checkpoint(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def test_packed_file_is_read(tmp_path):
    model = net()
    pm.save(tmp_path / "a.safetensors", model)
    assert_holds(open_checkpoint(tmp_path / "a.safetensors"), model)


def test_tied_tensors_of_a_packed_file_count_once_and_stay_tied(tmp_path):
    model = nn.ModuleDict({"tok_embed": nn.Embedding(9, 4), "a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["lm_head"] = nn.Linear(4, 9, bias=False)
    model["lm_head"].weight, model["b"].weight = model["tok_embed"].weight, model["a"].weight
    pm.save(tmp_path / "a.safetensors", model)
    assert [w.name for w in open_checkpoint(tmp_path / "a.safetensors").weights] == ["a.weight"]
    prune_checkpoint(tmp_path / "a.safetensors", tmp_path / "b.safetensors", pack=True)
    state = pm.load(tmp_path / "b.safetensors")
    assert state["lm_head.weight"] is state["tok_embed.weight"]
    assert state["b.weight"] is state["a.weight"]
    assert torch.equal(state["tok_embed.weight"], model["tok_embed"].weight)
