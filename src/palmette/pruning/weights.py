"""Prunable parameters of a model, and the axis that counts their neurons."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from palmette.errors import NothingToPrune
from palmette.pruning.choosing.coverage import (
    CONSTANT,
    FROZEN,
    GAIN,
    NO_FLOATS,
    UNKNOWN,
    VECTOR,
    LeftOut,
    shown,
)
from palmette.pruning.choosing.names import bias_of, inputs_first, is_constant, is_stack, why_not
from palmette.pruning.choosing.patterns import as_patterns, check_patterns, matches

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules with outputs along the first axis of their weight, and an optional bias."""
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Weight:
    """A weight and the layout of its neurons.

    Args:
        tensor: the parameter itself.
        transposed: False when the first axis counts the neurons, as in Linear and convolutions. True when
            the second does, as in transposed convolutions and in the Conv1D of GPT-2.
        groups: groups of a transposed convolution.
        stacked: whether the first axis counts experts, each a weight with a layout of its own.
        gain: g under weight norm, of which the tensor is the direction v.
    """

    tensor: Tensor
    transposed: bool = False
    groups: int = 1
    stacked: bool = False
    gain: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self.tensor.shape

    @property
    def values(self) -> Tensor:
        """Values to measure and rank: the tensor or, under weight norm, what the layer makes of it."""
        return self.tensor if self.gain is None else normed(self.tensor.detach(), self.gain.detach())

    @property
    def folded(self) -> tuple[tuple[int, ...], int]:
        """Shape with the experts of a stack one below another, and groups of inputs that have the same neurons."""
        if not self.stacked:
            return tuple(self.shape), self.groups
        experts, rows, *rest = self.shape
        return (experts * rows, *rest), experts if self.transposed else 1

    def rows(self, values: Tensor) -> Tensor:
        """Reshape `values`, in the shape of the weight, to one row per neuron, each in index order."""
        shape, groups = self.folded
        values = values.reshape(shape)
        if not self.transposed:
            return values.flatten(1) if values.dim() > 1 else values[:, None]
        block = values.reshape(groups, -1, *shape[1:]).transpose(1, 2)
        return block.reshape(groups * shape[1], -1)

    def from_rows(self, matrix: Tensor) -> Tensor:
        """Inverse of `rows`."""
        shape, groups = self.folded
        if not self.transposed:
            return matrix.reshape(self.shape)
        block = matrix.reshape(groups, shape[1], shape[0] // groups, math.prod(shape[2:]))
        return block.transpose(1, 2).reshape(self.shape)


def normed(direction: Tensor, gain: Tensor) -> Tensor:
    """Weight that weight norm computes, :math:`g \\cdot v / \\|v\\|`; zero where all of v is zero."""
    norm = torch.linalg.vector_norm(direction, dim=_normed_over(direction, gain), keepdim=True)
    return direction * torch.where(norm > 0, gain / norm, 0.0)


def alive(mask: Tensor, gain: Tensor) -> Tensor:
    """Mask of gains that have a kept weight, in the shape of `gain`; zero directions make the others NaN."""
    return mask.amax(_normed_over(mask, gain), keepdim=True).reshape(gain.shape)


def _normed_over(direction: Tensor, gain: Tensor) -> list[int]:
    return [d for d, size in enumerate(direction.shape) if gain.dim() == 0 or gain.shape[d] != size]


def prunable(
    model: nn.Module, *, include: Iterable[str] | None = None, exclude: Iterable[str] = ()
) -> dict[str, Weight]:
    """Prunable weights of `model` by name in its `state_dict`; a shared weight has its first name.

    By default these are the weights of Linear, convolution, transposed convolution and recurrent layers, the
    projections of `nn.MultiheadAttention`, the Conv1D of Transformers, stacks of experts, and what other modules
    name ``weight``, the output layer included. The default excludes biases, norms, embeddings, an output layer
    that shares its weight with an embedding, and weights that are quantized or computed from others
    (`nn.utils.parametrize`). Under weight norm, the direction v of w = g · v/‖v‖ is listed, and its weights are
    measured as w. A `weight_orig` of `torch.nn.utils.prune` is listed as `weight`, its name after conversion.

    Frozen weights (``requires_grad=False``) are left out, unless `include` names them or all parameters are
    frozen, as for inference.

    Args:
        model: any module; a compiled or wrapped one is unwrapped.
        include: patterns such as ``"encoder.*.weight"`` (as in a shell) that replace the
            default: every parameter with two or more dimensions whose name matches one of them.
        exclude: patterns of names to leave out. Patterns match any name of a shared weight; a pattern without
            a match raises an error.

    >>> import palmette as pm
    >>> list(pm.prunable(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))))
    ['0.weight', '2.weight']
    """
    return sorted_out(model, include=include, exclude=exclude)[0]


def sorted_out(
    model: nn.Module,
    *,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    also: Container[str] = (),
) -> tuple[dict[str, Weight], list[LeftOut]]:
    """Prunable weights of a model, see `prunable`, and all other parameters, each with a reason.

    Frozen weights are prunable if `also` has their names, such as masks.
    """
    patterns, unwanted = as_patterns(include, exclude)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "FullyShardedDataParallel flattens weights, which hides their neurons; use fully_shard (FSDP2) instead"
        )
    parameters_by_name(model)
    model = uncompiled(model)
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in _named(model):
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet; run a batch through the model, then prune it")
        names.setdefault(parameter, []).append(name)
    layouts, why = _layouts(model, names)
    able = {p: None for p in names if why[p] not in (GAIN, NO_FLOATS, "empty", VECTOR)}
    check_patterns(
        patterns,
        unwanted,
        weights=[name for p in able for name in names[p]],
        names=[*(name for aliases in names.values() for name in aliases), *(n for n, _ in model.named_buffers())],
        what=f"the {type(model).__name__}",
    )
    trains = any(p.requires_grad for p in names)
    for parameter, aliases in names.items():
        if patterns is not None and parameter in able:
            why[parameter] = "" if matches(aliases, patterns) else "not included"
        if not why[parameter] and patterns is None and trains and not parameter.requires_grad:
            why[parameter] = "" if aliases[0] in also else FROZEN
        if why[parameter] in ("", FROZEN, UNKNOWN, NO_FLOATS) and matches(aliases, unwanted):
            why[parameter] = "excluded"
    chosen = {names[p][0]: layouts.get(p, Weight(p)) for p in names if not why[p]}
    left_out = [
        LeftOut(aliases[0], tuple(p.shape), why[p], p.numel() * p.element_size())
        for p, aliases in names.items()
        if why[p]
    ]
    if not chosen:
        raise NothingToPrune(_nothing(model, left_out, patterns, unwanted))
    return chosen, left_out


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All names of every parameter, without the `_orig` of `torch.nn.utils.prune`."""
    buffers = {name for name, _ in model.named_buffers()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name.removesuffix("_orig") if is_torch_pruned(name, buffers) else name, parameter


def tensors_of(weights: Mapping[str, Tensor | Weight]) -> dict[str, Tensor]:
    """Tensors by name, from tensors or from the result of `prunable`."""
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"weights must be tensors by name, as prunable(model) returns them, got {type(weights).__name__}"
        )
    return {n: w.tensor if isinstance(w, Weight) else w for n, w in weights.items()}


def uncompiled(model: nn.Module) -> nn.Module:
    """Module inside `torch.compile` and `DistributedDataParallel`, or `model` itself.

    Parameter names are the keys of its `state_dict`.
    """
    return list(wrappers(model))[-1]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; each module of `model` returns to its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The model and the modules that it wraps, outermost first."""
    inner: object = model
    while isinstance(inner, nn.Module):
        yield inner
        inner = inner.module if isinstance(inner, _PARALLEL) else getattr(inner, "_orig_mod", None)


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters by name, each once; parameters that `fully_shard` has gathered are sharded again."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)) and hasattr(module, "unshard"):
            reshard()
    return dict(uncompiled(model).named_parameters())


