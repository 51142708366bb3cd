import csv
import html
import io
import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

import palmette as pm
from palmette.cli import main
from palmette.cli.measure import EXAMPLE


def run(*args, columns=80):
    return CliRunner().invoke(main, ["measure", *map(str, args)], env={"COLUMNS": str(columns)})


def refused(file, *args):
    """Error message, checked to be one sentence on stderr that names the file."""
    result = run(file, *args)
    assert isinstance(result.exception, SystemExit)  # nothing else: no traceback
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("palmette: ")
    assert result.stderr.count("\n") == 1
    assert repr(str(file)) in result.stderr
    return result.stderr.strip().replace(repr(str(file)), "FILE")


def measured(file, *args):
    result = run(file, "--json", *args)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    data = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return [*data["layers"], *([data["whole"]] if len(data["layers"]) > 1 else [])]


def names(file):
    return [row["name"] for row in measured(file)]


@pytest.fixture
def saved(tmp_path):
    """Function that writes bytes, text, an array (.npy) or anything torch.save takes to a file."""

    def save(contents, name="weights.pt"):
        file = tmp_path / name
        if isinstance(contents, bytes):
            file.write_bytes(contents)
        elif isinstance(contents, str):
            file.write_text(contents, encoding="utf-8")
        elif isinstance(contents, np.ndarray):
            np.save(file, contents, allow_pickle=True)
        elif file.suffix == ".safetensors":
            save_file(contents, file)
        else:
            torch.save(contents, file)
        return file

    return save


# Output


@pytest.mark.parametrize(("p", "q"), [(0.5, 1.0), (1.0, 2.0)])
def test_example_has_the_numbers_of_the_library(p, q):
    layers = {n: t.flatten() for n, t in load_file(EXAMPLE).items() if t.dim() >= 2}
    layers["all"] = torch.cat(list(layers.values()))
    rows = measured("example", "--p", p, "--q", q)
    assert [row["name"] for row in rows] == [*layers]
    for row, weights in zip(rows, layers.values(), strict=True):
        assert row["entries"] == weights.numel()
        assert row["pq_index"] == pytest.approx(float(pm.pq_index(weights, p=p, q=q)), rel=1e-12)
        assert row["gini_index"] == pytest.approx(float(pm.gini_index(weights)), rel=1e-12)
        assert row["hoyer"] == pytest.approx(float(pm.MEASURES["hoyer"](weights)), rel=1e-12)
        if row["name"] != "all":
            assert row["sap_cut"]["layer"] == int(pm.Sap(p=p, q=q)(weights))
        bound = pm.retained_lower_bound(row["pq_index"], row["entries"], p=p, q=q)
        assert row["retained_lower_bound"] == pytest.approx(bound, rel=1e-12)


def test_table_of_very_many_layers_ends_early_with_the_total_of_all(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["palmette.cli.measure"], "MOST_LINES", 3)
    save_file({f"{i}.weight": torch.eye(2) for i in range(5)}, tmp_path / "five.safetensors")
    lines = run(tmp_path / "five.safetensors").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "2", "all"]
    assert lines[5].split()[1] == "10"
    assert lines[7] == "The first 3 of 5 layers, and the total of all; --csv and --json list them all."


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_the_terminal(columns):
    result = run("example", columns=columns)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "digits-mlp.safetensors, PQ Index at p=0.5, q=1; SAP's next cut in three scopes"
    narrow = ["weights", "PQ", "Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead"]
    assert lines[1].split() == (
        [*narrow, "size", "after"] if columns < 100 else [*narrow, "tail", "size", "after"]
    )
    assert [line.split()[0] for line in lines[2:6]] == ["head", "layer1", "layer2", "all"]
    whole = measured("example")[-1]
    assert lines[5].split()[1:9] == [
        f"{whole['d']:,}",
        *(f"{whole[name]:.4f}" for name in ("pq_index", "gini_index", "hoyer")),
        *(f"{whole['sap_cut'][scope] / whole['d']:.1%}" for scope in ("neuron", "layer", "global")),
        "0",
    ]
    assert all(len(line) <= columns for line in lines)
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("length", "left_out"),
    [
        (14, ["tail", "size", "after"]),
        (18, ["tail", "size", "after"]),
        (30, ["tail", "size", "after", "Hoyer"]),
        (36, ["tail", "size", "after", "Hoyer", "Gini"]),
    ],
)
def test_less_important_columns_make_room_for_long_names(saved, length, left_out):
    lines = run(saved({"x" * length: torch.eye(3)})).stdout.splitlines()
    every = ["weights", "PQ", "Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead"]
    every += ["tail", "size", "after"]
    assert lines[1].split() == [heading for heading in every if heading not in left_out]
    assert lines[2].split()[0] == "x" * length


