"""`save` and `load`: a small file without the zeros of a model, which loads back bit for bit.

docs/format.md describes the format.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from palmette.compression.compaction.sizes import Sizes, as_metadata, fit_, from_metadata, shapes_to_fit
from palmette.compression.elias_fano import index_bytes, low_bits, mask_bytes, pack_indices, unpack_indices
from palmette.errors import PackedDamaged, reason_of
from palmette.files import write_safetensors
from palmette.measures.rows import INTEGER
from palmette.pruning.holding import came_back
from palmette.pruning.masks import MOST_AXES, check_match
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.weights import is_torch_pruned, uncompiled

_FORMAT = "palmette-packed-1"
_OTHER_FORMATS = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".onnx", ".gguf", ".h5", ".npy", ".npz")
_SECOND_TENSOR = 160
"""Approximate bytes to list a second tensor in the file: a tensor is packed if that saves more."""
_NAMES = (
    "float64 float32 float16 bfloat16 complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
)
_ROOM, _SHARE = 1 << 28, 1 << 16
"""Limits of the unpacked size if no model says how large it is: bytes, and a multiple of the size of the file."""
_DTYPES = {name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}
_Model = TypeVar("_Model", bound=nn.Module)


def save(path: str | Path, model: nn.Module | Mapping[str, Tensor]) -> None:
    """Write the `state_dict` of `model` to a small safetensors file, atomically.

    Each tensor is written in the smallest of three ways: dense; a bit for each entry and the non-zero values; or
    the indices of the non-zeros, each within a bit of its entropy, and their values. A tensor with two names is
    written once. See docs/format.md.

    Args:
        path: the file, usually ``.safetensors``; only `load` and ``palmette unpack`` can read it. A suffix of
            another format, such as ``.pt``, is refused.
        model: a module or a `state_dict`, of any dtypes. A warning says if a `Pruner` of the module has pruned
            weights that are no longer zero. Only values whose bits are all zero are left out: -0.0
            is kept.

    >>> import palmette as pm, tempfile
    >>> layer = nn.Linear(1000, 1000, bias=False)
    >>> _ = layer.weight.data.masked_fill_(torch.arange(1000) % 100 > 0, 0)  # 99 % zeros
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pm.save(f"{folder}/small.safetensors", layer)
    ...     Path(f"{folder}/small.safetensors").stat().st_size / 4_000_000 < 0.02
    ...     torch.equal(pm.load(f"{folder}/small.safetensors")["weight"], layer.weight)
    True
    True
    """
    if Path(path).suffix.lower() in _OTHER_FORMATS:
        raise ValueError(
            f"save writes a safetensors file, got the name {str(path)!r}; name it .safetensors, or use "
            "torch.save(model.state_dict(), path)"
        )
    if isinstance(model, nn.Module) and (said := came_back(model)):
        warnings.warn(said, stacklevel=2)
    state = _state_of(model)
    stored: dict[str, Tensor] = {}
    table: dict[str, dict[str, Any]] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in state.items():
        same = first.setdefault(_identity(tensor, name), name)
        if same != name:
            table[name] = {"code": "same", "as": same}
            continue
        parts, table[name] = _packed(name, tensor)
        if any(part in state for part in parts if part != name):  # a name such as "weight:mask" is taken
            parts, table[name] = _dense(name, tensor)
        table[name]["crc32"] = [_crc(part) for part in parts.values()]
        stored |= parts
    text = json.dumps(table, separators=(",", ":"))
    metadata = {"format": _FORMAT, "tensors": text, "crc32": str(zlib.crc32(text.encode()))}
    write_safetensors(Path(path), stored, metadata | as_metadata(model))


@overload
def load(path: str | Path) -> dict[str, Tensor]: ...
@overload
def load(path: str | Path, model: _Model) -> _Model: ...
def load(path: str | Path, model: nn.Module | None = None) -> dict[str, Tensor] | nn.Module:
    """Read a file written by `save`: an ordinary `state_dict` on the CPU, or `model` filled with it.

    Nothing in the file is executed. Every tensor is checked against its checksum, and names and shapes against
    those of `model` before it is changed. Shared tensors are shared again. If the file holds
    a model made smaller by `compact`, `model` is resized to match.

    >>> import palmette as pm, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pm.save(f"{folder}/small.safetensors", nn.Linear(3, 2))
    ...     pm.load(f"{folder}/small.safetensors", nn.Linear(3, 2))
    Linear(in_features=3, out_features=2, bias=True)
    """
    path = Path(path)
    if not (model is None or isinstance(model, nn.Module)):
        raise TypeError(f"load fills a torch.nn.Module, got {type(model).__name__}; load(path) gives a state_dict")
    if not path.is_file():
        raise FileNotFoundError(f"no file at {str(path)!r}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            table = _table(path, metadata)
            if model is None:
                _check_size(table, path)
            else:
                sizes = _check_model(uncompiled(model), table, metadata, path)
            state = _unpacked_all(table, file.get_tensor)
    except PackedDamaged:
        raise
    except (SafetensorError, _Damaged, MemoryError, UnicodeError) as error:
        raise PackedDamaged(
            f"{str(path)!r} is damaged or not a safetensors file: {reason_of(error)}; copy it again "
            "from its source, or read a file of torch.save with torch.load"
        ) from error
    if model is None:
        return state
    fit_(uncompiled(model), {name: tensor.shape for name, tensor in state.items()}, sizes)
    uncompiled(model).load_state_dict(state)
    return model


class _Damaged(ValueError):
    """A file contradicts itself."""


def _check_size(table: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    entries = [table[entry.get("as", name)] for name, entry in table.items()]  # as `palmette unpack` writes them
    size = sum(math.prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize for entry in entries)
    if size > max(_ROOM, _SHARE * (there := path.stat().st_size)):
        raise PackedDamaged(
            f"{str(path)!r} has {there:,} bytes and would unpack to {size:,}; if that is expected, pass "
            "the model to fill: load(path, model)"
        )


def _check_model(
    model: nn.Module, table: Mapping[str, Mapping[str, Any]], metadata: Mapping[str, str], path: Path
) -> Sizes:
    """Raise unless the file fits the model; return the sizes of layers in it."""
    own = {n: v for n, v in model.state_dict().items() if isinstance(v, Tensor)}
    if empty := [n for n, v in own.items() if v.is_meta]:
        raise ValueError(
            f"{empty[0]!r} is on the meta device, which cannot hold values: call "
            'model.to_empty(device="cpu") first'
        )
    shapes = {name: table[entry.get("as", name)]["shape"] for name, entry in table.items()}
    heads = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    try:
        sizes = from_metadata(metadata)
    except ValueError as error:
        raise _Damaged(str(error)) from error
    mine = {n: v.shape for n, v in own.items()}
    fitting = shapes_to_fit(model, shapes, sizes)  # checks the sizes
    if any(head.shape != mine.get(name) for name, head in heads.items()):
        mine |= fitting
    check_match(heads, mine, f"the weights in {str(path)!r}")
    return sizes


def _state_of(model: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(model, nn.Module):
        model = uncompiled(model).state_dict()
    if not isinstance(model, Mapping):
        raise TypeError(f"save takes a model or its state_dict, got {type(model).__name__}")
    check_whole(model, "save")
    for name, tensor in model.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(
                f"save writes tensors by name, got {type(tensor).__name__} for {name!r}; give a dict without it"
            )
        if name == "__metadata__":
            raise TypeError("a safetensors file keeps no tensor with the name '__metadata__'; give it another")
        if tensor.is_meta or tensor.layout != torch.strided or _name_of(tensor) not in _DTYPES:
            kind = "meta" if tensor.is_meta else f"{tensor.layout} {tensor.dtype}"
            raise TypeError(f"save writes dense tensors of {', '.join(_DTYPES)}, got {kind} for {name!r}")
        if is_torch_pruned(name, model):
            raise ValueError(
                f"{name!r} is the unpruned weight that torch.nn.utils.prune keeps next to its mask, and would "
                "take its whole size; call pm.from_torch_prune(model) first, which makes the zeros permanent"
            )
    return dict(model)


def _identity(tensor: Tensor, name: str) -> tuple[object, ...]:
    """A key that two names of one tensor share; tensors without entries share none."""
    if not tensor.numel():
        return (name,)
    marks = tensor.is_conj(), tensor.is_neg()
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), marks)


def _packed(name: str, tensor: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors to store for one tensor, and its entry in the table."""
    tensor = _plain(tensor)
    size, width = tensor.numel(), tensor.element_size()
    if size * width <= _SECOND_TENSOR:
        return _dense(name, tensor)
    integers = tensor.reshape(-1).view(INTEGER[width]).numpy()
    there = integers != 0
    kept = int(np.count_nonzero(there))
    _warn_of_negative_zeros(name, tensor, integers)
    low = low_bits(kept, size)
    positions = min(mask_bytes(size), index_bytes(kept, size, low))
    if size * width <= positions + kept * width + _SECOND_TENSOR:
        return _dense(name, tensor)
    entry: dict[str, Any] = {"dtype": _name_of(tensor), "shape": list(tensor.shape)}
    if positions == mask_bytes(size):
        entry["code"], values, code = "mask", integers[there], np.packbits(there, bitorder="little")
    else:
        indices = np.flatnonzero(there)
        entry |= {"code": "indices", "low": low}
        values, code = integers[indices], pack_indices(indices, size, low)
    parts = {"values": torch.from_numpy(values).view(tensor.dtype), entry["code"]: torch.from_numpy(code)}
    return {f"{name}:{part}": t for part, t in parts.items()}, entry