def _layouts(
    model: nn.Module, names: Mapping[nn.Parameter, Sequence[str]]
) -> tuple[dict[Tensor, Weight], dict[Tensor, str]]:
    """Weights by parameter, and for every parameter why it is not pruned by default; empty if it is."""
    found: dict[Tensor, Weight] = {}
    why: dict[Tensor, str] = {}
    for module in model.modules():
        kinds = " ".join(kind.__name__ for kind in type(module).__mro__)
        for attribute in _attributes_of_weights(module):
            if (weight := _own(module, attribute)) is not None:
                found.setdefault(weight.tensor, weight)  # its name is that of its first module
        for parameter in module.parameters(recurse=False):
            if "Norm" in kinds or "Embedding" in kinds:
                why[parameter] = "embedding" if "Embedding" in kinds else "norm"
    why |= {w.gain: GAIN for w in found.values() if w.gain is not None}
    shapes = {name: tuple(p.shape) for p, aliases in names.items() for name in aliases}
    for parameter, (name, *_) in names.items():
        if not (parameter.is_floating_point() and parameter.layout == torch.strided):
            why[parameter] = NO_FLOATS
        elif not parameter.numel():
            why[parameter] = "empty"
        elif parameter.dim() < 2:
            why[parameter] = GAIN if why.get(parameter) == GAIN else VECTOR
        elif parameter in found:
            constant = CONSTANT if is_constant(name) else ""
            why[parameter] = "embedding" if why.get(parameter) == "embedding" else constant
        elif parameter not in why:
            why[parameter] = why_not(name, parameter.shape, bias_of(name, shapes))
            if is_stack(name, parameter.shape):
                found[parameter] = Weight(parameter, inputs_first(name, shapes), stacked=True)
    return found, why


