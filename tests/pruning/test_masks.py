from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

import palmette as pm
from palmette.errors import MaskMismatch, NotWritten, PalmetteError

SHAPES = {"scalar": (), "one": (1,), "eight": (8,), "nine": (3, 3), "conv": (5, 3, 3, 3), "empty": (0, 4)}


def some_masks(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return pm.Masks({name: torch.rand(shape, generator=generator) < 0.5 for name, shape in SHAPES.items()})


def test_masks_are_a_mapping_with_counts():
    masks = pm.Masks({"a": torch.tensor([True, False]), "b": torch.tensor([[True, True]])})
    assert list(masks) == ["a", "b"]
    assert len(masks) == 2
    assert "a" in masks
    assert (masks.kept, masks.total, masks.density) == (3, 4, 0.75)
    assert repr(masks) == "Masks(2 weights, 3 of 4 kept, density 0.7500)"


def test_no_masks_have_density_one():
    assert pm.Masks({}).density == 1.0


def test_masks_that_keep_everything():
    masks = pm.Masks.ones_like({"w": torch.randn(2, 3)})
    assert (masks.kept, masks.total) == (6, 6)


def test_masks_only_ever_shrink():
    first, second = some_masks(1), some_masks(2)
    both = first & second
    for name in SHAPES:
        assert torch.equal(both[name], first[name] & second[name])
    assert both & first == both
    assert not hasattr(first, "__or__")
    with pytest.raises(TypeError):
        first["nine"] = torch.ones(3, 3, dtype=torch.bool)


def test_masks_are_equal_when_all_their_entries_are():
    assert some_masks(1) == some_masks(1)
    assert some_masks(1) != some_masks(2)
    assert pm.Masks({"a": torch.tensor([True])}) != pm.Masks({"b": torch.tensor([True])})
    assert pm.Masks({"a": torch.tensor([True])}) != pm.Masks({"a": torch.tensor([[True]])})
    assert some_masks() != "masks"


@pytest.mark.parametrize("mask", [torch.ones(2), torch.ones(2, dtype=torch.int64), [True], None], ids=repr)
def test_only_a_boolean_tensor_is_a_mask(mask):
    with pytest.raises(TypeError, match=r"boolean tensor, got .* for 'layer.weight'"):
        pm.Masks({"layer.weight": mask})
    with pytest.raises(TypeError, match=r"boolean tensor, got .* for 'layer.weight'"):
        pm.Masks({"layer.weight": torch.tensor([True, False])}) & {"layer.weight": mask}


def test_masks_set_pruned_weights_to_zero_and_leave_the_rest():
    weights = {"w": torch.tensor([1.0, float("nan"), 3.0]), "other": torch.ones(2)}
    pm.Masks({"w": torch.tensor([True, False, True])}).apply_(weights)
    assert weights["w"].tolist() == [1.0, 0.0, 3.0]
    assert weights["other"].tolist() == [1.0, 1.0]


# Keeping and sending.


def by_torch_save(masks):
    file = io.BytesIO()
    torch.save(masks.state_dict(), file)
    file.seek(0)
    return pm.Masks.from_state_dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize(
    "way",
    [
        copy.deepcopy,
        copy.copy,
        lambda masks: pickle.loads(pickle.dumps(masks)),
        lambda masks: pm.Masks.from_state_dict(masks.state_dict()),
        by_torch_save,
        lambda masks: masks.to("cpu"),
        lambda masks: pm.Masks(masks),
    ],
    ids=["deepcopy", "copy", "pickle", "state_dict", "torch.save", "to", "Masks"],
)
def test_masks_survive(way):
    assert way(some_masks()) == some_masks()


def test_masks_survive_a_file(tmp_path):
    some_masks().save(tmp_path / "masks.safetensors")
    assert pm.Masks.load(tmp_path / "masks.safetensors") == some_masks()
    some_masks(1).save(str(tmp_path / "masks.safetensors"))
    assert pm.Masks.load(str(tmp_path / "masks.safetensors")) == some_masks(1)
    assert os.listdir(tmp_path) == ["masks.safetensors"]


def test_a_file_has_one_bit_per_weight(tmp_path):
    pm.Masks.ones_like({"w": torch.empty(1000, 1000)}).save(tmp_path / "masks")
    assert 125_000 <= (tmp_path / "masks").stat().st_size < 125_000 + 500


def test_a_mask_in_another_memory_order_is_saved_in_index_order(tmp_path):
    mask = torch.rand(4, 3, 5, 5) < 0.5
    pm.Masks({"w": mask.to(memory_format=torch.channels_last)}).save(tmp_path / "masks")
    assert torch.equal(pm.Masks.load(tmp_path / "masks")["w"], mask)


# What cannot be used.


def test_masks_of_another_model_are_refused_with_the_differences(tmp_path):
    pm.Masks.ones_like({"a": torch.ones(2), "b": torch.ones(2, 3), "c": torch.ones(1)}).save(tmp_path / "masks")
    with pytest.raises(MaskMismatch) as error:
        pm.Masks.load(tmp_path / "masks", like={"a": torch.ones(2), "b": torch.ones(3, 2), "d": torch.ones(1)})
    message = str(error.value)
    assert str(tmp_path / "masks") in message
    assert "missing: d" in message
    assert "not in this model: c" in message
    assert "of another shape: b ((2, 3) instead of (3, 2))" in message


def test_a_long_list_of_differences_is_cut_short():
    with pytest.raises(MaskMismatch, match=r"w5, …$"):
        pm.Masks({}) & {f"w{i}": torch.ones(1, dtype=torch.bool) for i in range(40)}


@pytest.mark.parametrize("weights", [{"w": torch.ones(3)}, {"v": torch.ones(2)}, {}], ids=repr)
def test_weights_that_do_not_fit_are_refused_and_left_alone(weights):
    masks = pm.Masks({"w": torch.tensor([False, False])})
    before = copy.deepcopy(weights)
    with pytest.raises(MaskMismatch):
        masks.apply_(weights)
    assert all(torch.equal(weights[name], before[name]) for name in weights)


@pytest.mark.parametrize("part", [0.0, 0.02, 0.1, 0.5, 0.9, 0.99])
def test_a_torn_file_is_refused(tmp_path, part):
    some_masks().save(tmp_path / "masks")
    whole = (tmp_path / "masks").read_bytes()
    (tmp_path / "masks").write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(MaskMismatch, match="not a complete mask file") as error:
        pm.Masks.load(tmp_path / "masks")
    assert str(tmp_path / "masks") in str(error.value)


BITS = torch.tensor([5], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("bits", "metadata"),
    [
        ({"w": BITS}, None),
        ({"w": BITS}, {"format": "palmette-masks-9", "shapes": '{"w": [3]}'}),
        ({"w": BITS}, {"format": "palmette-masks-1"}),
        ({"w": BITS}, {"format": "palmette-masks-1", "shapes": '{"w": [3'}),
        ({"w": BITS}, {"format": "palmette-masks-1", "shapes": '{"w": [9]}'}),
        ({"w": BITS}, {"format": "palmette-masks-1", "shapes": '{"w": [-3]}'}),
        ({"w": BITS}, {"format": "palmette-masks-1", "shapes": '{"w": [3], "v": [3]}'}),
        ({"w": BITS, "v": BITS.clone()}, {"format": "palmette-masks-1", "shapes": '{"w": [3]}'}),
        ({"w": BITS.float()}, {"format": "palmette-masks-1", "shapes": '{"w": [3]}'}),
    ],
    ids=[
        "a model",
        "a later format",
        "no shapes",
        "torn shapes",
        "too few bits",
        "no such shape",
        "no bits",
        "no shape",
        "no bits but floats",
    ],
)
def test_a_damaged_file_is_refused(tmp_path, bits, metadata):
    safetensors.torch.save_file(bits, tmp_path / "masks", metadata)
    with pytest.raises(MaskMismatch, match="not a complete mask file"):
        pm.Masks.load(tmp_path / "masks")


@pytest.mark.parametrize(
    "shapes",
    [
        "[" * 100_000,
        "7",
        "[]",
        "null",
        '{"w": 3}',
        '{"w": [[3]]}',
        '{"w": [1e400]}',
        '{"w": [-3, -1]}',
        '{"w": null}',
    ]
    + [json.dumps({"w": sizes}) for sizes in ([10**400], [2**62, 2], [0, 2**62, 2**62], [3] * 100)],
)
def test_shapes_of_any_other_kind_are_refused(tmp_path, shapes):
    metadata = {"format": "palmette-masks-1", "shapes": shapes}
    safetensors.torch.save_file({"w": BITS}, tmp_path / "masks", metadata)
    with pytest.raises(MaskMismatch, match="not a complete mask file"):
        pm.Masks.load(tmp_path / "masks")


@pytest.mark.parametrize("shapes", [None, "", "[" * 100_000, "[]", "1", '{"w": 8}', "1" * 5000, '{"w": [9]}'])
def test_shapes_that_are_none_are_refused_though_they_are_sealed(tmp_path, shapes):
    bits = torch.tensor([255], dtype=torch.uint8)
    seal = hashlib.sha256((shapes or "").encode() + bits.numpy().tobytes()).hexdigest()
    metadata = {"format": "palmette-masks-2", "sha256": seal} | ({} if shapes is None else {"shapes": shapes})
    file, weights = tmp_path / "a.masks.safetensors", tmp_path / "a.safetensors"
    safetensors.torch.save_file({"w": bits}, file, metadata)
    with pytest.raises(MaskMismatch, match=r"a\.masks\.safetensors' is (damaged|not a complete mask file)"):
        pm.Masks.load(file)
    safetensors.torch.save_file({"w": torch.ones(2, 4)}, weights)
    with pytest.raises(PalmetteError, match=r"a\.masks\.safetensors next to it (is|belongs to another)"):
        pm.how_compressible(weights)


def test_the_undamaged_example_file_loads(tmp_path):
    metadata = {"format": "palmette-masks-1", "shapes": json.dumps({"w": [3]})}
    safetensors.torch.save_file({"w": BITS}, tmp_path / "masks", metadata)
    assert pm.Masks.load(tmp_path / "masks")["w"].tolist() == [True, False, True]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"format": "palmette-masks-1", "shapes": {"w": [3]}},
        {"format": "palmette-masks-1", "shapes": 3, "bits": {}},
        {"format": "palmette-masks-1", "shapes": {"w": [3]}, "bits": {"w": b"7"}},
        {"format": "palmette-masks-sharded-1", "kept": 3},
    ],
    ids=str,
)
def test_a_state_that_is_not_one_of_masks_is_refused(state):
    with pytest.raises(MaskMismatch):
        pm.Masks.from_state_dict(state)


