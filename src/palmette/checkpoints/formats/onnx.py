"""ONNX: the constants of a graph, which tells what each of them is for.

A file is one Protocol Buffers message: fields, each with a number, a length and its content. The values of a
tensor are one field, which is passed over here and read in parts when it is needed.
"""

from __future__ import annotations

import math
import mmap
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from palmette.checkpoints.formats.contents import Contents, check_together, is_inside
from palmette.checkpoints.formats.raw import check_shape, part_of
from palmette.pruning.sources.stored import StoredWeight, in_memory, unreadable

_FLOATS = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}  # TensorProto.DataType
_LISTS = {1: 4, 10: 5, 11: 10, 16: 5}  # fields of TensorProto with values as a list of numbers
_PASSED_ON = ("Identity", "Cast", "Slice", "Unsqueeze", "Concat")  # gates of an LSTM are put in another order so
_RECURRENT = ("LSTM", "GRU", "RNN")
_DEEPEST = 32
_MOST = 1 << 17  # tensors: two bytes suffice for one
_CUT_OFF = "is damaged or truncated"
_DAMAGED = f"it {_CUT_OFF}"

_Range = tuple[int, int]  # bytes of a file, first and last + 1
_Scope = ChainMap[str, int]  # name in a graph -> position in the list of tensors


def read(file: Path) -> Contents:
    """All initialisers and constants, also those of branches and loops.

    Those of Gather are embeddings; those of MatMul, Gemm, Conv and recurrent layers are weights. The graph also
    tells which axis counts the neurons: the second where a MatMul multiplies from the right. Names do not:
    exporters call the transposed weight of a Linear ``onnx::MatMul_7``.
    """
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        model = _fields(data, (0, len(data)))
        if not model.ranges[7]:
            raise ValueError("it holds no graph")
        graphs = _Graphs(data)
        graphs.graph(model.ranges[7][-1], ChainMap())
        for function in model.ranges[25]:
            graphs.graph(function, ChainMap(), nodes=7)
        return _contents(file, graphs)


@dataclass(frozen=True)
class _Fields:
    """Fields of a message by number: integers, and the ranges of all others."""

    numbers: Mapping[int, list[int]]
    ranges: Mapping[int, list[_Range]]


def _fields(data: mmap.mmap, message: _Range) -> _Fields:
    numbers, ranges = defaultdict[int, list[int]](list), defaultdict[int, list[_Range]](list)
    at, end = message
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            numbers[tag >> 3].append(value)
            continue
        size = {1: 8, 5: 4}.get(kind, end)
        if kind == 2:
            size, at = _varint(data, at)
        if at + size > end:
            raise ValueError(_DAMAGED)
        ranges[tag >> 3].append((at, at + size))
        at += size
    return _Fields(numbers, ranges)


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """An integer of seven bits per byte, lowest first, and where it ends; the last of at most ten is below 128."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError(_DAMAGED)


def _integers(data: mmap.mmap, fields: _Fields, number: int) -> Iterator[int]:
    """A repeated integer field, packed or not."""
    yield from fields.numbers[number]
    for at, end in fields.ranges[number]:
        while at < end:
            value, at = _varint(data, at)
            yield value


class _Graphs:
    """Tensors found so far, and what the nodes of graphs do with them."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.found: list[tuple[str, _Range]] = []
        self.layers: dict[int, tuple[bool, int]] = {}  # position -> (transposed, groups)
        self.recurrent: set[int] = set()
        self.outside: set[Path] = set()  # files with values
        self.embedded: set[int] = set()

    def graph(
        self, message: _Range, scope: _Scope, given: Sequence[str] = (), nodes: int = 1, depth: int = 0
    ) -> None:
        """Look at a graph whose inputs are called `given` outside of it; `nodes` is the number of their field."""
        if depth > _DEEPEST:
            raise ValueError(f"its graphs are nested more than {_DEEPEST} deep")
        fields = _fields(self.data, message)
        inputs = (self.text(_fields(self.data, one), 1) for one in fields.ranges[11])
        for outside, name in zip(given, inputs, strict=False):
            if outside in scope:
                scope[name] = scope[outside]
        for place in fields.ranges[5]:
            self.add(scope, self.text(_fields(self.data, place), 8), place)
        for place in fields.ranges[nodes]:
            self.node(_fields(self.data, place), scope, depth)

    def node(self, node: _Fields, scope: _Scope, depth: int) -> None:
        """Look at a node, and at the graphs that it holds."""
        kind, inputs, outputs = self.text(node, 4), self.texts(node, 1), self.texts(node, 2)
        attributes = {self.text(one, 1): one for one in (_fields(self.data, place) for place in node.ranges[5])}
        numbers = {name: one.numbers[3][-1] for name, one in attributes.items() if one.numbers[3]}
        for one in attributes.values():
            if kind == "Constant" and outputs and one.ranges[5]:
                self.add(scope, outputs[0], one.ranges[5][-1])
            for inner in (*one.ranges[6], *one.ranges[11]):
                self.graph(inner, scope.new_child(), inputs, depth=depth + 1)
        known = [scope.get(name) for name in inputs]
        if kind in _PASSED_ON and outputs and known and known[0] is not None:
            scope[outputs[0]] = known[0]
        elif kind == "Gather":
            self.embedded |= {at for at in known[:1] if at is not None}
        elif kind in ("MatMul", "Gemm", "Conv", "ConvTranspose", *_RECURRENT):
            turned = {"MatMul": True, "Gemm": not numbers.get("transB", 0), "ConvTranspose": True}.get(kind, False)
            groups = numbers.get("group", 1) if kind == "ConvTranspose" else 1
            for at in known[1 : 3 if kind in _RECURRENT else 2]:
                if at is not None:
                    self.layers[at] = turned, groups
                    self.recurrent |= {at} if kind in _RECURRENT else set()

    def add(self, scope: _Scope, name: str, place: _Range) -> None:
        """Note a tensor."""
        if len(self.found) == _MOST:
            raise ValueError(f"it has more than {_MOST:,} tensors")
        scope[name] = len(self.found)
        self.found.append((name, place))

    def texts(self, fields: _Fields, number: int) -> list[str]:
        """A repeated text field."""
        return [self.data[at:end].decode("utf-8", "replace") for at, end in fields.ranges[number]]

    def text(self, fields: _Fields, number: int) -> str:
        """A text field."""
        return self.texts(fields, number)[-1] if fields.ranges[number] else ""