def test_name_longer_than_the_screen_wraps(saved):
    name = "model.layers.31.mlp." + "experts." * 8 + "down_proj.weight"
    lines = run(saved({name: torch.eye(100)}), "--zeros", "count").stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    # 100 ones among 10,000 entries: index and Gini are 1 - 1/100, but no more than 90% go at once.
    assert lines[2].split()[1:] == ["10,000", "0.9900", *["90.0%"] * 3, "0"]
    folded = lines[2].split()[0] + "".join(line.strip() for line in lines[3 : lines.index("")])
    assert folded == name.removesuffix(".weight")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[/b]", "[/b]"),
        ("[red]", "[red]"),
        (":smile:", ":smile:"),
        ("a\nb\x1b", r"a\nb\x1b"),
        ("gewicht_ß", "gewicht_ß"),
    ],
)
def test_names_are_printed_verbatim_or_escaped(saved, name, shown):
    file = saved({name: torch.eye(2)})
    assert run(file).stdout.splitlines()[2].split()[0] == shown
    assert names(file) == [name]


def test_ascii_pipe_gets_escapes_and_no_colour(saved):
    file = saved({"ß": torch.eye(2)}, "größe.pt")
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "palmette", "measure", "--zeros", "count"]
    ran = subprocess.run([*command, str(file)], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[0] == r"gr\xf6\xdfe.pt, PQ Index at p=0.5, q=1; SAP's next cut in three scopes"
    assert ran.stdout.splitlines()[2].split()[:9] == [
        r"\xdf",
        "4",
        "0.5000",
        "0.5000",
        "0.5858",
        "50.0%",
        "50.0%",
        "50.0%",
        "0",
    ]


# Layers


def test_layers_are_floating_point_tensors_of_two_or_more_dimensions(saved):
    checkpoint = {
        "fc.weight": torch.eye(2),
        "conv.weight": torch.ones(1, 2, 3, dtype=torch.bfloat16),
        "embed_tokens.weight": torch.eye(2),
        "table": torch.eye(2),
        "bias": torch.ones(2),
        "mask": torch.ones(2, 2, dtype=torch.bool),
        "ids": torch.ones(2, 2, dtype=torch.int64),
        "wave": torch.ones(2, 2, dtype=torch.complex64),
        "nobody": torch.ones(0, 2),
    }
    assert names(saved(checkpoint)) == ["fc.weight", "conv.weight", "all"]
    assert sorted(names(saved(checkpoint, "weights.safetensors"))) == ["all", "conv.weight", "fc.weight"]
    left_out = json.loads(run(saved(checkpoint), "--json").stdout)["left_out"]
    assert {tensor["name"]: tensor["why"] for tensor in left_out} == {
        "embed_tokens.weight": "embedding",
        "table": "not the weight of a layer",
        "bias": "a vector: bias, norm or statistics",
        "nobody": "empty",
        "mask": "a buffer: statistics, indices or a mask",
        "ids": "a buffer: statistics, indices or a mask",
        "wave": "no dense floating-point numbers",
    }
    for name in ("fc.weight", "conv.weight", "nobody", "embed_tokens.weight", "table"):
        del checkpoint[name]
    nothing = "palmette: FILE holds no dense floating-point tensor of two or more dimensions by name"
    assert refused(saved(checkpoint)).startswith(f"{nothing}; mask is quantized")
    assert refused(saved(checkpoint, "weights.safetensors")).startswith(nothing)
    assert refused(saved({"nobody": torch.ones(0, 2)})) == nothing


@pytest.mark.parametrize("key", ["model", "state_dict", "module"])
def test_weights_one_level_down_are_found(saved, key):
    assert names(saved({key: nn.Linear(2, 2).state_dict(), "epoch": 3})) == ["weight"]


@pytest.mark.parametrize("key", ["model", "state_dict", "module"])
def test_tensor_with_a_container_name_is_a_layer(saved, key):
    assert names(saved({key: torch.eye(2)})) == [key]


def test_names_may_be_integers_or_repeated(saved):
    file = saved({0: torch.eye(2), "0": torch.eye(4), "all": torch.eye(2)})
    assert [(row["name"], row["entries"]) for row in measured(file)] == [
        ("0", 4),
        ("0", 16),
        ("all", 4),
        ("all", 24),
    ]
    assert run(file).exit_code == 0


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".th", ".bin", ".PT"])
@pytest.mark.parametrize(
    "tensor", [torch.tensor([0, 0, -7, 0]), nn.Parameter(torch.tensor([[0.0, 0.0], [7.0, 0.0]]))]
)
def test_bare_tensor_is_one_vector(saved, suffix, tensor):
    (row,) = measured(saved(tensor, f"vector{suffix}"))
    assert (row["name"], row["entries"], row["pq_index"], row["sap_cut"]["global"]) == (
        f"vector{suffix}",
        4,
        0.75,
        3,
    )


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "g", "i1", "i8", ">i2", "u1", "u8"])
def test_array_of_any_real_dtype_is_one_vector(saved, dtype):
    (row,) = measured(saved(np.array([[0, 0], [7, 0]], dtype=dtype), "vector.npy"))
    assert (row["name"], row["entries"], row["pq_index"], row["gini_index"]) == ("vector.npy", 4, 0.75, 0.75)


