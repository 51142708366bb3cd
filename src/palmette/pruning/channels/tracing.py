"""Trace a model as `torch.export` sees it, with the settings under which its outputs can be compared."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph
from torch.utils._pytree import tree_leaves, tree_map

from palmette.errors import in_full, in_words, place_of
from palmette.pruning.channels.graph import Walk
from palmette.pruning.weights import evaluating, uncompiled

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def traced(model: nn.Module, inputs: Any) -> tuple[Walk | None, str]:
    """The channels of `model` as example inputs show them; None and the reason where it cannot be traced."""
    model = uncompiled(model)
    with comparable(model):
        return walk_of(model, *arguments_of(model, inputs))


def arguments_of(model: nn.Module, inputs: Any) -> Arguments:
    """Arguments of `model` for a tensor, a tuple of arguments or a dict of keyword arguments."""
    args, kwargs = _called_with(inputs)
    if "use_cache" in inspect.signature(model.forward).parameters:  # Transformers' caches cannot be traced
        kwargs = {"use_cache": False} | kwargs
    return args, kwargs


@contextmanager
def comparable(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, plain kernels and full precision: one model gives one output, and can be traced."""
    with evaluating(model), no_fast_path(), exact(), torch.no_grad():
        yield


def walk_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Walk | None, str]:
    """The channels of the traced model; None and the reason where it cannot be traced."""
    try:
        outputs_of(model, args, kwargs)
    except Exception as error:
        raise ValueError(f"the model fails on the example inputs: {in_full(error)}") from error
    try:
        with _quiet(), _giving_tensors(model):
            program = torch.export.export(model, args, kwargs)
            if not _out_of_place(program.graph):
                program = program.run_decompositions({})  # replaces in-place operations, and views in their wake
    except Exception as error:  # models may do anything that cannot be traced
        said = in_words(error)[:200]
        return None, f"torch.export cannot trace the model{place_of(error)}: {said}"
    return Walk(program, model), ""


def _out_of_place(graph: Graph) -> bool:
    """Replace in-place operations on values that nothing else reads, such as relu_; whether no other is left."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        source, name = node.args[0], schema.name.removeprefix("aten::")
        made = getattr(getattr(source, "target", None), "_schema", None)
        fresh = made is not None and not any(value.alias_info for value in made.returns)
        plain = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
        overload = getattr(plain, schema.overload_name or "default", None)
        if not fresh or len(source.users) > 1 or overload is None:
            return False
        node.target = overload
    return True


@contextmanager
def _giving_tensors(model: nn.Module) -> Iterator[None]:
    """Let `model` return a list of tensors: the tracer does not know every output type, such as dataclasses."""
    own, forward = "forward" in vars(model), model.forward

    @functools.wraps(forward)
    def plain(*args: Any, **kwargs: Any) -> list[Tensor]:
        return tensors_in(forward(*args, **kwargs))

    model.forward = plain
    try:
        yield
    finally:
        if own:
            model.forward = forward
        else:
            del model.forward


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Output tensors of `model` for a tensor, a tuple of arguments or a dict of keyword arguments."""
    args, kwargs = _called_with(inputs)
    return tensors_in(model(*args, **kwargs))


def outputs_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Output tensors of `model`; restores inputs and buffers that it changes in place."""
    given = copied((args, kwargs))
    kept = [
        (module._buffers, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.layout == torch.strided
    ]
    try:
        return tensors_in(model(*given[0], **given[1]))
    finally:
        for buffers, name, buffer, before in kept:
            buffers[name] = buffer if torch.equal(buffer, before) else buffer.copy_(before)


def tensors_in(given: Any) -> list[Tensor]:
    """All tensors in the output of a model, in plain dataclasses too."""
    found: list[Tensor] = []
    for leaf in tree_leaves(given):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf):
            found += tensors_in([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return found


def _called_with(inputs: Any) -> Arguments:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def copied(inputs: Any) -> Any:
    """A copy of the inputs."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)


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
def no_fast_path() -> Iterator[None]:
    """Disable the fast path of PyTorch's transformer layers, which hides their operations."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


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
