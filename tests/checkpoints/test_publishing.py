"""`push_to_hub`: what arrives on a real HTTP server, and what the card says of it."""

import sys

import pytest
import torch
from hub_server import Hub
from torch import nn

import palmette as pm

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with Hub() as hub:
        hub.token = "hf_token"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def model():
    """200 weights, of which 20 remain, all equal."""
    model = nn.Linear(20, 10)
    with torch.no_grad():
        model.weight.zero_()[:, :2] = 0.5
    return model


def card_of(hub, name="org/small"):
    return hub.models[name]["README.md"].decode()


def test_uploaded_model_loads_back_and_its_card_says_what_is_left(hub, model, tmp_path):
    assert pm.push_to_hub(model, "org/small", accuracy=0.91) == f"{hub.url}/org/small"
    file = tmp_path / "model.safetensors"
    file.write_bytes(hub.models["org/small"]["model.safetensors"])
    assert torch.equal(pm.load(file)["weight"], model.weight)
    card = card_of(hub)
    assert "10.0% of the weights remain" in card
    assert "| weights | 20 of 200 |" in card
    assert "| accuracy | 0.91 |" in card
    assert "| PQ Index of the remaining weights (p=0.5, q=1) | 0.0000 |" in card
    assert f"| size | {file.stat().st_size:,} bytes |" in card
    assert "| size of the dense file | 840 bytes |" in card
    assert "| weight | 10 × 20 | 10.0% | 0.0000 |" in card
    assert 'hf_hub_download("org/small", "model.safetensors")' in card
    assert hub.private == set()


def test_uploaded_model_is_measured_on_the_hub(hub, model):
    pm.push_to_hub(model.state_dict(), "org/small", private=True)
    assert pm.how_compressible("hf://org/small").whole.density == 0.1
    assert "accuracy" not in card_of(hub)
    assert hub.private == {"org/small"}


def test_a_file_of_save_is_uploaded_as_it_is(hub, model, tmp_path):
    pm.save(tmp_path / "small.safetensors", model)
    pm.push_to_hub(tmp_path / "small.safetensors", "org/small")
    assert hub.models["org/small"]["model.safetensors"] == (tmp_path / "small.safetensors").read_bytes()


def test_missing_permission_and_network_are_sentences(hub, model, monkeypatch):
    hub.token = "another"
    with pytest.raises(
        OSError, match=r"answers 403 for 'org/small'; `hf auth login` with a token that may do this"
    ):
        pm.push_to_hub(model, "org/small")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OSError, match=r"http://127.0.0.1:9 cannot be reached: "):
        pm.push_to_hub(model, "org/small")
    assert hub.models == {}


def test_wrong_arguments_are_refused_before_anything_is_sent(hub, model, tmp_path):
    with pytest.raises(TypeError, match="accuracy must be a number, got '91%'"):
        pm.push_to_hub(model, "org/small", accuracy="91%")
    with pytest.raises(FileNotFoundError, match="no file at"):
        pm.push_to_hub(tmp_path / "none.safetensors", "org/small")
    assert hub.models == {}


def test_missing_package_names_the_install_command(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"push_to_hub needs huggingface_hub: pip install 'palmette\[hub\]'"):
        pm.push_to_hub(model, "org/small")
