"""`palmette prune`: a file is cut as the model would be."""

import functools
import json
import os
import resource
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from checkpoint_files import NESTINGS, net, sharded
from click.testing import CliRunner
from mixed_model import mixed
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import palmette as pm
from palmette.checkpoints.calibration import prune_calibrated
from palmette.checkpoints.prune import prune_checkpoint
from palmette.cli import main


def run(*args, columns=80):
    return CliRunner().invoke(main, ["prune", *map(str, args)], env={"COLUMNS": str(columns)})


def refused(*args):
    result = run(*args)
    assert isinstance(result.exception, SystemExit)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("palmette: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def saved(model, file):
    save_file(model.state_dict(), file) if file.suffix == ".safetensors" else torch.save(model.state_dict(), file)
    return file


BUDGETS = {
    "--method sap": pm.Sap(),
    "--p 1 --q 2 --eta 0.05 --gamma 1.5 --beta 0.7": pm.Sap(p=1.0, q=2.0, eta=0.05, gamma=1.5, beta=0.7),
    "--method densities --densities 0.5,0.2": pm.Densities("0.5,0.2"),
    "--density 0.9": pm.FixedRatio(0.1),
    "--density 0.25": pm.FixedRatio(0.75),
}


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
@pytest.mark.parametrize("flags", BUDGETS)
def test_file_is_cut_as_pruner_cuts_the_model(tmp_path, flags, scope, monkeypatch):
    model = net()
    with torch.no_grad():
        model.head.weight[:2] = 0.25  # ties
        model.conv.weight[3] = 0
    file = saved(model, tmp_path / "in.pt")
    result = run(file, "-o", tmp_path / "out.safetensors", "--scope", scope, *flags.split())
    assert result.exit_code == 0, result.stderr
    monkeypatch.setattr("palmette.checkpoints.prune.CHUNK", 64)
    prune_checkpoint(file, tmp_path / "parts.safetensors", scope=scope, budget=BUDGETS[flags])
    with pytest.warns(UserWarning, match=r"24 zeros \(conv\.weight\) count as pruned"):
        pruner = pm.Pruner(model, scope=scope, budget=BUDGETS[flags])
    pruner.step()
    for name in ("out", "parts"):
        cut = load_file(tmp_path / f"{name}.safetensors")
        assert cut.keys() == model.state_dict().keys()
        assert all(torch.equal(cut[n], v) for n, v in model.state_dict().items())
        assert pm.Masks.load(tmp_path / f"{name}.masks.safetensors", like=pruner.masks) == pruner.masks
    assert f"{pruner.density:.1%} of all {pruner.masks.total:,} remain." in result.stdout


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_sixteen_bit_weights_keep_their_dtype(tmp_path, scope):
    model = net().to(torch.bfloat16)
    file = saved(model, tmp_path / "in.pt")
    prune_checkpoint(file, tmp_path / "out.safetensors", scope=scope)
    pruner = pm.Pruner(model, scope=scope)
    pruner.step()
    cut = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(cut[n], v) and cut[n].dtype == v.dtype for n, v in model.state_dict().items())


def test_second_cut_continues_from_the_masks(tmp_path):
    model = net()
    saved(model, tmp_path / "0.safetensors")
    pruner = pm.Pruner(model, scope="neuron")
    for t in range(3):
        prune_checkpoint(tmp_path / f"{t}.safetensors", tmp_path / f"{t + 1}.safetensors")
        pruner.step()
        assert pm.Masks.load(tmp_path / f"{t + 1}.masks.safetensors", like=pruner.masks) == pruner.masks
    assert all(torch.equal(w, load_file(tmp_path / "3.safetensors")[n]) for n, w in model.state_dict().items())


def test_masks_of_torch_prune_are_cut_further(tmp_path):
    from torch.nn.utils import prune

    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    mask = model[0].weight_mask.bool()
    torch.save(model.state_dict(), tmp_path / "in.pt")
    prune_checkpoint(tmp_path / "in.pt", tmp_path / "out.safetensors", scope="layer")
    cut = load_file(tmp_path / "out.safetensors")
    assert sorted(cut) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    prune.remove(model[0], "weight")
    pruner = pm.Pruner(
        model, scope="layer", masks={"0.weight": mask, "2.weight": torch.ones(2, 8, dtype=torch.bool)}
    )
    pruner.step()
    assert torch.equal(cut["0.weight"], model[0].weight)


