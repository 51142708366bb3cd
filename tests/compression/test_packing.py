import json
import runpy
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import palmette as pm
from palmette.compression.packing import _DTYPES
from palmette.errors import MaskMismatch, NotReadable, NotWritten, PackedDamaged


def same_bits(a, b):
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


def codes(path):
    with safe_open(path, "pt") as file:
        return {name: entry["code"] for name, entry in json.loads(file.metadata()["tensors"]).items()}


def sparse(*shape, zeros, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return values.masked_fill_(torch.rand(shape, generator=generator) < zeros, 0)


@pytest.mark.parametrize("name", ["x.pt", "x.PTH", "x.onnx"])
def test_names_of_other_formats_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"save writes a safetensors file, got the name .*; name it"):
        pm.save(tmp_path / name, nn.Linear(2, 2))
    assert not list(tmp_path.iterdir())
    pm.save(tmp_path / "x", nn.Linear(2, 2))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    ("zeros", "largest", "code"),
    [(0.0, 1.001, "dense"), (0.5, 0.535, "mask"), (0.8, 0.23, "indices"), (0.9, 0.118, "indices"),
     (0.95, 0.061, "indices"), (0.99, 0.0135, "indices"), (1.0, 0.001, "indices")],
)  # fmt: skip
def test_each_tensor_is_written_in_the_smallest_way(zeros, largest, code, path):
    state = {"w": sparse(1000, 1000, zeros=zeros)}
    pm.save(path, state)
    assert codes(path) == {"w": code}
    assert path.stat().st_size <= largest * 4_000_000
    assert same_bits(pm.load(path)["w"], state["w"])


def test_sizes_in_the_docs_match_their_script():
    docs = Path(__file__).parents[2] / "docs"
    script = runpy.run_path(str(docs / "make_smaller.py"))
    for zeros, dtype in ((0.9, torch.float32), (0.99, torch.float32), (0.5, torch.bfloat16)):
        values = script["weight"](zeros, dtype)
        size = values.numel() * values.element_size()
        row = f"| {zeros:.0%} | {str(dtype).removeprefix('torch.')} |"
        (line,) = [line for line in (docs / "smaller.md").read_text().splitlines() if line.startswith(row)]
        csr, packed = (float(cell) for cell in line.split("|")[4:6])
        assert packed == pytest.approx(script["packed"](values) / size, abs=6e-5)
        assert csr == pytest.approx(script["csr"](values) / size, abs=6e-5)


@pytest.mark.parametrize("dtype", _DTYPES.values(), ids=str)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.95])
def test_every_dtype_round_trips_bit_for_bit(dtype, zeros, path):
    width = torch.empty(0, dtype=dtype).element_size()
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2 if dtype == torch.bool else 256, (3000, width), np.uint8)
    bits[rng.random(3000) < zeros] = 0
    state = {"w": torch.from_numpy(bits).reshape(-1).view(dtype).reshape(50, 60)}
    pm.save(path, state)
    assert (codes(path)["w"] == "dense") == (zeros == 0 and dtype != torch.bool)
    assert same_bits(pm.load(path)["w"], state["w"])


def test_negative_zero_nan_and_infinities_round_trip(path):
    w = torch.zeros(1000)
    w[:5] = torch.tensor([-0.0, float("nan"), float("inf"), float("-inf"), 1e-45])
    w[5:6].view(torch.int32).fill_(0x7FC12345)  # a NaN with a payload
    pm.save(path, {"w": w})
    assert codes(path) == {"w": "indices"}
    assert same_bits(pm.load(path)["w"], w)


def test_negative_zeros_are_reported(path):
    w = -torch.ones(1000) * (torch.arange(1000) % 10 == 0)  # 900 of the 1000 are -0.0
    with pytest.warns(UserWarning, match=r"900 of the 1,000 entries of 'w' are -0.0.*add_\(0.0\)"):
        pm.save(path, {"w": w})
    assert same_bits(pm.load(path)["w"], w)
    pm.save(path, {"w": w.add_(0.0)})
    assert path.stat().st_size < 1200


def test_odd_shapes_and_views_round_trip(path):
    base, turning = sparse(40, 60, zeros=0.9), torch.randn(300, dtype=torch.complex64)
    state = {
        "number": torch.tensor(3.5),
        "zero": torch.tensor(0),
        "empty": torch.zeros(0, 4),
        "empty too": torch.zeros(0, 4),
        "turned": base.t(),
        "every other": base[::2, 1::3],
        "row": base[3],
        "spread": torch.zeros(1).expand(500),
        "images": sparse(8, 3, 16, 16, zeros=0.9).to(memory_format=torch.channels_last),
        "steps": torch.arange(9),
        "turning": turning,
        "conjugate": turning.conj(),  # the same memory with the conjugate bit set
        "imaginary": turning.imag,
        "negative": turning.conj().imag,
    }
    pm.save(path, state)
    loaded = pm.load(path)
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        assert same_bits(loaded[name], tensor.resolve_conj().resolve_neg()), name