def test_zeros_have_no_index(saved):
    file = saved({"zeros": torch.zeros(2, 2), "eye": torch.eye(2)})
    zeros, eye, together = measured(file, "--zeros", "count")
    unknown = ("pq_index", "gini_index", "hoyer", "retained_lower_bound", "removable", "tail_mass")
    assert [zeros[name] for name in unknown] == [None] * 6
    assert zeros["sap_cut"] == {"neuron": 0, "layer": 0, "global": 4}  # the network's smallest are here
    assert (zeros["zeros"], zeros["dead_neurons"]) == (4, 2)
    assert (eye["pq_index"], together["pq_index"]) == (0.5, 0.75)
    row = run(file).stdout.splitlines()[2].split()
    assert row[:9] == ["zeros", "4", *["none"] * 3, "0.0%", "0.0%", "100.0%", "2"]
    alone = run(saved(np.zeros(3), "zeros.npy")).stdout
    assert "\nZeros alone have no index, and SAP cuts none of them.\n" in alone
    assert "nan" not in alone


# Errors


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("args", [(), ("--json",)])
def test_nan_and_infinity_are_refused_with_the_tensor_name(saved, bad, args):
    file = saved({"fine": torch.eye(2), "fc.weight": torch.tensor([[1.0, bad]])})
    assert refused(file, *args) == "palmette: FILE has NaN or infinite numbers in 'fc.weight'"
    assert "infinite numbers in 'a.npy'" in refused(saved(np.array([1, bad]), "a.npy"), *args)
    assert "infinite numbers in 'a.pt'" in refused(saved(torch.tensor(bad), "a.pt"), *args)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".th", ".bin", ".npy"])
