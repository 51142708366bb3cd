"""`compact`: remove dead neurons and channels, for a smaller model of the same class with the same outputs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from palmette.compression.compaction.graph import Removal, Walk, plan_removal
from palmette.compression.compaction.rebuild import rebuild
from palmette.compression.flops import flops_of, no_fast_path
from palmette.errors import in_full, in_words, place_of
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.weights import evaluating, is_torch_pruned, uncompiled
from palmette.text_table import aligned

_Model = TypeVar("_Model", bound=nn.Module)


@dataclasses.dataclass(frozen=True)
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
    """Remove the dead neurons and channels of `model`; return a smaller copy and a report.

    A channel is dead if it is the same number for every input, as after a row of zeros, or if no layer reads it,
    as before a column of zeros. Such a number is added to the biases of the layers that read the channel. Channels
    are followed through Linear layers, convolutions (grouped ones too), batch norms, activations, pools, reshapes,
    sums, concatenations and slices, as `torch.export` traces them. Channels that reach another operation stay, and
    the notes name it.

    The copy is an ordinary model of the same class, with the same names in its `state_dict` and smaller shapes. In
    evaluation mode its outputs equal those of `model` to 1e-5, times the largest output if that is above 1; the
    example inputs and random ones check this. `model` itself is not changed.

    Args:
        model: any module.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.

    >>> model = nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 2))
    >>> _ = model[0].weight.data[:90].zero_()  # 90 of 100 neurons always give relu(bias)
    >>> small, report = compact(model, torch.randn(4, 8))
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
    args, kwargs = _called_with(example_inputs)
    if "use_cache" in inspect.signature(inner.forward).parameters:  # Transformers' caches cannot be traced
        kwargs = {"use_cache": False} | kwargs
    with evaluating(inner), no_fast_path(), exact(), torch.no_grad():
        walk, why = _walk(inner, args, kwargs)
        before = flops_of(lambda: _outputs(inner, args, kwargs))
        plan = plan_removal(walk) if walk else None
        small, notes = (
            (copy.deepcopy(inner), [why]) if plan is None else _cut_and_checked(inner, plan, args, kwargs)
        )
        after = flops_of(lambda: _outputs(small, args, kwargs))
        report = _report(inner, small, (before, after), plan, notes)
    for module, original in zip(small.modules(), inner.modules(), strict=True):
        module.training = original.training
    return small, report  # type: ignore[return-value]


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Output tensors of `model` for a tensor, a tuple of arguments or a dict of keyword arguments."""
    args, kwargs = _called_with(inputs)
    return _tensors(model(*args, **kwargs))


def _tensors(given: Any) -> list[Tensor]:
    """All tensors in the output of a model, in plain dataclasses too."""
    found: list[Tensor] = []
    for leaf in tree_leaves(given):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf):
            found += _tensors([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return found


def _called_with(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _walk(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Walk | None, str]:
    """The channels of the traced model; None and the reason where it cannot be traced."""
    try:
        _outputs(model, args, kwargs)
    except Exception as error:
        raise ValueError(f"the model fails on the example inputs: {in_full(error)}") from error
    try:
        with _quiet(), _giving_tensors(model):
            program = torch.export.export(model, args, kwargs)
            schemas = [getattr(node.target, "_schema", None) for node in program.graph.nodes]
            if any(schema is not None and schema.is_mutable for schema in schemas):
                program = program.run_decompositions({})  # replaces in-place operations
    except Exception as error:  # models may do anything that cannot be traced
        said = in_words(error)[:200]
        return None, f"Nothing was removed: torch.export cannot trace the model{place_of(error)}: {said}"
    return Walk(program, model), ""


@contextmanager
def _giving_tensors(model: nn.Module) -> Iterator[None]:
    """Let `model` return a list of tensors: the tracer does not know every output type, such as dataclasses."""
    own, forward = "forward" in vars(model), model.forward

    @functools.wraps(forward)
    def plain(*args: Any, **kwargs: Any) -> list[Tensor]:
        return _tensors(forward(*args, **kwargs))

    model.forward = plain
    try:
        yield
    finally:
        if own:
            model.forward = forward
        else:
            del model.forward


def _cut_and_checked(
    model: nn.Module, plan: Removal, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, list[str]]:
    """Remove everything at once; where that changes the outputs, part by part."""
    inputs, wanted = [(args, kwargs)], _outputs(model, args, kwargs)
    with suppress(Exception):  # the model may refuse random inputs
        other = tree_map(_random, (args, kwargs))
        wanted += _outputs(model, *other)
        inputs.append(other)

    def trouble(small: nn.Module) -> str:
        try:
            found = [output for given in inputs for output in _outputs(small, *given)]
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


def _outputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Output tensors of `model`; restores inputs and buffers that it changes in place."""
    given = copied((args, kwargs))
    kept = [
        (module._buffers, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.layout == torch.strided
    ]
    try:
        return _tensors(model(*given[0], **given[1]))
    finally:
        for buffers, name, buffer, before in kept:
            buffers[name] = buffer if torch.equal(buffer, before) else buffer.copy_(before)


def copied(inputs: Any) -> Any:
    """A copy of the inputs."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)


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


@contextmanager
def exact() -> Iterator[None]:
    """Full float32 precision: with TF32, the default of GPUs, outputs depend on the sizes of layers."""
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    try:
        before = [backend.allow_tf32 for backend in backends]
    except RuntimeError:  # PyTorch's newer setting is in use, and stays
        yield
        return
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs and prints of the tracer; its errors are reported."""
    disabled = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
