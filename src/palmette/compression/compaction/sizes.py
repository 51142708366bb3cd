"""Sizes of the layers of a compacted model: written to its file, and given to a new model that loads the file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from operator import le
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import MaskMismatch
from palmette.pruning.weights import is_transformers_conv1d, uncompiled

Sizes = Mapping[str, Mapping[str, int]]
"""Name of a module -> size attribute, such as "out_channels" -> number."""

_MARK = "_compacted"


def sizes_by_weight(module: Any) -> dict[str, int]:
    """Size attributes of a module, as its weight implies them."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return {}
    shape = weight.shape
    if isinstance(module, nn.Linear):
        return {"out_features": shape[0], "in_features": shape[1]}
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return {"in_channels": shape[0], "out_channels": shape[1] * module.groups}
    if isinstance(module, nn.modules.conv._ConvNd):
        return {"out_channels": shape[0], "in_channels": shape[1] * module.groups}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return {"num_features": len(weight)}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": len(weight)}
    if isinstance(module, nn.Embedding):
        return {"embedding_dim": shape[1]}
    if is_transformers_conv1d(module):
        return {"nx": shape[0], "nf": shape[1]}
    return {}


def mark_compacted_(model: nn.Module) -> None:
    """Note on `model` that its layers are smaller than its class makes them; kept by copies and pickle."""
    setattr(model, _MARK, True)


def as_metadata(model: object) -> dict[str, str]:
    """Sizes of a compacted model as text for its file; nothing for any other model, or a `state_dict`."""
    if not isinstance(model, nn.Module) or not getattr(model := uncompiled(model), _MARK, False):
        return {}
    found = {n: {a: int(getattr(m, a)) for a in _attributes(m)} for n, m in model.named_modules()}
    text = json.dumps({name: sizes for name, sizes in found.items() if sizes}, separators=(",", ":"))
    return {"sizes": text, "sizes_crc32": str(zlib.crc32(text.encode()))}


def from_metadata(metadata: Mapping[str, str]) -> Sizes:
    """Sizes in the metadata of a file, if any; raises ValueError if they are damaged."""
    if (text := metadata.get("sizes")) is None:
        return {}
    if metadata.get("sizes_crc32") != str(zlib.crc32(text.encode())):
        raise ValueError("the checksum of its layer sizes is wrong")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("its layer sizes are not JSON") from error
    for sizes in found.values() if isinstance(found, dict) else [None]:
        if not isinstance(sizes, dict) or any(type(n) is not int or n < 0 for n in sizes.values()):
            raise ValueError("its layer sizes are invalid")
    return found  # type: ignore[no-any-return]


def shapes_to_fit(model: nn.Module, shapes: Mapping[str, Sequence[int]], sizes: Sizes) -> dict[str, torch.Size]:
    """Find the `shapes` in a file that `fit_` can give to `model`: smaller ones, and biases that it lacks.

    None without sizes. `compact` makes no tensor larger.
    """
    modules = dict(model.named_modules())
    for name, given in sizes.items():
        if name not in modules or not given.keys() <= set(_attributes(modules[name])):
            kind = type(modules[name]).__name__ if name in modules else "nothing"
            raise MaskMismatch(
                f"the sizes in this file are of another model: {', '.join(given)} of {name!r}, which is {kind}"
            )
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    found: dict[str, torch.Size] = {}
    for name, shape in shapes.items() if sizes else ():
        path, _, attribute = name.rpartition(".")
        if name in own:
            fits = len(own[name].shape) == len(shape) and all(map(le, shape, own[name].shape))
        else:
            fits = attribute == "bias" and path in sizes and modules[path].bias is None
        if fits:
            found[name] = torch.Size(shape)
    return found


def fit_(model: nn.Module, shapes: Mapping[str, Sequence[int]], sizes: Sizes) -> None:
    """Give `model` tensors of these shapes, without values, and its modules these `sizes`; see `shapes_to_fit`."""
    made: dict[int, Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for own in (module._parameters, module._buffers):
            for attribute, old in own.items():
                shape = shapes.get(f"{path}.{attribute}".lstrip("."))
                if shape is None or (old is not None and old.shape == shape):
                    continue
                like = module.weight if old is None else old
                if id(old) not in made or old is None:
                    empty = torch.empty(shape, dtype=like.dtype, device=like.device)
                    is_parameter = own is module._parameters
                    made[id(old)] = nn.Parameter(empty, like.requires_grad) if is_parameter else empty
                own[attribute] = made[id(old)]  # one tensor for all names of a tied one
    for name, given in sizes.items():
        for attribute, size in given.items():
            setattr(model.get_submodule(name), attribute, size)
    if sizes:
        mark_compacted_(model)


def _attributes(module: nn.Module) -> list[str]:
    groups = ["groups"] if isinstance(module, nn.modules.conv._ConvNd) else []
    return [*sizes_by_weight(module), *groups]
