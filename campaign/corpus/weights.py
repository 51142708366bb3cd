"""Small checkpoints of every format, made in code."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

from campaign.corpus.seeds import Seed, Target, header_of, member_of, written

_INDEX = "a.safetensors.index.json"


def small_state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=generator),
        "fc.weight": torch.randn(5, 8, generator=generator).half(),
        "fc.bias": torch.zeros(5),
        "emb.weight": torch.randn(6, 4, generator=generator).bfloat16(),
        "scale": torch.tensor(1.0),
    }


def _measure(file: Path) -> None:
    from palmette.checkpoints.report import how_compressible

    how_compressible(file)


def _safetensors() -> list[Seed]:
    return [
        Seed(safetensors_bytes(small_state(), metadata={"format": "pt"})),
        Seed(safetensors_bytes({"w": torch.eye(3)})),
    ]


def _both_headers() -> list[Seed]:
    return [*_safetensors(), *(header_of(seed.part) for seed in _safetensors())]


def _pt() -> list[Seed]:
    state = small_state()
    model = {
        "epoch": 3,
        "state_dict": {f"module.{n}": t for n, t in state.items()},
        "lr": [0.1, None, "x", (1, 2)],
    }
    model["tied"] = {
        "t.weight": torch.nn.Parameter(state["conv.weight"].transpose(0, 1)),
        "s": torch.eye(2).to_sparse(),
    }
    whole = written(lambda file: torch.save(model, file))
    alone = written(lambda file: torch.save(torch.arange(6.0).reshape(2, 3), file))
    old = written(lambda file: torch.save(model, file, _use_new_zipfile_serialization=False))
    return [
        Seed(whole),
        Seed(alone),
        Seed(old),
        *([member_of(whole, "/data.pkl")] * 3),
        member_of(alone, "/data.pkl"),
    ]


def _onnx() -> list[Seed]:
    from onnx import TensorProto, helper, numpy_helper

    def tensor(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(np.arange(np.prod(shape), dtype="f4").reshape(shape), name)

    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    inner = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=tensor("", 4, 3)),
            helper.make_node("MatMul", ["x", "c"], ["z"]),
        ],
        "branch",
        [],
        shown[1:],
        [helper.make_tensor("h", TensorProto.FLOAT16, [2], [1.0, 2.0])],
    )
    nodes = [
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Gemm", ["x", "v"], ["g"], transB=1),
        helper.make_node("LSTM", ["g", "l", "l"], ["m"], hidden_size=2),
        helper.make_node("If", ["m"], ["y"], then_branch=inner, else_branch=inner),
    ]
    given = [
        tensor("w", 4, 6),
        tensor("l", 1, 8, 2),
        helper.make_tensor("f", TensorProto.FLOAT, [2, 2], [1, 2, 3, 4]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", shown[:1], shown[1:], given))
    outside = tensor("e", 2, 4)
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "beside.bin"), ("offset", "8")):
        entry = outside.external_data.add()
        entry.key, entry.value = key, value
    other = helper.make_graph([helper.make_node("Conv", ["x", "e"], ["y"])], "g", shown[:1], shown[1:], [outside])
    return [Seed(model.SerializeToString()), Seed(helper.make_model(other).SerializeToString())]


def _beside_onnx(folder: Path) -> None:
    (folder / "beside.bin").write_bytes(bytes(64))


def _gguf() -> list[Seed]:
    import gguf

    def write(file: Path) -> None:
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_array("tokens", ["a", "bc"])
        writer.add_array("scores", [1.0, 2.0])
        values = np.random.default_rng(0).standard_normal((2, 64), dtype="f4")
        for kind in ("Q4_1", "Q8_0", "F16", "Q4_0"):
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(f"blk.{kind}.weight", gguf.quantize(values, number), raw_dtype=number)
        writer.add_tensor("blk.norm.weight", np.ones(32, "f4"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return [Seed(written(write))]


def _npy() -> list[Seed]:
    arrays = [np.arange(12.0).reshape(3, 4), np.asfortranarray(np.ones((4, 3), "f4")), np.arange(5, dtype=">i2")]
    return [Seed(written(lambda file, one=one: np.save(file, one), ".npy")) for one in arrays]  # type: ignore[misc]


def _npz() -> list[Seed]:
    arrays = {
        "a": np.arange(12.0).reshape(3, 4),
        "b": np.asfortranarray(np.ones((4, 3), "f4")),
        "c": np.array(["x"]),
    }
    plain = written(lambda file: np.savez(file, **arrays), ".npz")  # type: ignore[arg-type]
    packed = written(lambda file: np.savez_compressed(file, **arrays), ".npz")  # type: ignore[arg-type]
    return [Seed(plain), Seed(packed), member_of(packed, "a.npy", zipfile.ZIP_DEFLATED), member_of(plain, "b.npy")]


def _index() -> list[Seed]:
    where = {"conv.weight": "1.safetensors", "fc.weight": "2.bin"}
    return [Seed(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}).encode())]


def _shards(folder: Path) -> None:
    state = small_state()
    (folder / "1.safetensors").write_bytes(safetensors_bytes({"conv.weight": state["conv.weight"]}))
    torch.save({"fc.weight": state["fc.weight"]}, folder / "2.bin")
    (folder / "config.json").write_text("{}")


def _config() -> list[Seed]:
    return [Seed(b'{"model_type": "x", "text_config": {"tie_word_embeddings": true}}')]


def _beside_config(folder: Path) -> None:
    _shards(folder)
    (folder / _INDEX).write_bytes(_index()[0].part)


def _measure_index(file: Path) -> None:
    _measure(file.with_name(_INDEX))


def _packed_state() -> dict[str, torch.Tensor]:
    few, half = torch.zeros(40, 60), torch.zeros(30, 40)
    few[::7, ::9] = 1
    half[:, ::2] = 2
    tied = torch.ones(3)
    return {"few.weight": few, "half.weight": half, "dense": torch.eye(3), "a": tied, "b": tied}


def _packed() -> list[Seed]:
    from palmette.compression.packing import save

    whole = written(lambda file: save(file, _packed_state()), ".safetensors")
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def wrap(table: bytes) -> bytes:
        text = table.decode("utf-8", "replace")
        sealed = {"format": "palmette-packed-1", "tensors": text, "crc32": str(zlib.crc32(text.encode()))}
        return header_of(whole).wrap(json.dumps(header | {"__metadata__": sealed}).encode())

    return [Seed(whole), header_of(whole), *([Seed(header["__metadata__"]["tensors"].encode(), wrap)] * 2)]


def _unpack(file: Path) -> None:
    from palmette.compression.packing import load

    load(file)


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def _compacted() -> list[Seed]:
    import palmette as pm

    model, inputs = _network(), torch.ones(1, 3)
    pm.Pruner(model, scope="channel", inputs=inputs, budget=pm.FixedRatio(0.5)).step()
    small, _ = pm.compact(model, inputs)
    whole = written(lambda file: pm.save(file, small), ".safetensors")
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def wrap(sizes: bytes) -> bytes:
        text = sizes.decode("utf-8", "replace")
        about = header["__metadata__"] | {"sizes": text, "sizes_crc32": str(zlib.crc32(text.encode()))}
        return header_of(whole).wrap(json.dumps(header | {"__metadata__": about}).encode())

    return [Seed(whole), header_of(whole), Seed(header["__metadata__"]["sizes"].encode(), wrap)]


def _fill(file: Path) -> None:
    from palmette.compression.packing import load

    load(file, _network())


def masks() -> list[Seed]:
    from palmette.pruning.masks import Masks

    masks = Masks({"a": torch.ones(3, 5) > 0, "b": torch.arange(9) % 2 == 0})
    whole = written(masks.save, ".safetensors")
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def wrap(shapes: bytes) -> bytes:
        about = {"format": "palmette-masks-1", "shapes": shapes.decode("utf-8", "replace")}
        return header_of(whole).wrap(json.dumps(header | {"__metadata__": about}).encode())

    return [Seed(whole), header_of(whole), Seed(header["__metadata__"]["shapes"].encode(), wrap)]


def _weights_of_masks(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(safetensors_bytes({"a": torch.ones(3, 5), "b": torch.ones(9)}))


def _measure_masked(file: Path) -> None:
    _measure(file.with_name("a.safetensors"))


WEIGHTS: dict[str, Target] = {
    "safetensors": Target("a.safetensors", _measure, _both_headers),
    "pt": Target("a.pt", _measure, _pt),
    "onnx": Target("a.onnx", _measure, _onnx, _beside_onnx),
    "gguf": Target("a.gguf", _measure, _gguf),
    "npy": Target("a.npy", _measure, _npy),
    "npz": Target("a.npz", _measure, _npz),
    "index": Target(_INDEX, _measure, _index, _shards),
    "config": Target("config.json", _measure_index, _config, _beside_config),
    "packed": Target("a.safetensors", _unpack, _packed),
    "compacted": Target("a.safetensors", _fill, _compacted),
    "masks-beside": Target("a.masks.safetensors", _measure_masked, masks, _weights_of_masks),
}
"""Readers of checkpoints."""
