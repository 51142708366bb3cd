"""Weights to prune, told by names and shapes."""

import pytest
import torch
from checkpoint_files import net, values
from torch import nn

import palmette as pm
from palmette.checkpoints.open import open_checkpoint

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
def test_names_of_transformers_models_tell_what_is_prunable(tmp_path, kind):
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
    # Compare values, since Transformers renames some weights in the file.
    wanted = sorted(
        (*w.shape, len(w.rows(w.tensor)), float(w.tensor.detach().sum())) for w in pm.prunable(model).values()
    )
    assert sorted((*w.shape, w.neurons, float(values(w).sum())) for w in checkpoint.weights) == wanted


def test_patterns_replace_the_rule_and_errors_list_the_names(tmp_path):
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


def test_scalar_named_like_a_weight_is_left_out(tmp_path):
    torch.save({"c_attn.weight": torch.tensor(1.0), "c_fc.weight": torch.ones(2, 3)}, tmp_path / "a.pt")
    assert [w.name for w in open_checkpoint(tmp_path / "a.pt").weights] == ["c_fc.weight"]


def test_tied_output_layer_may_be_excluded_though_not_in_the_file(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    found = open_checkpoint(tmp_path, exclude=["lm_head*"])
    assert "lm_head.weight" not in {t.name for t in found.tensors}
    assert sorted(w.name for w in found.weights) == sorted(pm.prunable(model, exclude=["lm_head*"]))
    with pytest.raises(ValueError, match=r"include has the pattern 'lm_head\*', which matches no weight"):
        open_checkpoint(tmp_path, include=["lm_head*"])


def test_buffers_are_no_parameters(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    told = pm.how_compressible(tmp_path / "model.pt").coverage
    parameters = sum(p.numel() for p in model.parameters())
    assert told == pm.how_compressible(model).coverage
    assert told.startswith(f"Covers 504 of {parameters} parameters")
    assert told.endswith(f"Left out: {parameters - 504} (a vector: bias, norm or statistics).")


def test_indices_and_causal_masks_of_a_file_are_no_parameters(tmp_path):
    model = nn.Module()
    model.attn = nn.Sequential(nn.Linear(4, 4, bias=False))
    model.attn.register_buffer("bias", torch.ones(1, 1, 8, 8).tril())
    model.attn.register_buffer("relative_position_index", torch.arange(9).reshape(3, 3))
    model.attn.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for given in (model, tmp_path / "model.pt"):
        assert pm.how_compressible(given).coverage == "Covers 16 of 16 parameters (100.0%)."


def test_a_layer_norm_over_several_dimensions_is_none_in_a_file_either(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LayerNorm([8, 4, 4]))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for given in (model, tmp_path / "model.pt"):
        assert [layer.name for layer in pm.how_compressible(given).layers] == ["0.weight"]
