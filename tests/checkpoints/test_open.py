"""Checkpoints are read without the model's code, and the weights found are those that the model would prune."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoint_files import NESTINGS, net, sharded
from safetensors.torch import save_file
from torch import nn

import palmette as pm
from palmette.checkpoints.formats import pickles, raw
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.prune import prune_checkpoint
from palmette.errors import NotReadable

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def values(stored):
    return torch.cat(list(stored.raw_parts()))


def assert_holds(checkpoint, model):
    """The weights in the file are those that `prunable` finds in the model, with the same values."""
    wanted = pm.prunable(model)
    assert sorted(w.name for w in checkpoint.weights) == sorted(wanted)
    for stored in checkpoint.weights:
        assert stored.shape == tuple(wanted[stored.name].shape)
        assert torch.equal(values(stored), wanted[stored.name].tensor)
    names = {w.name for w in checkpoint.weights} | {t.name for t in checkpoint.others}
    assert names == set(model.state_dict())


@pytest.mark.parametrize("nesting", NESTINGS)
def test_weights_are_found_in_any_nesting(tmp_path, nesting):
    model = net()
    torch.save(NESTINGS[nesting](model.state_dict()), tmp_path / "a.pt")
    assert_holds(open_checkpoint(tmp_path / "a.pt"), model)


def test_two_networks_in_one_file_are_both_measured(tmp_path):
    model = net()
    other = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save({"generator": model.state_dict(), "discriminator": other}, tmp_path / "a.pt")
    names = {weight.name.partition(".")[0] for weight in open_checkpoint(tmp_path / "a.pt").weights}
    assert names == {"generator", "discriminator"}


@pytest.mark.parametrize("large", [0, pickles.LARGE])
@pytest.mark.parametrize("zipped", [True, False])
def test_old_and_new_files_of_torch_are_read(tmp_path, monkeypatch, zipped, large):
    monkeypatch.setattr(pickles, "LARGE", large)
    model = net()
    torch.save(model.state_dict(), tmp_path / "a.th", _use_new_zipfile_serialization=zipped)
    assert_holds(open_checkpoint(tmp_path / "a.th"), model)


@pytest.mark.parametrize(
    "nesting", [{"state_dict": {}}, {"epoch": 3, "model": {}, "optimizer": {"0": torch.ones(5)}}]
)
def test_large_files_of_torch_are_read_in_parts(tmp_path, monkeypatch, nesting):
    state = {f"{i}.weight": torch.randn(24, 10).to(dtype) for i, dtype in enumerate(DTYPES)}
    state |= {"view.weight": state["1.weight"][4:9], "turned.weight": state["1.weight"].t()}
    state |= {"tied.weight": state["0.weight"], "parameter.weight": nn.Parameter(torch.ones(2, 3))}
    state |= {"bias": torch.ones(3), "sparse": torch.eye(3).to_sparse(), "counter": torch.tensor(3)}
    torch.save({key: state if value == {} else value for key, value in nesting.items()}, tmp_path / "a.pt")
    mapped = open_checkpoint(tmp_path / "a.pt")
    monkeypatch.setattr(pickles, "LARGE", 0)
    monkeypatch.setattr(pickles, "_load", lambda file: pytest.fail("it was loaded"))
    streamed = open_checkpoint(tmp_path / "a.pt")
    assert [replace(w, read=None) for w in streamed.weights] == [replace(w, read=None) for w in mapped.weights]
    assert (streamed.aliases, streamed.left_out) == (mapped.aliases, mapped.left_out)
    for weight in streamed.weights:
        assert torch.equal(weight.read(1, 2), state[weight.name][1:2])


@pytest.mark.parametrize("past_cache", [0, math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_are_read_in_parts(tmp_path, monkeypatch, dtype, past_cache):
    monkeypatch.setattr(raw, "PAST_CACHE", past_cache)
    model = net().to(dtype)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert_holds(checkpoint, model)
    conv = next(w for w in checkpoint.weights if w.name == "conv.weight")
    assert torch.equal(conv.read(3, 7), model.conv.weight[3:7])
    assert [len(part.values) for part in conv.parts(chunk=1)] == [
        1
    ] * 12  # of 72 entries, so whole bytes of a mask


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_one_checkpoint(tmp_path, kind):
    model = net()
    index = sharded(tmp_path, model, kind)
    assert_holds(open_checkpoint(index), model)
    assert_holds(open_checkpoint(tmp_path), model)
    (tmp_path / sorted(set(json.loads(index.read_text())["weight_map"].values()))[1]).unlink()
    with pytest.raises(ValueError, match="1 of 2 shards are missing"):
        open_checkpoint(tmp_path)


def test_the_index_says_which_shard_a_tensor_is_of(tmp_path):
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
    with pytest.raises(
        ValueError, match=r"2.safetensors' could not be read: it is damaged, or was cut off"
    ) as said:
        open_checkpoint(index)
    assert "index.json" not in str(said.value)
    index.write_text("{")
    with pytest.raises(ValueError, match=r"model.safetensors.index.json has no weight_map of files"):
        open_checkpoint(index)


def test_of_a_folder_with_several_forms_the_one_is_read_that_transformers_loads(tmp_path):
    torch.save({"bin.weight": torch.ones(2, 2)}, tmp_path / "pytorch_model.bin")
    save_file({"shard.weight": torch.ones(2, 2)}, tmp_path / "1.safetensors")
    where = {"weight_map": {"shard.weight": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(where))
    assert [w.name for w in open_checkpoint(tmp_path).weights] == ["shard.weight"]
    save_file({"single.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    assert [w.name for w in open_checkpoint(tmp_path).weights] == ["single.weight"]


def test_masks_that_are_damaged_are_named(tmp_path):
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    (tmp_path / "a.masks.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"a.masks.safetensors next to it is damaged"):
        open_checkpoint(tmp_path / "a.safetensors")


def test_what_torch_prune_left_is_one_weight_and_its_mask(tmp_path):
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


def test_a_tied_output_layer_is_left_out(tmp_path):
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(9, 4), "fc": nn.Linear(4, 4), "lm_head": nn.Linear(4, 9)})
    model["lm_head"].weight = model["embed_tokens"].weight
    torch.save(model.state_dict(), tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert [w.name for w in checkpoint.weights] == list(pm.prunable(model)) == ["fc.weight"]
    assert {t.name: t.why for t in checkpoint.left_out}["lm_head.weight"] == "the same as embed_tokens.weight"


def test_a_weight_under_two_names_counts_once(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    torch.save(model.state_dict(), tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert [w.name for w in checkpoint.weights] == list(pm.prunable(model)) == ["0.weight"]
    assert checkpoint.aliases == {"2.weight": "0.weight"}


CONFIGS = {
    "bert": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "t5": {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8},
    "opt": {
        "hidden_size": 16,
        "ffn_dim": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 16,
    },
    "gpt_neox": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "albert": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "embedding_size": 8,
    },
    "vit": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "mamba": {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    "whisper": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    },
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_of_real_models_the_names_alone_say_what_is_prunable(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    if hasattr(config, "vocab_size"):
        config.vocab_size = 1200 if kind == "whisper" else 64
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if getattr(config, name, None) is not None:
            setattr(config, name, 1)
    causal = kind in ("gpt2", "llama", "opt", "gpt_neox", "mamba")
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    model = auto.from_config(config)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    # Transformers gives some weights another name in the file, so they are known by their values.
    wanted = sorted(
        (*w.shape, len(w.rows(w.tensor)), float(w.tensor.detach().sum())) for w in pm.prunable(model).values()
    )
    assert sorted((*w.shape, w.neurons, float(values(w).sum())) for w in checkpoint.weights) == wanted


def test_patterns_decide_and_errors_name_what_is_there(tmp_path):
    model = net()
    torch.save(model.state_dict(), tmp_path / "a.pt")
    for include, exclude in ((["*embedding*", "head.*"], []), (None, ["head*"]), (["*"], ["conv*"])):
        found = open_checkpoint(tmp_path / "a.pt", include=include, exclude=exclude)
        assert [w.name for w in found.weights] == list(pm.prunable(model, include=include, exclude=exclude))
    with pytest.raises(
        ValueError, match=r"include has .* 'x', which matches no weight of .*a\.pt'.*embedding.weight"
    ):
        open_checkpoint(tmp_path / "a.pt", include=["head.*", "x"])
    with pytest.raises(ValueError, match=r"exclude has .* 'x', which matches no weight of .*embedding.weight"):
        open_checkpoint(tmp_path / "a.pt", exclude=["x"])
    with pytest.raises(
        ValueError, match=r"nothing is left of .* exclude=\['\*'\]; the names are .*embedding.weight"
    ):
        open_checkpoint(tmp_path / "a.pt", exclude=["*"])
    for wrong in ("head.*", 5):
        with pytest.raises(TypeError, match="include must be a list of patterns"):
            open_checkpoint(tmp_path / "a.pt", include=wrong)
    torch.save(nn.Embedding(4, 4).state_dict() | {"embed_tokens.weight": torch.ones(2, 2)}, tmp_path / "b.pt")
    assert [w.name for w in open_checkpoint(tmp_path / "b.pt").weights] == ["weight"]
    torch.save({"embed_tokens.weight": torch.ones(2, 2)}, tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"no weight of a layer; name others with --include.*\(embedding\)"):
        open_checkpoint(tmp_path / "b.pt")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff"])
def test_a_damaged_config_beside_the_weights_is_named(tmp_path, text):
    save_file({"lm_head.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(NotReadable, match=r"could not be read: config.json next to it is damaged$"):
        open_checkpoint(tmp_path)


def test_a_number_with_the_name_of_a_weight_is_left_out(tmp_path):
    torch.save({"c_attn.weight": torch.tensor(1.0), "c_fc.weight": torch.ones(2, 3)}, tmp_path / "a.pt")
    assert [w.name for w in open_checkpoint(tmp_path / "a.pt").weights] == ["c_fc.weight"]


def test_every_array_of_an_npz_is_one_vector_or_matrix(tmp_path):
    arrays = {"a": np.arange(6.0), "b": np.eye(3, dtype="f4"), "c": np.array(2)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    found = open_checkpoint(tmp_path / "a.npz").weights
    assert [(w.name, w.shape) for w in found] == [("a", (6,)), ("b", (3, 3)), ("c", (1,))]
    for stored in found:
        np.testing.assert_array_equal(values(stored), np.atleast_1d(arrays[stored.name]))


ARRAYS = {
    "float64": np.random.default_rng(0).standard_normal((40, 6)),
    "float16": np.arange(240, dtype="f2").reshape(40, 2, 3),
    "big-endian": np.arange(80, dtype=">f4").reshape(40, 2),
    "by columns": np.asfortranarray(np.arange(80.0).reshape(40, 2)),
    "vector": np.arange(40),
}


@pytest.mark.parametrize("pack", [np.save, np.savez, np.savez_compressed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_are_read_in_parts_in_any_order(tmp_path, kind, pack):
    array = ARRAYS[kind]
    file = tmp_path / ("a.npy" if pack is np.save else "a.npz")
    pack(file, array)
    (found,) = open_checkpoint(file).weights
    for first, last in ((0, 8), (8, 40), (3, 5), (0, 40), (39, 40)):
        np.testing.assert_array_equal(
            found.read(first, last), array[first:last].astype(array.dtype.newbyteorder("="))
        )


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["npy", "npz", "onnx", "gguf", "safetensors", "pt"])
def test_whatever_the_format_memory_is_bounded(tmp_path, suffix):
    def run(code, argument):
        done = subprocess.run([sys.executable, "-c", code, argument], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(LARGE_FILE, suffix)
    assert int(run(PEAK, f"a.{suffix}")) < 600e6


LARGE_FILE = """
import sys, numpy as np, torch
a = np.random.default_rng(0).standard_normal((20000, 7500), dtype="f4")  # 600 MB
suffix = sys.argv[1]
if suffix == "npy":
    np.save("a.npy", a)
