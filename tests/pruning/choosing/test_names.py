"""Names and shapes tell weights; the same rule for a model and for its file."""

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.prune import prune_checkpoint
from palmette.errors import NothingToPrune

X = torch.linspace(-1, 1, 12).reshape(3, 4).sin()


class Words(nn.Module):
    """A classifier of 64 words with an LSTM, of 32 neurons in each direction and each of four gates."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.word_embeddings = nn.Embedding(64, 8)
        self.memory = kind(8, 32, bidirectional=True)
        self.answer = nn.Linear(64, 2)


def agrees(model, file):
    """Report on the model, and whether that on its file has the same layers."""
    torch.save(model.state_dict(), file)
    of_model, of_file = pm.how_compressible(model), pm.how_compressible(file)
    assert {m.name: m for m in of_file.layers} == {m.name: m for m in of_model.layers}
    assert {t.name: t.why for t in of_file.left_out} == {t.name: t.why for t in of_model.left_out}
    assert of_file.coverage == of_model.coverage
    return of_model


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_weights_are_covered_gate_by_gate(tmp_path, kind, gates):
    report = agrees(Words(kind), tmp_path / "a.pt")
    assert {m.name: m.neurons for m in report.layers} == {
        "answer.weight": 2,
        **{f"memory.weight_{k}_l0{d}": 32 * gates for k in ("ih", "hh") for d in ("", "_reverse")},
    }
    covered = 128 + 2 * gates * (32 * 8 + 32 * 32)
    assert report.coverage.startswith(f"Covers {covered:,} of {covered + 512 + 4 * 32 * gates + 2:,} parameters (")
    assert "512 (embedding)" in report.coverage
    assert report.coverage in repr(report)
    assert report.coverage in repr(pm.Pruner(Words(kind)))


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells_and_projections_are_covered(tmp_path, cell):
    model = nn.ModuleList([cell(4, 5), nn.LSTM(4, 8, proj_size=3)])
    report = agrees(model, tmp_path / "a.pt")
    names = ["0.weight_ih", "0.weight_hh", *(f"1.weight_{k}_l0" for k in ("ih", "hh", "hr"))]
    assert [m.name for m in report.layers] == names


def test_pruned_recurrent_weights_stay_zero():
    model = nn.LSTM(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(X)[0].sum().backward()
    optimizer.step()
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), hold=optimizer)
    pruner.step()
    for _ in range(3):
        model(X)[0].sum().backward()
        optimizer.step()
    assert {n: int(p.count_nonzero()) for n, p in model.named_parameters() if p.dim() > 1} == {
        n: int(m.sum()) for n, m in pruner.masks.items()
    }


class Experts(nn.Module):
    """Two experts, each of 4 inputs and 6 neurons, then 3 inputs and 4 neurons."""

    def __init__(self, inputs_first=False):
        super().__init__()
        up, down = torch.randn(2, 6, 4), torch.randn(2, 4, 3)
        self.gate_up_proj = nn.Parameter(up.mT.contiguous() if inputs_first else up)
        self.down_proj = nn.Parameter(down.mT.contiguous() if inputs_first else down)
        self.down_proj_bias = nn.Parameter(torch.zeros(2, 4))


@pytest.mark.parametrize("inputs_first", [False, True])
@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_an_expert_has_neurons_and_is_none(tmp_path, inputs_first, scope):
    torch.manual_seed(0)
    model = nn.ModuleDict({"experts": Experts(inputs_first)})
    report = agrees(model, tmp_path / "a.pt")
    assert {m.name: m.neurons for m in report.layers} == {"experts.gate_up_proj": 12, "experts.down_proj": 8}
    budget = pm.Sap(p=1.0, q=2.0)
    masks, decision = pm.prune(pm.prunable(model), scope=scope, budget=budget)
    assert decision.cut == pm.how_compressible(model, budget=budget).whole.sap_cut[scope] > 0
    alone = {
        f"{n}{i}": w.detach().mT.contiguous() if inputs_first else w.detach()
        for n in ("gate_up_proj", "down_proj")
        for i, w in enumerate(getattr(model["experts"], n))
    }
    if scope == "neuron":  # as if each expert were a layer
        for name, mask in pm.prune(alone, scope=scope, budget=budget)[0].items():
            found = masks[f"experts.{name[:-1]}"][int(name[-1])]
            assert torch.equal(found.mT if inputs_first else found, mask)
    pm.Pruner(model, scope=scope, budget=budget).step()
    prune_checkpoint(tmp_path / "a.pt", tmp_path / "b.safetensors", scope=scope, budget=budget)
    assert pm.Masks.load(tmp_path / "b.masks.safetensors") == masks


def moe(kind, **sizes):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        kind,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        pad_token_id=1,
        bos_token_id=1,
        eos_token_id=1,
        **{"intermediate_size": 48} | sizes,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("kind", "sizes", "neurons"),
    [
        ("mixtral", {"num_local_experts": 4}, 4 * (2 * 48 + 32)),
        ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 24}, 4 * (2 * 24 + 32)),
        ("gpt_oss", {"num_local_experts": 4}, 4 * (2 * 48 + 32)),
    ],
)
def test_experts_of_transformers_are_covered_in_the_model_and_in_its_file(tmp_path, kind, sizes, neurons):
    model = moe(kind, **sizes)
    model.save_pretrained(tmp_path)
    of_model, of_file = pm.how_compressible(model), pm.how_compressible(tmp_path)
    experts = [m for m in of_model.layers if "experts" in m.name]
    assert (len(experts), sum(m.neurons for m in experts)) == (2, neurons)
    assert any(m.name.endswith(("gate.weight", "router.weight")) for m in of_model.layers)
    for found in (of_model, of_file):  # files of some of these have each expert by itself
        assert found.whole.d == sum(p.numel() for n, p in model.named_parameters() if _is_weight(n, p))
    assert of_file.whole.neurons == of_model.whole.neurons
    assert of_file.whole.sap_cut["global"] == of_model.whole.sap_cut["global"]


def _is_weight(name, parameter):
    return parameter.dim() > 1 and not name.endswith(("embed_tokens.weight", "bias"))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.known, self.table = nn.Linear(4, 4), nn.Parameter(torch.randn(30, 4))


def test_unknown_weights_that_matter_are_said_once_with_what_to_do():
    with pytest.warns(UserWarning, match=r"120 of 140 parameters are not the weight of a layer .*\(table\); name"):
        pruner = pm.Pruner(Odd())
    assert list(pruner.masks) == ["known.weight"]
    assert "Left out: 120 (not the weight of a layer)" in repr(pruner)
    pm.Pruner(Odd(), exclude=["table"])  # asked for, so nothing is said


def test_frozen_weights_are_left_out_and_said():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    with pytest.warns(UserWarning, match=r"64 of 90 parameters are frozen and left out \(0.weight\)"):
        pruner = pm.Pruner(model)
    before = model[0].weight.clone()
    pruner.step(budget=pm.FixedRatio(0.9))
    assert torch.equal(model[0].weight, before)
    assert [m.name for m in pm.how_compressible(model).layers] == ["1.weight"]
    assert "64 (frozen)" in pm.how_compressible(model).coverage
    assert list(pm.prunable(model, include=["0.weight"])) == ["0.weight"]
    masks = {n: torch.ones_like(model.get_parameter(n), dtype=torch.bool) for n in ("0.weight", "1.weight")}
    assert list(pm.Pruner(model, masks=masks).masks) == ["0.weight", "1.weight"]


def test_low_rank_adapters_are_pruned_and_their_frozen_bases_are_not():
    base = pytest.importorskip("transformers").GPT2LMHeadModel(
        pytest.importorskip("transformers").GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11)
    )
    base.requires_grad_(False)
    base.lora_a, base.lora_b = nn.Linear(8, 2, bias=False), nn.Linear(2, 24, bias=False)
    nn.init.zeros_(base.lora_b.weight)  # as LoRA starts, which is not pruned
    with pytest.warns(UserWarning, match="frozen and left out"):
        pruner = pm.Pruner(base)
    assert list(pruner.masks) == ["lora_a.weight", "lora_b.weight"]
    assert pruner.density == 1


def test_a_model_frozen_as_a_whole_is_measured_and_cut_but_not_held():
    model = nn.Linear(8, 8).requires_grad_(False)
    assert pm.how_compressible(model).whole.d == 64
    assert pm.Pruner(model, budget=pm.FixedRatio(0.5)).step().cut == 32
    with pytest.raises(ValueError, match=r"all of its parameters are frozen \(requires_grad=False\); unfreeze"):
        pm.Pruner(model, zeros="count", hold=torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_model_whose_weights_alone_are_frozen_has_nothing_to_prune():
    model = nn.Linear(8, 8)
    model.weight.requires_grad_(False)
    with pytest.raises(NothingToPrune, match=r"its weights are frozen \(requires_grad=False\).* such as weight"):
        pm.Pruner(model)


def test_a_fixed_kernel_that_decodes_boxes_is_never_cut():
    model = nn.Sequential(nn.Conv2d(4, 16, 1), nn.Conv2d(16, 1, 1, bias=False).requires_grad_(False))
    model[1].weight.data = torch.arange(16.0).reshape(1, 16, 1, 1)
    with pytest.warns(UserWarning, match="16 of .* frozen"):
        pm.Pruner(model, budget=pm.FixedRatio(0.9)).step()
    assert model[1].weight.flatten().tolist() == list(range(16))


class Distances(nn.Module):
    """The end of a YOLOv8: frozen as a whole, as its files are, with the kernel 0, 1, 2, … in `dfl.conv`."""

    def __init__(self):
        super().__init__()
        self.boxes, self.dfl = nn.Conv2d(4, 64, 1), nn.Module()
        self.dfl.conv = nn.Conv2d(16, 1, 1, bias=False)
        self.dfl.conv.weight.data = torch.arange(16.0).reshape(1, 16, 1, 1)
        self.requires_grad_(False)


def test_the_distances_of_yolo_are_constants_in_the_model_and_in_its_file(tmp_path):
    report = agrees(Distances(), tmp_path / "a.pt")
    assert [m.name for m in report.layers] == ["boxes.weight"]
    assert "16 (a constant)" in report.coverage
    assert list(pm.Pruner(Distances()).masks) == ["boxes.weight"]


def test_parameters_of_embeddings_are_named_alike_in_the_model_and_in_its_file(tmp_path):
    class PatchEmbeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.position_embeddings, self.projection = nn.Parameter(torch.randn(1, 5, 8)), nn.Conv2d(3, 8, 2)

    report = agrees(nn.ModuleDict({"embeddings": PatchEmbeddings()}), tmp_path / "a.pt")
    assert "40 (embedding)" in report.coverage


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose1d(8, 6, 3),
        nn.ConvTranspose2d(8, 4, 3, groups=2),
        nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 4, 3), dim=1),
    ],
    ids=str,
)
def test_the_bias_tells_a_transposed_convolution_in_a_file(tmp_path, layer):
    report = agrees(nn.Sequential(layer, nn.Conv1d(6, 6, 3)), tmp_path / "a.pt")
    assert [m.neurons for m in report.layers] == [layer.out_channels, 6]


def test_the_bias_tells_a_layer_that_is_called_an_embedding_or_a_norm(tmp_path):
    model = nn.ModuleDict({"embed": nn.Linear(3, 8), "norm_in": nn.Linear(8, 8), "word_embed": nn.Embedding(5, 5)})
    assert [m.name for m in agrees(model, tmp_path / "a.pt").layers] == ["embed.weight", "norm_in.weight"]


def test_complex_and_sparse_weights_are_left_out_and_said():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5, dtype=torch.complex64), nn.Linear(4, 6))
    model[2].weight = nn.Parameter(model[2].weight.detach().to_sparse())
    said = r"49 of 75 parameters are no dense .* left out \(1.weight, 1.bias, 2.weight\); prune the model before"
    with pytest.warns(UserWarning, match=said):
        pruner = pm.Pruner(model)
    assert list(pruner.masks) == ["0.weight"]
    pm.Pruner(model, exclude=["1.*", "2.*"])  # asked for, so nothing is said
    with pytest.raises(NothingToPrune, match="such as weight, are complex, sparse, or quantized; prune the model"):
        pm.Pruner(model[1])


def test_names_of_a_file_are_read_as_those_of_a_model(tmp_path):
    torch.save(
        {"experts.0.conv.weight": torch.ones(4, 4, 3), "grn.weight": torch.ones(1, 1, 1, 8)}, tmp_path / "a.pt"
    )
    found = open_checkpoint(tmp_path / "a.pt")
    assert [(w.name, w.neurons) for w in found.weights] == [("experts.0.conv.weight", 4)]


def test_tables_of_positions_and_tokens_are_embeddings_without_a_warning(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    for name in ("pos_embed", "cls_token", "place", "relative_position_bias_table", "query_tokens"):
        model.register_parameter(name, nn.Parameter(torch.ones(3, 4)))
    assert agrees(model, tmp_path / "a.pt").coverage.endswith("Left out: 60 (embedding).")
    pm.Pruner(model)  # a warning is an error
