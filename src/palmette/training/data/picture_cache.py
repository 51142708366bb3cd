"""Pictures of a named data set: decoded once, then read from one file in the cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from palmette.training.data.data_set import cache_folder
from palmette.training.data.download import scratch_folder
from palmette.training.data.pictures import read_pictures


def read_cached(
    name: str, root: Path, train: Sequence[Path], test: Sequence[Path], *, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Read the pictures of both parts as `read_pictures` does, from the cache file of `name` if it is valid.

    The cache is valid while the paths below `root`, sizes and times of all files stay the same. Each name has one
    cache file, which other pictures replace.
    """
    cached = cache_folder() / f"{name}.safetensors"
    fingerprint = _fingerprint(root, [*train, *test])
    if (found := _from_cache(cached, fingerprint)) is not None:
        return found
    pixels = {"train": read_pictures(train, shape=shape), "test": read_pictures(test, shape=shape)}
    with suppress(OSError, SafetensorError):  # without a cache, loading is only slower
        cached.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(cached) as folder:
            save_file(pixels, folder / cached.name, {"fingerprint": fingerprint})
            (folder / cached.name).replace(cached)
    return pixels["train"], pixels["test"]


def _fingerprint(root: Path, paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _from_cache(cached: Path, fingerprint: str) -> tuple[Tensor, Tensor] | None:
    with suppress(SafetensorError, OSError), safe_open(cached, "pt") as file:  # damaged or absent: decode again
        if (file.metadata() or {}).get("fingerprint") == fingerprint:
            return file.get_tensor("train"), file.get_tensor("test")
    return None
