"""`compact`: models, inputs, reports and refusals."""

import re
from dataclasses import dataclass

import pytest
import torch
from compact_cases import TwoLayers, X, compacted, same_outputs, settle_
from torch import nn

import palmette as pm
from palmette.compression.compaction.compact import compact
from palmette.training.models import build

LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "resnet50", "wresnet28x8")]


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else x


def test_untraceable_model_is_unchanged_and_the_reason_reported(capfd):
    model = Branching()
    model.layer.weight.data[0] = 0
    small, report = compact(model, torch.ones(2, 4))
    (note,) = report.notes
    assert re.match(
        r"Nothing was removed: torch.export cannot trace the model at test_compact.py, line \d+, "
        r"'return self.layer.x. if .*': \w+: .+",
        note,
    )
    assert len(note) < 400
    assert report.layers == {}
    assert torch.equal(small.layer.weight, model.layer.weight)
    assert capfd.readouterr() == ("", "")


class Silent(nn.Module):
    """Raises an error without a message for other sizes than its own, or under the tracer."""

    error = KeyError()

    def __init__(self, traced):
        super().__init__()
        self.a, self.b, self.traced = nn.Linear(4, 6), nn.Linear(6, 2), traced

    def forward(self, x):
        if torch.compiler.is_exporting() if self.traced else x.shape[1] != 4 or len(self.a.weight) != 6:
            raise self.error
        return self.b(self.a(x).relu())


def test_error_without_a_message_is_reported_by_its_type():
    for traced, note in (
        (True, r"Nothing was removed: torch.export cannot trace the model at .*: KeyError"),
        (False, "Left alone: a.weight, a.bias, b.weight: KeyError"),
    ):
        model = Silent(traced)
        model.a.weight.data[:3] = 0
        assert re.fullmatch(note, compact(model, torch.ones(2, 4))[1].notes[0])
    with pytest.raises(ValueError, match=r"the model fails on the example inputs: KeyError$"):
        compact(Silent(traced=False), torch.ones(2, 5))


def test_all_lines_of_an_error_are_reported(monkeypatch):
    monkeypatch.setattr(Silent, "error", RuntimeError("sizes differ:\n\t3 is not 6"))
    model = Silent(traced=False)
    model.a.weight.data[:3] = 0
    (note,) = compact(model, torch.ones(2, 4))[1].notes
    assert note == "Left alone: a.weight, a.bias, b.weight: RuntimeError: sizes differ: 3 is not 6"


@dataclass
class Answer:
    logits: torch.Tensor


class Answering(TwoLayers):
    def forward(self, x):
        return Answer(self.b((self.a(x) * x.abs().max().item()).relu()))


def test_outputs_may_be_in_a_dataclass():
    model, x = Answering(), torch.randn(2, 4)
    model.a.weight.data[:3], model.a.bias.data[:3] = 0, 0
    small, report = compact(model, x)
    assert report.layers["a.weight"] == ((5, 4), (2, 4))
    assert torch.allclose(small(x).logits, model(x).logits, atol=1e-5)
    assert "forward" not in vars(model) | vars(small)


def test_parameters_are_counted_without_buffers_and_tied_ones_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[3].weight = model[2].weight
    _, report = compact(model, torch.randn(2, 3))
    assert report.parameters == (12 + 6 + 12 + 3,) * 2


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "transformer", *LARGER])
def test_built_in_models_lose_half_of_their_neurons(name):
    model = settle_(build(name, shape=(3, 8, 8), classes=10))
    generator = torch.Generator().manual_seed(1)
    for layer, weight in pm.prunable(model).items():
        if not layer.startswith(("head", "linear")):
            weight.tensor.data[torch.rand(len(weight.tensor), generator=generator) < 0.5] = 0
    images = torch.randn(2, 3, 8, 8)
    small, report = compact(model, images)
    assert not any(note.startswith(("Left alone", "Nothing")) for note in report.notes)
    assert same_outputs(model, small, images)
    assert report.flops[1] < 0.9 * report.flops[0]
    assert report.parameters[1] < 0.9 * report.parameters[0]


def test_neurons_that_pruning_killed_are_removed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    model[0].weight.data[10:] *= 1e-3
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="global")
    pruner.step()
    assert int((model[0].weight == 0).all(1).sum()) == 30
    _, layers = compacted(model, torch.randn(4, 20))
    assert layers["0.weight"] == (10, 20)
    assert layers["2.weight"][1] == 10


class Counts(nn.Module):
    """Counts its calls and changes its inputs in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x.mul_(2)).relu()) + self.calls


def test_buffers_and_inputs_are_unchanged():
    model, inputs = Counts(), torch.randn(4, 8)
    model.first.weight.data[:4] = 0
    before = inputs.clone()
    small, report = pm.compact(model, inputs)
    assert report.layers["first.weight"] == ((8, 8), (4, 8))
    assert float(model.calls) == float(small.calls) == 0
    assert torch.equal(inputs, before)


def test_bfloat16_model_keeps_its_dtype():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).bfloat16()
    model[0].weight.data[3:] = 0
    small, report = compact(model, torch.randn(5, 8).bfloat16())
    assert report.layers["0.weight"] == ((16, 8), (3, 8))
    assert small[2].bias.dtype == torch.bfloat16


@pytest.mark.slow
def test_transformers_models_with_keyword_inputs():
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    sizes = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 30}
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=16, **sizes))
    gpt2.transformer.h[0].mlp.c_fc.weight.data[:, :20] = 0
    llama = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=32, **sizes)
    )
    llama.model.layers[0].mlp.gate_proj.weight.data[:20] = 0
    inputs = {"input_ids": torch.arange(5)[None]}
    for model, weight in ((gpt2, "c_fc"), (llama, "gate_proj")):
        small, report = compact(model, inputs)
        (name,) = [n for n in report.layers if weight in n]
        assert sorted(report.layers[name][1]) == [8, 12]
        with torch.no_grad():
            a, b = (m.eval()(**inputs).logits for m in (model, small))
        assert torch.allclose(a, b, atol=1e-5)


def test_wrong_models_and_inputs_are_refused():
    with pytest.raises(TypeError, match="the original model, got a ScriptModule"):
        compact(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), torch.ones(1, 2))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got dict"):
        compact({}, X)
    with pytest.raises(ValueError, match="the model fails on the example inputs: RuntimeError: "):
        compact(nn.Linear(3, 2), torch.ones(2, 4))
    with pytest.raises(ValueError, match="the weights must have values, got 'weight' on the meta device"):
        compact(nn.Linear(3, 2, device="meta"), torch.ones(2, 3, device="meta"))