def test_empty_file_is_refused(saved, suffix):
    assert refused(saved(b"", f"empty{suffix}")) == "palmette: FILE is empty"


@pytest.mark.parametrize(
    ("contents", "name"),
    [(np.ones((0, 3)), "a.npy"), (torch.ones(0), "a.pt")],
)
def test_file_without_numbers_is_refused(saved, contents, name):
    assert refused(saved(contents, name)) == "palmette: FILE holds no numbers"


class Settings:
    """Object that a training script may save with its weights."""


UNREADABLE = [
    (nn.Linear(2, 2), "a.pt", "it needs torch.nn.modules.linear.Linear, and only tensors are loaded"),
    ({"args": Settings(), "w": torch.eye(2)}, "a.pt", f"it needs {__name__}.Settings, and only tensors"),
    (b"e is junk\n", "a.pt", "its contents are not weights in the .pt format"),
    (b"junk", "a.bin", "its contents are not weights in the .bin format"),
    (b"h\x05 a KeyError", "a.pt", "its contents are not weights in the .pt format"),
    (b"\x80\x04\x95", "a.pth", "its contents are not weights in the .pth format"),
    (b"PK\x03\x04junk", "a.pt", "it is damaged or truncated"),
    ([torch.eye(2)], "a.pt", "it holds a list, not weights by name"),
    (torch.ones(2, dtype=torch.complex64), "a.pt", "'a.pt' must hold real numbers in a dense layout"),
    (torch.ones(2, dtype=torch.bool), "a.pt", "'a.pt' must hold real numbers in a dense layout"),
    (b"junk", "a.safetensors", "it is damaged or truncated"),
    (b"<!doctype html><p>not found", "a.safetensors", "its contents are not weights in the .safetensors format"),
    (np.array([1, None]), "a.npy", "it holds Python objects, no real numbers"),
    (np.array(["x", "y"]), "a.npy", "it holds dtype <U1, no real numbers"),
    (np.array([1j]), "a.npy", "it holds dtype complex128, no real numbers"),
    (np.array([True]), "a.npy", "it holds dtype bool, no real numbers"),
    (b"junk that is no array", "a.npy", "its contents are not weights in the .npy format"),
    (b"junk", "a.npy", "its contents are not weights in the .npy format"),
    (b"\x93NUMPY\x01\x00\x04\x00" + bytes(4), "a.npy", "its contents are not weights in the .npy format"),
    (b"\x93NUMPY\x01\x00\x76\x00" + bytes(4), "a.npy", "it is damaged or truncated"),
    (bytes([2, *bytes(7)]) + b"no", "a.safetensors", "its contents are not weights in the .safetensors format"),
    (b"junk that is no GGUF", "a.gguf", "its contents are not weights in the .gguf format"),
]


