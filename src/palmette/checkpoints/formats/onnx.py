"""ONNX: the initialisers of a graph, which tells what each of them is for.

A file is one Protocol Buffers message: fields, each with a number, a length and its content. The values of an
initialiser are one field, which is skipped here and read in parts when it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.formats.raw import part_of
from palmette.measures.rows import as_tensor
from palmette.pruning.sources.stored import StoredWeight, in_memory, unreadable

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_RAW = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}  # TensorProto.DataType


def read(file: Path) -> Contents:
    """The initialisers; those of Gather are embeddings, those of MatMul, Gemm and Conv are layers.

    The graph also tells which axis counts the neurons: the second where a MatMul multiplies from the right. Names
    do not: exporters call the transposed weight of a Linear ``onnx::MatMul_7``.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX needs the onnx package: pip install 'palmette[onnx]'") from error
    with file.open("rb") as handle:
        _, graphs = _without(_GRAPH, handle, (0, file.stat().st_size))
        if not graphs:
            raise ValueError("it holds no graph")
        graph, places = _without(_INITIALIZER, handle, graphs[0])
        heads = [_without(_RAW_DATA, handle, place) for place in places]
    nodes = onnx.GraphProto.FromString(graph).node
    layers = dict(_layers(nodes))
    found = []
    for head, values in heads:
        tensor = onnx.TensorProto.FromString(head)
        found.append(_stored(file, tensor, values, *layers.get(tensor.name, (False, 1))))
    embedded = [node.input[0] for node in nodes if node.op_type == "Gather"]
    return Contents(found, embedded=embedded, layers=list(layers))


_Range = tuple[int, int]  # bytes of a file, first and last + 1


def _without(number: int, handle: BinaryIO, message: _Range) -> tuple[bytes, list[_Range]]:
    """A message without its fields of this number, and where the contents of those fields are."""
    rest, places = bytearray(), []
    at, end = message
    while at < end:
        handle.seek(at)
        tag = _varint(handle)
        if tag & 7 == 0:
            _varint(handle)
        size = _varint(handle) if tag & 7 == 2 else {0: 0, 1: 8, 5: 4}.get(tag & 7, end)
        first, last = handle.tell(), handle.tell() + size
        if last > end:
            raise ValueError("it is damaged, or was cut off when it was copied")
        if tag >> 3 == number:
            places.append((first, last))
        else:
            handle.seek(at)
            rest += handle.read(last - at)
        at = last
    return bytes(rest), places


def _varint(handle: BinaryIO) -> int:
    """An integer of seven bits per byte, lowest first; the last byte is below 128."""
    value = shift = 0
    while byte := handle.read(1):
        value |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
    return value


def _layers(nodes: Sequence[Any]) -> Iterator[tuple[str, tuple[bool, int]]]:
    """(weight, (transposed, groups)) of every node that multiplies its inputs with a weight."""
    for node in nodes:
        given = {a.name: a.i for a in node.attribute}
        if node.op_type == "MatMul":
            yield node.input[1], (True, 1)
        elif node.op_type == "Gemm":
            yield node.input[1], (not given.get("transB", 0), 1)
        elif node.op_type == "Conv":
            yield node.input[1], (False, 1)
        elif node.op_type == "ConvTranspose":
            yield node.input[1], (True, given.get("group", 1))


def _stored(file: Path, tensor: Any, places: Sequence[_Range], transposed: bool, groups: int) -> StoredWeight:
    import onnx

    name, shape = str(tensor.name), tuple(int(size) for size in tensor.dims)
    if tensor.data_type not in _RAW:
        return unreadable(name, shape, 0, "is of integers or of a float that is not read")
    dtype = _RAW[tensor.data_type]
    size = math.prod(shape) * dtype.itemsize
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        where = {entry.key: entry.value for entry in tensor.external_data}
        data, start = file.parent / where["location"], int(where.get("offset", 0))
        if not data.resolve().is_relative_to(file.parent.resolve()):
            raise ValueError(f"the data of {name!r} is outside of its folder: {where['location']!r}")
        if not data.is_file():
            raise ValueError(f"{where['location']!r} with the data of {name!r} is not there")
    elif places:
        data, (start, end) = file, places[-1]
        if end - start != size:
            raise ValueError(f"{name!r} of shape {shape} has {end - start} bytes in place of {size}")
    else:  # small tensors are lists of numbers
        values = as_tensor(onnx.numpy_helper.to_array(tensor), repr(name))
        return replace(in_memory(name, values), transposed=transposed, groups=groups)
    return StoredWeight(name, shape, dtype, part_of(data, start, shape, dtype), size, transposed, groups)
