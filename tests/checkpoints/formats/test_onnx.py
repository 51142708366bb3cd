"""ONNX files."""

import numpy as np
import pytest
from checkpoint_files import values

from palmette.checkpoints.formats import onnx as onnx_format
from palmette.checkpoints.open import open_checkpoint
from palmette.errors import NotReadable


@pytest.mark.parametrize("external", [False, True])
def test_graph_tells_the_axis_of_the_neurons(tmp_path, external):
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


def test_graph_tells_layers_from_other_initialisers(tmp_path):
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


def saved(file, nodes, given=(), inputs="x"):
    from onnx import TensorProto, helper, save

    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*inputs, "y")]
    graph = helper.make_graph(nodes, "g", shown[:-1], shown[-1:], list(given))
    save(helper.make_model(graph), file)
    return file


def tensor(name, *shape, dtype="f4"):
    from onnx import numpy_helper

    return numpy_helper.from_array(np.arange(np.prod(shape), dtype=dtype).reshape(shape), name)


def branch(nodes, given=(), inputs=()):
    from onnx import TensorProto, helper

    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*inputs, "z")]
    return helper.make_graph(nodes, "branch", shown[:-1], shown[-1:], list(given))


def test_weights_of_constants_branches_and_loops_are_found(tmp_path):
    pytest.importorskip("onnx")
    from onnx import helper

    def constant(name, *shape):
        return helper.make_node("Constant", [], [name], value=tensor("", *shape))

    def times(weight):
        return helper.make_node("MatMul", ["x", weight], ["z"])

    branches = {
        "then_branch": branch([constant("c", 3, 5), times("c")]),
        "else_branch": branch([constant("c", 3, 7), times("c")]),
    }
    loop = branch([times("inner")], [tensor("step", 1)], inputs=["i", "go", "inner"])
    nodes = [
        constant("table", 9, 3),
        helper.make_node("Gather", ["table", "x"], ["e"]),
        helper.make_node("If", ["x"], ["b"], **branches),
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Gemm", ["x", "v"], ["h"], transB=1),
        helper.make_node("Loop", ["", "", "looped"], ["l"], body=loop),
        helper.make_node("LSTM", ["x", "gates", "again"], ["y"], hidden_size=2),
    ]
    given = [tensor("w", 4, 3), tensor("looped", 3, 6), tensor("gates", 2, 8, 3), tensor("again", 2, 8, 2)]
    checkpoint = open_checkpoint(saved(tmp_path / "a.onnx", nodes, given))
    assert {w.name: (w.shape, w.neurons) for w in checkpoint.weights} == {
        "w": ((4, 3), 4),
        "looped": ((3, 6), 6),
        "gates": ((16, 3), 16),
        "again": ((16, 2), 16),
        "c": ((3, 7), 7),  # attributes are written in alphabetical order
        "c#2": ((3, 5), 5),
    }
    assert {t.name: t.why for t in checkpoint.left_out}["table"] == "embedding"
    for stored in checkpoint.weights:
        assert values(stored).flatten().tolist() == list(range(stored.entries))


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_weights_written_as_lists_of_numbers_are_read(tmp_path, dtype):
    onnx = pytest.importorskip("onnx")
    kind = {"f4": onnx.TensorProto.FLOAT, "f2": onnx.TensorProto.FLOAT16, "f8": onnx.TensorProto.DOUBLE}[dtype]
    given = [onnx.helper.make_tensor("w", kind, [2, 3], [0.5, -1, 2, 3, 4, 5])]
    node = onnx.helper.make_node("Gemm", ["x", "w"], ["y"])
    (found,) = open_checkpoint(saved(tmp_path / "a.onnx", [node], given)).weights
    assert values(found).tolist() == [[0.5, -1, 2], [3, 4, 5]]


def varint(number):
    return bytes([*((number >> 7 * i) & 127 | 128 for i in range(9)), number >> 63])


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 1_000_000,  # a number without end
        b"\x3a" + varint((1 << 63) + 5),  # a graph longer than the file
        b"\x3a\x02\x0b\x0c",  # groups, which ONNX never has
        b"\x3a\x04\x2a\x7f\x08\x01",
    ],
    ids=["endless", "too long", "groups", "cut"],
)
def test_damaged_messages_are_refused_at_once(tmp_path, content):
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(NotReadable, match="it is damaged or truncated"):
        open_checkpoint(tmp_path / "a.onnx")


def test_graphs_without_end_are_refused(tmp_path):
    content = b""
    for _ in range(200):  # an attribute of a node, with a graph
        for field in (6, 5, 1):
            content = bytes([field << 3 | 2]) + varint(len(content)) + content
    (tmp_path / "a.onnx").write_bytes(b"\x3a" + varint(len(content)) + content)
    with pytest.raises(NotReadable, match="its graphs are nested more than 32 deep"):
        open_checkpoint(tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("location", "offset"), [("../data.bin", 0), ("data.bin", 60), ("data.bin", -4), ("no", 0)]
)
def test_data_in_other_files_must_be_inside_and_whole(tmp_path, location, offset):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "data.bin").write_bytes(bytes(64))
    weight = tensor("w", 2, 3)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    node = onnx.helper.make_node("Gemm", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [], [], [weight])
    (tmp_path / "a.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(NotReadable, match=r"outside its folder|truncated|is not there"):
        open_checkpoint(tmp_path / "a.onnx")


def test_a_tensor_of_very_many_axes_is_refused_at_once(tmp_path):
    from onnx import TensorProto

    many = TensorProto(dims=[1 << 62] * 100_000, data_type=1, name="w")
    with pytest.raises(NotReadable, match="'w' has 100,000 axes; a tensor has at most 64"):
        open_checkpoint(saved(tmp_path / "a.onnx", [], [many]))


def test_the_number_of_tensors_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format, "_MOST", 3)
    (tmp_path / "a.onnx").write_bytes(b"\x3a\x08" + b"\x2a\x00" * 4)
    with pytest.raises(NotReadable, match="it has more than 3 tensors"):
        open_checkpoint(tmp_path / "a.onnx")