@pytest.mark.parametrize(("contents", "name", "why"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_unreadable_file_is_refused_in_one_sentence(saved, contents, name, why):
    assert refused(saved(contents, name)).startswith(f"palmette: FILE could not be read: {why}")


@pytest.mark.parametrize("kind", ["to_sparse", "meta"])
def test_tensors_without_dense_values_are_left_out(saved, kind):
    strange = torch.eye(2).to_sparse() if kind == "to_sparse" else torch.eye(2, device="meta")
    assert names(saved({"strange": strange, "w": torch.eye(2)})) == ["w"]
    said = refused(saved({"strange": strange}))
    assert "holds no dense floating-point tensor" in said
    assert (
        "by name; strange is quantized, sparse, expanded or integer: use the model from before that step" in said
    )


def test_torchscript_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is old
        torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "a.pt")
    assert "it is a TorchScript program, and only tensors are loaded; save" in refused(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.bin", "a.gguf"])
def test_git_lfs_pointer_is_recognised(saved, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    said = "palmette: FILE is a Git LFS pointer, not the file; `git lfs pull` fetches it"
    assert refused(saved(pointer, name)) == said


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.safetensors", "a.npz"])
def test_truncated_file_is_refused(saved, tmp_path, name):
    if name == "a.npz":
        np.savez(tmp_path / name, w=np.ones(99))
        whole = (tmp_path / name).read_bytes()
    else:
        whole = saved(np.ones(99) if name == "a.npy" else {"w": torch.ones(9, 11)}, name).read_bytes()
    short, cut = "it is shorter than its header says", "it is damaged or truncated"
    why = short if name == "a.npy" else cut
    assert refused(saved(whole[: len(whole) // 2], name)) == f"palmette: FILE could not be read: {why}"


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_warnings_of_torch_are_not_printed(saved):
    quantized = torch.quantize_per_tensor(torch.eye(2), 1.0, 0, torch.qint8)
    assert names(saved({"q": quantized, "w": torch.eye(2)})) == ["w"]


def test_folder_missing_file_and_unknown_suffix_are_refused(tmp_path, saved):
    assert refused(tmp_path).startswith("palmette: FILE is a folder without weights; it has none of model.safe")
    assert refused(tmp_path / "no.pt").startswith("palmette: no file at FILE; `palmette measure example` shows")
    assert refused(saved("x", "a.txt")).startswith("palmette: palmette reads .safetensors, .pt, .pth, .th, .bin,")


@pytest.mark.parametrize(("p", "q"), [(0, 1), (-1, 1), (2, 3), (0.5, 0.9), (1, 1), ("nan", 1), (0.5, "inf")])
def test_norms_out_of_range_are_refused_with_the_rule(p, q):
    result = run("example", "--p", p, "--q", q)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "palmette: the PQ Index needs 0 < p <= 1 <= q < inf and p != q (Theorem 1), "
        f"got p={float(p)!r}, q={float(q)!r}\n"
    )


# Other formats


def test_csv_has_the_numbers_of_json(saved):
    rows = list(csv.DictReader(io.StringIO(run("example", "--csv").stdout)))
    data = json.loads(run("example", "--json").stdout)
    for row, found in zip(rows, [*data["layers"], data["whole"]], strict=True):
        assert row["name"] == found["name"]
        assert float(row["pq_index"]) == found["pq_index"]
        assert int(row["sap_cut_global"]) == found["sap_cut"]["global"]
        assert int(row["bytes_after_neuron"]) == found["bytes_after"]["neuron"]
    assert rows[0]["shape"] == "10x256"
    both = run("example", "--csv", "--json")
    assert (both.exit_code, both.stdout) == (2, "")


def test_html_page_is_self_contained(saved, tmp_path):
    file = saved({"<script>.weight": torch.eye(3), "b.weight": torch.randn(4, 4), "b.bias": torch.ones(4)})
    result = run(file, "--html", tmp_path / "page.html")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{tmp_path / 'page.html'}: 2 layers, ")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;" in page
    assert not re.search(r"<script|https?:|src=|@import|url\(", page)
    report = pm.how_compressible(file)
    assert all(html.escape(text) in page for text in (*report.verdict, *report.warnings))
    assert f"{report.whole.share_cut('global'):.1%}" in page


def test_html_page_of_plain_numbers_does_not_mention_layers(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 5, 100, 3]))
    result = run(tmp_path / "a.npy", "--html", tmp_path / "page.html")
    assert result.stdout.startswith(f"{tmp_path / 'page.html'}: 1 vector, ")
    page = (tmp_path / "page.html").read_text().partition("<body>")[2]
    assert "4 numbers in 1 vector" in page
    assert not re.search("weights|layer|neuron|scope", page, re.IGNORECASE)


def test_patterns_select_layers(saved):
    file = saved({"a.weight": torch.eye(2), "b.weight": torch.eye(2), "c.table": torch.eye(2)})
    assert names(file) == ["a.weight", "b.weight", "all"]
    assert [row["name"] for row in measured(file, "--exclude", "a.*")] == ["b.weight"]
    assert [row["name"] for row in measured(file, "--include", "c.*")] == ["c.table"]


IN_PARTS = """
import palmette as pm
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.measuring import measure

def peak():
    with open("/proc/self/status") as status:  # ru_maxrss begins with what the parent has
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

for name in ("small.safetensors", "large.safetensors"):
    before = peak()
    measure(open_checkpoint(name).weights, budget=pm.Sap(), chunk=1 << 20)
print(peak() - before)
"""


@pytest.mark.slow
def test_large_weight_is_never_loaded_whole(tmp_path):
    """1 GB of weights takes less than 64 MB more than 4 MB take: one copy of a sixteenth would be too much.

    With one thread. How many parts more threads have at a time is bounded, but a matter of luck.
    """
    save_file({"w": torch.randn(1024, 1024)}, tmp_path / "small.safetensors")
    save_file({"w": torch.randn(16384, 16384)}, tmp_path / "large.safetensors")
    command = [sys.executable, "-c", IN_PARTS]
    # What is freed goes back at once: how much malloc keeps besides, up to 300 MB, is a matter of luck too.
    alone = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    ran = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 64_000  # kB


def test_plain_numbers_have_no_scopes_and_no_training(tmp_path):
    np.savez(tmp_path / "a.npz", income=np.array([0, 0, 7, 0]))
    lines = run(tmp_path / "a.npz").stdout.splitlines()
    assert lines[0] == "a.npz, PQ Index at p=0.5, q=1"
    assert lines[1].split() == ["numbers", "PQ", "Index", "Gini", "Hoyer", "SAP", "cuts", "tail"]
    assert lines[2].split() == ["income", "4", "0.7500", "0.7500", "1.0000", "75.0%", "0.0000"]
    assert lines[4] == "SAP would cut 75% of these 4 numbers."
    assert "retrain" not in " ".join(lines)
    assert "neuron" not in " ".join(lines)


def test_vectors_of_numbers_are_cut_separately_and_together(tmp_path):
    """One of the six goes vector by vector, and as one vector, (0, 0, 0, 1, 1e6, 1e6), three."""
    np.savez(tmp_path / "a.npz", small=np.array([0, 1]), none=np.zeros(2), large=np.array([1e6, 1e6]))
    lines = run(tmp_path / "a.npz").stdout.splitlines()
    assert [line.split()[-2] for line in lines[2:6]] == ["50.0%", "0.0%", "0.0%", "50.0%"]
    assert lines[7] == "SAP would cut 50% of these 6 numbers."
    said = " ".join(lines)
    assert "Mind: none: all zeros." in said
    assert "3 of 6 numbers are zero already. They count as numbers here" in said
    assert not any(word in said for word in ("neuron", "scope", "weights", "layer"))


def test_arrays_without_numbers_are_left_out_and_named(tmp_path):
    beside = {"labels": np.array(["x"]), "kept": np.array([True]), "other": np.array([None])}
    np.savez(tmp_path / "a.npz", w=np.array([0.0, 0.0, 7.0, 0.0]), **beside)
    text = " ".join(run(tmp_path / "a.npz").stdout.split())
    assert "w 4 0.7500" in text
    assert "Left out: labels (dtype <U1, no real numbers), kept (dtype bool, no real numbers), other (Py" in text
    np.savez(tmp_path / "b.npz", **beside)
    assert refused(tmp_path / "b.npz") == "palmette: FILE holds no numbers"


def test_quantized_weights_are_left_out_with_a_warning(saved):
    packed = {f"{n}.qweight": torch.ones(2, 8, dtype=torch.int32) for n in "abcd"}
    text = " ".join(
        run(saved(packed | {"head.weight": torch.eye(4), "ids": torch.ones(2, 2).int()})).stdout.split()
    )
    assert (
        "Mind: a.qweight, b.qweight, c.qweight and 1 more: quantized, and left out, so that this is about" in text
    )