def test_one_entry_with_a_stride_round_trips(path):
    pm.save(path, {"w": torch.tensor([[1.0, 2.0, 3.0]])[:, 1::2]})
    assert pm.load(path)["w"].tolist() == [[2.0]]


def test_names_that_look_like_parts_of_others_round_trip(path):
    state = {n: sparse(500, zeros=0.9, seed=i) for i, n in enumerate(["w", "w:values", "v", "w:values:mask", ""])}
    pm.save(path, state)
    loaded = pm.load(path)
    assert list(loaded) == list(state)
    assert all(same_bits(loaded[n], state[n]) for n in state)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(50)


def test_tied_weight_is_written_once_and_stays_tied(path):
    model = Tied()
    pm.save(path, model)
    assert codes(path)["head.weight"] == "same"
    state = pm.load(path)
    assert state["head.weight"] is state["embed.weight"]
    other = pm.load(path, Tied())
    assert other.head.weight is other.embed.weight
    assert all(same_bits(other.state_dict()[n], t) for n, t in model.state_dict().items())


def test_pruned_model_is_small_and_round_trips(path):
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 10))
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.95), scope="global")
    pruner.step()
    model(torch.randn(8, 300))  # BatchNorm's counts are integers
    pm.save(path, model)
    other = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 10))
    assert pm.load(path, other) is other
    assert all(same_bits(other.state_dict()[n], t) for n, t in model.state_dict().items())
    assert path.stat().st_size < 0.1 * 4 * sum(t.numel() for t in model.state_dict().values())


def test_compiled_model_keeps_plain_names(path):
    model = torch.compile(nn.Linear(3, 2), backend="eager")
    pm.save(path, model)
    assert list(pm.load(path)) == ["weight", "bias"]
    pm.load(path, torch.compile(nn.Linear(3, 2), backend="eager"))


def test_mismatched_model_is_unchanged(path):
    pm.save(path, nn.Linear(3, 2))
    other = nn.Sequential(nn.Linear(3, 2))
    before = {n: t.clone() for n, t in other.state_dict().items()}
    with pytest.raises(MaskMismatch, match=r"the weights in .* belong to another model; missing: 0.weight"):
        pm.load(path, other)
    with pytest.raises(MaskMismatch, match=r"weight \(\(2, 3\) instead of \(2, 4\)\)"):
        pm.load(path, nn.Linear(4, 2))
    assert all(torch.equal(t, before[n]) for n, t in other.state_dict().items())


def test_models_that_cannot_be_filled_are_refused(path):
    pm.save(path, nn.Linear(3, 2))
    with pytest.raises(TypeError, match=r"load fills a torch.nn.Module, got dict"):
        pm.load(path, {})
    with pytest.raises(ValueError, match=r"'weight' is on the meta device, .* call model.to_empty"):
        pm.load(path, nn.Linear(3, 2, device="meta"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "a model or its state_dict, got int"),
        ({"epoch": 3}, "tensors by name, got int for 'epoch'"),
        ({1: torch.zeros(1)}, "tensors by name, got Tensor for 1"),
        ({"__metadata__": torch.zeros(1)}, "no tensor with the name '__metadata__'; give it another"),
        ({"w": torch.zeros(2, device="meta")}, "got meta for 'w'"),
        ({"w": torch.zeros(2, 2).to_sparse()}, "torch.sparse_coo torch.float32 for 'w'"),
        ({"w": torch.zeros(2, dtype=torch.complex128)}, "torch.complex128 for 'w'"),
    ],
)
def test_unsupported_contents_are_refused_without_a_file(given, message, path):
    with pytest.raises(TypeError, match=message):
        pm.save(path, given)
    assert list(path.parent.iterdir()) == []


def test_failed_write_leaves_the_old_file(path, tmp_path):
    with pytest.raises(NotWritten, match=r"cannot write .*: there is no folder .*missing'"):
        pm.save(tmp_path / "missing" / "m.safetensors", nn.Linear(2, 2))
    path.mkdir()
    with pytest.raises(NotWritten, match=r"model.safetensors': it is a folder, not a file name$"):
        pm.save(path, nn.Linear(2, 2))
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(NotWritten, match=r"cannot write '\.': it is a folder"):
        pm.save("", nn.Linear(2, 2))


def test_file_has_the_usual_permissions(path):
    (path.parent / "other").touch()
    pm.save(path, nn.Linear(2, 2))
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


