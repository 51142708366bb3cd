"""Checkpoints on disk, without the model's code: tensors by name, opened one by one and read in parts.

`open_checkpoint` knows .safetensors (single, sharded), PyTorch's .pt and its kin (weights only, never arbitrary
pickle), folders of Transformers, ONNX, GGUF, and .npy, .npz and .csv for plain vectors and matrices. Before a
tensor's `read` is called, headers are read, and the first rows of a tensor that has a mask beside it; all of what
cannot be read in parts: a packed file of `palmette.save`, an old .pt, a .csv.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palmette.checkpoints.compressibility import LeftOut
from palmette.checkpoints.formats import arrays, llama2c, pickles
from palmette.checkpoints.formats import safetensors as shards
from palmette.checkpoints.naming import Contents, sort_out
from palmette.errors import NotFinite, NotReadable, PalmetteError
from palmette.pruning.sources.file import StoredWeight

FOLDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""What a folder of Transformers may have, in the order in which Transformers looks for it."""
_POINTER = b"version https://git-lfs.github.com/"
_CUT_OFF = (
    "incomplete metadata",
    "header length",
    "header too small",
    "central directory",
    "not a ZIP archive",
    "unexpected EOF",
    "reading array header",
    "values to unpack",  # these four of a GGUF
    "index 0 is out of bounds",
    "changing to a larger dtype",
    "cannot reshape array",
    "Invalid argument",  # a place in the file that is not there
)
_ANOTHER_FORMAT = ("header too large", "JSON in header", "magic string", "Cannot parse header", "magic invalid")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file or a folder.

    Args:
        path: where it is.
        weights: those to prune.
        others: the rest of them, to be written along.
        left_out: the rest of them, with a reason each.
        aliases: names of tensors that are another one once more, by name.
        vectors: True for plain numbers, which are no layers.
    """

    path: Path
    weights: tuple[StoredWeight, ...]
    others: tuple[StoredWeight, ...]
    left_out: tuple[LeftOut, ...]
    aliases: Mapping[str, str]
    vectors: bool

    @property
    def tensors(self) -> list[StoredWeight]:
        """All that are written, wide ones first: every one then starts where its dtype may."""
        return sorted((*self.weights, *self.others), key=lambda t: -t.dtype.itemsize)


def open_checkpoint(
    path: str | Path, *, include: Iterable[str] | None = None, exclude: Iterable[str] = ()
) -> Checkpoint:
    """Open a file or a folder, and sort out which of its tensors are weights to prune.

    Args:
        path: the file or folder.
        include, exclude: patterns of names, as `palmette.prunable` has them.

    >>> import palmette
    >>> found = open_checkpoint(Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors")
    >>> [(w.name, w.shape) for w in found.weights]
    [('head.weight', (10, 256)), ('layer1.weight', (128, 64)), ('layer2.weight', (256, 128))]
    """
    path = Path(path)
    file = _main_file(path)
    with readable(path):
        _check_there(file)
        found = _READERS[_kind(file)](file)
    if found.vectors and not any(t.entries for t in found.tensors):
        raise ValueError(f"{str(path)!r} holds no numbers")
    tensors = found.tensors if found.vectors else _joined_with_masks(_without_prefix(found.tensors))
    found = replace(found, tensors=tensors, aliases=_renamed(found, tensors))
    weights, left_out = sort_out(found, include=include, exclude=exclude, what=repr(str(path)))
    chosen = {w.name for w in weights}
    others = tuple(t for t in tensors if t.name not in chosen)
    return Checkpoint(path, tuple(weights), others, tuple(left_out), found.aliases, found.vectors)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns what a reader raises on a broken file into one sentence that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is said below, with the name of the file
            yield
    except NotFinite as error:
        raise NotFinite(f"{str(path)!r} has {error}") from error
    except PalmetteError:  # says all of it itself
        raise
    except ImportError as error:  # of an extra that is not installed
        raise ImportError(f"{str(path)!r} could not be read: {error}") from error
    except Exception as error:  # a broken file can break its reader anywhere
        raise NotReadable(f"{str(path)!r} could not be read: {_why(error, path.suffix)}") from error


def _why(error: Exception, suffix: str) -> str:
    """What a reader raised, as the end of a sentence."""
    from safetensors import SafetensorError

    if pickled := re.search(r"Unsupported global: GLOBAL (\S+)", str(error)):
        return f"it needs {pickled[1]}, and only tensors are loaded; save model.state_dict() in its place"
    if "TorchScript archives" in str(error):
        return "it is a program of TorchScript, and only tensors are loaded; save model.state_dict() in its place"
    if any(words in str(error) for words in _CUT_OFF):
        return "it is damaged, or was cut off when it was copied"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Torch goes on for paragraphs; a KeyError or a struct.error says nothing to a person.
    first = re.split(r"\n|; |(?<=\S)\. ", str(error).strip())[0].rstrip(".")
    told = isinstance(error, ValueError | TypeError | RuntimeError | MemoryError | SafetensorError)
    if first and told and not any(words in first for words in _ANOTHER_FORMAT):
        return first
    return f"its contents are not weights in the {suffix} format"


def _main_file(path: Path) -> Path:
    """The file to open: `path`, or what a folder has of `FOLDER`."""
    if path.is_dir():
        found = [path / name for name in FOLDER if (path / name).is_file()]
        found = found or sorted(path.glob("*.safetensors")) or sorted(p for p in path.iterdir() if _kind(p))
        found = [file for file in found if not file.name.endswith(".masks.safetensors")]
        if not found:
            raise FileNotFoundError(
                f"{str(path)!r} is a folder without weights; it has none of {', '.join(FOLDER)}"
            )
        if len(found) > 1 and found[0].name not in FOLDER:
            names = ", ".join(file.name for file in found[:4]) + (", …" if len(found) > 4 else "")
            raise ValueError(f"{str(path)!r} is a folder of several files; name one of {names}")
        return found[0]
    if not path.is_file():
        raise FileNotFoundError(f"no file at {str(path)!r}; `palmette measure example` shows what comes out")
    if not _kind(path):
        raise ValueError(f"palmette reads {', '.join(SUFFIXES)} and folders of Transformers, got {str(path)!r}")
    if path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty")
    return path


def _check_there(file: Path) -> None:
    """Whoever clones a repository without Git LFS has a few lines of text under the names of large files."""
    with file.open("rb") as handle:
        if handle.read(len(_POINTER)) == _POINTER:
            raise NotReadable(
                f"{str(file)!r} is a pointer of Git LFS, not the file itself; `git lfs pull` gets it"
            )


def _kind(path: Path) -> str:
    """The suffix that says how a file is read; empty for one that is not."""
    suffix = ".index.json" if path.name.endswith(".index.json") else path.suffix.lower()
    return suffix if suffix in _READERS else ""


def _without_prefix(tensors: Sequence[StoredWeight]) -> list[StoredWeight]:
    """Names as the plain model has them, without what DataParallel and `torch.compile` put before all of them."""
    found = list(tensors)
    while prefix := next(
        (p for p in ("module.", "_orig_mod.") if found and all(t.name.startswith(p) for t in found)), ""
    ):
        found = [replace(t, name=t.name.removeprefix(prefix)) for t in found]
    return found


def _renamed(found: Contents, tensors: Sequence[StoredWeight]) -> dict[str, str]:
    """The aliases by the names that `_without_prefix` gave."""
    ending = {t.name for t in tensors}

    def plain(name: str) -> str:
        while name not in ending and "." in name:
            name = name.split(".", 1)[1]
        return name

    return {plain(a): plain(n) for a, n in found.aliases.items() if plain(a) in ending and plain(n) in ending}


def _joined_with_masks(tensors: Sequence[StoredWeight]) -> list[StoredWeight]:
    """`weight_orig` and `weight_mask` of `torch.nn.utils.prune` as one weight, part of which is pruned."""
    by_name = {t.name: t for t in tensors}
    joined = []
    for tensor in tensors:
        base = tensor.name.removesuffix("_orig")
        mask = by_name.get(base + "_mask")
        if base != tensor.name and mask is not None and mask.shape == tensor.shape:
            joined.append(replace(tensor, name=base, kept=_nonzero(mask.read)))
        elif tensor.name.endswith("_mask") and tensor.name.removesuffix("_mask") + "_orig" in by_name:
            continue
        else:
            joined.append(tensor)
    return joined


def _nonzero(read: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    return lambda first, last: read(first, last) != 0


def _onnx(file: Path) -> Contents:
    from palmette.checkpoints.formats.onnx import read

    tensors, embedded, layers = read(file)
    return Contents(tensors, embedded=embedded, layers=layers)


def _gguf(file: Path) -> Contents:
    from palmette.checkpoints.formats.gguf import read

    return Contents(read(file))


def _npz(file: Path) -> Contents:
    tensors, left_out = arrays.read_npz(file)
    return Contents(tensors, left_out=left_out, vectors=True)


def _csv(file: Path) -> Contents:
    try:
        tensors, left_out = arrays.read_csv(file)
    except UnicodeDecodeError as error:
        raise ValueError("its text is not in UTF-8: save it anew in that encoding") from error
    return Contents(tensors, left_out=left_out, vectors=True)


def _pickled(file: Path) -> Contents:
    tensors, aliases, bare = pickles.read(file)
    return Contents(tensors, aliases, vectors=bare)


def _bin(file: Path) -> Contents:
    with file.open("rb") as handle:
        pickled = handle.read(2) in (b"PK", b"\x80\x02")
    found = [] if pickled else llama2c.read(file)
    return Contents(found) if found else _pickled(file)


def _shard(file: Path) -> Sequence[StoredWeight]:
    with readable(file):  # which names the one that is damaged
        _check_there(file)
        return shards.read(file)[0] if file.suffix == ".safetensors" else pickles.read(file, in_parts=True)[0]


def _tied(file: Path, tensors: Sequence[StoredWeight], aliases: Mapping[str, str]) -> Contents:
    """With what config.json beside the file says: an output layer that is tied to the embedding is that one."""
    config = file.parent / "config.json"
    head = next((t.name for t in tensors if t.name.endswith("lm_head.weight")), None)
    if not config.is_file():
        return Contents(tensors, aliases)
    if head is None:
        return Contents(tensors, aliases, unwritten=["lm_head.weight"])
    try:
        said = json.loads(config.read_bytes())
    except ValueError as error:
        raise ValueError("config.json beside it is damaged") from error
    said = said.get("text_config", said) if isinstance(said, dict) else {}
    tied = isinstance(said, dict) and said.get("tie_word_embeddings")
    return Contents(tensors, aliases, embedded=[head] if tied else ())


_READERS: dict[str, Callable[[Path], Contents]] = {
    ".safetensors": lambda file: _tied(file, *shards.read(file)),
    ".index.json": lambda file: _tied(file, shards.read_sharded(file, _shard), {}),
    ".pt": _pickled,
    ".pth": _pickled,
    ".th": _pickled,
    ".bin": _bin,
    ".ckpt": _pickled,
    ".onnx": _onnx,
    ".gguf": _gguf,
    ".npy": lambda file: Contents(arrays.read_npy(file), vectors=True),
    ".npz": _npz,
    ".csv": _csv,
}
SUFFIXES = tuple(suffix for suffix in _READERS if suffix != ".index.json")
