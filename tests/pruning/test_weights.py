from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

import palmette as pm
from palmette.errors import NotFinite, NothingToPrune
from palmette.pruning.choosing.values import check_values
from palmette.pruning.weights import Weight

# Each layer has 6 neurons, and an input whose channels are where the layer wants them.
LAYERS = {
    "Linear": (lambda: nn.Linear(4, 6), (2, 4), 1),
    "Linear on sequences": (lambda: nn.Linear(4, 6), (2, 3, 4), 2),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 8), 1),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 8, 8), 1),
    "Conv3d": (lambda: nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5), 1),
    "grouped Conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 8), 1),
    "depthwise Conv2d": (lambda: nn.Conv2d(6, 6, 3, groups=6), (2, 6, 8, 8), 1),
    "channels-last Conv2d": (
        lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
        (2, 4, 8, 8),
        1,
    ),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3), (2, 4, 8), 1),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 8, 8), 1),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 6, 3), (2, 4, 5, 5, 5), 1),
    "grouped ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 4, 8), 1),
    "grouped ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 8, 8), 1),
    "depthwise ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 6, 3, groups=3), (2, 3, 8, 8), 1),
    "Conv1D of Transformers": (lambda: Conv1D(6, 4), (2, 3, 4), 2),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_zeroing_one_row_silences_one_output_channel(layer):
    make, shape, channel_axis = LAYERS[layer]
    torch.manual_seed(0)
    module = make()
    nn.init.zeros_(module.bias)
    nn.init.normal_(module.weight)  # no entry is zero
    x = torch.randn(shape)
    (weight,) = pm.prunable(module).values()
    dense = module.weight.detach().clone()
    assert weight.rows(dense).shape == (6, dense.numel() // 6)
    for neuron in range(6):
        rows = weight.rows(dense).clone()
        rows[neuron] = 0
        module.weight.data = weight.from_rows(rows)
        channels = module(x).movedim(channel_axis, 0).flatten(1)
        silent = [bool((channel == 0).all()) for channel in channels]
        assert silent == [i == neuron for i in range(6)]


@pytest.mark.parametrize("layer", LAYERS)
def test_from_rows_inverts_rows_in_index_order(layer):
    module = LAYERS[layer][0]()
    (weight,) = pm.prunable(module).values()
    places = torch.arange(weight.tensor.numel()).reshape(weight.tensor.shape)
    rows = weight.rows(places)
    assert torch.equal(weight.from_rows(rows), places)
    assert bool((rows.diff(dim=1) > 0).all())


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({}, {"in_proj_weight": 24, "out_proj.weight": 8}),
        (
            {"kdim": 3, "vdim": 5},
            {"q_proj_weight": 8, "k_proj_weight": 8, "v_proj_weight": 8, "out_proj.weight": 8},
        ),
        ({"add_bias_kv": True}, {"in_proj_weight": 24, "out_proj.weight": 8}),
    ],
    ids=["one width", "three widths", "with added biases"],
)
def test_attention_has_a_neuron_for_each_projected_feature(sizes, names):
    attention = nn.MultiheadAttention(8, 2, batch_first=True, **sizes)
    weights = pm.prunable(attention)
    assert {name: len(weight.rows(weight.tensor)) for name, weight in weights.items()} == names
    for weight in weights.values():
        rows = weight.rows(torch.ones_like(weight.tensor))
        rows[2] = 0
        projected = F.linear(torch.ones(1, rows.shape[1]), weight.from_rows(rows))[0]
        assert (projected == 0).nonzero().tolist() == [[2]]


def test_a_transformer_encoder_layer_has_four_weights():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert list(pm.prunable(layer)) == [
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    ]


def tiny_gpt2(**options):
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=16, vocab_size=11, **options))