@pytest.mark.parametrize("nesting", ["state_dict", "DataParallel"])
def test_written_names_are_those_of_the_plain_model(tmp_path, nesting):
    model = net()
    torch.save(NESTINGS[nesting](model.state_dict()), tmp_path / "in.pt")
    prune_checkpoint(tmp_path / "in.pt", tmp_path / "out.safetensors")
    net(1).load_state_dict(load_file(tmp_path / "out.safetensors"))


def test_tied_weight_is_cut_under_both_names(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    prune_checkpoint(saved(model, tmp_path / "in.pt"), tmp_path / "out.safetensors")
    cut = load_file(tmp_path / "out.safetensors")
    pm.Pruner(model, scope="neuron").step()
    assert torch.equal(cut["0.weight"], model[0].weight)
    assert torch.equal(cut["2.weight"], model[0].weight)


def test_transposed_layouts_are_cut_in_layer_scope(tmp_path):
    model = mixed()
    file = saved(model, tmp_path / "in.safetensors")
    prune_checkpoint(file, tmp_path / "out.safetensors", scope="layer", zeros="count")
    pm.Pruner(model, scope="layer", zeros="count").step()
    assert all(torch.equal(w, load_file(tmp_path / "out.safetensors")[n]) for n, w in model.state_dict().items())


def test_gpt2_is_cut_by_neurons_and_loads(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "in")
    result = run(tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.masks.safetensors",
        "model.safetensors",
    ]
    pm.Pruner(model, scope="neuron").step()
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert all(torch.equal(w, again.state_dict()[n]) for n, w in model.state_dict().items())


def test_shards_are_written_as_one_file(tmp_path):
    (tmp_path / "in").mkdir()
    model = net()
    sharded(tmp_path / "in", model, "safetensors")
    (tmp_path / "in" / "config.json").write_text("{}")
    (tmp_path / "in" / "pooling").mkdir()
    (tmp_path / "in" / "pooling" / "config.json").write_text("{}")
    saved(nn.Linear(2, 2), tmp_path / "in" / "pooling" / "model.safetensors")  # of sentence-transformers
    (tmp_path / "in" / "checkpoint-500").mkdir()
    (tmp_path / "in" / "the-same.th").touch()
    prune_checkpoint(tmp_path / "in", tmp_path / "out", scope="global")
    pm.Pruner(model, scope="global").step()
    assert all(
        torch.equal(w, load_file(tmp_path / "out/model.safetensors")[n]) for n, w in model.state_dict().items()
    )
    written = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert written == [
        "config.json",
        "model.masks.safetensors",
        "model.safetensors",
        "pooling/config.json",
        "pooling/model.safetensors",
    ]
    assert not (tmp_path / "out" / "checkpoint-500").exists()
    said = refused(tmp_path / "in", "-o", tmp_path / "one.safetensors")
    assert "is a folder, so its cut needs a new folder, got" in said


def test_packed_file_is_small_and_loads(tmp_path):
    model = nn.Linear(200, 100)
    result = run(
        saved(model, tmp_path / "in.pt"), "-o", tmp_path / "out.safetensors", "--density", "0.1", "--pack"
    )
    assert result.exit_code == 0, result.stderr
    pm.Pruner(model, scope="neuron", budget=pm.FixedRatio(0.9)).step()
    assert torch.equal(pm.load(tmp_path / "out.safetensors")["weight"], model.weight)
    assert (tmp_path / "out.safetensors").stat().st_size < 0.2 * (tmp_path / "in.pt").stat().st_size
    assert not (tmp_path / "out.masks.safetensors").exists()


def test_existing_zeros_without_a_mask_are_reported(tmp_path):
    model = nn.Linear(8, 1, bias=False)
    model.weight.data.copy_(torch.tensor([0.0, 0, 0, 1, 2, 3, 4, 5]))
    settings = "--density", "0.5", "--zeros", "count"
    result = run(saved(model, tmp_path / "a.pt"), "-o", tmp_path / "b.safetensors", *settings)
    assert "\nCut 4 of 8 weights, 3 of which were zero already; 50.0% of all 8 remain.\n" in result.output
    again = run(tmp_path / "b.safetensors", "-o", tmp_path / "c.safetensors", "--density", "0.5")
    assert "\nCut 2 of 4 weights; 25.0% of all 8 remain.\n" in again.output


def test_patterns_select_what_is_cut(tmp_path):
    model = net()
    file = saved(model, tmp_path / "in.pt")
    run(file, "-o", tmp_path / "out.safetensors", "--exclude", "head.*", "--exclude", "att*", "--density", "0.5")
    pm.Pruner(model, scope="neuron", budget=pm.FixedRatio(0.5), exclude=["head.*", "att*"]).step()
    assert all(torch.equal(w, load_file(tmp_path / "out.safetensors")[n]) for n, w in model.state_dict().items())


@pytest.mark.parametrize("columns", [80, 120])
def test_densities_before_and_after_are_printed(tmp_path, columns):
    result = run("example", "-o", tmp_path / "out.safetensors", "--density", "0.5", columns=columns)
    lines = result.stdout.splitlines()
    assert lines[0] == "digits-mlp.safetensors, scope neuron, FixedRatio(ratio=0.5)"
    assert lines[1].split() == ["weights", "kept", "before", "kept", "now"]
    assert lines[5].split() == ["all", "43,520", "100.0%", "50.0%"]
    assert lines[7] == "Cut 21,760 of 43,520 weights; 50.0% of all 43,520 remain."
    assert all(len(line) <= columns for line in lines[:9])


# Atomic writes


def test_checkpoint_is_written_atomically(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight.data[0, 0] = float("nan")
    file = saved(model, tmp_path / "in.safetensors")
    (tmp_path / "out.safetensors").write_bytes(b"mine")
    for scope in ("neuron", "global"):
        said = refused(file, "-o", tmp_path / "out.safetensors", "--force", "--scope", scope)
        assert said == f"palmette: {str(file)!r} has NaN or infinite numbers in 'b.weight'\n"
    assert (tmp_path / "out.safetensors").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.safetensors"]


@pytest.mark.parametrize("options", [(), ("--pack",)])
def test_full_disk_leaves_the_old_file(tmp_path, options):
    file, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file({"w": torch.randn(500, 500)}, file)
    out.write_bytes(b"mine")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))  # half of what is to be written
        said = refused(file, "-o", out, "--force", *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert f"{str(out)!r} could not be written: File too large; what was there before is untouched" in said
    assert out.read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.safetensors"]


@pytest.mark.parametrize("options", [(), ("--pack",)])
@pytest.mark.parametrize("name", ["out.safetensors", "out.masks.safetensors"])
def test_existing_weights_and_masks_are_only_overwritten_with_force(tmp_path, name, options):
    file, out = saved(net(), tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
    (tmp_path / name).write_bytes(b"mine")
    said = refused(file, "-o", out, *options)
    there = repr(str(tmp_path / name))
    assert said == f"palmette: {there} exists: choose another file, or overwrite it with --force\n"
    assert (tmp_path / name).read_bytes() == b"mine"
    assert run(file, "-o", out, "--force", *options).exit_code == 0
    assert out.stat().st_size > 4


def test_layer_without_a_weight_is_named(tmp_path):
    save_file({"a": torch.eye(2) + 1, "b": torch.eye(2) / 9}, tmp_path / "in.safetensors")
    result = run(
        tmp_path / "in.safetensors", "-o", tmp_path / "o.safetensors", "--density", "0.5", "--scope", "global"
    )
    assert "No weight is left in b: outputs are constant; exclude it, or cut less.\n" in result.stdout


def test_saliency_of_the_current_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "rank_here.py").write_text("def smallest_kept(name, weight):\n    return 1 / (1 + weight.abs())\n")
    save_file({"w": torch.arange(1.0, 5.0).reshape(1, 4)}, tmp_path / "in.safetensors")
    done = run(
        "in.safetensors", "-o", "out.safetensors", "--density", "0.5", "--saliency", "rank_here:smallest_kept"
    )
    assert done.exit_code == 0, done.output
    assert load_file("out.safetensors")["w"].tolist() == [[1, 2, 0, 0]]


def test_bad_input_or_output_is_refused_with_the_way_out(tmp_path):
    file = saved(net(), tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    (tmp_path / "full").mkdir()
    saved(net(), tmp_path / "full" / "model.safetensors")
    np.save(tmp_path / "numbers.npy", np.arange(3))
    for arguments, words in (
        ((file, "-o", file), "must not overwrite the one to cut"),
        ((file, "-o", tmp_path / "out.pt"), "is written as .safetensors, got"),
        ((file, "-o", tmp_path / "out.masks.safetensors"), "is for masks, got"),
        ((tmp_path / "no.pt", "-o", out), "no file at"),
        ((tmp_path / "full", "-o", tmp_path / "full" / "new"), "must not overwrite the one to cut"),
        ((tmp_path / "full", "-o", tmp_path / "full"), "must not overwrite the one to cut"),
        (
            (tmp_path / "full", "-o", tmp_path / "full" / "model.safetensors", "--pack"),
            "must not overwrite the one to cut",
        ),
        ((tmp_path / "numbers.npy", "-o", out), "holds plain numbers"),
        ((file, "-o", out, "--density", "1.5"), "--density must be a fraction above 0, at most 1, got 1.5"),
        ((file, "-o", out, "--density", "0"), "--density must be a fraction above 0, at most 1, got 0"),
        ((file, "-o", out, "--method", "lottery-ticket", "--ratio", "1"), "would leave no weight at all"),
        ((file, "-o", out, "--density", "0.5", "--p", "0.5"), "leave out --p"),
        ((file, "-o", out, "--density", "0.5", "--method", "sap"), "leave out --method"),
        (
            (file, "-o", out, "--include", "nothing*"),
            "include has the pattern 'nothing*', which matches no weight of",
        ),
        ((file, "-o", out, "--exclude", "haed.*"), "exclude has the pattern 'haed.*', which matches no weight of"),
        ((file, "-o", out, "--exclude", "*"), "nothing is left of"),
        ((file, "-o", out, "--gamma", "0"), "gamma must be above 0"),
    ):
        assert words in refused(*arguments)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("mine")
    assert "exists; choose a new folder" in refused(tmp_path / "full", "-o", tmp_path / "there")
    assert not out.exists()


def test_tensors_that_cannot_be_written_are_refused(tmp_path):
    out = tmp_path / "out.safetensors"
    torch.save({0: torch.eye(2), "0": torch.eye(2)}, tmp_path / "a.pt")
    assert "has two tensors named '0'" in refused(tmp_path / "a.pt", "-o", out)
    torch.save({"w": torch.eye(2), "x": torch.ones(2, dtype=torch.complex128)}, tmp_path / "a.pt")
    assert "has 'x' in torch.complex128, which palmette does not write" in refused(tmp_path / "a.pt", "-o", out)


def test_other_tensors_are_copied(tmp_path):
    kinds = (torch.int64, torch.uint8, torch.bool, torch.float64, torch.complex64, torch.uint16, torch.float8_e5m2)
    others = {str(kind): torch.arange(5).to(kind) for kind in kinds} | {"nan": torch.tensor([float("nan"), 1.0])}
    others |= {"scalar": torch.tensor(3), "none": torch.empty(0, 4), "slice": torch.arange(20.0)[::2]}
    torch.save({"fc.weight": torch.randn(3, 3), **others}, tmp_path / "a.pt")
    for pack, load in ((False, load_file), (True, pm.load)):
        prune_checkpoint(tmp_path / "a.pt", tmp_path / "out.safetensors", pack=pack)
        found = load(tmp_path / "out.safetensors")
        for name, tensor in others.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert found[name].tolist() == tensor.tolist() or name == "nan"


def test_masks_of_another_model_are_refused(tmp_path):
    saved(nn.Linear(4, 4), tmp_path / "a.safetensors")
    pm.Masks({"weight": torch.ones(2, 2, dtype=torch.bool)}).save(tmp_path / "a.masks.safetensors")
    said = refused(tmp_path / "a.safetensors", "-o", tmp_path / "out.safetensors")
    assert "a.masks.safetensors next to it belongs to another model: 'weight' differs" in said


# Calibration


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_masks_with_regrown_weights_are_refused(tmp_path, dtype):
    save_file({"weight": torch.randn(20, 30).to(dtype)}, tmp_path / "a.safetensors")
    assert run(tmp_path / "a.safetensors", "-o", tmp_path / "b.safetensors").exit_code == 0
    assert run(tmp_path / "b.safetensors", "-o", tmp_path / "c.safetensors").exit_code == 0
    save_file({"weight": torch.ones(20, 30).to(dtype)}, tmp_path / "b.safetensors")
    said = refused(tmp_path / "b.safetensors", "-o", tmp_path / "d.safetensors")
    assert "it has weights where b.masks.safetensors next to it has none" in said
    assert "(remove them to continue without)" in said
    assert not (tmp_path / "d.safetensors").exists()


def test_current_folder_is_measured_and_cut(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    saved(net(), tmp_path / "mine" / "model.safetensors")
    monkeypatch.chdir(tmp_path / "mine")
    measured = CliRunner().invoke(main, ["measure", "."])
    assert measured.stdout.startswith("mine, PQ Index at ")
    result = run(".", "-o", "../cut", "--density", "0.5")
    assert result.stdout.startswith("mine, scope neuron, ")
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == ["model.masks.safetensors", "model.safetensors"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "'.' exists; choose a new folder" in refused("../mine", "-o", ".")


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    """A Llama of 6,000 weights and a tokenizer of words, saved as Transformers saves them."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("llama")
    words = {w: i for i, w in enumerate(["[UNK]", "the", "cat", "dog", "sat", "ran", "on", "mat"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_calibration_ranks_weights_by_their_inputs(tmp_path, tiny_llama):
    import transformers

    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n\nthe dog ran\n")
    result = run(tiny_llama, "-o", tmp_path / "out", "--calibrate", text, "--density", "0.5")
    assert result.exit_code == 0, result.stderr
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    model = transformers.LlamaForCausalLM.from_pretrained(tiny_llama)
    inputs = []
    layer = model.model.layers[1].mlp.down_proj
    layer.register_forward_pre_hook(lambda module, given: inputs.append(given[0][0]))
    for ids in ([1, 2, 4, 6, 1, 7], [1, 3, 5]):
        model(input_ids=torch.tensor([ids]))
    norms = torch.cat(inputs).norm(dim=0)
    scores = (layer.weight * norms).abs()
    kept = scores > scores.kthvalue(16, dim=1, keepdim=True).values  # each of 32 inputs: half of a neuron goes
    assert torch.equal(again.model.layers[1].mlp.down_proj.weight, torch.where(kept, layer.weight, 0))
    assert not torch.equal(kept, layer.weight.abs() > layer.weight.abs().kthvalue(16, dim=1, keepdim=True).values)
    masks = pm.Masks.load(tmp_path / "out" / "model.masks.safetensors", like=pm.prunable(again))
    assert torch.equal(masks["model.layers.1.mlp.down_proj.weight"], kept)
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.parametrize("flags", ["--scope layer", "--allocate outliers", "--saliency magnitude --pack", ""])
@pytest.mark.parametrize("by", ["admm", "gradual"])
def test_repair_keeps_outputs_of_the_cut_model_and_its_counts(tmp_path, tiny_llama, flags, by):
    import transformers

    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n\nthe dog ran\n")
    model = transformers.LlamaForCausalLM.from_pretrained(tiny_llama)
    ids = torch.tensor([[1, 2, 4, 6, 1, 7]])
    away, cuts = [], []
    for repair in ([], ["--repair", by]):
        out = tmp_path / f"out{len(repair)}{'.safetensors' if 'pack' in flags else ''}"
        chosen = flags.replace("--saliency magnitude", "") if not repair else flags
        result = run(
            tiny_llama, "-o", out, "--calibrate", text, "--density", "0.5", "--json", *chosen.split(), *repair
        )
        assert result.exit_code == 0, result.stderr
        cuts.append(json.loads(result.stdout))
        again = transformers.LlamaForCausalLM(model.config)
        again.load_state_dict(pm.load(out) if out.is_file() else load_file(out / "model.safetensors"))
        away.append(float((again(ids).logits - model(ids).logits).detach().square().sum()))
    assert away[1] < away[0]
    assert [cut["layers"][-1]["after"] for cut in cuts] == [cuts[0]["layers"][-1]["after"]] * 2
    names = {layer["name"] for layer in cuts[1]["layers"]} - {"all"}
    assert set(cuts[1]["repaired"]) == names - {"lm_head.weight"}
    assert not cuts[0]["repaired"]


def test_repair_says_what_was_only_cut_and_leaves_a_folder_that_is_cut_further(tmp_path, tiny_llama):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n")
    first, second = tmp_path / "first", tmp_path / "second"
    result = run(tiny_llama, "-o", first, "--calibrate", text, "--density", "0.5", "--repair", "gradual")
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.output.split())
    reach = "cut but not repaired (not a Linear layer of a block, or unused): lm_head.weight."
    assert f"Repaired by gradual: 14 of 15 weights; {reach}" in said
    state, masks = load_file(first / "model.safetensors"), pm.Masks.load(first / "model.masks.safetensors")
    weights, kept = (torch.cat([of[n].flatten() for n in masks]) for of in (state, masks))
    assert f"{float(pm.pq_index(weights, kept=kept)):.4f} now" in said
    result = run(first, "-o", second, "--calibrate", text, "--density", "0.5", "--repair", "gradual")
    assert result.exit_code == 0, result.stderr
    before, after = (pm.Masks.load(folder / "model.masks.safetensors") for folder in (first, second))
    assert (after & before) == after
    assert after.kept * 2 == before.kept
    state = load_file(second / "model.safetensors")
    assert all(not bool(state[name][~mask].any()) for name, mask in after.items())


def test_repair_without_sentences_or_blocks_is_refused(tmp_path, tiny_llama):
    import transformers

    text = tmp_path / "text.txt"
    text.write_text("the cat\n")
    out = tmp_path / "out"
    assert "--repair admm needs sentences: pass a Transformers folder and --calibrate TEXT" in refused(
        tiny_llama, "-o", out, "--repair", "admm"
    )
    said = run(tiny_llama, "-o", out, "--calibrate", text, "--repair", "obs").stderr
    assert "Invalid value for '--repair': 'obs' is not one of 'least-squares', 'admm'" in said
    assert "--device 'gpu' cannot be used: networks train on cpu, cuda, mps or xpu" in refused(
        tiny_llama, "-o", out, "--calibrate", text, "--device", "gpu"
    )
    config = transformers.AlbertConfig(
        vocab_size=8, hidden_size=16, num_attention_heads=2, intermediate_size=16, embedding_size=8
    )
    transformers.AlbertModel(config).save_pretrained(tmp_path / "albert")
    transformers.AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(tmp_path / "albert")
    result = run(tmp_path / "albert", "-o", out, "--calibrate", text, "--repair", "admm")
    said = result.stderr.splitlines()[-1]
    assert result.exit_code == 2
    assert "repair works block by block, so it needs a model with an nn.ModuleList of blocks that each" in said
    assert "albert' could not be read" not in said
    assert not out.exists()
    with pytest.raises(ValueError, match=r"repair must be one of least-squares, .*, got 'obs'"):
        prune_calibrated(tiny_llama, out, text, repair="obs")


class Largest(TorchDispatchMode):
    """Largest number of entries of any computed tensor."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(t.numel() for t in tree_leaves(found) if isinstance(t, torch.Tensor))])
        return found


def test_calibrated_cut_does_not_copy_all_weights(tmp_path, tiny_llama):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n")
    with Largest() as largest:
        cut = prune_calibrated(tiny_llama, tmp_path / "out", text, budget=pm.FixedRatio(0.5))
    assert 0 < largest.most < sum(layer.entries for layer in cut.layers) / 2
    masks = pm.Masks.load(tmp_path / "out" / "model.masks.safetensors")
    for folder, kept, index in (
        (tiny_llama, pm.Masks.ones_like(masks), cut.index_before),
        (tmp_path / "out", masks, cut.index_after),
    ):
        state = load_file(folder / "model.safetensors")
        weights, marks = (torch.cat([of[n].flatten() for n in masks]) for of in (state, kept))
        assert float(pm.pq_index(weights, kept=marks)) == pytest.approx(index, abs=1e-12)


def test_impossible_output_path_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    said = refused("example", "-o", tmp_path / "file" / "out.safetensors")
    assert "out.safetensors' could not be written: File exists; what was there before is untouched" in said


def test_second_calibrated_cut_continues_from_the_masks(tmp_path, tiny_llama):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n")
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(tiny_llama, "-o", first, "--density", "0.5").exit_code == 0
    result = run(first, "-o", second, "--calibrate", text, "--density", "0.5")
    assert result.exit_code == 0, result.stderr
    before, after = (pm.Masks.load(folder / "model.masks.safetensors") for folder in (first, second))
    assert (after & before) == after
    state = load_file(first / "model.safetensors")
    save_file({name: value + 0.1 for name, value in state.items()}, first / "model.safetensors", {"format": "pt"})
    said = refused(first, "-o", tmp_path / "third", "--calibrate", text, "--density", "0.5")
    assert "it has weights where model.masks.safetensors next to it has none" in said
    assert not (tmp_path / "third").exists()
    assert before.kept == 2 * after.kept
    assert f"Cut {after.kept:,} of {before.kept:,} weights; 25.0% of all" in result.output


def test_calibrated_cut_knows_weights_of_a_file_without_the_prefix_of_the_base_model(tmp_path, tiny_llama):
    (tmp_path / "text").write_text("the cat sat on the mat\n")
    short = shutil.copytree(tiny_llama, tmp_path / "short")
    state = load_file(short / "model.safetensors")
    save_file(
        {n.removeprefix("model."): w for n, w in state.items()}, short / "model.safetensors", {"format": "pt"}
    )
    cuts = []
    for source in (tiny_llama, short):
        prune_calibrated(source, tmp_path / f"{source.name}-cut", tmp_path / "text", budget=pm.FixedRatio(0.5))
        masks = pm.Masks.load(tmp_path / f"{source.name}-cut" / "model.masks.safetensors")
        cuts.append({n.removeprefix("model."): mask for n, mask in masks.items()})
    assert cuts[0].keys() == cuts[1].keys()
    assert all(torch.equal(mask, cuts[1][name]) for name, mask in cuts[0].items())
    state = {n.replace("down_proj", "other"): w for n, w in state.items()}
    save_file(state, short / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"has another name for 'model\.layers\.0\.mlp\.down_proj\.weight' of its"
    ):
        prune_calibrated(short, tmp_path / "third", tmp_path / "text")


def test_calibrated_model_is_written_as_one_file(tmp_path, tiny_llama, monkeypatch):
    import transformers

    whole = transformers.PreTrainedModel.save_pretrained
    monkeypatch.setattr(
        transformers.PreTrainedModel, "save_pretrained", functools.partialmethod(whole, max_shard_size="1KB")
    )
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n")
    result = run(tiny_llama, "-o", tmp_path / "out", "--calibrate", tmp_path / "text.txt")
    assert result.exit_code == 0, result.stderr
    weights = [file.name for file in (tmp_path / "out").glob("*.safetensors")]
    assert sorted(weights) == ["model.masks.safetensors", "model.safetensors"]


@pytest.mark.parametrize("flags", ["--saliency magnitude", "--saliency mine:f", "--method one-shot"])
def test_calibration_refuses_another_saliency(tmp_path, flags):
    said = refused(tmp_path, "-o", tmp_path / "out", "--calibrate", tmp_path / "text.txt", *flags.split())
    assert "--calibrate ranks weights by their inputs, and saliency '" in said


def test_calibration_without_model_or_text_is_refused(tmp_path, tiny_llama):
    text = tmp_path / "text.txt"
    text.write_text("\n\n")
    file = saved(net(), tmp_path / "in.safetensors")
    out = tmp_path / "out"
    assert "needs a folder of Transformers with a config.json" in refused(file, "-o", out, "--calibrate", text)
    assert "has no text to calibrate with" in refused(tiny_llama, "-o", out, "--calibrate", text)
    assert "no text at" in refused(tiny_llama, "-o", out, "--calibrate", tmp_path / "no.txt")
    shutil.copytree(tiny_llama, tmp_path / "broken", ignore=shutil.ignore_patterns("*.safetensors"))
    text.write_bytes("größe".encode("latin-1"))
    assert "is not UTF-8 text; save it as UTF-8" in refused(tiny_llama, "-o", out, "--calibrate", text)
    text.write_text("the cat")
    assert "could not be loaded to calibrate it" in refused(tmp_path / "broken", "-o", out, "--calibrate", text)
    assert not out.exists()
    out.write_text("")  # reported before the model is loaded
    assert "exists; choose a new folder" in refused(tmp_path / "broken", "-o", out, "--calibrate", text)


def test_calibration_needs_a_model_that_reads_sentences(tmp_path, tiny_llama):
    import transformers

    (tmp_path / "text.txt").write_text("the cat")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    args = (tmp_path / "vit", "-o", tmp_path / "out", "--calibrate", tmp_path / "text.txt")
    assert "has no tokenizer that can be loaded, which --calibrate needs; tokenizer.save_pre" in refused(*args)
    transformers.AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(tmp_path / "vit")
    result = run(*args)
    assert result.exit_code == 2
    assert "/vit' does not accept text alone, which --calibrate needs (" in result.stderr
    assert result.stderr.endswith("); prune it without --calibrate\n")
    assert not (tmp_path / "out").exists()
