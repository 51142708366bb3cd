"""ONNX: the initialisers of a graph, which says itself what each of them is for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from palmette.integrations.shards import part_of
from palmette.measures.rows import as_tensor
from palmette.pruning.stored import Stored, in_memory

_RAW = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}  # TensorProto.DataType


def read(file: Path) -> tuple[list[Stored], dict[str, str], list[str]]:
    """The initialisers, no aliases, and the names of those that are looked up: embeddings.

    The graph knows which axis counts the neurons: the second where a MatMul multiplies from the right.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX needs the onnx package: pip install 'palmette[onnx]'") from error
    graph = onnx.load(str(file), load_external_data=False).graph
    uses = dict(_uses(graph))
    found = [_stored(file, tensor, *uses.get(tensor.name, (False, 1, True))) for tensor in graph.initializer]
    looked_up = [name for name, (_, _, multiplied) in uses.items() if not multiplied]
    return found, {}, looked_up


def _uses(graph: Any) -> Iterator[tuple[str, tuple[bool, int, bool]]]:
    """(initialiser, (transposed, groups, whether inputs are multiplied with it)) for what layers take."""
    for node in graph.node:
        given = {a.name: a.i for a in node.attribute}
        if len(node.input) < 2:
            continue
        if node.op_type == "MatMul":
            yield node.input[1], (True, 1, True)
            yield node.input[0], (False, 1, True)
        elif node.op_type == "Gemm":
            yield node.input[1], (not given.get("transB", 0), 1, True)
        elif node.op_type == "ConvTranspose":
            yield node.input[1], (True, given.get("group", 1), True)
        elif node.op_type == "Gather":
            yield node.input[0], (False, 1, False)


def _stored(file: Path, tensor: Any, transposed: bool, groups: int, _: bool) -> Stored:
    import onnx

    name, shape = str(tensor.name), tuple(int(size) for size in tensor.dims)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_type not in _RAW:
            return Stored(name, shape, torch.bool, part_of(file, 0, shape, torch.bool), 0)  # integers: left out
        data, dtype = file.parent / where["location"], _RAW[tensor.data_type]
        if not data.resolve().is_relative_to(file.parent.resolve()):
            raise ValueError(f"the data of {name!r} is outside of its folder: {where['location']!r}")
        if not data.is_file():
            raise ValueError(f"{where['location']!r} with the data of {name!r} is not there")
        reader = part_of(data, int(where.get("offset", 0)), shape, dtype)
        return Stored(name, shape, dtype, reader, math.prod(shape) * dtype.itemsize, transposed, groups)
    if tensor.data_type in _RAW and tensor.raw_data:
        values = torch.frombuffer(bytearray(tensor.raw_data), dtype=_RAW[tensor.data_type]).reshape(shape)
    elif tensor.data_type in _RAW:
        values = as_tensor(onnx.numpy_helper.to_array(tensor), repr(name))
    else:
        values = torch.zeros(shape, dtype=torch.bool)  # integers: left out
    one = in_memory(name, values)
    return Stored(name, shape, one.dtype, one.read, one.nbytes, transposed, groups)
