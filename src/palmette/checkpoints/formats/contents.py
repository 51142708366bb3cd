"""Result of the reader of a file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PureWindowsPath

from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.sources.stored import StoredWeight


@dataclass(frozen=True)
class Contents:
    """The tensors of a checkpoint file, and what its format says about them.

    Args:
        aliases: second names of a tensor -> its first name.
        embedded: names of embeddings, where the format tells.
        unwritten: names that the model has and the file may lack: an output layer tied to an embedding.
        layers: names of weights of layers, where the format tells.
        vectors: True for plain numbers, all of which are measured.
        left_out: entries that are no tensors, such as a column with gaps, each with a reason.
    """

    tensors: Sequence[StoredWeight]
    aliases: Mapping[str, str] = field(default_factory=dict)
    embedded: Sequence[str] = ()
    unwritten: Sequence[str] = ()
    layers: Sequence[str] = ()
    vectors: bool = False
    left_out: Sequence[LeftOut] = ()


_SHARED = 16


def check_together(tensors: Iterable[StoredWeight], size: int) -> None:
    """Refuse tensors that share bytes so often that reading them takes far longer than `size` bytes should."""
    if (total := sum(t.nbytes for t in tensors)) > _SHARED * size:
        raise ValueError(f"its tensors overlap: {total:,} bytes are more than {_SHARED} times the file")


def is_inside(name: str) -> bool:
    """Whether a path, as a file names it, stays in the folder of that file, on any platform."""
    path = PureWindowsPath(name)  # knows the separators of all
    return bool(path.parts) and not (path.drive or path.root or ".." in path.parts)
