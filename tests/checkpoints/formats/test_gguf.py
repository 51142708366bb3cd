"""GGUF files."""

import numpy as np
import pytest
from checkpoint_files import values

import palmette as pm
from palmette.checkpoints.open import open_checkpoint
from palmette.errors import NotReadable


def test_quantised_weights_are_unpacked_with_a_warning(tmp_path):
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