def test_changed_and_missing_bytes_are_detected(path):
    pm.save(path, {"a": sparse(20, 30, zeros=0.5), "b": sparse(20, 30, zeros=0.9), "c": torch.ones(3)})
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(0, header, 29), *range(header, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(PackedDamaged, match=r"damaged|was not written by|has format"):
            pm.load(path)
    for length in (0, 5, header - 3, header, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(PackedDamaged, match="damaged"):
            pm.load(path)


def rewritten(path, change, parts=None):
    """Replace the table of a file, with valid checksums, as an attacker would."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()} | (parts or {})  # noqa: SIM118
        table = json.loads(file.metadata()["tensors"])
    change(table)
    for name, entry in table.items():
        if isinstance(entry, dict) and entry.get("code") in ("mask", "indices"):
            stored = [tensors[f"{name}:{part}"] for part in ("values", entry["code"])]
            entry["crc32"] = [zlib.crc32(t.view(torch.uint8).numpy()) for t in stored]
    text = json.dumps(table)
    crc = str(zlib.crc32(text.encode()))
    save_file(tensors, path, {"format": "palmette-packed-1", "tensors": text, "crc32": crc})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: t["w"].update(shape=[10, 10]), None),
        (lambda t: t["w"].update(shape=[-100, -100]), None),
        (lambda t: t["w"].update(shape=None), None),
        (lambda t: t["w"].update(dtype="float16"), None),
        (lambda t: t["w"].update(dtype="nn"), None),
        (lambda t: t["w"].update(low=70), None),
        (lambda t: t["w"].update(low=-1), None),
        (lambda t: t["w"].update(code="pickle"), None),
        (lambda t: t["w"].pop("code"), None),
        (lambda t: t["w"].update(shape=[10**400]), None),
        (lambda t: t["w"].update(shape=[0, 2**62, 2**62]), None),
        (lambda t: t["w"].update(shape=[2**33, 2**33]), None),
        (lambda t: t["w"].update(shape=[1] * 100), None),
        (lambda t: t["w"].update(low=None), None),
        (lambda t: t["w"].update(low=True), None),
        (lambda t: t["w"].update(dtype=[]), None),
        (lambda t: t.update(v=7), None),
        (lambda t: t.update(v={"code": "same", "as": "x"}), None),
        (lambda t: None, {"w:values": torch.zeros(5)}),
        (lambda t: None, {"w:indices": torch.zeros(3, dtype=torch.uint8)}),
    ],
)
def test_table_that_contradicts_the_tensors_is_refused(change, parts, path):
    pm.save(path, {"w": sparse(100, 100, zeros=0.9)})
    rewritten(path, change, parts)
    with pytest.raises(PackedDamaged, match="damaged"):
        pm.load(path)


def test_file_that_would_unpack_to_far_more_than_its_bytes_needs_the_model(path):
    pm.save(path, {"weight": torch.zeros(8, 4)})
    rewritten(path, lambda t: t.update(weight={**t["weight"], "shape": [750_000, 1000]}))
    for read in (pm.load, pm.how_compressible):
        with pytest.raises(
            (PackedDamaged, NotReadable), match=r"would unpack to 3,000,000,000; .* load\(path, model\)"
        ):
            read(path)
    with pytest.raises(MaskMismatch, match=r"weight \(\(750000, 1000\) instead of \(8, 4\)\)"):
        pm.load(path, nn.Linear(4, 8, bias=False))


NO_NAME = r'{"\ud800": {"code": "dense", "dtype": "float32", "shape": [3], "crc32": [0]}}'


def test_a_tensor_with_many_names_unpacks_to_a_copy_for_each(path):
    pm.save(path, {"weight": torch.zeros(8, 4)})
    names = {f"{i}": {"code": "same", "as": "weight"} for i in range(9)}
    rewritten(path, lambda t: t.update(weight={**t["weight"], "shape": [10_000, 1000]}, **names))
    with pytest.raises(PackedDamaged, match="would unpack to 400,000,000"):
        pm.load(path)


@pytest.mark.parametrize("table", ["[" * 100_000, "7", "null", '{"w": 1}', "{", NO_NAME])
def test_table_of_another_kind_is_refused(path, table):
    crc = str(zlib.crc32(table.encode()))
    save_file({"w": torch.ones(3)}, path, {"format": "palmette-packed-1", "tensors": table, "crc32": crc})
    with pytest.raises(PackedDamaged, match="damaged"):
        pm.load(path)


def test_other_kinds_of_files_are_named(path, tmp_path):
    save_file({"w": torch.ones(3)}, path)
    with pytest.raises(PackedDamaged, match=r"was not written by pm.save.*load_file"):
        pm.load(path)
    save_file({"w": torch.ones(3)}, path, {"format": "palmette-packed-2"})
    with pytest.raises(PackedDamaged, match=r"has format 'palmette-packed-2'.*update"):
        pm.load(path)
    torch.save({"w": torch.ones(3)}, path)
    with pytest.raises(
        PackedDamaged, match=r"damaged or not a safetensors file.* a file of torch\.save with torch\.load$"
    ):
        pm.load(path)
    with pytest.raises(FileNotFoundError, match="no file at"):
        pm.load(tmp_path / "nothing")
