"""The .bin files of llama2.c: seven integers, then float32 weights in a fixed order, kind by kind.

Karpathy, https://github.com/karpathy/llama2.c, the format of `run.c` (version 0 of its export).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from palmette.checkpoints.formats import pickles
from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.formats.raw import part_of
from palmette.pruning.sources.stored import StoredWeight

_HEADER = 28


def read_bin(file: Path) -> Contents:
    """The tensors of a .bin file: llama2.c's, or PyTorch's where the header of llama2.c does not fit the size."""
    with file.open("rb") as handle:
        pickled = handle.read(2) in (b"PK", b"\x80\x02")
    found = [] if pickled else _tensors(file)
    return Contents(found) if found else pickles.read(file)


def _tensors(file: Path) -> list[StoredWeight]:
    """All tensors, layer by layer; none if the header does not fit the size of the file."""
    if file.stat().st_size < _HEADER:
        return []
    dim, hidden, layers, heads, kv_heads, words, length = np.fromfile(file, "<i4", 7).tolist()
    if min(dim, hidden, layers, heads, kv_heads, length) <= 0 or not words or dim % heads:
        return []
    head = dim // heads
    groups: list[tuple[str, int, tuple[int, ...]]] = [
        ("tok_embeddings.weight", 0, (abs(words), dim)),
        ("layers.{}.attention_norm.weight", layers, (dim,)),
        ("layers.{}.attention.wq.weight", layers, (heads * head, dim)),
        ("layers.{}.attention.wk.weight", layers, (kv_heads * head, dim)),
        ("layers.{}.attention.wv.weight", layers, (kv_heads * head, dim)),
        ("layers.{}.attention.wo.weight", layers, (dim, heads * head)),
        ("layers.{}.ffn_norm.weight", layers, (dim,)),
        ("layers.{}.feed_forward.w1.weight", layers, (hidden, dim)),
        ("layers.{}.feed_forward.w2.weight", layers, (dim, hidden)),
        ("layers.{}.feed_forward.w3.weight", layers, (hidden, dim)),
        ("norm.weight", 0, (dim,)),
        ("freqs_cos", 0, (length, head // 2)),
        ("freqs_sin", 0, (length, head // 2)),
    ]
    if words < 0:  # the output layer is not tied to the embedding
        groups.append(("output.weight", 0, (-words, dim)))
    found, start = [], _HEADER
    for name, count, shape in groups:
        for layer in range(max(1, count)):
            size = 4 * math.prod(shape)
            reader = part_of(file, start, shape, torch.float32)
            found.append(StoredWeight(name.format(layer), shape, torch.float32, reader, size))
            start += size
    return found if start == file.stat().st_size else []
