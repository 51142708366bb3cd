"""Checkpoints on the Hub, read from a real HTTP server: which bytes are fetched, and what errors say."""

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoint_files import net, sharded
from hub_server import Hub
from safetensors.torch import save_file

import palmette as pm
from palmette.checkpoints.formats.safetensors import header_of
from palmette.checkpoints.hub import Place, Repository, address, read
from palmette.checkpoints.open import open_checkpoint

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def hub(monkeypatch):
    with Hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield hub


def upload(hub, folder, model="org/net"):
    """Put all files of a folder on the Hub."""
    hub.models[model] = {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


def stored(folder, dtype=torch.float32, name="model.safetensors"):
    """A network in a folder, with an embedding that is not measured."""
    state = {name: tensor.to(dtype) for name, tensor in net().state_dict().items()}
    file = folder / name
    save_file(state | {"embeddings.weight": torch.ones(1000, 8, dtype=dtype)}, file)
    return file


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_only_the_headers_and_the_measured_weights_are_fetched_each_byte_once(hub, tmp_path, dtype):
    file = stored(tmp_path, dtype)
    upload(hub, tmp_path)
    expected = pm.how_compressible(file)
    report = pm.how_compressible("hf://org/net")
    assert report.layers == expected.layers
    assert report.whole == expected.whole
    header, start = header_of(file)
    wanted = {*range(start)}
    for layer in report.layers:
        first, last = header[layer.name]["data_offsets"]
        wanted |= {*range(start + first, start + last)}
    sent = hub.sent["org/net", "model.safetensors"]
    assert {*sent} == wanted
    assert {*sent.values()} == {1}
    assert len(wanted) < file.stat().st_size


def test_shards_are_read_like_those_on_disk(hub, tmp_path):
    sharded(tmp_path, net(), "safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    upload(hub, tmp_path)
    assert pm.how_compressible("hf://org/net@v1").layers == pm.how_compressible(tmp_path).layers
    assert all({*sent.values()} == {1} for sent in hub.sent.values())
    assert {name for _, name in hub.sent} == {file.name for file in tmp_path.iterdir()}


@pytest.mark.parametrize("form", ["hf://org/net/unet/part.safetensors@v1", "hf://org/net@v1/unet"])
def test_a_file_and_a_folder_can_be_named(hub, tmp_path, form):
    (tmp_path / "unet").mkdir()
    file = stored(tmp_path / "unet", name="part.safetensors")
    stored(tmp_path)
    upload(hub, tmp_path)
    assert open_checkpoint(form).title == form.removeprefix("hf://")
    assert {name for _, name in hub.sent} == {"unet/part.safetensors"}
    assert pm.how_compressible(form).whole == pm.how_compressible(file).whole


def test_a_packed_file_is_fetched_as_a_whole(hub, tmp_path):
    pm.save(tmp_path / "model.safetensors", net())
    upload(hub, tmp_path)
    assert pm.how_compressible("hf://org/net").layers == pm.how_compressible(tmp_path).layers
    assert {*hub.sent["org/net", "model.safetensors"].values()} == {1}


def test_command_measures_on_the_endpoint_of_the_environment(hub, tmp_path):
    file = stored(tmp_path, torch.bfloat16)
    upload(hub, tmp_path)
    command = [sys.executable, "-m", "palmette", "measure", "hf://org/net", "--json"]
    said = subprocess.run(
        command, env=os.environ | {"HF_ENDPOINT": hub.url}, capture_output=True, text=True, check=True
    )
    report = json.loads(said.stdout)
    assert (report["path"], report["title"]) == ("hf://org/net", "org/net")
    assert report["layers"] == json.loads(json.dumps(pm.how_compressible(file).to_dict()["layers"]))


def test_temporary_files_are_gone_when_the_report_is_there(hub, tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (tmp_path / "model").mkdir()
    file = stored(tmp_path / "model")
    upload(hub, tmp_path / "model")
    contents = read(Place("org/net"))
    (folder,) = place.iterdir()
    copy = folder / "model.safetensors"
    assert copy.stat().st_size == file.stat().st_size
    assert copy.stat().st_blocks * 512 < file.stat().st_size  # the rest is a hole
    del contents
    gc.collect()
    assert [*place.iterdir()] == []


def said_of(form="hf://org/net"):
    with pytest.raises(ValueError) as said:
        pm.how_compressible(form)
    return str(said.value)


def test_what_the_hub_does_not_have_is_named(hub, tmp_path):
    stored(tmp_path, name="a.safetensors")
    upload(hub, tmp_path)
    hub.gated = {"org/closed"}
    assert said_of("hf://org/else") == (
        "'org/else' is not a model on the Hub, or is private: check the name, or `hf auth login`"
    )
    assert said_of("hf://org/closed") == (
        f"'org/closed' is gated: accept its terms at {hub.url}/org/closed, then `hf auth login`"
    )
    assert said_of("hf://org/net@v9") == "'org/net' has no revision 'v9'"
    assert said_of("hf://org/net/b.safetensors") == "'org/net' has no file 'b.safetensors'"
    assert said_of("hf://") == "an address on the Hub is hf://org/model[/file][@revision], got 'hf://'"
    assert said_of("hf://org") == "an address on the Hub is hf://org/model[/file][@revision], got 'hf://org'"
    assert "'-org/net' cannot be the name of a model" in said_of("hf://-org/net")
    assert hub.sent == {}


def test_other_files_than_safetensors_are_refused(hub):
    hub.models["org/net"] = {"pytorch_model.bin": b"x", "a/1.safetensors": b"", "a/2.safetensors": b""}
    assert said_of() == (
        "'org/net' has no safetensors file in its main folder; `hf download` it, then measure the folder"
    )
    assert said_of("hf://org/net/pytorch_model.bin") == (
        "'pytorch_model.bin' in 'org/net' is not a safetensors file; `hf download` it, then measure the folder"
    )
    assert said_of("hf://org/net/a") == (
        "'org/net' has several files; name one of 1.safetensors, 2.safetensors in the address"
    )
    index = {"weight_map": {"a.weight": "../../b.safetensors"}}
    hub.models["org/net"] = {"model.safetensors.index.json": json.dumps(index).encode()}
    assert said_of().endswith("it names a shard outside its folder: '../../b.safetensors'")


@pytest.mark.parametrize("content", [b"", b"1234", b"x" * 5000, (10).to_bytes(8, "little") + b"{" * 10])
def test_damaged_files_are_refused(hub, content):
    hub.models["org/net"] = {"model.safetensors": content}
    assert re.search("could not be read: it|answers 416", said_of())


def test_a_file_that_changes_while_it_is_read_is_refused(hub, tmp_path):
    file = stored(tmp_path)
    upload(hub, tmp_path)
    contents = read(Place("org/net"))
    hub.models["org/net"]["model.safetensors"] = file.read_bytes() + b"!"
    with pytest.raises(ValueError, match=r"'model.safetensors' in 'org/net' changed while it was read; measure"):
        contents.tensors[0].read(0, 1)


def test_errors_of_the_server_and_the_network_are_sentences(hub, tmp_path, monkeypatch):
    stored(tmp_path)
    upload(hub, tmp_path)
    hub.faults = {"model.safetensors": 410}
    assert said_of() == f"{hub.url} answers 410 for 'org/net'; try again later"
    hub.ranges = False
    assert said_of() == (
        f"{hub.url} sends whole files only, not parts of 'model.safetensors'; `hf download` it, then measure the "
        "folder"
    )
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert said_of().startswith("http://127.0.0.1:9 cannot be reached: ")


def test_a_dropped_request_is_repeated(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    file = stored(tmp_path)
    upload(hub, tmp_path)
    hub.faults = {"model.safetensors": 503}
    assert pm.how_compressible("hf://org/net").whole == pm.how_compressible(file).whole


def test_full_disk_is_named(hub, tmp_path):
    stored(tmp_path)
    upload(hub, tmp_path)
    repository = Repository("org/net")
    file = repository.begin("model.safetensors")
    read = repository.source(file, torch.float32)
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match=r"weights of more than 16 bits, .* set TMPDIR to another folder"):
        read(0, 8)


def test_parts_and_cuts_need_files_on_disk(tmp_path):
    from palmette.checkpoints.parts import measure_part
    from palmette.checkpoints.prune import prune_checkpoint

    need = "needs files on this machine; `hf download org/net` fetches them"
    with pytest.raises(ValueError, match=need):
        measure_part("hf://org/net@v1", 1, 2)
    with pytest.raises(ValueError, match=need):
        prune_checkpoint(Path("hf://org/net"), tmp_path / "out.safetensors")


def test_missing_package_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"hf:// needs huggingface_hub: pip install 'palmette\[hub\]'"):
        pm.how_compressible("hf://org/net")


def test_an_address_keeps_its_slashes():
    assert address(Path("hf://org/net")) == address("hf://org/net") == "hf://org/net"
