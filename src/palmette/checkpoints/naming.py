"""Tell the weights to prune by their names and shapes alone, since the model's code is not available.

The rule is that of `palmette.prunable`; an output layer that is tied to an embedding is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from palmette.checkpoints.formats.contents import Contents
from palmette.errors import NothingToPrune
from palmette.pruning.choosing.coverage import BUFFER, GAIN, NO_FLOATS, UNKNOWN, VECTOR, LeftOut
from palmette.pruning.choosing.names import (
    bias_of,
    inputs_first,
    is_layer_weight,
    is_stack,
    transposed_groups,
    why_not,
)
from palmette.pruning.choosing.patterns import as_patterns, check_patterns, matches
from palmette.pruning.sources.stored import StoredWeight

_CONV1D = re.compile(r"(^|\.)(c_attn|c_proj|c_fc|q_attn)\.weight$")
_BUFFER = re.compile(r"(^|\.)(running_mean|running_var|num_batches_tracked)$")


def sort_out(
    contents: Contents, *, include: Iterable[str] | None, exclude: Iterable[str], what: str
) -> tuple[list[StoredWeight], list[LeftOut]]:
    """Split the tensors of a file into weights to prune and others, each of which has a reason.

    With `include`, the weights are all floating-point tensors of two or more dimensions whose name matches one of
    its patterns. A pattern matches any name of a tensor, and `unwritten` names too; one that matches nothing is
    refused. `what` names the file in error messages.
    """
    patterns, unwanted = as_patterns(include, exclude)
    known = dict.fromkeys(contents.layers, "") | dict.fromkeys(contents.embedded, "embedding")
    attributes = any(is_layer_weight(t.name) for t in contents.tensors)
    gains = {t.gain.name for t in contents.tensors if t.gain is not None}
    cannot = {t.name: GAIN if t.name in gains else _cannot(t, contents.vectors) for t in contents.tensors}
    why, shapes = dict(cannot), {t.name: t.shape for t in contents.tensors}
    if not contents.vectors:
        for t in contents.tensors:
            rule = known.get(t.name, why_not(t.name, t.shape, bias_of(t.name, shapes), attributes=attributes))
            why[t.name] = cannot[t.name] or rule
    names = {t.name: [t.name] for t in contents.tensors}
    for alias, name in contents.aliases.items():
        names[name].append(alias)
        # An output layer that is also an embedding is not pruned under either name.
        if "embedding" in (why[alias], why[name]):
            why[name] = why[name] or "embedding"
    check_patterns(
        patterns,
        unwanted,
        weights=[name for name in names if not cannot[name]],
        names=[*names, *(t.name for t in contents.left_out), *contents.unwritten],
        what=what,
    )
    # GPT-2's Conv1D stores inputs first, which shows in c_attn: three times as wide as it is tall.
    conv1d = {t.name: t.shape for t in contents.tensors if len(t.shape) == 2 and _CONV1D.search(t.name)}
    is_gpt2 = any("c_attn" in name and wide == 3 * tall for name, (tall, wide) in conv1d.items())
    weights, left_out = [], []
    for tensor in contents.tensors:
        reason = why[tensor.name]
        if patterns is not None:
            reason = cannot[tensor.name] or ("" if matches(names[tensor.name], patterns) else "not included")
        if tensor.name in contents.aliases:
            reason = f"the same as {contents.aliases[tensor.name]}"
        if not reason and matches(names[tensor.name], unwanted):
            reason = "excluded"
        if reason:
            size = 0 if tensor.name in contents.aliases else tensor.nbytes  # counted under the other name
            left_out.append(LeftOut(tensor.name, tensor.shape, reason, size))
        elif is_stack(tensor.name, tensor.shape):
            weights.append(replace(tensor, transposed=inputs_first(tensor.name, shapes), stacked=True))
        elif is_gpt2 and tensor.name in conv1d:
            weights.append(replace(tensor, transposed=True))
        elif tensor.name not in known and (
            groups := transposed_groups(tensor.shape, bias_of(tensor.name, shapes))
        ):
            weights.append(replace(tensor, transposed=True, groups=groups))
        else:
            weights.append(tensor)
    if not weights:
        raise NothingToPrune(_nothing(what, left_out, patterns, unwanted))
    return weights, [*left_out, *contents.left_out]


def _cannot(tensor: StoredWeight, vectors: bool) -> str:
    """Reason why a tensor cannot be pruned (plain numbers: measured), whatever its name; else empty."""
    if not vectors and _is_buffer(tensor):
        return BUFFER
    if not (vectors or tensor.dtype.is_floating_point):
        return NO_FLOATS
    if not tensor.entries:
        return "empty"
    return "" if vectors or len(tensor.shape) > 1 else VECTOR


def _is_buffer(tensor: StoredWeight) -> bool:
    """Whether a tensor is a buffer, not a parameter."""
    if _BUFFER.search(tensor.name) or tensor.dtype in (torch.int64, torch.bool):
        return True
    ones, sides = tensor.shape[:-2], tensor.shape[-2:]  # GPT-2's causal mask is called bias
    return ones == (1, 1) and sides[0] == sides[1] and tensor.name.endswith(".bias")


def _nothing(what: str, left_out: Sequence[LeftOut], include: list[str] | None, exclude: list[str]) -> str:
    if include is not None or exclude:
        shown = ", ".join(t.name for t in left_out[:8]) + (", …" if len(left_out) > 8 else "")
        return f"nothing is left of {what} with include={include}, exclude={exclude}; the names are {shown}"
    able = [t for t in left_out if t.why in ("embedding", "norm", "a bias", UNKNOWN)]
    if not able:
        others = [t.name for t in left_out if len(t.shape) > 1 and t.why in (NO_FLOATS, BUFFER)]
        shown = (
            f"; {others[0]} is quantized, sparse, expanded or integer: use the model from before that step"
            if others
            else ""
        )
        return f"{what} holds no dense floating-point tensor of two or more dimensions by name{shown}"
    shown = ", ".join(f"{t.name} ({t.why})" for t in able[:4]) + (", …" if len(able) > 4 else "")
    return f"{what} holds no weight of a layer; name others with --include (include=), such as {shown}"
