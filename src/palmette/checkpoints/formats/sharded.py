"""A checkpoint in several files: an ``*.index.json`` of Transformers says which tensor is in which file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from palmette.checkpoints.formats import pickles, safetensors
from palmette.checkpoints.formats.contents import Contents, is_inside
from palmette.checkpoints.formats.raw import from_disk
from palmette.checkpoints.read_errors import check_downloaded, readable
from palmette.pruning.sources.stored import StoredWeight


def read(index: Path, source: safetensors.Source = from_disk) -> Contents:
    """Tensors of all files that the index names; `source` reads the values of safetensors files."""
    where = shard_of_each(index)
    shards = list(dict.fromkeys(where.values()))
    if missing := [name for name in shards if not (index.parent / name).is_file()]:
        raise ValueError(f"{len(missing)} of {len(shards)} shards are missing, such as {missing[0]}")
    # A tensor that the index places in another shard is an outdated copy.
    found = [t for name in shards for t in _shard(index.parent / name, source) if where.get(t.name, name) == name]
    if lost := where.keys() - {t.name for t in found}:
        raise ValueError(f"{min(lost)!r} is in the index and in no shard")
    return safetensors.with_config(index, found)


def shard_of_each(index: Path) -> dict[str, str]:
    """The file of each tensor, by its name, as the index gives it."""
    try:
        where = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
    except (ValueError, AttributeError, RecursionError):
        where = None
    if not (isinstance(where, dict) and all(isinstance(name, str) for name in where.values())):
        raise ValueError(f"{index.name} has no weight_map of files")
    if outside := [name for name in where.values() if not is_inside(name)]:
        raise ValueError(f"it names a shard outside its folder: {outside[0]!r}")
    return {tensor: str(Path(name)) for tensor, name in where.items()}  # "./a" and "a" are one


def _shard(file: Path, source: safetensors.Source) -> Sequence[StoredWeight]:
    with readable(file):  # so that an error names the shard
        check_downloaded(file)
        if file.suffix == ".safetensors":
            return safetensors.tensors_of(file, source)[0]
        return pickles.read(file).tensors
