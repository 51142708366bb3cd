"""Prunable parameters of a model, and the axis that counts their neurons."""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import NotFinite, NothingToPrune

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules with outputs along the first axis of their weight, and an optional bias."""
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Weight:
    """A weight and the layout of its neurons.

    Args:
        tensor: the weight itself.
        transposed: False when the first axis counts the neurons, as in Linear and convolutions. True when
            the second does, as in transposed convolutions and in the Conv1D of GPT-2.
        groups: groups of a transposed convolution.
    """

    tensor: Tensor
    transposed: bool = False
    groups: int = 1

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self.tensor.shape

    def rows(self, values: Tensor) -> Tensor:
        """Reshape `values`, in the shape of the weight, to one row per neuron, each in index order."""
        if not self.transposed:
            return values.flatten(1) if values.dim() > 1 else values[:, None]
        block = values.reshape(self.groups, -1, *values.shape[1:]).transpose(1, 2)
        return block.reshape(self.groups * values.shape[1], -1)

    def from_rows(self, matrix: Tensor) -> Tensor:
        """Inverse of `rows`."""
        shape = self.tensor.shape
        if not self.transposed:
            return matrix.reshape(shape)
        block = matrix.reshape(self.groups, shape[1], shape[0] // self.groups, math.prod(shape[2:]))
        return block.transpose(1, 2).reshape(shape)


def prunable(
    model: nn.Module, *, include: Iterable[str] | None = None, exclude: Iterable[str] = ()
) -> dict[str, Weight]:
    """Prunable weights of `model` by name in its `state_dict`; a shared weight has its first name.

    By default these are the weights of Linear, convolution and transposed convolution layers, the
    projections of `nn.MultiheadAttention` and the Conv1D of Transformers, the output layer included. The default
    excludes biases, norms, embeddings, an output layer that shares its weight with an embedding, and weights that
    are quantised or computed from others (`nn.utils.parametrize`, weight norm). A `weight_orig` of
    `torch.nn.utils.prune` is listed as `weight`, its name after conversion.

    Args:
        model: any module; a compiled or wrapped one is unwrapped.
        include: patterns such as ``"encoder.*.weight"`` (as in a shell) that replace the
            default: every parameter with two or more dimensions whose name matches one of them.
        exclude: patterns of names to leave out. Patterns match any name of a shared weight; a pattern without
            a match raises an error.

    >>> list(prunable(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))))
    ['0.weight', '2.weight']
    """
    patterns, left_out = as_patterns(include, exclude)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "FullyShardedDataParallel flattens weights, which hides their neurons; use fully_shard (FSDP2) instead"
        )
    parameters_by_name(model)
    model = uncompiled(model)
    layouts = _layouts(model)
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in _named(model):
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet; run a batch through the model, then prune it")
        names.setdefault(parameter, []).append(name)
    able = {p: aliases for p, aliases in names.items() if p.is_floating_point() and p.numel()}
    check_patterns(
        patterns,
        left_out,
        weights=[name for p, aliases in able.items() if p.dim() >= 2 for name in aliases],
        names=[*(name for aliases in names.values() for name in aliases), *(n for n, _ in model.named_buffers())],
        what=f"the {type(model).__name__}",
    )
    chosen = {}
    for parameter, aliases in able.items():
        layout = layouts.get(parameter)
        wanted = layout is not None if patterns is None else matches(aliases, patterns) and parameter.dim() >= 2
        if wanted and not matches(aliases, left_out):
            chosen[aliases[0]] = Weight(parameter, *(layout or ()))
    if not chosen:
        raise NothingToPrune(_nothing(model, patterns, left_out))
    return chosen


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All names of every parameter, without the `_orig` of `torch.nn.utils.prune`."""
    buffers = {name for name, _ in model.named_buffers()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name.removesuffix("_orig") if is_torch_pruned(name, buffers) else name, parameter


def as_patterns(include: Iterable[str] | None, exclude: Iterable[str]) -> tuple[list[str] | None, list[str]]:
    """`include` and `exclude` as lists; raise, naming the argument, unless both hold strings."""
    return None if include is None else _as_list("include", include), _as_list("exclude", exclude)


def _as_list(argument: str, given: Iterable[str]) -> list[str]:
    found = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if isinstance(given, str) or not all(isinstance(pattern, str) for pattern in found):
        raise TypeError(f"{argument} must be a list of patterns such as ['*.weight'], got {given!r}")
    return found


def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of the names of a weight matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def check_patterns(
    include: list[str] | None, exclude: list[str], *, weights: Sequence[str], names: Sequence[str], what: str
) -> None:
    """Raise, with the nearest names, if a pattern matches nothing, such as one with a typo.

    Args:
        include: patterns that must each match one of `weights`.
        exclude: patterns that must each match one of `names`.
        weights: names of prunable weights; if empty, no pattern raises.
        names: names of all tensors, prunable or not.
        what: the owner of the names, for the error message.
    """
    asked = [("include", pattern, weights) for pattern in include or ()]
    asked += [("exclude", pattern, names) for pattern in exclude]
    for argument, pattern, known in asked:
        if weights and not matches(known, [pattern]):
            near = difflib.get_close_matches(pattern, weights, n=4, cutoff=0)
            shown = (
                f"names are {', '.join(weights)}" if len(weights) <= 8 else f"nearest names are {', '.join(near)}"
            )
            raise NothingToPrune(
                f"{argument} has the pattern {pattern!r}, which matches no weight of {what}; a pattern must match "
                f"the whole name, with * for any part of it; the {shown}"
            )


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


def _layouts(model: nn.Module) -> Mapping[Tensor, tuple[bool, int]]:
    """Layout (transposed, groups) of each parameter that is prunable by default."""
    found: dict[Tensor, tuple[bool, int]] = {}
    embedded: set[Tensor] = set()
    for module in model.modules():
        weight = _own(module, "weight")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            embedded.add(weight)
        elif isinstance(module, nn.MultiheadAttention):
            found |= {w: (False, 1) for w in (_own(module, a) for a in _ATTENTION) if w is not None}
        elif not isinstance(weight, nn.Parameter):
            continue
        elif isinstance(module, LAYERS):
            found[weight] = (False, 1)
        elif isinstance(module, _TRANSPOSED):
            found[weight] = (True, module.groups)
        elif is_transformers_conv1d(module):
            found[weight] = (True, 1)
    return {weight: layout for weight, layout in found.items() if weight not in embedded}


def _own(module: nn.Module, name: str) -> Any:
    """Attribute `name` of a module, or the parameter that `torch.nn.utils.prune` computes it from."""
    pruned = is_torch_pruned(f"{name}_orig", module._buffers)
    return getattr(module, f"{name}_orig" if pruned else name, None)


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


def _nothing(model: nn.Module, include: list[str] | None, exclude: list[str]) -> str:
    names = [n for n, p in _named(model) if p.dim() >= 2]
    if not names:
        return f"the model has nothing to prune: no parameter of {type(model).__name__} has two or more dimensions"
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    if include is None and not exclude:
        return (
            f"the model has nothing to prune: {type(model).__name__} has no Linear, convolution or attention "
            f"weight; choose other weights with include, such as {shown}"
        )
    return f"nothing is left to prune with include={include}, exclude={exclude}; the names are {shown}"


def check_values(name: str, values: Tensor, what: str = "weight") -> None:
    """Raise, naming the parameter, unless `values` are one or more finite floats."""
    check_kind(name, values, what)
    low, high = torch.aminmax(values.detach())  # one pass, no copy; NaN propagates
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise not_finite(name, values, what, int((~torch.isfinite(values.detach())).sum()))


def check_kind(name: str, values: Tensor, what: str) -> None:
    """Raise, naming the parameter, unless `values` are one or more floats."""
    if not (isinstance(values, Tensor) and values.dtype in _DTYPES and values.dim() and values.numel()):
        got = f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
        raise TypeError(
            f"every {what} must be a tensor of one or more dimensions, not empty, in float64, float32, float16 "
            f"or bfloat16, got {got} for {name!r}"
        )
    if values.is_meta:
        raise ValueError(f"every {what} must have values to be ranked, got {name!r} on the meta device")


def not_finite(name: str, values: Tensor, what: str, count: int) -> NotFinite:
    """Error with the number of `values` that are NaN or infinite."""
    return NotFinite(
        f"every {what} must be finite to be ranked, got {count} NaN or infinite in {name!r} "
        f"of shape {tuple(values.shape)}"
    )
