"""Small valid files of every format that palmette reads, made in code, and what reads them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

Wrap = Callable[[bytes], bytes]
"""What makes a file of a damaged part of it, such as a zip archive of a pickle, with its checksums."""


@dataclass(frozen=True)
class Seed:
    """A valid file: the part to damage, and what makes the file of it."""

    part: bytes
    wrap: Wrap = bytes


@dataclass(frozen=True)
class Target:
    """A reader.

    Args:
        file: name of the damaged file; `beside` has those next to it.
        read: reads the file at a path.
        seeds: valid files.
    """

    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[Seed]]
    beside: Callable[[Path], None] = lambda folder: None


def _state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=generator),
        "fc.weight": torch.randn(5, 8, generator=generator).half(),
        "fc.bias": torch.zeros(5),
        "emb.weight": torch.randn(6, 4, generator=generator).bfloat16(),
        "scale": torch.tensor(1.0),
    }


def _written(write: Callable[[Path], object], suffix: str = "") -> bytes:
    with TemporaryDirectory() as folder:
        write(file := Path(folder, f"a{suffix}"))
        return file.read_bytes()


def _measure(file: Path) -> None:
    from palmette.checkpoints.report import how_compressible

    how_compressible(file)


def _safetensors() -> list[Seed]:
    return [
        Seed(safetensors_bytes(_state(), metadata={"format": "pt"})),
        Seed(safetensors_bytes({"w": torch.eye(3)})),
    ]


def _header(whole: bytes) -> Seed:
    """A safetensors file of which the JSON is damaged and the length before it is right."""
    length = int.from_bytes(whole[:8], "little")
    return Seed(whole[8 : 8 + length], lambda text: len(text).to_bytes(8, "little") + text + whole[8 + length :])


def _pt() -> list[Seed]:
    state = _state()
    model = {
        "epoch": 3,
        "state_dict": {f"module.{n}": t for n, t in state.items()},
        "lr": [0.1, None, "x", (1, 2)],
    }
    model["tied"] = {
        "t.weight": torch.nn.Parameter(state["conv.weight"].transpose(0, 1)),
        "s": torch.eye(2).to_sparse(),
    }
    whole = _written(lambda file: torch.save(model, file))
    alone = _written(lambda file: torch.save(torch.arange(6.0).reshape(2, 3), file))
    old = _written(lambda file: torch.save(model, file, _use_new_zipfile_serialization=False))
    return [Seed(whole), Seed(alone), Seed(old), *([_member(whole, "/data.pkl")] * 3), _member(alone, "/data.pkl")]


def _member(archive: bytes, ending: str, packing: int = zipfile.ZIP_STORED) -> Seed:
    """A zip archive of which one member is damaged."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    name = next(name for name in contents if name.endswith(ending))

    def wrap(part: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as made:
            for other, content in contents.items():
                made.writestr(other, part if other == name else content)
        return buffer.getvalue()

    return Seed(contents[name], wrap)


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

    return [Seed(_written(write))]


def _npy() -> list[Seed]:
    arrays = [np.arange(12.0).reshape(3, 4), np.asfortranarray(np.ones((4, 3), "f4")), np.arange(5, dtype=">i2")]
    return [Seed(_written(lambda file, one=one: np.save(file, one), ".npy")) for one in arrays]  # type: ignore[misc]


def _npz() -> list[Seed]:
    arrays = {
        "a": np.arange(12.0).reshape(3, 4),
        "b": np.asfortranarray(np.ones((4, 3), "f4")),
        "c": np.array(["x"]),
    }
    plain = _written(lambda file: np.savez(file, **arrays), ".npz")  # type: ignore[arg-type]
    packed = _written(lambda file: np.savez_compressed(file, **arrays), ".npz")  # type: ignore[arg-type]
    return [Seed(plain), Seed(packed), _member(packed, "a.npy", zipfile.ZIP_DEFLATED), _member(plain, "b.npy")]


def _index() -> list[Seed]:
    where = {"conv.weight": "1.safetensors", "fc.weight": "2.bin"}
    return [Seed(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}).encode())]


def _shards(folder: Path) -> None:
    state = _state()
    (folder / "1.safetensors").write_bytes(safetensors_bytes({"conv.weight": state["conv.weight"]}))
    torch.save({"fc.weight": state["fc.weight"]}, folder / "2.bin")
    (folder / "config.json").write_text("{}")


