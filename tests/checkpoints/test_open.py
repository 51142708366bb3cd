"""Which file of a folder is opened, and how much memory that takes."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from palmette.checkpoints.open import open_checkpoint


def test_folder_is_read_as_transformers_would(tmp_path):
    torch.save({"bin.weight": torch.ones(2, 2)}, tmp_path / "pytorch_model.bin")
    save_file({"shard.weight": torch.ones(2, 2)}, tmp_path / "1.safetensors")
    where = {"weight_map": {"shard.weight": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(where))
    assert [w.name for w in open_checkpoint(tmp_path).weights] == ["shard.weight"]
    save_file({"single.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    assert [w.name for w in open_checkpoint(tmp_path).weights] == ["single.weight"]


def test_folders_without_a_main_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder without weights"):
        open_checkpoint(tmp_path)
    for name in ("a", "b"):
        save_file({"w": torch.eye(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"folder of several files; choose one of a.safetensors, b.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    assert [w.name for w in open_checkpoint(tmp_path).weights] == ["w"]


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
with open("/proc/self/status") as status:  # ru_maxrss includes the parent
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["npy", "npz", "onnx", "gguf", "safetensors", "pt"])
def test_memory_is_bounded_for_every_format(tmp_path, suffix):
    def run(code, argument):
        done = subprocess.run([sys.executable, "-c", code, argument], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(LARGE_FILE, suffix)
    assert int(run(PEAK, f"a.{suffix}")) < 600e6
