"""ONNX files."""

import numpy as np
import pytest
from checkpoint_files import values

from palmette.checkpoints.open import open_checkpoint


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