def _packed_state() -> dict[str, torch.Tensor]:
    few, half = torch.zeros(40, 60), torch.zeros(30, 40)
    few[::7, ::9] = 1
    half[:, ::2] = 2
    tied = torch.ones(3)
    return {"few.weight": few, "half.weight": half, "dense": torch.eye(3), "a": tied, "b": tied}


def _packed() -> list[Seed]:
    from palmette.compression.packing import save

    whole = _written(lambda file: save(file, _packed_state()), ".safetensors")
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def wrap(table: bytes) -> bytes:
        text = table.decode("utf-8", "replace")
        sealed = {"format": "palmette-packed-1", "tensors": text, "crc32": str(zlib.crc32(text.encode()))}
        return _header(whole).wrap(json.dumps(header | {"__metadata__": sealed}).encode())

    return [Seed(whole), _header(whole), *([Seed(header["__metadata__"]["tensors"].encode(), wrap)] * 2)]


def _unpack(file: Path) -> None:
    from palmette.compression.packing import load

    load(file)


def _masks() -> list[Seed]:
    from palmette.pruning.masks import Masks

    masks = Masks({"a": torch.ones(3, 5) > 0, "b": torch.arange(9) % 2 == 0})
    whole = _written(masks.save, ".safetensors")
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def wrap(shapes: bytes) -> bytes:
        about = {"format": "palmette-masks-1", "shapes": shapes.decode("utf-8", "replace")}
        return _header(whole).wrap(json.dumps(header | {"__metadata__": about}).encode())

    return [Seed(whole), _header(whole), Seed(header["__metadata__"]["shapes"].encode(), wrap)]


def _load_masks(file: Path) -> None:
    from palmette.pruning.masks import Masks

    Masks.load(file)


