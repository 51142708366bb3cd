"""Kind of a tensor, told by its name and shape: the one rule for files, and for modules of unknown types.

Weights are those of Linear, convolution, recurrent and attention layers, and stacks of experts; never biases,
norms or embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from palmette.pruning.choosing.coverage import CONSTANT, UNKNOWN, VECTOR

# Attributes of PyTorch's layers that hold prunable weights.
_WEIGHTS = re.compile(r"weight|in_proj_weight|[qkv]_proj_weight|weight_(ih|hh|hr)(_l\d+(_reverse)?)?")
# Direction and gain of weight norm: parametrizations.weight.original1 and …original0, weight_v and weight_g.
_DIRECTION = re.compile(r"(?:parametrizations\.)?(weight\w*?)(?:\.original1|_v)$")
# embed_tokens, word_embeddings, tok_embeddings, token_embd, wte, wpe, T5's shared; but embed_out is a Linear.
_EMBEDDING = re.compile(
    r"(embed(ding)?s?|embd|emb|wte|wpe|lookup|relative_attention_bias)$|^(embed_(?!out)|shared$)", re.I
)
# Tables of a module itself, added to its inputs: pos_embed, cls_token, relative_position_bias_table.
_TABLE = re.compile(r"embed|(^|_)(pos(ition(al|s)?)?|place|tokens?)(_|$)", re.I)
_NORM = re.compile(r"norm|(^|_)(ln|bn|gn)(_|\d|$)", re.I)
_CONSTANT = re.compile(r"(^|\.)dfl\.conv\.weight$")  # 0, 1, 2, …: YOLO computes expected distances with it
_STACK = re.compile(r"(^|[._])(experts?|exps|moe)([._]|$)", re.I)
_ONE_EXPERT = re.compile(r"experts?\.\d+\.", re.I)
_BESIDE = re.compile(r"bias|norm|scale", re.I)  # in a stack, next to its weights


def is_layer_weight(name: str) -> bool:
    """Whether PyTorch's layers name their weights like this."""
    return _WEIGHTS.fullmatch(_DIRECTION.sub(r"\1", name).rpartition(".")[2]) is not None


def why_not(name: str, shape: Sequence[int], bias: Sequence[int] = (), *, attributes: bool = True) -> str:
    """Reason why a tensor is no weight to prune; empty if it is one.

    Args:
        name, shape: of the tensor.
        bias: shape of the bias next to it: that of a Linear layer, not of an embedding, counts its outputs.
        attributes: whether names end with the attribute of a layer, as those of PyTorch do.

    >>> why_not("fc.weight", (4, 3)), why_not("embed.weight", (9, 4)), why_not("embed.weight", (9, 4), bias=(9,))
    ('', 'embedding', '')
    """
    if is_stack(name, shape):
        return ""
    if is_constant(name):
        return CONSTANT
    *modules, last = _DIRECTION.sub(r"\1", name).split(".")
    owner = modules[-1] if modules else ""
    if re.search(r"(^|_)bias$", last):
        return "a bias"
    if not attributes:
        owner = last
    elif not is_layer_weight(name):
        return "embedding" if _EMBEDDING.search(owner) or _TABLE.search(last) else UNKNOWN
    if len(shape) > 3 and all(size == 1 for size in shape[:-1]):  # a scale in the shape of an image
        return VECTOR
    if tuple(bias) == tuple(shape):  # a gain for each entry, as in a LayerNorm over several dimensions
        return "norm"
    if len(shape) == 2 and tuple(bias) == (shape[0],):
        return ""
    if len(shape) == 2 and _EMBEDDING.search(owner):
        return "embedding"
    return "norm" if _NORM.search(owner) else ""


def is_constant(name: str) -> bool:
    """Whether a layer with this name computes with fixed numbers.

    >>> is_constant("model.22.dfl.conv.weight")
    True
    """
    return _CONSTANT.search(name) is not None


def is_stack(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor holds one matrix for each expert.

    >>> is_stack("mlp.experts.gate_up_proj", (8, 96, 32)), is_stack("experts.0.conv.weight", (8, 8, 3))
    (True, False)
    """
    beside = _BESIDE.search(name.rpartition(".")[2]) or _ONE_EXPERT.search(name)
    return len(shape) == 3 and _STACK.search(name) is not None and not beside


def inputs_first(name: str, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether the experts of a stack have their inputs along the first axis, as those of Llama 4 and GPT-OSS.

    The shapes tell: `gate_up_proj` has two outputs for each input of `down_proj`.
    """
    prefix = name.rpartition(".")[0]
    up, down = (shapes.get(f"{prefix}.{part}") for part in ("gate_up_proj", "down_proj"))
    return up is not None and down is not None and len(up) == len(down) == 3 and up[2] == 2 * down[1]


def bias_of(name: str, shapes: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """Shape of the bias of the layer that has this weight; empty without one.

    >>> bias_of("up.weight", {"up.weight": (8, 6, 3), "up.bias": (6,)})
    (6,)
    """
    layer, weight, rest = _DIRECTION.sub(r"\1", name).rpartition("weight")
    return shapes.get(f"{layer}bias", ()) if weight and not rest else ()


def transposed_groups(shape: Sequence[int], bias: Sequence[int]) -> int:
    """Groups of a transposed convolution; 0 for other weights, and where no bias of another length tells.

    >>> transposed_groups((8, 6, 3), bias=(6,)), transposed_groups((8, 6, 3), bias=(8,))
    (1, 0)
    """
    if len(shape) < 3 or len(bias) != 1 or bias[0] == shape[0]:
        return 0
    groups, rest = divmod(bias[0], shape[1])
    return 0 if rest or not groups or shape[0] % groups else groups


def gain_of(name: str) -> str:
    """Name that the gain g of a direction v has under weight norm, w = g · v/‖v‖; empty for other names.

    >>> gain_of("fc.weight_v"), gain_of("fc.parametrizations.weight.original1"), gain_of("fc.weight")
    ('fc.weight_g', 'fc.parametrizations.weight.original0', '')
    """
    if not _DIRECTION.search(name):
        return ""
    return f"{name[:-1]}0" if name.endswith("1") else f"{name[:-1]}g"