elif suffix == "npz":
    np.savez("a.npz", a)
elif suffix == "pt":
    torch.save({"a.weight": torch.from_numpy(a)}, "a.pt")
elif suffix == "safetensors":
    from safetensors.numpy import save_file
    save_file({"a.weight": a}, "a.safetensors")
elif suffix == "onnx":
    from onnx import helper, numpy_helper, save
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    shown = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    graph = helper.make_graph([node], "g", shown[:1], shown[1:], [numpy_helper.from_array(a, "w")])
    save(helper.make_model(graph), "a.onnx")
else:
    import gguf
    writer = gguf.GGUFWriter("a.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", a)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
"""
PEAK = """
import sys, palmette
palmette.how_compressible(sys.argv[1], memory=600_000_000)
with open("/proc/self/status") as status:  # ru_maxrss begins with what the parent has
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
"""


def test_the_columns_of_a_table_are_vectors(tmp_path):
    (tmp_path / "a.csv").write_text("name,income,age\nann,0,30\nbob,7,31\n")
    found = open_checkpoint(tmp_path / "a.csv").weights
    assert [(w.name, values(w).tolist()) for w in found] == [("income", [0.0, 7.0]), ("age", [30.0, 31.0])]


def test_a_column_with_gaps_is_left_out_and_said_so(tmp_path):
    (tmp_path / "a.csv").write_text("id,income\n1,20\n2,NA\n3,40\n")
    found = open_checkpoint(tmp_path / "a.csv")
    assert [w.name for w in found.weights] == ["id"]
    assert [(t.name, t.why) for t in found.left_out] == [("income", "1 of 3 cells are no numbers")]
    (tmp_path / "b.csv").write_text("a;b\n1;2\n")
    with pytest.raises(ValueError, match=r"no column of numbers, with commas between columns: a;b \(1 of 1 cells"):
        open_checkpoint(tmp_path / "b.csv")


def test_an_output_layer_that_is_tied_and_so_not_written_may_be_excluded(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    found = open_checkpoint(tmp_path, exclude=["lm_head*"])
    assert "lm_head.weight" not in {t.name for t in found.tensors}
    assert sorted(w.name for w in found.weights) == sorted(pm.prunable(model, exclude=["lm_head*"]))
    with pytest.raises(ValueError, match=r"include has the pattern 'lm_head\*', which matches no weight"):
        open_checkpoint(tmp_path, include=["lm_head*"])


def test_patterns_decide_about_plain_numbers_too(tmp_path):
    (tmp_path / "a.csv").write_text("id,income,age\n1,20,30\n2,30,40\n")
    found = open_checkpoint(tmp_path / "a.csv", exclude=["id"])
    assert [w.name for w in found.weights] == ["income", "age"]
    assert [(t.name, t.why) for t in found.left_out] == [("id", "excluded")]
    assert [w.name for w in open_checkpoint(tmp_path / "a.csv", include=["inc*"]).weights] == ["income"]
    with pytest.raises(ValueError, match=r"matches no weight of .*a\.csv'.* the names are id, income, age$"):
        open_checkpoint(tmp_path / "a.csv", include=["no"])
    (tmp_path / "b.csv").write_text("person,age\nann,30\nbob,40\n")
    assert [w.name for w in open_checkpoint(tmp_path / "b.csv", exclude=["person"]).weights] == ["age"]


def test_a_tensor_that_a_file_has_twice_goes_by_both_names(tmp_path):
    linear = nn.Linear(3, 3)
    model = nn.ModuleDict({"one": linear, "two": linear, "head": nn.Linear(3, 2)})
    torch.save(model.state_dict(), tmp_path / "a.pt")
    for options in ({"include": ["two.*"]}, {"exclude": ["two.*"]}):
        found = open_checkpoint(tmp_path / "a.pt", **options)
        assert [w.name for w in found.weights] == list(pm.prunable(model, **options))


def test_folders_without_or_with_several_files_of_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder without weights"):
        open_checkpoint(tmp_path)
    for name in ("a", "b"):
        save_file({"w": torch.eye(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"folder of several files; name one of a.safetensors, b.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    assert [w.name for w in open_checkpoint(tmp_path).weights] == ["w"]


def test_eight_bit_floats_are_measured_as_the_numbers_that_they_are(tmp_path):
    w = torch.randn(16, 16)
    save_file({"w": w.to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    (layer,) = pm.how_compressible(tmp_path / "a.safetensors").layers
    assert layer.pq_index == pytest.approx(float(pm.pq_index(w.to(torch.float8_e4m3fn).float())), rel=1e-12)
    assert (layer.dtype, layer.bytes) == ("float8_e4m3fn", 256)


def test_a_packed_file_is_read(tmp_path):
    model = net()
    pm.save(tmp_path / "a.safetensors", model)
    assert_holds(open_checkpoint(tmp_path / "a.safetensors"), model)


def test_what_is_tied_in_a_packed_file_counts_once_and_stays_tied(tmp_path):
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


# ONNX


@pytest.mark.parametrize("external", [False, True])
def test_the_graph_of_onnx_says_where_the_neurons_are(tmp_path, external):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    def weight(name, *shape):
        return numpy_helper.from_array(np.random.default_rng(0).standard_normal(shape, dtype="f4"), name)

    given = [
        weight("table", 20, 8),
        weight("matmul", 8, 300),
        weight("gemm", 5, 300),
        weight("bias", 5),
        weight("conv", 6, 4, 3),
        weight("up", 6, 4, 3),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "matmul"], ["h"]),
        helper.make_node("Gemm", ["h", "gemm", "bias"], ["y"], transB=1),
        helper.make_node("Conv", ["picture", "conv"], ["c"]),
        helper.make_node("ConvTranspose", ["c", "up"], ["u"]),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [3]),
        helper.make_tensor_value_info("picture", onnx.TensorProto.FLOAT, [1, 4, 9]),
    ]
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("y", "u")]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, given))
    file = tmp_path / "a.onnx"
    onnx.save(model, str(file), save_as_external_data=external, size_threshold=100)
    checkpoint = open_checkpoint(file)
    assert {w.name: w.neurons for w in checkpoint.weights} == {"matmul": 300, "gemm": 5, "conv": 6, "up": 4}
    assert {t.name: t.why for t in checkpoint.left_out}["table"] == "embedding"
    for stored, tensor in zip(checkpoint.weights, (given[i] for i in (1, 2, 4, 5)), strict=True):
        np.testing.assert_array_equal(values(stored), numpy_helper.to_array(tensor))
    if external:
        next(p for p in tmp_path.iterdir() if p != file).unlink()
        with pytest.raises(ValueError, match=r"with the data of '(matmul|table)' is not there"):
            open_checkpoint(file)


def test_weights_that_an_exporter_named_are_known_by_the_graph(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    shapes = {"tok.weight": (9, 4), "onnx::MatMul_7": (4, 6), "shift": (3, 6), "tied.weight": (6, 5)}
    given = [numpy_helper.from_array(np.ones(shape, "f4"), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Gather", ["tok.weight", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "onnx::MatMul_7"], ["h"]),
        helper.make_node("Add", ["h", "shift"], ["i"]),
        helper.make_node("Gather", ["tied.weight", "ids"], ["f"]),
        helper.make_node("MatMul", ["i", "tied.weight"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [3]),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 5]),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], given)), tmp_path / "a.onnx")
    checkpoint = open_checkpoint(tmp_path / "a.onnx")
    assert {w.name: w.neurons for w in checkpoint.weights} == {"onnx::MatMul_7": 6}
    assert {t.name: t.why for t in checkpoint.left_out} == {
        "tok.weight": "embedding",
        "shift": "not the weight of a layer",
        "tied.weight": "embedding",
    }


# GGUF


def test_gguf_is_unpacked_and_says_so(tmp_path):
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((4, 64), dtype="f4") for n in ("blk.0.ffn_up", "token_embd", "output")}
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    kinds = {"blk.0.ffn_up": gguf.GGMLQuantizationType.Q4_1, "output": gguf.GGMLQuantizationType.F16}
    coded = {}
    for name, values_ in weights.items():
        kind = kinds.get(name, gguf.GGMLQuantizationType.F32)
        coded[name] = gguf.quantize(values_, kind)
        writer.add_tensor(f"{name}.weight", coded[name], raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(64, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    up, output = open_checkpoint(tmp_path / "a.gguf").weights
    assert (up.name, up.shape, up.coding) == ("blk.0.ffn_up.weight", (4, 64), "Q4_1")
    assert (output.name, output.coding) == ("output.weight", "")
    np.testing.assert_array_equal(values(up), gguf.dequantize(coded["blk.0.ffn_up"], kinds["blk.0.ffn_up"]))
    np.testing.assert_array_equal(values(output), weights["output"].astype("f2").astype("f4"))
    report = pm.how_compressible(tmp_path / "a.gguf")
    assert any("unpacked from Q4_1" in text for text in report.warnings)
    whole = (tmp_path / "a.gguf").read_bytes()
    for size in range(1, len(whole), 7):
        (tmp_path / "a.gguf").write_bytes(whole[:size])
        with pytest.raises(NotReadable, match="damaged, or was cut off when it was copied"):
            open_checkpoint(tmp_path / "a.gguf")


# llama2.c


@pytest.mark.parametrize("shared", [True, False])
def test_a_file_of_llama2c_is_known_by_its_size(tmp_path, shared):
    dim, hidden, layers, heads, kv_heads, words, length = 8, 12, 2, 4, 2, 16, 5
    sizes = [words * dim, *[layers * n for n in (dim, 64, 32, 32, 64, dim, 96, 96, 96)], dim, length, length]
    sizes += [] if shared else [words * dim]
    header = np.array([dim, hidden, layers, heads, kv_heads, words if shared else -words, length], "<i4")
    body = np.arange(sum(sizes), dtype="<f4")
    file = tmp_path / "a.bin"
    file.write_bytes(header.tobytes() + body.tobytes())
    found = {w.name: w for w in open_checkpoint(file).weights}
    assert len(found) == 14 + (not shared)
    second = values(found["layers.1.attention.wk.weight"])
    start = words * dim + layers * (dim + 64) + 32
    assert second.tolist() == body[start : start + 32].reshape(4, 8).tolist()
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"not weights in the .bin format"):
        open_checkpoint(file)


def test_tensors_of_a_dtype_that_is_not_read_are_left_out(tmp_path):
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


def test_labels_beside_numbers_are_passed_over(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.array(["x", "y"]), numbers=np.arange(4.0))
    assert [w.name for w in open_checkpoint(tmp_path / "a.npz").weights] == ["numbers"]
