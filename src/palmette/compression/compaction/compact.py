"""`compact`: remove dead neurons and channels, for a smaller model of the same class with the same outputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from palmette.compression.compaction.rebuild import rebuild
from palmette.compression.flops import flops_of
from palmette.errors import in_full
from palmette.pruning.channels.graph import Removal, plan_removal
from palmette.pruning.channels.tracing import arguments_of, comparable, outputs_of, walk_of
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.weights import is_torch_pruned, uncompiled
from palmette.words import aligned

_Model = TypeVar("_Model", bound=nn.Module)


@dataclass(frozen=True)
class Compaction:
    """Report of `compact`.

    Args:
        layers: name of each weight that became smaller -> its shape before and after.
        parameters: number of entries of all parameters, tied ones once, before and after.
        flops: FLOPs of one pass over the example inputs, before and after.
        notes: sentences about dead channels that stay, and why.
    """

    layers: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    parameters: tuple[int, int]
    flops: tuple[int, int]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        rows = [(name, *("×".join(map(str, shape)) for shape in pair)) for name, pair in self.layers.items()]
        rows = [("", "before", "after"), *rows]
        rows += [(w, *(f"{n:,}" for n in c)) for w, c in (("parameters", self.parameters), ("FLOPs", self.flops))]
        more = [f"… and {len(self.notes) - 6} more notes"] if len(self.notes) > 6 else []
        return "\n".join([*aligned(rows), *self.notes[:6], *more])


def compact(model: _Model, example_inputs: Any) -> tuple[_Model, Compaction]:
    """Remove dead neurons and channels of `model`; return a smaller copy and a report.

    A channel is dead if it has the same value for every input, as after a row of zeros, or if no layer reads it,
    as before a column of zeros. A constant value is added to the biases of the layers that read the channel.
    Channels are followed through Linear layers, convolutions (grouped ones too), batch norms, activations, pools,
    reshapes, sums, concatenations and slices, as `torch.export` traces them. Channels that reach another operation
    stay, and the notes name it.

    The copy is an ordinary model of the same class, with the same names in its `state_dict` and smaller shapes. In
    evaluation mode its outputs equal those of `model` to 1e-5, times the largest output if that is above 1; the
    example inputs and random ones check this. `model` itself is not changed.

    Args:
        model: any module.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.

    >>> import palmette as pm
    >>> model = nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 2))
    >>> _ = model[0].weight.data[:90].zero_()  # 90 of 100 neurons always give relu(bias)
    >>> small, report = pm.compact(model, torch.randn(4, 8))
    >>> print(report)
                before  after
    0.weight     100×8   10×8
    2.weight     2×100   2×10
    parameters   1,102    112
    FLOPs        8,000    800
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("compact needs the original model, got a ScriptModule")
    names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    if any(is_torch_pruned(name, names) for name in names):
        raise ValueError("torch.nn.utils.prune has pruned this model; call pm.from_torch_prune(model) first")
    if meta := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise ValueError(f"the weights must have values, got {meta[0]!r} on the meta device")
    check_whole(dict(model.named_parameters()), "compact")
    inner = uncompiled(model)
    args, kwargs = arguments_of(inner, example_inputs)
    with comparable(inner):
        walk, why = walk_of(inner, args, kwargs)
        before = flops_of(lambda: outputs_of(inner, args, kwargs))
        plan = plan_removal(walk) if walk else None
        if plan is None:
            small, notes = copy.deepcopy(inner), [f"Nothing was removed: {why}"]
        else:
            small, notes = _cut_and_checked(inner, plan, args, kwargs)
        after = flops_of(lambda: outputs_of(small, args, kwargs))
        report = _report(inner, small, (before, after), plan, notes)
    for module, original in zip(small.modules(), inner.modules(), strict=True):
        module.training = original.training
    return small, report  # type: ignore[return-value]


def _cut_and_checked(
    model: nn.Module, plan: Removal, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, list[str]]:
    """Remove everything at once; where that changes the outputs, part by part."""
    inputs, wanted = [(args, kwargs)], outputs_of(model, args, kwargs)
    with suppress(Exception):  # the model may refuse random inputs
        other = tree_map(_random, (args, kwargs))
        wanted += outputs_of(model, *other)
        inputs.append(other)

    def trouble(small: nn.Module) -> str:
        try:
            found = [output for given in inputs for output in outputs_of(small, *given)]
        except Exception as error:  # for example a view to a fixed number of channels
            return in_full(error)[:200]
        same = all(close(a, b) for a, b in zip(wanted, found, strict=True))
        return "" if same else "the outputs are not the same"

    gone, none = plan.gone, torch.zeros_like(plan.gone)
    for keep_sizes in (none, gone):
        small = rebuild(model, plan, gone, keep_sizes)
        if not gone.any() or not trouble(small):
            return small, []
    good, keep_sizes, notes = none, none, []
    for part in plan.parts():
        why = trouble(rebuild(model, plan, good | part, keep_sizes))
        if why and not trouble(rebuild(model, plan, good | part, keep_sizes | part)):
            good, keep_sizes = good | part, keep_sizes | part
        elif why:
            names = [s.names[0] for s in plan.walk.tensors if any(part[atoms].any() for atoms in s.axes.values())]
            splits = [at for parts, at in plan.walk.equal if "(split" in at and any(part[a].any() for a in parts)]
            if splits:
                why = f"{splits[0]} may ask for parts of a fixed size, where chunk takes what there is; {why}"
            notes.append(f"Left alone: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}: {why}")
        else:
            good = good | part
    return rebuild(model, plan, good, keep_sizes), notes


def _random(leaf: Any) -> Any:
    """Random numbers in place of floating-point inputs; integers, such as tokens, stay."""
    return torch.randn_like(leaf) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def close(wanted: Tensor, found: Tensor, tolerance: float | None = None) -> bool:
    """Whether the entries of two outputs differ by at most `tolerance` times the largest.

    The default is 1e-5, times the largest if that is above 1; and 1e-3 times the largest if that is below 0.01:
    small outputs may be sums of larger numbers, with their rounding.
    """
    if wanted.shape != found.shape:
        return False
    if not (wanted.is_floating_point() and wanted.numel()):
        return torch.equal(wanted, found)
    largest = float(wanted.nan_to_num(0, 0, 0).abs().max())
    if tolerance is not None:
        most = tolerance * largest
    else:  # 16-bit numbers do not reach 1e-5
        most = max(1e-5 * max(largest, min(1.0, 100 * largest)), torch.finfo(wanted.dtype).eps * 8 * largest)
    return torch.allclose(wanted.double(), found.double(), rtol=0, atol=most, equal_nan=True)


def _report(
    model: nn.Module, small: nn.Module, flops: tuple[int, int], plan: Removal | None, notes: list[str]
) -> Compaction:
    before, after = dict(model.named_parameters()), dict(small.named_parameters())
    layers = {
        n: (tuple(p.shape), tuple(after[n].shape))
        for n, p in before.items()
        if p.dim() > 1 and p.shape != after[n].shape
    }
    sizes = tuple(sum(p.numel() for p in m.parameters()) for m in (model, small))
    for why, count in (plan.kept if plan else {}).items():
        stay = "channels stay: they reach" if count > 1 else "channel stays: it reaches"
        notes = [*notes, f"{count} dead {stay} {why}"]
    return Compaction(layers, (sizes[0], sizes[1]), flops, tuple(notes))
