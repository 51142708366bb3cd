"""Checkpoints in several files."""

import json

import pytest
import torch
from checkpoint_files import assert_holds, net, sharded, values
from safetensors.torch import save_file

from palmette.checkpoints.open import open_checkpoint


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_one_checkpoint(tmp_path, kind):
    model = net()
    index = sharded(tmp_path, model, kind)
    assert_holds(open_checkpoint(index), model)
    assert_holds(open_checkpoint(tmp_path), model)
    (tmp_path / sorted(set(json.loads(index.read_text())["weight_map"].values()))[1]).unlink()
    with pytest.raises(ValueError, match="1 of 2 shards are missing"):
        open_checkpoint(tmp_path)


def test_index_decides_which_shard_has_a_tensor(tmp_path):
    old, new = torch.zeros(4, 4), torch.ones(4, 4)
    save_file({"a.weight": new, "b.weight": old}, tmp_path / "1.safetensors")
    save_file({"b.weight": new}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "1.safetensors", "b.weight": "2.safetensors"}}))
    assert [(w.name, values(w).min().item()) for w in open_checkpoint(index).weights] == [
        ("a.weight", 1.0),
        ("b.weight", 1.0),
    ]
    save_file({"c.weight": new}, tmp_path / "2.safetensors")
    with pytest.raises(ValueError, match=r"'b.weight' is in the index and in no shard"):
        open_checkpoint(index)
    (tmp_path / "2.safetensors").write_bytes((tmp_path / "1.safetensors").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"2.safetensors' could not be read: it is damaged or truncated") as said:
        open_checkpoint(index)
    assert "index.json" not in str(said.value)
    index.write_text("{")
    with pytest.raises(ValueError, match=r"model.safetensors.index.json has no weight_map of files"):
        open_checkpoint(index)


@pytest.mark.parametrize(
    "name", ["../a.safetensors", "/tmp/a.safetensors", "x/../../a.safetensors", "C:a", r"..\a", ""]
)
def test_shards_outside_of_the_folder_are_refused(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a.weight": torch.eye(2)}, tmp_path / "a.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": name}}))
    with pytest.raises(ValueError, match="it names a shard outside its folder"):
        open_checkpoint(index)


def test_shards_in_folders_below_and_by_links_are_read(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model" / "parts").mkdir(parents=True)
    save_file({"a.weight": torch.eye(2)}, tmp_path / "blobs" / "0")
    (tmp_path / "model" / "parts" / "1.safetensors").symlink_to(tmp_path / "blobs" / "0")  # a cache of downloads
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "./parts/1.safetensors"}}))
    assert [w.name for w in open_checkpoint(index).weights] == ["a.weight"]
    index.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"has no weight_map of files"):
        open_checkpoint(index)
