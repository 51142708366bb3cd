"""Tell the weights to prune by their names and shapes alone, since the model's code is not available.

The rule follows `palmette.prunable`: weights of Linear and convolution layers and the projections of attention;
never biases, norms or embeddings, nor an output layer that is tied to an embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from palmette.checkpoints.compressibility import NO_FLOATS, LeftOut
from palmette.checkpoints.formats.contents import Contents
from palmette.errors import NothingToPrune
from palmette.pruning.sources.stored import StoredWeight
from palmette.pruning.weights import as_patterns, check_patterns, matches

# Attributes of PyTorch's layers that hold prunable weights.
_WEIGHTS = ("weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
# embed_tokens, word_embeddings, tok_embeddings, token_embd, wte, wpe, T5's shared; but embed_out is a Linear.
_EMBEDDING = re.compile(
    r"(embed(ding)?s?|embd|emb|wte|wpe|lookup|relative_attention_bias)$|^(embed_(?!out)|shared$)", re.I
)
_NORM = re.compile(r"norm|(^|_)(ln|bn|gn)(_|\d|$)", re.I)
_CONV1D = re.compile(r"(^|\.)(c_attn|c_proj|c_fc|q_attn)\.weight$")


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
    from_torch = any(t.name.rsplit(".", 1)[-1] in _WEIGHTS for t in contents.tensors)
    cannot = {t.name: _cannot(t, contents.vectors) for t in contents.tensors}
    why = dict(cannot)
    if not contents.vectors:
        why = {t.name: cannot[t.name] or _why_not(t, from_torch, known) for t in contents.tensors}
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
            left_out.append(LeftOut(tensor.name, tensor.shape, reason, tensor.nbytes))
        else:
            weights.append(replace(tensor, transposed=True) if is_gpt2 and tensor.name in conv1d else tensor)
    if not weights:
        raise NothingToPrune(_nothing(what, left_out, patterns, unwanted))
    return weights, [*left_out, *contents.left_out]


def _cannot(tensor: StoredWeight, vectors: bool) -> str:
    """Why a tensor cannot be pruned (plain numbers: measured), whatever its name; empty if it can."""
    if not (vectors or tensor.dtype.is_floating_point):
        return NO_FLOATS
    if not tensor.entries:
        return "empty"
    return "" if vectors or len(tensor.shape) > 1 else "a vector: bias, norm or statistics"


def _why_not(tensor: StoredWeight, from_torch: bool, known: Mapping[str, str]) -> str:
    if tensor.name in known:
        return known[tensor.name]
    *modules, last = tensor.name.split(".")
    owner = modules[-1] if modules else ""
    if not from_torch:  # other formats name the tensor itself, not an attribute of a layer
        owner = last
        if re.search(r"(^|_)bias$", last):
            return "a bias"
    elif last not in _WEIGHTS:
        return "not the weight of a layer"
    if len(tensor.shape) == 2 and _EMBEDDING.search(owner):
        return "embedding"
    return "norm" if _NORM.search(owner) else ""


def _nothing(what: str, left_out: Sequence[LeftOut], include: list[str] | None, exclude: list[str]) -> str:
    if include is not None or exclude:
        shown = ", ".join(t.name for t in left_out[:8]) + (", …" if len(left_out) > 8 else "")
        return f"nothing is left of {what} with include={include}, exclude={exclude}; the names are {shown}"
    able = [t for t in left_out if t.why in ("embedding", "norm", "a bias", "not the weight of a layer")]
    if not able:
        others = [t.name for t in left_out if len(t.shape) > 1 and t.why == NO_FLOATS]
        shown = (
            f"; {others[0]} is quantised, sparse, expanded or of integers: take the model before that"
            if others
            else ""
        )
        return f"{what} holds no dense floating-point tensor of two or more dimensions by name{shown}"
    shown = ", ".join(f"{t.name} ({t.why})" for t in able[:4]) + (", …" if len(able) > 4 else "")
    return f"{what} holds no weight of a layer; name others with --include (include=), such as {shown}"
