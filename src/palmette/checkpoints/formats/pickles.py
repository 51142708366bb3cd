"""PyTorch's own files: the pickle is read without calling anything, and the tensors in parts from the file itself.

Such a file is a zip archive of a pickle, which lists the tensors, and the uncompressed bytes of each. Before torch
1.6 it was five pickles, the fourth with the tensors and the fifth with the order of their bytes, which follow.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.contents import Contents, check_together
from palmette.checkpoints.formats.inert import Call, Name, Persistent, read_inert
from palmette.checkpoints.formats.raw import part_of
from palmette.measures.rows import as_tensor
from palmette.pruning.masks import MOST_AXES
from palmette.pruning.sources.stored import StoredWeight, in_memory, unreadable

# Keys under which training scripts save the weights, the most common first.
_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
_STORAGES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "QInt8": torch.qint8,
    "QUInt8": torch.quint8,
    "QInt32": torch.qint32,
    "Untyped": torch.uint8,
}
_MODULES = (
    *("torch", "torch.cuda", "torch._utils", "torch._tensor", "torch.storage", "torch.serialization"),
    *("torch.nn.parameter", "collections"),
)
_BUILTINS = ("_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.dict", "builtins.set")
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_REBUILT = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_MAGIC = 0x1950A86A20F9469CFC6C  # of files before torch 1.6
_DEEPEST = 64
_NESTED = 8  # parts of a tensor that is only named
_DAMAGED = "it is damaged or truncated"
_Places = Mapping[Any, tuple[int, int]]
"""First byte and number of bytes of the values of each storage, by key."""


@dataclass(frozen=True)
class _Stored:
    """A tensor whose values begin at byte `start`; `why` they cannot be read, or empty."""

    shape: tuple[int, ...]
    why: str = ""
    dtype: torch.dtype = torch.float32
    start: int = 0
    stride: tuple[int, ...] = ()

    @property
    def extent(self) -> int:
        """Values between the first and the last one, both included."""
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))

    def weight(self, file: Path, name: str) -> StoredWeight:
        """The tensor under a name."""
        if self.why:
            return unreadable(name, self.shape, 0, self.why)
        shape, stride, dtype = self.shape, self.stride, self.dtype

        def strided(first: int, last: int) -> Tensor:
            data = np.memmap(file, np.uint8, "c", self.start, (self.extent * dtype.itemsize,))
            return torch.from_numpy(data).view(dtype).as_strided(shape, stride)[first:last]

        steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        in_order = all(n < 2 or step == due for n, step, due in zip(shape, stride, steps, strict=True))
        read = part_of(file, self.start, shape, dtype) if in_order or not math.prod(shape) else strided
        return StoredWeight(name, shape, dtype, read, math.prod(shape) * dtype.itemsize)


def read(file: Path) -> Contents:
    """The tensors of a file; a single tensor is a vector of plain numbers."""
    size = file.stat().st_size
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found, places = _zipped(file, data) if data[:2] == b"PK" else _legacy(data)
    if (one := _tensor(found, places)) is not None:
        values = one.weight(file, file.name).read(0, one.shape[0] if one.shape else 1)
        return Contents([in_memory(file.name, as_tensor(values, repr(file.name)).reshape(-1))], vectors=True)
    walk = _Walk(places, 64 * size + 4096)
    tensors: list[StoredWeight] = []
    seen: dict[_Stored, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in walk.flattened(walk.state(found)):
        tensors.append(tensor.weight(file, name))
        first = name if tensor.why or not tensors[-1].entries else seen.setdefault(tensor, name)
        if first != name:
            aliases[name] = first
    check_together((t for t in tensors if t.name not in aliases), size)
    return Contents(tensors, aliases)


def _zipped(file: Path, data: mmap.mmap) -> tuple[Any, _Places]:
    with ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
    listed = next((name for name in members if name.rpartition("/")[2] == "data.pkl"), None)
    if listed is None:
        raise ValueError("it is a zip archive without data.pkl")
    folder = listed.removesuffix("data.pkl")
    if f"{folder}constants.pkl" in members:
        raise ValueError("it is a TorchScript program, and only tensors are loaded; " + _IN_ITS_PLACE)
    places = {name: _place(data, info) for name, info in members.items()}
    start, size = places.get(f"{folder}byteorder", (0, 0))
    _check_little(data[start : start + size] != b"big")
    data.seek(places[listed][0])
    values = f"{folder}data/"
    return read_inert(data, _why_not), {n.removeprefix(values): p for n, p in places.items() if values in n}


def _place(data: mmap.mmap, info: ZipInfo) -> tuple[int, int]:
    """First byte and number of bytes of a member of a zip archive."""
    head = data[info.header_offset : info.header_offset + 30]
    if len(head) < 30 or info.compress_type != ZIP_STORED:
        raise ValueError(_DAMAGED)
    start = info.header_offset + 30 + sum(struct.unpack_from("<HH", head, 26))  # a name, and extra fields
    if start + info.file_size > len(data):
        raise ValueError(_DAMAGED)
    return start, info.file_size


def _legacy(data: mmap.mmap) -> tuple[Any, _Places]:
    try:
        magic = read_inert(data, _why_not)
    except ValueError:
        magic = None
    if magic != _MAGIC:
        raise ValueError("the magic string of PyTorch is missing")
    _, about = read_inert(data, _why_not), read_inert(data, _why_not)
    _check_little(not (isinstance(about, dict) and about.get("little_endian") is False))
    widths: dict[Any, int] = {}

    def note(id: Any) -> Persistent:
        dtype, key, _ = _storage(id)
        widths[key] = dtype.itemsize
        return Persistent(id)

    found, keys = read_inert(data, _why_not, note), read_inert(data, _why_not)
    places, at = {}, data.tell()
    for key in keys:
        if not isinstance(key, str | bytes):
            raise ValueError(_DAMAGED)
        size = int.from_bytes(data[at : at + 8], "little") * widths[key]
        places[key] = at + 8, size
        at += 8 + size
        if at > len(data):
            raise ValueError(_DAMAGED)
    return found, places


def _check_little(little: bool) -> None:
    if not little:
        raise ValueError("it was written on a big-endian machine, which is not supported")


_IN_ITS_PLACE = "save model.state_dict() instead"


def _why_not(name: str) -> str:
    known = name in _BUILTINS or name.rpartition(".")[0] in _MODULES
    return "" if known else f"it needs {name}, and only tensors are loaded; {_IN_ITS_PLACE}"


def _dtype_of(kind: Any) -> torch.dtype:
    """The dtype of a kind of storage, such as "torch.cuda.FloatStorage"."""
    name = kind.text.rpartition(".")[2].removesuffix("Storage") if isinstance(kind, Name) else ""
    if name not in _STORAGES:
        raise ValueError("it holds values of an unknown kind")
    return _STORAGES[name]


def _storage(id: Any) -> tuple[torch.dtype, str | bytes, Any]:
    """Kind of a storage, its key, and the offset of a view, which files before torch 1.6 have."""
    if not (isinstance(id, tuple) and len(id) > 4 and isinstance(key := id[2], str | bytes)):
        raise ValueError(_DAMAGED)
    return _dtype_of(id[1]), key, 0 if id[5:] in ((), (None,)) else id[5][1]


def _is_size(value: Any, most: int = MOST_AXES) -> bool:
    return (
        isinstance(value, tuple) and len(value) <= most and all(type(n) is int and 0 <= n < 1 << 63 for n in value)
    )


def _tensor(value: Any, places: _Places) -> _Stored | None:
    """Tensor that a pickle describes; None for anything else.

    The work does not depend on what the pickle says, which may name one value many times.
    """
    for _ in range(_NESTED):
        if isinstance(value, Call) and value.name in _PARAMETER and value.args:
            value = value.args[0]
    if not isinstance(value, Call):
        return None
    name, args = value.name, value.args
    if name == "torch._tensor._rebuild_from_type_v2" and len(args) > 2 and isinstance(args[0], Name):
        name, args = args[0].text, args[2]
    if not name.startswith("torch._utils._rebuild_"):
        return None
    if name not in _REBUILT or (len(args) > 6 and isinstance(args[-1], dict) and args[-1]):
        few = args[:_NESTED]
        parts = [part for arg in few for part in (arg, *(arg[:_NESTED] if isinstance(arg, tuple) else ()))]
        parts = [part.args[0] if isinstance(part, Call) and part.name == "torch.Size" else part for part in parts]
        shapes = [part for part in parts if _is_size(part, _NESTED)]
        return _Stored(
            max(shapes, key=len, default=()), "is quantized, sparse, turned or without values", torch.bool
        )
    storage, offset, shape, stride = args[:4]
    if not isinstance(storage, Persistent):
        raise ValueError(_DAMAGED)
    dtype, key, first = _storage(storage.id)
    if not (all(map(_is_size, ((offset, first), shape, stride))) and len(shape) == len(stride)):
        raise ValueError(_DAMAGED)
    if name.endswith("_v3") and isinstance(args[6], Name):
        named = getattr(torch, args[6].text.removeprefix("torch."), None)
        if not isinstance(named, torch.dtype):
            raise ValueError(_DAMAGED)
        dtype = named
    start, room = places[key]
    offset += first
    found = _Stored(shape, "", dtype, start + offset * dtype.itemsize, stride)
    entries = math.prod(shape)
    if entries and (offset + found.extent) * dtype.itemsize > room:
        raise ValueError(_DAMAGED)
    if entries > found.extent:
        return _Stored(shape, "repeats the values of a smaller one", torch.bool)
    return found


class _Walk:
    """Search of a tree of dicts for tensors; dicts that hold one another could make it endless."""

    def __init__(self, places: _Places, work: int) -> None:
        self.places = places
        self.work = work  # letters of all names

    def state(self, found: Any) -> Mapping[Any, Any]:
        """The state_dict in a checkpoint: tensors by name, flat or as a tree.

        It is the value of the only key with weights, or of the first of `_KEYS` with weights, or the whole.
        """
        for _ in range(_DEEPEST):
            if not isinstance(found, dict):
                kind = found.name if isinstance(found, Call) else type(found).__name__
                raise TypeError(f"it holds a {kind}, not weights by name")
            holding = {key: value for key, value in found.items() if self._has_weights(value)}
            if len(holding) > 1:
                holding = {key: holding[key] for key in _KEYS if isinstance(holding.get(key), dict)}
            inner = next(iter(holding.values()), None)
            if not isinstance(inner, dict):
                return found
            found = inner
        raise ValueError(f"its dicts are nested more than {_DEEPEST} deep")

    def flattened(
        self, state: Mapping[Any, Any], prefix: str = "", depth: int = 0
    ) -> Iterator[tuple[str, _Stored]]:
        """All tensors by name."""
        if depth > _DEEPEST:
            raise ValueError(f"its dicts are nested more than {_DEEPEST} deep")
        for key, value in state.items():
            name = f"{prefix}{key.decode('utf-8', 'replace') if isinstance(key, bytes) else key}"
            self.work -= 1 + len(name)
            if self.work < 0:
                raise ValueError("its dicts contain one another, and it names more tensors than it can hold")
            if (tensor := _tensor(value, self.places)) is not None:
                yield name, tensor
            elif isinstance(value, dict) and "param_groups" not in value:  # not an optimizer
                yield from self.flattened(value, f"{name}.", depth + 1)

    def _has_weights(self, value: Any) -> bool:
        """Whether there is a floating-point tensor with axes; a step, a score or a random state is none."""
        found = self.flattened({"": value})
        return any(tensor.dtype.is_floating_point and tensor.shape for _, tensor in found)
