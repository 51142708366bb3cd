"""GGUF files."""

import struct

import numpy as np
import pytest
from checkpoint_files import values

import palmette as pm
from palmette.checkpoints.open import open_checkpoint
from palmette.errors import NotReadable


def test_quantized_weights_are_unpacked_with_a_warning(tmp_path):
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
        with pytest.raises(NotReadable, match="damaged or truncated"):
            open_checkpoint(tmp_path / "a.gguf")


def gguf_file(values=b"", tensors=(), keys=1):
    """A header with one key, `a`, and tensors of four floats at an offset each."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), keys) + struct.pack("<Q", 1) + b"a" + values
    for name, shape, kind, offset in tensors:
        head += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % 32) + bytes(64)


@pytest.mark.parametrize(
    "values",
    [
        struct.pack("<IIQ", 9, 0, 1 << 60),  # an array of 2^60 bytes
        struct.pack("<IIQ", 9, 8, 1 << 60),  # of texts
        struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50_000,  # of arrays of arrays of …
        struct.pack("<IQ", 8, 1 << 63),
        struct.pack("<I", 99),
    ],
)
def test_lengths_beyond_the_file_are_refused_at_once(tmp_path, values):
    pytest.importorskip("gguf")
    (tmp_path / "a.gguf").write_bytes(gguf_file(values))
    with pytest.raises(NotReadable, match=r"it is damaged or truncated|its arrays are nested too deep"):
        open_checkpoint(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([(b"w.weight", (2, 1 << 62), 0, 0)], r"has 2\^63 entries or more"),
        ([(b"w.weight", (2, 2), 0, 1 << 40)], "damaged"),
        ([(b"w.weight", (3, 2), 2, 0)], "damaged"),  # Q4_0 has blocks of 32
        ([(b"w.weight", (), 0, 0)], "damaged"),
        ([(b"w.weight", (2, 2), 77, 0)], "77 is not a valid GGMLQuantizationType"),
        ([(b"%d.weight" % i, (4, 4), 0, 0) for i in range(5000)], None),
        ([(b"%d" % i, (4, 4), 0, 0) for i in range(2)], None),
    ],
)
def test_tensors_that_contradict_the_file_are_refused(tmp_path, tensors, said):
    pytest.importorskip("gguf")
    (tmp_path / "a.gguf").write_bytes(gguf_file(struct.pack("<IB", 0, 7), tensors))
    if said is None:
        assert len(open_checkpoint(tmp_path / "a.gguf").weights) == len(tensors)
        return
    with pytest.raises(NotReadable, match=said):
        open_checkpoint(tmp_path / "a.gguf")


def test_tensors_of_the_same_bytes_are_bounded(tmp_path):
    pytest.importorskip("gguf")
    head = gguf_file(struct.pack("<IB", 0, 7), [(b"%d" % i, (1 << 10, 1 << 4), 0, 0) for i in range(200)])
    (tmp_path / "a.gguf").write_bytes(head + bytes(1 << 16))
    with pytest.raises(NotReadable, match=r"its tensors overlap: .* more than 16 times the file"):
        open_checkpoint(tmp_path / "a.gguf")


def test_integers_are_left_out_and_unknown_codings_named(tmp_path):
    pytest.importorskip("gguf")
    tensors = [(b"i.weight", (2, 2), 26, 0), (b"w.weight", (2, 2), 0, 32)]
    (tmp_path / "a.gguf").write_bytes(gguf_file(struct.pack("<IB", 0, 7), tensors))
    assert [w.name for w in open_checkpoint(tmp_path / "a.gguf").weights] == ["w.weight"]
    (tmp_path / "a.gguf").write_bytes(gguf_file(struct.pack("<IB", 0, 7), [(b"w.weight", (2, 2), 28, 0)]))
    with pytest.raises(NotReadable, match=r"'w.weight' is coded as F64, which gguf cannot unpack"):
        pm.how_compressible(tmp_path / "a.gguf")
