"""Effect of layers on channels: handlers of the operations that have weights. See `graph`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from palmette.pruning.channels.graph import Channels, MixingLayer, ModelTensor, Value, Walk, label_of
from palmette.pruning.weights import LAYERS

Handler = Callable[[Walk, Node], Value]


def shape_of(argument: Any) -> torch.Size:
    """Shape of the output of a node; empty for a Python number, such as that of `item`."""
    value = argument.meta["val"]
    return value.shape if isinstance(value, Tensor) else torch.Size()


def arguments(node: Node, *names: str) -> list[Any]:
    """Arguments of a node by name, positional or not, with the defaults of the operation."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return [given.get(name, defaults.get(name)) for name in names]


def _mixed(walk: Walk, node: Node, x: Any, w: Any, b: Any, *, axis: int, in_axis: int, uniform: bool) -> Value:
    """A layer whose weight `w` has inputs along `in_axis`, one of its first two axes, and outputs along the other.

    Channels are along `axis` of input and output. `uniform`: constant inputs give constant outputs, which zero
    padding prevents.
    """
    inputs, weight, bias = walk.value(x), walk.value(w), walk.value(b)
    if not isinstance(weight, ModelTensor) or not (b is None or isinstance(bias, ModelTensor)):
        return walk.stop(node)
    if not isinstance(inputs, Channels) or inputs.axis != axis:
        walk.pin(inputs, label_of(node))
        walk.pin(inputs := walk.unknown(axis, weight.tensor.shape[in_axis]), "the input")
    walk.join(walk.axis(weight, in_axis), inputs.atoms)
    out = walk.axis(weight, 1 - in_axis)
    if bias is not None:
        walk.join(walk.axis(bias, 0), out)
    kernels = weight.tensor.movedim(in_axis, 1).unsqueeze(2).flatten(2).cpu()
    linked = kernels.ne(0).any(2)
    usable = inputs.known & (uniform | (inputs.value == 0))
    known = ~linked[:, ~usable].any(1)
    value = kernels.sum(2, dtype=torch.float64) @ inputs.value.where(usable, 0)
    if bias is not None:
        value = value + bias.tensor.double().cpu()
    folds = uniform and _can_fold(walk, weight, bias)
    walk.mixing.append(MixingLayer(inputs, weight, in_axis, out, bias, linked, folds))
    return Channels(axis, out, known, value.where(known, 0))


def _can_fold(walk: Walk, weight: ModelTensor, bias: ModelTensor | None) -> bool:
    """Whether constants can be added to the bias, existing or new, without a change elsewhere."""
    if bias is not None:
        return bias.uses == 1
    owner = weight.owner(walk.model)
    return weight.uses == 1 and isinstance(owner, LAYERS) and owner.bias is None


def _linear(walk: Walk, node: Node) -> Value:
    x, w, b = arguments(node, "input", "weight", "bias")
    return _mixed(walk, node, x, w, b, axis=len(shape_of(x)) - 1, in_axis=1, uniform=True)


def _addmm(walk: Walk, node: Node) -> Value:
    b, x, w, alpha, beta = arguments(node, "self", "mat1", "mat2", "alpha", "beta")
    if alpha != 1 or beta != 1 or len(shape_of(b)) != 1:
        return walk.stop(node)
    return _mixed(walk, node, x, w, b, axis=1, in_axis=0, uniform=True)


def _matmul(walk: Walk, node: Node) -> Value:
    x, w = node.args[:2]
    if len(shape_of(w)) != 2 or len(shape_of(x)) < 2:
        return walk.stop(node)
    return _mixed(walk, node, x, w, None, axis=len(shape_of(x)) - 1, in_axis=0, uniform=True)


def _conv(walk: Walk, node: Node) -> Value:
    x, w, b, padding, groups = arguments(node, "input", "weight", "bias", "padding", "groups")
    if len(shape_of(x)) != len(shape_of(w)):
        return walk.stop(node)
    kernel = list(shape_of(w)[2:])
    uniform = padding == "valid" or all(k == 1 for k in kernel) if isinstance(padding, str) else not any(padding)
    if groups == 1:
        return _mixed(walk, node, x, w, b, axis=1, in_axis=1, uniform=uniform)
    return _grouped(walk, node, x, w, b, groups, uniform)