def test_gpt2_is_pruned_in_its_blocks_and_not_in_its_tied_embedding():
    weights = pm.prunable(tiny_gpt2())
    blocks = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    assert list(weights) == [f"transformer.h.{i}.{block}.weight" for i in range(2) for block in blocks]
    assert all(weight.transposed for weight in weights.values())


def test_an_output_layer_of_its_own_is_pruned():
    assert "lm_head.weight" in pm.prunable(tiny_gpt2(tie_word_embeddings=False))


@pytest.mark.parametrize("pattern", ["lm_head.weight", "transformer.wte.weight"])
def test_a_tied_embedding_is_taken_by_either_of_its_names_when_asked_for(pattern):
    assert list(pm.prunable(tiny_gpt2(), include=[pattern])) == ["transformer.wte.weight"]


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


def test_a_shared_weight_counts_once_under_its_first_name():
    weights = pm.prunable(Twins())
    assert list(weights) == ["first.weight"]
    assert pm.Masks.ones_like({n: w.tensor for n, w in weights.items()}).total == 9


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_a_shared_weight_is_left_out_by_either_of_its_names(name):
    with pytest.raises(NothingToPrune, match="exclude"):
        pm.prunable(Twins(), exclude=[name])


class Zoo(nn.Module):
    """One of each kind that is never pruned by default, and one layer that is."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.bag = nn.EmbeddingBag(5, 4)
        self.norm = nn.LayerNorm(4)
        self.batch = nn.BatchNorm1d(4)
        self.recurrent = nn.LSTM(4, 4)
        self.bilinear = nn.Bilinear(4, 4, 4)
        self.free = nn.Parameter(torch.ones(4, 4))
        self.codes = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
        self.linear = nn.Linear(4, 2)
        self.empty = nn.Linear(0, 2)


def test_biases_norms_embeddings_and_unknown_parameters_are_left_alone():
    with pytest.warns(UserWarning, match="zero-element"):
        zoo = Zoo()
    assert list(pm.prunable(zoo)) == [
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
        "bilinear.weight",
        "linear.weight",
    ]
    assert list(pm.prunable(zoo, include=["*"])) == [
        "free",
        "embedding.weight",
        "bag.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
        "bilinear.weight",
        "linear.weight",
    ]


NETWORK = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ({}, ["0.weight", "2.0.weight", "3.weight"]),
        ({"include": ["2.*"]}, ["2.0.weight"]),
        ({"include": ["0.weight", "3.weight"]}, ["0.weight", "3.weight"]),
        ({"include": ["*"]}, ["0.weight", "2.0.weight", "3.weight"]),
        ({"exclude": ["3.*"]}, ["0.weight", "2.0.weight"]),
        ({"include": ["*"], "exclude": ["?.weight"]}, ["2.0.weight"]),
        ({"include": ("[03].weight",)}, ["0.weight", "3.weight"]),
    ],
    ids=str,
)
def test_patterns_decide(patterns, names):
    assert list(pm.prunable(NETWORK, **patterns)) == names


def test_a_compiled_model_is_known_by_its_own_names():
    compiled = torch.compile(NETWORK, backend="eager")
    assert list(pm.prunable(compiled)) == ["0.weight", "2.0.weight", "3.weight"]


@pytest.mark.parametrize(
    ("model", "patterns", "says"),
    [
        (nn.LayerNorm(3), {}, ["LayerNorm", "two or more dimensions"]),
        (nn.Embedding(3, 2), {}, ["Embedding", "include", "weight"]),
        (NETWORK, {"include": ["nothing.*"]}, ["nothing.*", "0.weight, 2.0.weight, 3.weight"]),
        (NETWORK, {"include": []}, ["include=[]", "0.weight"]),
        (NETWORK, {"exclude": ["*"]}, ["exclude=['*']", "0.weight"]),
    ],
    ids=["no matrix", "no known layer", "no match", "an empty list", "all left out"],
)
def test_a_model_with_nothing_prunable_is_refused_with_the_names_it_has(model, patterns, says):
    with pytest.raises(NothingToPrune) as error:
        pm.prunable(model, **patterns)
    assert all(word in str(error.value) for word in says)


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (
            {"exclude": ["typo.*"]},
            r"exclude has the pattern 'typo\.\*', which matches no weight of the Sequential",
        ),
        (
            {"include": ["3.*", "2.weight"]},
            r"include has the pattern '2\.weight'.* 0\.weight, 2\.0\.weight, 3\.weight$",
        ),
        ({"include": ["3.*", "*.bias"]}, r"include has the pattern '\*\.bias'"),
        (
            {"exclude": ["3"]},
            r"'3'.*match the whole name, with \* for any part of it; the names are 0\.weight",
        ),
    ],
    ids=str,
)
def test_a_pattern_that_matches_nothing_is_refused(patterns, says):
    with pytest.raises(NothingToPrune, match=says):
        pm.Pruner(NETWORK, **patterns)


def test_error_names_the_nearest_of_many_names():
    with pytest.raises(
        NothingToPrune, match=r"'\*\.1\.mlp\.fc\.weight'.*nearest names are transformer\.h\.1\.mlp\.c_fc"
    ):
        pm.prunable(tiny_gpt2(), exclude=["*.1.mlp.fc.weight"])


@pytest.mark.parametrize("pattern", ["*.bias", "1.*", "*.running_mean"])
def test_exclude_may_match_parameters_that_are_never_pruned(pattern):
    assert list(pm.prunable(NETWORK, exclude=[pattern])) == ["0.weight", "2.0.weight", "3.weight"]


@pytest.mark.parametrize("wrong", [None, 5, [NETWORK[3]], ["3.*", None]], ids=str)
def test_patterns_are_text(wrong):
    with pytest.raises(TypeError, match=r"exclude must be a list of patterns such as \['\*\.weight'\], got "):
        pm.prunable(NETWORK, exclude=wrong)


@pytest.mark.parametrize("patterns", [{"include": "2.*"}, {"exclude": "2.*"}], ids=str)
def test_a_single_string_is_not_a_list_of_patterns(patterns):
    with pytest.raises(TypeError, match=r"'2\.\*'"):
        pm.prunable(NETWORK, **patterns)


@pytest.mark.parametrize("options", [{}, {"include": ["*"]}], ids=str)
def test_a_lazy_layer_is_refused(options):
    with pytest.raises(ValueError, match=r"'1.weight' has no shape yet"):
        pm.prunable(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)), **options)


def test_a_vector_has_a_neuron_for_each_entry():
    assert Weight(torch.ones(5)).rows(torch.ones(5)).shape == (5, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_weight_that_is_not_finite_is_named(bad, dtype):
    values = torch.ones(3, 4, dtype=dtype)
    check_values("layer.weight", values)
    values[1, 2] = bad
    with pytest.raises(NotFinite, match=r"got 1 NaN or infinite in 'layer.weight' of shape \(3, 4\)"):
        check_values("layer.weight", values)


@pytest.mark.parametrize(
    "values",
    [
        torch.ones(2, 2, dtype=torch.int64),
        torch.ones(2, 2, dtype=torch.bool),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.ones(2, 2, dtype=torch.float8_e4m3fn),
        torch.tensor(1.0),
        torch.ones(0, 3),
        [[1.0]],
    ],
    ids=repr,
)
def test_a_weight_that_cannot_be_ranked_is_named(values):
    with pytest.raises(TypeError, match=r"every weight must be .* for 'layer.weight'"):
        check_values("layer.weight", values)


def test_a_weight_shared_by_layers_of_two_layouts_has_that_of_its_name():
    coder = nn.ModuleDict({"into": nn.Conv2d(3, 8, 3), "back": nn.ConvTranspose2d(8, 3, 3)})
    coder["back"].weight = coder["into"].weight
    (weight,) = pm.prunable(coder).values()
    assert weight.rows(weight.tensor).shape == (8, 27)
