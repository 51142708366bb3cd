"""Effect of each operation on channels: a handler for each, and the table of all. See `graph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from palmette.pruning.channels.graph import Channels, ModelTensor, Value, Walk, label_of
from palmette.pruning.channels.layers import LAYER_HANDLERS, Handler, arguments, shape_of


def _pointwise(walk: Walk, node: Node) -> Value:
    """An elementwise function: applied to the known numbers."""
    x = walk.value(node.args[0])
    if not isinstance(x, Channels) or len(node.all_input_nodes) > 1:
        return walk.stop(node)
    value = node.target(x.value, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    known = x.known & value.isfinite()
    return Channels(x.axis, x.atoms, known, value.double().where(known, 0))


def _same(walk: Walk, node: Node) -> Value:
    """A copy, or a cast, which rounds the known numbers."""
    x, dtype = walk.value(node.args[0]), node.meta["val"].dtype
    if not isinstance(x, Channels) or not dtype.is_floating_point:
        return walk.stop(node)
    value = x.value.to(dtype).double()
    known = x.known & value.isfinite()
    return Channels(x.axis, x.atoms, known, value.where(known, 0))


def _binary(walk: Walk, node: Node) -> Value:
    """An elementwise function of two tensors whose channel axes coincide, or of a tensor and a number."""
    if len(node.all_input_nodes) == 1 and not isinstance(node.args[1], Node):
        return _pointwise(walk, node)
    pair = [walk.value(a) for a in node.args[:2]]
    channels = [v for v in pair if isinstance(v, Channels)]
    out = shape_of(node)
    places = {v.axis - len(shape_of(a)) for v, a in zip(pair, node.args, strict=False) if isinstance(v, Channels)}
    if not channels or len(places) != 1 or len({len(c.atoms) for c in channels}) != 1:
        return walk.stop(node)
    place, size = places.pop(), len(channels[0].atoms)
    if out[place] != size:
        return walk.stop(node)
    walk.join(channels[0].atoms, channels[-1].atoms)
    sides = []
    for argument, value in zip(node.args[:2], pair, strict=True):
        side = (value.known, value.value) if isinstance(value, Channels) else None
        if side is None and isinstance(argument, Node):
            side = _operand(walk, argument, value, place, channels[0].atoms)
        if side is None:
            return walk.stop(node)
        sides.append(side)
    (known_a, a), (known_b, b) = sides
    known = known_a & known_b
    value = node.target(a, b, **node.kwargs)  # type: ignore[operator]
    if node.target._schema.name == "aten::mul":  # type: ignore[union-attr]
        known = known | (known_a & (a == 0)) | (known_b & (b == 0))
        value = value.where(known_a & known_b, 0)
    known = known & value.isfinite()
    return Channels(place + len(out), channels[0].atoms, known, value.double().where(known, 0))


def _operand(walk: Walk, argument: Node, value: Value, place: int, atoms: Tensor) -> tuple[Tensor, Tensor] | None:
    """Known numbers of an operand without channels; None if it cannot be cut along with the channels."""
    shape, size = shape_of(argument), len(atoms)
    unknown = torch.zeros(size, dtype=torch.bool), torch.zeros(size).double()
    spread = len(shape) < -place or shape[place] == 1
    if spread and not (isinstance(value, ModelTensor) and value.tensor.numel() == 1):
        return unknown  # one number for all channels
    if not isinstance(value, ModelTensor):
        return None
    if spread:
        return ~unknown[0], value.tensor.double().cpu().reshape(1).expand(size)
    walk.join(walk.axis(value, place + len(shape)), atoms)
    if value.tensor.numel() != size:
        return unknown
    return ~unknown[0], value.tensor.double().cpu().reshape(size)


def _layout(walk: Walk, node: Node) -> Value:
    """Entries move and keep their values: channel numbers moved the same way show where each channel ends up."""
    x = walk.value(node.args[0])
    if not isinstance(x, Channels) or len(node.all_input_nodes) > 1:
        return walk.stop(node)
    shape = shape_of(node.args[0])
    count = torch.arange(shape[x.axis]).reshape([-1 if a == x.axis else 1 for a in range(len(shape))])
    moved = node.target(count.expand(shape).contiguous(), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    if not isinstance(moved, Tensor) or moved.dtype != count.dtype:
        return walk.stop(node)
    for axis in range(moved.dim()):
        line = moved[tuple(slice(None) if a == axis else 0 for a in range(moved.dim()))]
        spread = line.reshape([-1 if a == axis else 1 for a in range(moved.dim())])
        if len(line.unique()) == shape[x.axis] and bool((moved == spread).all()):
            return x.at(axis, line)
    return walk.stop(node)


def _slice(walk: Walk, node: Node) -> Value:
    """A range of channels; keeps those between a border and the end that it is counted from."""
    x = walk.value(node.args[0])
    dim, *borders, step = arguments(node, "dim", "start", "end", "step")
    if not isinstance(x, Channels) or len(node.all_input_nodes) > 1 or dim % len(shape_of(node.args[0])) != x.axis:
        return _layout(walk, node)
    if step != 1:
        return walk.stop(node)
    for border in borders:
        if border is not None and abs(border) < len(x.atoms):
            walk.keep(x.atoms[:border] if border >= 0 else x.atoms[border:], label_of(node))
    return x.at(x.axis, torch.arange(len(x.atoms))[slice(*borders)])


def _chunks(walk: Walk, node: Node) -> Value:
    """Chunks of equal size, which must lose equally many channels."""
    x, parts = walk.value(node.args[0]), node.meta["val"]
    if not isinstance(x, Channels) or len(node.all_input_nodes) > 1:
        return walk.stop(node)
    if arguments(node, "dim")[0] % parts[0].dim() != x.axis:
        return tuple(x for _ in parts)
    if len({part.shape for part in parts}) > 1:
        return walk.stop(node)
    found = tuple(x.at(x.axis, places) for places in torch.arange(len(x.atoms)).chunk(len(parts)))
    walk.equal.append(([part.atoms for part in found], label_of(node)))
    return found


def _pool(walk: Walk, node: Node) -> Value:
    """A pool keeps constant channels constant, unless it counts zero padding or sums."""
    x = walk.value(node.args[0])
    if not isinstance(x, Channels) or x.axis != 1:
        return walk.stop(node)
    padding, counted, divisor = arguments(node, "padding", "count_include_pad", "divisor_override")
    changes = divisor is not None or (counted and any(padding or []))
    return x.only(x.value == 0) if changes else x


def _reduced(walk: Walk, node: Node) -> Value:
    """Mean, sum, maximum or minimum over axes other than that of the channels."""
    x = walk.value(node.args[0])
    dims: Any = node.args[1] if len(node.args) > 1 else None
    if not isinstance(x, Channels) or dims is None:
        return walk.stop(node)
    over = {d % len(shape_of(node.args[0])) for d in (dims if isinstance(dims, Sequence) else [dims])}
    if x.axis in over or not over:
        return walk.stop(node)
    keep = bool(arguments(node, "keepdim")[0])
    axis = x.axis if keep else x.axis - sum(d < x.axis for d in over)
    summed = node.target._schema.name == "aten::sum"  # type: ignore[union-attr]
    return Channels(axis, x.atoms, x.known & (x.value == 0) if summed else x.known, x.value)


def _pad(walk: Walk, node: Node) -> Value:
    x = walk.value(node.args[0])
    pad, mode, value = arguments(node, "pad", "mode", "value")
    if not isinstance(x, Channels):
        return walk.stop(node)
    from_last = len(shape_of(node.args[0])) - 1 - x.axis
    if any(pad[2 * from_last : 2 * from_last + 2]):
        return walk.stop(node)
    constant = mode in ("constant", None) and any(pad)
    return x.only(x.value == (value or 0)) if constant else x


def _cat(walk: Walk, node: Node) -> Value:
    nodes = list(node.args[0])  # type: ignore[arg-type]
    dim = arguments(node, "dim")[0] % len(shape_of(node))
    parts = [walk.value(n) for n in nodes]
    labelled = [p for p in parts if isinstance(p, Channels)]
    if not labelled or any(p.axis != labelled[0].axis for p in labelled):
        return walk.stop(node)
    if dim == labelled[0].axis:
        whole = []
        for source, part in zip(nodes, parts, strict=True):
            if not isinstance(part, Channels):
                walk.pin(part, label_of(node))
                walk.pin(part := walk.unknown(dim, shape_of(source)[dim]), label_of(node))
            whole.append(part)
        return Channels(dim, *(torch.cat([getattr(p, f) for p in whole]) for f in ("atoms", "known", "value")))
    if len(labelled) != len(parts):
        return walk.stop(node)
    first = labelled[0]
    for other in labelled[1:]:
        walk.join(first.atoms, other.atoms)
        first = first.only(other.known & (other.value == first.value))
    return first


def _getitem(walk: Walk, node: Node) -> Value:
    index: Any = node.args[1]
    whole = walk.value(node.args[0])
    return whole[index] if isinstance(whole, tuple) else walk.stop(node)


_POINTWISE = """relu gelu silu sigmoid tanh hardtanh hardswish hardsigmoid relu6 leaky_relu elu selu celu mish
    softplus softsign log_sigmoid abs neg exp expm1 log log1p sqrt rsqrt square pow clamp clamp_min clamp_max erf
    sin cos reciprocal sign floor round rsub threshold hardshrink softshrink dropout feature_dropout"""
_LAYOUT = """view reshape _unsafe_view flatten unflatten permute transpose t movedim unsqueeze squeeze expand
    select index_select repeat flip narrow numpy_T"""
_POOLS = """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d"""
_OTHERS: list[tuple[str, Handler]] = [
    ("alias clone contiguous detach to _to_copy", _same),
    ("add sub mul div maximum minimum", _binary),
    ("mean sum amax amin", _reduced),
    ("pad constant_pad_nd", _pad),
    ("cat", _cat),
    ("slice", _slice),
    ("chunk split", _chunks),
    ("getitem", _getitem),
    ("_assert_tensor_metadata", lambda walk, node: None),  # the tracer adds it at casts
]

HANDLERS: dict[str, Handler] = LAYER_HANDLERS | {
    name: handler
    for names, handler in [(_POINTWISE, _pointwise), (_LAYOUT, _layout), (_POOLS, _pool), *_OTHERS]
    for name in names.split()
}
"""Name of a PyTorch operation -> its handler. Channels are not followed through operations that are not listed."""