def _weights_of_masks(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(safetensors_bytes({"a": torch.ones(3, 5), "b": torch.ones(9)}))


def _measure_masked(file: Path) -> None:
    _measure(file.with_name("a.safetensors"))


def _parts() -> list[Seed]:
    from palmette.checkpoints.parts import measure_part

    def write(file: Path) -> None:
        file.write_bytes(safetensors_bytes(_state()))
        file.write_text(json.dumps(measure_part(file, 1, 1)))

    whole = _written(write, ".safetensors")

    def sealed(text: bytes) -> bytes:
        try:
            part = json.loads(text)
            content = json.dumps({**part, "sha256": ""}, sort_keys=True).encode()
        except (ValueError, TypeError, RecursionError):
            return text
        return json.dumps(part | {"sha256": hashlib.sha256(content).hexdigest()}).encode()

    return [Seed(whole), Seed(whole, sealed), Seed(whole, sealed)]


def _merge(file: Path) -> None:
    from palmette.checkpoints.parts import merge_parts

    merge_parts([file])


def _idx() -> list[Seed]:
    whole = struct.pack(">HBB2I", 0, 8, 2, 3, 4) + bytes(12)
    return [Seed(whole), Seed(gzip.compress(whole)), Seed(whole, gzip.compress)]


def _read_idx(file: Path) -> None:
    from palmette.training.data.idx import read_idx

    read_idx(file)


def _batches() -> list[Seed]:
    batch = {b"data": np.zeros((2, 3), "u1"), b"labels": [1, 2], b"filenames": [b"a", b"b"]}
    return [Seed(pickle.dumps(batch, protocol)) for protocol in (0, 2, 4, 5)]


def _read_batch(file: Path) -> None:
    from palmette.training.data.plain_pickle import load_plain

    load_plain(file)


def _own() -> list[Seed]:
    parts = {
        "x_train": np.zeros((4, 3, 3), "u1"),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.zeros((2, 3, 3), "u1"),
        "y_test": np.array([0, 1]),
    }
    whole = _written(lambda file: np.savez_compressed(file, **parts), ".npz")  # type: ignore[arg-type]
    return [Seed(whole), _member(whole, "x_train.npy"), _member(whole, "y_test.npy", zipfile.ZIP_DEFLATED)]


def _read_own(file: Path) -> None:
    from palmette.training.data.user_images import read_npz

    read_npz(file)


def _pictures() -> list[Seed]:
    from PIL import Image

    picture, seeds = Image.fromarray(np.arange(192, dtype="u1").reshape(8, 8, 3)), []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
        buffer = io.BytesIO()
        picture.save(buffer, kind)
        seeds.append(Seed(buffer.getvalue()))
    return seeds


def _read_picture(file: Path) -> None:
    from palmette.training.data.pictures import read_pictures

    read_pictures([file])


@cache
def _run_files() -> dict[str, bytes]:
    """Files of a finished search of two rounds."""
    from palmette.studies.experiment import Experiment
    from palmette.studies.running import run

    with TemporaryDirectory() as folder:
        experiment = Experiment(model="linear", method="lottery-ticket", epochs=1, rounds=1, tolerance="0.5")
        path = run(experiment, folder).path
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def _run_seeds(name: str) -> Callable[[], list[Seed]]:
    return lambda: [Seed(_run_files()[name])]


def _runs(folder: Path) -> None:
    """A run, and a whole one next to it."""
    from palmette.studies.experiment import Experiment
    from palmette.studies.running import run

    for name, content in _run_files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    run(Experiment(model="linear", epochs=1, rounds=0), folder.parent / "whole")


def _show(file: Path) -> None:
    """Show two runs: damage to one never hides the other."""
    from click.testing import CliRunner

    from palmette.cli.show import show
    from palmette.reports.reading import whole_runs

    folder = file.parent.parent
    found, _ = whole_runs([folder])
    if not any(path.name == "whole" for path in found):
        raise AssertionError("the whole run was left out")
    for more in ((), ("--json",)):
        result = CliRunner().invoke(show, [str(folder), *more], catch_exceptions=False)
        if result.exit_code:
            raise AssertionError(f"show ended with {result.exit_code}: {result.output[:200]}")


def _archives() -> list[Seed]:
    def packed(compression: str, content: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as made:  # type: ignore[call-overload]
            for name, part in content.items():
                info = tarfile.TarInfo(f"run/{name}")
                info.size = len(part)
                made.addfile(info, io.BytesIO(part))
        return buffer.getvalue()

    import lzma

    plain = packed("", _run_files())
    return [Seed(packed("xz", _run_files())), Seed(plain, lambda part: lzma.compress(part, preset=0))]


def _read_archive(file: Path) -> None:
    from palmette.studies import folder

    with TemporaryDirectory() as scratch:
        tempfile.tempdir = scratch  # it keeps what it unpacks until Python exits
        try:
            folder._unpacked.__wrapped__(file, 0)
        finally:
            tempfile.tempdir = None


def _both_headers() -> list[Seed]:
    return [*_safetensors(), *(_header(seed.part) for seed in _safetensors())]


def _beside_onnx(folder: Path) -> None:
    (folder / "beside.bin").write_bytes(bytes(64))


_INDEX = "a.safetensors.index.json"


def _config() -> list[Seed]:
    return [Seed(b'{"model_type": "x", "text_config": {"tie_word_embeddings": true}}')]


def _beside_config(folder: Path) -> None:
    _shards(folder)
    (folder / _INDEX).write_bytes(_index()[0].part)


def _measure_index(file: Path) -> None:
    _measure(file.with_name(_INDEX))


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
    "masks-beside": Target("a.masks.safetensors", _measure_masked, _masks, _weights_of_masks),
}
"""Readers of checkpoints."""
OTHERS: dict[str, Target] = {
    "masks": Target("a.masks.safetensors", _load_masks, _masks),
    "parts": Target("a.json", _merge, _parts),
    "idx": Target("a-idx2-ubyte", _read_idx, _idx),
    "batch": Target("data_batch_1", _read_batch, _batches),
    "own-npz": Target("own.npz", _read_own, _own),
    "picture": Target("a.png", _read_picture, _pictures),
    "settings": Target("run/experiment.toml", _show, _run_seeds("experiment.toml"), _runs),
    "records": Target("run/records.jsonl", _show, _run_seeds("records.jsonl"), _runs),
    "timings": Target("run/timings.jsonl", _show, _run_seeds("timings.jsonl"), _runs),
    "archive": Target("runs.tar.xz", _read_archive, _archives),
}
"""Readers of masks, parts, data sets and runs."""
