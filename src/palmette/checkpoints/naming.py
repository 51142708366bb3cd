"""Which tensors of a file are weights to prune: by their names and shapes alone, as the model's code is not there.

The rule follows `palmette.prunable`: weights of Linear and convolution layers and the projections of attention;
never biases, norms and embeddings, nor an output layer that shares its weight with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from palmette.checkpoints.compressibility import NO_FLOATS, LeftOut
from palmette.errors import NothingToPrune
from palmette.pruning.sources.file import StoredWeight
from palmette.pruning.weights import as_patterns, check_patterns, matches

# What PyTorch's layers call the weights that are pruned; parameters of another name belong to no such layer.
_WEIGHTS = ("weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
# embed_tokens, word_embeddings, tok_embeddings, token_embd, wte, wpe, T5's shared; but embed_out is a Linear.
_EMBEDDING = re.compile(
    r"(embed(ding)?s?|embd|emb|wte|wpe|lookup|relative_attention_bias)$|^(embed_(?!out)|shared$)", re.I
)
_NORM = re.compile(r"norm|(^|_)(ln|bn|gn)(_|\d|$)", re.I)
_CONV1D = re.compile(r"(^|\.)(c_attn|c_proj|c_fc|q_attn)\.weight$")


@dataclass(frozen=True)
class Contents:
    """What a reader of one format found.

    Args:
        tensors: all of them.
        aliases: names of tensors that are another one once more, by name.
        embedded: names that the format says are embeddings.
        unwritten: names that the model has and the file need not: of an output layer that is tied to an embedding.
        layers: names that the format says are weights of layers.
        vectors: True where every tensor is to be measured: plain numbers.
        left_out: what is there and is no tensor, as a column with gaps, with a reason each.
    """

    tensors: Sequence[StoredWeight]
    aliases: Mapping[str, str] = field(default_factory=dict)
    embedded: Sequence[str] = ()
    unwritten: Sequence[str] = ()
    layers: Sequence[str] = ()
    vectors: bool = False
    left_out: Sequence[LeftOut] = ()


def sort_out(
    found: Contents, *, include: Iterable[str] | None, exclude: Iterable[str], what: str
) -> tuple[list[StoredWeight], list[LeftOut]]:
    """The weights to prune, and the other tensors with a reason each.

    Args:
        found: what the file has.
        include: patterns such as ``"encoder.*.weight"`` that decide in place of the default: every tensor of
            floats with two or more dimensions whose name matches one of them.
        exclude: patterns of names to leave out. A tensor goes by each of its names, those that are `unwritten` may
            be excluded all the same, and a pattern that matches nothing is refused.
        what: what holds the tensors, for the error message.
    """
    patterns, unwanted = as_patterns(include, exclude)
    known = dict.fromkeys(found.layers, "") | dict.fromkeys(found.embedded, "embedding")
    from_torch = any(t.name.rsplit(".", 1)[-1] in _WEIGHTS for t in found.tensors)
    cannot = {t.name: _cannot(t, found.vectors) for t in found.tensors}
    why = {
        t.name: cannot[t.name] or ("" if found.vectors else _why_not(t, from_torch, known)) for t in found.tensors
    }
    called = {t.name: [t.name] for t in found.tensors}
    for alias, name in found.aliases.items():
        called[name].append(alias)
        # A weight that is also an embedding is none to prune under either name.
        if "embedding" in (why[alias], why[name]):
            why[name] = why[name] or "embedding"
    check_patterns(
        patterns,
        unwanted,
        weights=[name for name in called if not cannot[name]],
        names=[*called, *(t.name for t in found.left_out), *found.unwritten],
        what=what,
    )
    # The Conv1D of GPT-2 has its inputs first: three times as wide as it is tall, it shows.
    conv1d = {t.name: t.shape for t in found.tensors if len(t.shape) == 2 and _CONV1D.search(t.name)}
    is_gpt2 = any("c_attn" in name and wide == 3 * tall for name, (tall, wide) in conv1d.items())
    weights, left_out = [], []
    for tensor in found.tensors:
        reason = why[tensor.name]
        if patterns is not None:
            reason = cannot[tensor.name] or ("" if matches(called[tensor.name], patterns) else "not included")
        if tensor.name in found.aliases:
            reason = f"the same as {found.aliases[tensor.name]}"
        if not reason and matches(called[tensor.name], unwanted):
            reason = "excluded"
        if reason:
            left_out.append(LeftOut(tensor.name, tensor.shape, reason, tensor.nbytes))
        else:
            weights.append(replace(tensor, transposed=True) if is_gpt2 and tensor.name in conv1d else tensor)
    if not weights:
        raise NothingToPrune(_nothing(what, left_out, patterns, unwanted))
    return weights, [*left_out, *found.left_out]


def _cannot(tensor: StoredWeight, vectors: bool) -> str:
    """Why a tensor cannot be pruned, or as plain numbers measured, whatever its name."""
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
    if not from_torch:  # the last part of the name may be all that there is
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
        shown = f"; {others[0]} is quantised, sparse or of integers: take the model before that" if others else ""
        return f"{what} holds no dense floating-point tensor of two or more dimensions by name{shown}"
    shown = ", ".join(f"{t.name} ({t.why})" for t in able[:4]) + (", …" if len(able) > 4 else "")
    return f"{what} holds no weight of a layer; name others with --include (include=), such as {shown}"