def _contents(file: Path, graphs: _Graphs) -> Contents:
    """All tensors; one whose name is taken, as in another branch, gets a number."""
    times: dict[str, int] = {}
    tensors, embedded, layers = [], [], []
    for i, (name, place) in enumerate(graphs.found):
        times[name] = times.get(name, 0) + 1
        name = name if times[name] == 1 else f"{name}#{times[name]}"
        head = _fields(graphs.data, place)
        shape = tuple(_integers(graphs.data, head, 1))
        check_shape(name, shape)
        if i in graphs.recurrent and len(shape) == 3:  # directions × units of all gates × inputs
            shape = (shape[0] * shape[1], shape[2])
        tensor = _stored(file, name, shape, head, graphs)
        turned, groups = graphs.layers.get(i, (False, 1))
        tensors.append(replace(tensor, transposed=turned, groups=groups) if len(shape) > 1 else tensor)
        embedded += [name] if i in graphs.embedded else []
        layers += [name] if i in graphs.layers else []
    check_together(tensors, sum(path.stat().st_size for path in {file, *graphs.outside}))
    return Contents(tensors, embedded=embedded, layers=layers)


def _stored(file: Path, name: str, shape: tuple[int, ...], head: _Fields, graphs: _Graphs) -> StoredWeight:
    kind = (head.numbers[2] or [0])[-1]
    if kind not in _FLOATS:
        return unreadable(name, shape, 0, "holds integers or an unsupported kind of float")
    dtype, data = _FLOATS[kind], graphs.data
    size = math.prod(shape) * dtype.itemsize
    if head.numbers[14][-1:] == [1]:
        entries = [_fields(data, place) for place in head.ranges[13]]
        where = {graphs.text(entry, 1): graphs.text(entry, 2) for entry in entries}
        location, start = where.get("location", ""), int(where.get("offset", "0"))
        if not is_inside(location):
            raise ValueError(f"the data of {name!r} is outside its folder: {location!r}")
        outside = file.parent / location
        if not outside.is_file():
            raise ValueError(f"{location!r} with the data of {name!r} is not there")
        if not 0 <= start <= outside.stat().st_size - size:
            raise ValueError(f"{location!r} with the data of {name!r} {_CUT_OFF}")
        graphs.outside.add(outside)
        return StoredWeight(name, shape, dtype, part_of(outside, start, shape, dtype), size)
    chunks = head.ranges[9] or head.ranges[_LISTS[kind]]
    if not head.ranges[9] and dtype.itemsize == 2:  # each 16-bit float is an integer
        bits = np.fromiter((n & 0xFFFF for n in _integers(data, head, _LISTS[kind])), np.uint16)
        found = bits.tobytes()
    elif len(chunks) == 1 and chunks[0][1] - chunks[0][0] == size:
        return StoredWeight(name, shape, dtype, part_of(file, chunks[0][0], shape, dtype), size)
    else:
        found = b"".join(data[at:end] for at, end in chunks)
    if len(found) != size:
        raise ValueError(f"{name!r} of shape {shape} has {len(found)} bytes in place of {size}")
    values = torch.frombuffer(bytearray(found), dtype=dtype) if found else torch.empty(0, dtype=dtype)
    return in_memory(name, values.reshape(shape))
