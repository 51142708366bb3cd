"""Open a checkpoint without the model's code: tensors by name, read in parts when they are needed.

`open_checkpoint` reads headers only, the first rows of tensors that have a mask file, and all of a file that has a
seal. A packed file of `palmette.save` is loaded as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from palmette.checkpoints import hub
from palmette.checkpoints.formats import arrays, gguf, onnx, pickles, safetensors, sharded
from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.naming import sort_out
from palmette.checkpoints.read_errors import check_downloaded, readable
from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.choosing.names import gain_of
from palmette.pruning.masks import MASKS_SUFFIX
from palmette.pruning.sources.stored import StoredWeight

WEIGHT_READERS: dict[str, Callable[[Path], Contents]] = {
    ".safetensors": safetensors.read,
    ".index.json": sharded.read,
    ".pt": pickles.read,
    ".pth": pickles.read,
    ".th": pickles.read,
    ".bin": pickles.read,
    ".ckpt": pickles.read,
    ".onnx": onnx.read,
    ".gguf": gguf.read,
}
"""Formats of weights: suffix -> reader. A new format is a new file in `formats` and a line here."""
READERS = WEIGHT_READERS | {".npy": arrays.read_npy, ".npz": arrays.read_npz}
SUFFIXES = tuple(suffix for suffix in READERS if suffix != ".index.json")
FOLDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of a Transformers folder, in the order in which Transformers looks for them."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a file, a folder or a Hub repository.

    Args:
        path: the file or folder; text, such as "hf://org/model", for the Hub.
        weights: the tensors to prune.
        others: the other tensors, copied when a pruned checkpoint is written.
        left_out: everything that is not pruned, each with a reason.
        aliases: second names of a tensor -> its first name.
        vectors: True for plain numbers, which are no layers.
    """

    path: Path | str
    weights: tuple[StoredWeight, ...]
    others: tuple[StoredWeight, ...]
    left_out: tuple[LeftOut, ...]
    aliases: Mapping[str, str]
    vectors: bool

    @property
    def title(self) -> str:
        """Name without folders; for the Hub, organization and model."""
        return self.path.removeprefix(hub.SCHEME) if isinstance(self.path, str) else self.path.absolute().name

    @property
    def tensors(self) -> list[StoredWeight]:
        """All tensors in writing order: wide dtypes first, so that each starts at a multiple of its width."""
        return sorted((*self.weights, *self.others), key=lambda t: -t.dtype.itemsize)


def open_checkpoint(
    path: str | Path, *, include: Iterable[str] | None = None, exclude: Iterable[str] = ()
) -> Checkpoint:
    """Open a file, a folder or a Hub repository, and separate prunable weights from other tensors.

    Args:
        path: a file with one of the `SUFFIXES`, a folder of Transformers, or ``hf://org/model[/file][@revision]``.
        include, exclude: patterns of names, see `palmette.prunable`.

    >>> import palmette
    >>> found = open_checkpoint(Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors")
    >>> [(w.name, w.shape) for w in found.weights]
    [('head.weight', (10, 256)), ('layer1.weight', (128, 64)), ('layer2.weight', (256, 128))]
    """
    contents: Contents
    if hub.is_address(path):
        path = hub.address(path)
        place = hub.Place.of(path)
        with readable(path):
            contents = hub.read(place)
    else:
        path = Path(path)
        file = _main_file(path)
        with readable(path):
            check_downloaded(file)
            contents = READERS[_suffix(file)](file)
    if contents.vectors and not any(t.entries for t in contents.tensors):
        raise ValueError(f"{str(path)!r} holds no numbers")
    if not contents.vectors:
        contents = _joined_with_gains(_joined_with_masks(_with_plain_names(contents)))
    weights, left_out = sort_out(contents, include=include, exclude=exclude, what=repr(str(path)))
    chosen = {w.name for w in weights}
    others = tuple(t for t in contents.tensors if t.name not in chosen)
    return Checkpoint(path, tuple(weights), others, tuple(left_out), contents.aliases, contents.vectors)


def _main_file(path: Path) -> Path:
    """The file to open: `path` itself, or the weights of a folder."""
    if path.is_dir():
        found = [path / name for name in FOLDER if (path / name).is_file()]
        found = found or sorted(path.glob("*.safetensors")) or sorted(p for p in path.iterdir() if _suffix(p))
        found = [file for file in found if not file.name.endswith(MASKS_SUFFIX)]
        if not found:
            raise FileNotFoundError(
                f"{str(path)!r} is a folder without weights; it has none of {', '.join(FOLDER)}"
            )
        if len(found) > 1 and found[0].name not in FOLDER:
            names = ", ".join(file.name for file in found[:4]) + (", …" if len(found) > 4 else "")
            raise ValueError(f"{str(path)!r} is a folder of several files; choose one of {names}")
        return found[0]
    if not path.is_file():
        raise FileNotFoundError(f"no file at {str(path)!r}; `palmette measure example` shows a report")
    if not _suffix(path):
        raise ValueError(f"palmette reads {', '.join(SUFFIXES)} and folders of Transformers, got {str(path)!r}")
    if path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty")
    return path


def _suffix(path: Path) -> str:
    """The key of `READERS` for a file; empty where there is none."""
    suffix = ".index.json" if path.name.endswith(".index.json") else path.suffix.lower()
    return suffix if suffix in READERS else ""


def _with_plain_names(contents: Contents) -> Contents:
    """Names without the prefixes that DataParallel and `torch.compile` put before all of them."""
    common = os.path.commonprefix([t.name for t in contents.tensors])  # noqa: RUF071, of letters
    found = re.match(r"(module\.|_orig_mod\.)*", common)
    prefix = found[0] if found else ""
    tensors = [replace(t, name=t.name.removeprefix(prefix)) for t in contents.tensors]
    aliases = {a.removeprefix(prefix): n.removeprefix(prefix) for a, n in contents.aliases.items()}
    return replace(contents, tensors=tensors, aliases=aliases)


def _joined_with_masks(contents: Contents) -> Contents:
    """Each `weight_orig` and `weight_mask` of `torch.nn.utils.prune` as one partly pruned weight."""
    by_name = {t.name: t for t in contents.tensors}  # a file may hold two tensors of one name
    joined = []
    for tensor in contents.tensors:
        base = tensor.name.removesuffix("_orig")
        mask = by_name.get(base + "_mask")
        if base != tensor.name and mask is not None and mask.shape == tensor.shape:
            joined.append(replace(tensor, name=base, kept=_nonzero(mask.read)))
        elif not (tensor.name.endswith("_mask") and tensor.name.removesuffix("_mask") + "_orig" in by_name):
            joined.append(tensor)
    names = {t.name for t in joined}
    aliases = {a: n for a, n in contents.aliases.items() if a in names and n in names}
    return replace(contents, tensors=joined, aliases=aliases)


def _joined_with_gains(contents: Contents) -> Contents:
    """Each direction of weight norm with its gain, which has a number for each norm, or one for all."""
    by_name = {t.name: t for t in contents.tensors}

    def joined(of: StoredWeight) -> StoredWeight:
        name = gain_of(of.name)
        if not name or name not in by_name:
            return of
        sizes = (gain := by_name[name]).shape
        fits = not sizes or (len(sizes) == len(of.shape) and all(map(lambda n, m: n in (1, m), sizes, of.shape)))
        return replace(of, gain=gain) if fits else of

    return replace(contents, tensors=[joined(t) for t in contents.tensors])


def _nonzero(read: Callable[[int, int], Tensor]) -> Callable[[int, int], Tensor]:
    return lambda first, last: read(first, last) != 0