def _grouped(walk: Walk, node: Node, x: Any, w: Any, b: Any, groups: int, uniform: bool) -> Value:
    """A grouped convolution: all inputs and outputs of a group are removed together."""
    inputs, weight, bias = walk.value(x), walk.value(w), walk.value(b)
    if not isinstance(inputs, Channels) or inputs.axis != 1 or not (b is None or isinstance(bias, ModelTensor)):
        return walk.stop(node)
    if not isinstance(weight, ModelTensor) or weight.uses > 1:
        return walk.stop(node)
    if not isinstance(weight.owner(walk.model), nn.modules.conv._ConvNd):  # no number of groups to adjust
        return walk.stop(node)
    out = walk.axis(weight, 0)
    by_group = inputs.atoms.reshape(groups, -1)
    for atoms in (by_group, out.reshape(groups, -1)):
        walk.join(atoms.flatten(), by_group[:, :1].expand_as(atoms).flatten())
    walk.groups.append((weight, by_group[:, 0]))
    kernels = weight.tensor.cpu().reshape(groups, len(out) // groups, by_group.shape[1], -1)
    usable = (inputs.known & (uniform | (inputs.value == 0))).reshape(groups, 1, -1)
    known = ~(kernels.ne(0).any(3) & ~usable).any(2).flatten()
    given = inputs.value.reshape(groups, 1, -1).where(usable, 0)
    value = (kernels.sum(3, dtype=torch.float64) * given).sum(2).flatten()
    if isinstance(bias, ModelTensor):
        walk.join(walk.axis(bias, 0), out)
        value = value + bias.tensor.double().cpu()
    return Channels(1, out, known, value.where(known, 0))


def _conv_transpose(walk: Walk, node: Node) -> Value:
    x, w, b, groups = arguments(node, "input", "weight", "bias", "groups")
    if groups != 1 or len(shape_of(x)) != len(shape_of(w)):
        return walk.stop(node)
    return _mixed(walk, node, x, w, b, axis=1, in_axis=0, uniform=False)


def _batch_norm(walk: Walk, node: Node) -> Value:
    given = arguments(node, "input", "weight", "bias", "running_mean", "running_var")
    x, *rest = map(walk.value, given)
    training, eps = arguments(node, "training", "eps")
    if training or not isinstance(x, Channels) or x.axis != 1 or rest[2] is None or rest[3] is None:
        return walk.stop(node)
    if not all(a is None or isinstance(s, ModelTensor) for a, s in zip(given[1:], rest, strict=True)):  # computed
        return walk.stop(node)
    for stored in [s for s in rest if s is not None]:
        walk.join(walk.axis(stored, 0), x.atoms)
    w, b, mean, var = (torch.zeros(1).double() if s is None else s.tensor.double().cpu() for s in rest)
    scale = (var + eps).rsqrt() * (1 if rest[0] is None else w)
    known = x.known | (scale == 0)
    out = Channels(1, x.atoms, known, ((x.value - mean) * scale + b).where(known, 0))
    return (out, None, None) if node.target._schema.name != "aten::batch_norm" else out  # type: ignore[union-attr]


def _prelu(walk: Walk, node: Node) -> Value:
    x, slope = (walk.value(a) for a in node.args)
    if not isinstance(x, Channels) or x.axis != 1 or not isinstance(slope, ModelTensor):
        return walk.stop(node)
    if len(slope.tensor) > 1:
        walk.join(walk.axis(slope, 0), x.atoms)
    below = x.value * slope.tensor.double().cpu()
    return Channels(1, x.atoms, x.known, x.value.where(x.value > 0, below))


def _embedding(walk: Walk, node: Node) -> Value:
    table = walk.value(node.args[0])
    if not isinstance(table, ModelTensor):
        return walk.stop(node)
    zero = ~table.tensor.ne(0).any(0).cpu()
    return Channels(len(shape_of(node)) - 1, walk.axis(table, 1), zero, torch.zeros(len(zero)).double())


LAYER_HANDLERS: dict[str, Handler] = {
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "mm": _matmul,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv_transpose),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    "prelu": _prelu,
    "embedding": _embedding,
}
"""Name of a PyTorch operation with weights -> its handler."""