def _warn_of_negative_zeros(name: str, tensor: Tensor, integers: np.ndarray[Any, Any]) -> None:
    signed = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    negative = np.count_nonzero(integers == np.iinfo(integers.dtype).min) if tensor.dtype in signed else 0
    if negative > len(integers) // 20:
        warnings.warn(
            f"{negative:,} of the {len(integers):,} entries of {name!r} are -0.0, as weight * mask leaves them, "
            "and are written like other values; weight.add_(0.0) makes them plain zeros, which take no space",
            stacklevel=4,
        )


def _dense(name: str, tensor: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensor = _plain(tensor)
    return {name: tensor}, {"dtype": _name_of(tensor), "shape": list(tensor.shape), "code": "dense"}


def _plain(tensor: Tensor) -> Tensor:
    """A contiguous tensor on the CPU that shares memory with no other."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # One entry passes as contiguous with any stride, which a plain clone would keep.
    whole = tensor.numel() > 1 and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)


def _table(path: Path, metadata: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    if (found := metadata.get("format")) != _FORMAT:
        if str(found).startswith("palmette-packed-"):
            raise PackedDamaged(f"{str(path)!r} has format {found!r}; this palmette reads {_FORMAT!r}, update it")
        raise PackedDamaged(
            f"{str(path)!r} was not written by pm.save: its metadata has format {found!r}, not {_FORMAT!r}; an "
            "ordinary safetensors file is read by safetensors.torch.load_file"
        )
    text = metadata.get("tensors", "")
    if metadata.get("crc32") != str(zlib.crc32(text.encode())):
        raise _Damaged("the checksum of its table of tensors is wrong")
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Damaged("its table of tensors is not JSON") from error
    if not isinstance(table, dict):
        raise _Damaged("its table of tensors has no names")
    before: set[str] = set()
    for name, entry in table.items():
        if not _is_entry(entry, before):
            raise _Damaged(f"the entry of {name!r} in its table of tensors is invalid")
        before |= set() if "as" in entry else {name}
    return table


def _is_entry(entry: Any, before: Collection[str]) -> bool:
    """Whether a value is an entry of the table, below those `before` that are tensors of their own."""
    if not isinstance(entry, dict):
        return False
    if entry.get("code") == "same":
        return isinstance(same := entry.get("as"), str) and same in before
    shape, low = entry.get("shape"), entry.get("low", 0)
    return (
        entry.get("code") in ("dense", "mask", "indices")
        and "as" not in entry
        and isinstance(dtype := entry.get("dtype"), str)
        and dtype in _DTYPES
        and isinstance(shape, list)
        and len(shape) <= MOST_AXES
        and all(type(n) is int and n >= 0 for n in shape)
        and math.prod(n or 1 for n in shape) < 1 << 60
        and type(low) is int
        and isinstance(entry.get("crc32"), list)
    )


def _unpacked_all(table: Mapping[str, Mapping[str, Any]], stored: Callable[[str], Tensor]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, entry in table.items():
        if entry["code"] == "same":
            state[name] = state[entry["as"]]
            continue
        names = [name] if entry["code"] == "dense" else [f"{name}:values", f"{name}:{entry['code']}"]
        parts = [stored(part) for part in names]
        if [_crc(part) for part in parts] != entry["crc32"]:
            raise _Damaged(f"the checksum of {name!r} is wrong")
        state[name] = parts[0] if entry["code"] == "dense" else _unpacked(name, entry, *parts)
        if _name_of(state[name]) != entry["dtype"] or list(state[name].shape) != entry["shape"]:
            raise _Damaged(f"{name!r} is not {entry['dtype']} of shape {entry['shape']}")
    return state


def _unpacked(name: str, entry: Mapping[str, Any], values: Tensor, code: Tensor) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
    if values.dtype != dtype or values.dim() != 1 or code.dtype != torch.uint8 or code.dim() != 1:
        raise _Damaged(f"the values of {name!r} are not {entry['dtype']} of shape {shape}")
    size, kept = math.prod(shape), len(values)
    if kept > size:
        raise _Damaged(f"{name!r} has more values than entries")
    integers = values.view(INTEGER[values.element_size()]).numpy()
    flat = np.zeros(size, integers.dtype)
    if entry["code"] == "mask":
        if len(code) != mask_bytes(size):
            raise _Damaged(f"the mask of {name!r} has {len(code)} bytes for shape {shape}")
        there = np.unpackbits(code.numpy(), count=size, bitorder="little").view(np.bool_)
        if np.count_nonzero(there) != kept:
            raise _Damaged(f"the mask of {name!r} does not keep {kept} entries")
        flat[there] = integers
    else:
        try:
            flat[unpack_indices(code.numpy(), kept, size, entry.get("low", -1))] = integers
        except ValueError as error:
            raise _Damaged(f"{name!r}: {error}") from error
    return torch.from_numpy(flat).view(dtype).reshape(shape)


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0


def _name_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
