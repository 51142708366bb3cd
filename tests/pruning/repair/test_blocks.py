import copy
from itertools import product

import pytest
import torch
import transformers
from torch import nn

import palmette as pm
from palmette.pruning.methods import REPAIRS
from palmette.pruning.repair.blocks import repair_
from palmette.pruning.repair.solving import repaired

SENTENCES = [{"input_ids": torch.arange(n)[None] % 40} for n in (30, 17, 40)]


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config).double()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    return transformers.GPT2LMHeadModel(config)


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.BertModel(config)


def gemma():
    """Blocks with masks and positions of their own."""
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=8,
        num_key_value_heads=1,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=4,
    )
    return transformers.Gemma3ForCausalLM(config)


def t5():
    """Blocks that take positions from the first."""
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=40, d_model=16, d_ff=24, num_layers=2, num_heads=2, d_kv=8)
    return transformers.T5EncoderModel(config)


def cut(model, *, budget=None, scope="neuron"):
    return pm.prune(pm.prunable(model), scope=scope, budget=budget or pm.FixedRatio(0.5))[0]


def inputs_of(model, layer):
    """Inputs of a layer over all sentences, one row per token."""
    seen = []
    with layer.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach().flatten(0, -2))):
        for sentence in SENTENCES:
            model(**sentence)
    return torch.cat(seen)


def test_each_block_is_repaired_for_the_outputs_of_those_before_it():
    model, other = llama().eval(), llama().eval()
    masks = cut(model)
    repair_(model, masks, SENTENCES)
    for i in range(3):  # once more, with whole runs of a model whose first blocks are done
        layers = {n: m for n, m in other.model.layers[i].named_modules() if isinstance(m, nn.Linear)}
        inputs = {n: inputs_of(other, layer) for n, layer in layers.items()}
        for n, layer in layers.items():
            kept = masks[f"model.layers.{i}.{n}.weight"]
            layer.weight.data = repaired(layer.weight, kept, inputs[n].T @ inputs[n])[0]
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        if name != "lm_head.weight":
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize(
    ("network", "by"), [*product([llama, gpt2, bert], REPAIRS), (gemma, "least-squares"), (t5, "least-squares")]
)
def test_a_repaired_model_is_closer_to_the_dense_one(network, by):
    model = network().eval()
    dense, plain = copy.deepcopy(model), copy.deepcopy(model)
    masks = cut(model)
    masks.apply_(pm.prunable(plain))
    new, left = repair_(model, masks, SENTENCES, by=by)
    assert new.kept == masks.kept
    assert not any(bool((p != 0)[~new[n]].any()) for n, p in model.named_parameters() if n in new)
    assert set(left) == {n for n in masks if n.startswith(("lm_head", "pooler"))}

    @torch.no_grad()
    def away(from_dense):
        return sum(float((from_dense(**s)[0] - dense(**s)[0]).square().sum()) for s in SENTENCES)

    assert away(model) < away(plain)


def test_as_many_weights_remain_as_scope_budget_and_shares_say():
    for scope, budget in (
        ("global", pm.Sap()),
        ("layer", pm.Allocated(pm.FixedRatio(0.5), by="outliers")),
        ("neuron", pm.Allocated(pm.TailMass(), by="index")),
    ):
        model = llama()
        masks = cut(model, scope=scope, budget=budget)
        new, _ = repair_(model, masks, SENTENCES, by="gradual", scope=scope)
        for name, mask in masks.items():
            same = (1,) if scope == "neuron" else (0, 1)
            assert torch.equal(new[name].sum(same), mask.sum(same)), name


def test_weights_that_were_pruned_before_stay_pruned():
    model = llama()
    first = cut(model)
    masks, _ = pm.prune(pm.prunable(model), first, scope="neuron", budget=pm.FixedRatio(0.5))
    new, _ = repair_(model, masks, SENTENCES, by="gradual", allowed=first)
    assert new.kept == masks.kept
    assert (new & first) == new != masks


def test_model_is_as_it_was_but_for_its_weights():
    model = llama()
    model.model.layers[0].eval()
    repair_(model, cut(model), SENTENCES)
    assert (model.training, model.model.layers[0].training, model.config.use_cache) == (True, False, True)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.layers)
    assert all(p.requires_grad for p in model.parameters())


class Other(nn.Module):
    """Blocks that are no chain: each sees the first input, or a list is not of blocks in order."""

    def __init__(self, *, order):
        super().__init__()
        self.blocks, self.order = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), order

    def forward(self, x):
        return [self.blocks[i](x) for i in self.order]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (0, 0)])
def test_model_whose_blocks_are_no_chain_is_refused(order):
    model = Other(order=order)
    with pytest.raises(ValueError, match=r"works block by block, .* as in GPT-2 and Llama; Other has none"):
        repair_(model, cut(model), [torch.randn(5, 4)])
    with pytest.raises(ValueError, match="Linear has none"):
        repair_(nn.Linear(4, 4), {"weight": torch.ones(4, 4, dtype=torch.bool)}, [torch.randn(5, 4)])


def test_experts_in_one_tensor_are_only_cut():
    config = transformers.MixtralConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    model = transformers.MixtralForCausalLM(config)
    masks = cut(model)
    _, left = repair_(model, masks, SENTENCES)
    parts = ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    assert left == [*(f"model.layers.{i}.{part}" for i in range(2) for part in parts), "lm_head.weight"]
    assert all(not bool(dict(model.named_parameters())[n][~masks[n]].any()) for n in left)


def test_repair_without_inputs_is_refused():
    with pytest.raises(ValueError, match="repair_ needs at least one batch of inputs, got none"):
        repair_(llama(), cut(llama()), [])