def test_a_model_in_place_of_weights_is_refused():
    with pytest.raises(TypeError, match=r"as prunable\(model\) returns them, got Linear"):
        some_masks().apply_(torch.nn.Linear(2, 2))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pm.Masks.load(tmp_path / "nowhere")


def test_a_folder_that_is_not_there_is_named_and_nothing_is_written(tmp_path):
    with pytest.raises(NotWritten, match=r"^cannot write .*: there is no folder .*nowhere'$"):
        some_masks().save(tmp_path / "nowhere" / "masks")
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotWritten, match=r"there is no folder .*file'$"):
        some_masks().save(tmp_path / "file" / "masks")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", "", "/"):
        with pytest.raises(NotWritten, match=r"^cannot write .*: it is a folder, not a file name$"):
            some_masks().save(path)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_name_that_no_file_can_have_is_refused_by_that_name(tmp_path):
    with pytest.raises(NotWritten, match=r"^cannot write .*/m{250}': File name too long$"):
        some_masks().save(tmp_path / ("m" * 250))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(NotWritten, match="Permission denied"):
        some_masks().save(tmp_path / "masks")
    assert os.listdir(tmp_path) == []


def test_a_partial_file_of_another_process_is_left_alone(tmp_path):
    (tmp_path / "masks.partial").write_text("half of it")
    (tmp_path / "masks.1.partial").write_text("half of it")
    some_masks().save(tmp_path / "masks")
    assert sorted(os.listdir(tmp_path)) == ["masks", "masks.1.partial", "masks.partial"]


def test_a_failed_write_leaves_the_old_file_intact(tmp_path, monkeypatch):
    some_masks(1).save(tmp_path / "masks")

    def fail(path, content):
        path.write_text("half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(NotWritten, match=r"^cannot write .*masks': no space left on device$"):
        some_masks(2).save(tmp_path / "masks")
    assert pm.Masks.load(tmp_path / "masks") == some_masks(1)
    assert os.listdir(tmp_path) == ["masks"]


def test_a_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    path, synced = tmp_path / "masks", []

    def sync(descriptor):
        assert not path.exists()
        synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    some_masks().save(path)
    assert (path.stat().st_ino, path.stat().st_size) in synced


def test_all_refusals_can_be_caught_as_one():
    assert issubclass(MaskMismatch, PalmetteError)
    assert issubclass(MaskMismatch, ValueError)