def _attributes_of_weights(module: nn.Module) -> Iterable[str]:
    """Attributes that hold the weights of a module of a known type."""
    if isinstance(module, nn.MultiheadAttention):
        return _ATTENTION
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        known = [*module._parameters, *getattr(module, "parametrizations", ())]
        return {re.sub("_(orig|v|g)$", "", name) for name in known if name.startswith("weight_")}
    usual = isinstance(module, (*LAYERS, *_TRANSPOSED)) or is_transformers_conv1d(module)
    return ("weight",) if usual else ()


def _own(module: nn.Module, name: str) -> Weight | None:
    """Attribute `name` of a module, or the parameters that pruning or weight norm computes it from."""
    transposed = isinstance(module, _TRANSPOSED) or is_transformers_conv1d(module)
    groups = int(getattr(module, "groups", 1)) if transposed else 1
    parameters = module._parameters
    if parametrize.is_parametrized(module, name):
        (*steps,) = module.parametrizations[name]  # type: ignore[index]
        if [type(step).__name__ for step in steps] != ["_WeightNorm"]:
            return None
        parameters = module.parametrizations[name]._parameters  # type: ignore[index,union-attr]
        pair = "original1", "original0"
    elif is_torch_pruned(f"{name}_orig", module._buffers):
        pair = f"{name}_orig", ""
    else:
        pair = (f"{name}_v", f"{name}_g") if parameters.get(f"{name}_g") is not None else (name, "")
    weight = parameters.get(pair[0])
    return None if weight is None else Weight(weight, transposed, groups, gain=parameters.get(pair[1]))


def is_torch_pruned(name: str, names: Container[str]) -> bool:
    """Whether `name`, one of the `names` in a `state_dict`, is an unpruned tensor that has a mask.

    >>> is_torch_pruned("fc.weight_orig", ["fc.weight_orig", "fc.weight_mask"])
    True
    >>> is_torch_pruned("fc.weight_orig", ["fc.weight_orig", "fc.weight_u"])  # of nn.utils.spectral_norm
    False
    """
    return name.endswith("_orig") and f"{name.removesuffix('_orig')}_mask" in names


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of GPT-2, a Linear layer with inputs first; works without Transformers."""
    return any(
        c.__name__ == "Conv1D" and c.__module__ == "transformers.pytorch_utils" for c in type(module).__mro__
    )


def _nothing(model: nn.Module, left_out: Sequence[LeftOut], include: list[str] | None, exclude: list[str]) -> str:
    names, kind = [t.name for t in left_out if len(t.shape) > 1], type(model).__name__
    if not names:
        return (
            f"the model has nothing to prune: no parameter of {kind} has two or more dimensions; one that is "
            "quantized must be pruned before"
        )
    if frozen := [t.name for t in left_out if t.why == FROZEN]:
        return (
            "the model has nothing to prune: its weights are frozen (requires_grad=False); unfreeze them, or name "
            f"them with include, such as {shown(frozen)}"
        )
    if all(t.why == NO_FLOATS for t in left_out if len(t.shape) > 1):
        return (
            f"the model has nothing to prune: the weights of {kind}, such as {names[0]}, are complex, sparse, or "
            "quantized; prune the model before it is converted"
        )
    if include is None and not exclude:
        return (
            f"the model has nothing to prune: {kind} has no Linear, convolution or attention "
            f"weight; choose other weights with include, such as {shown(names, 8)}"
        )
    return f"nothing is left to prune with include={include}, exclude={exclude}; the names are {shown(names, 8)}"
