"""Data sets as tensors: `load` reads a named one, or a user's own images.

>>> load("digits")
Images(digits: 1,500 training and 297 test images of 1×8×8 in 10 classes)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.training.lazy_table import LazyTable
from palmette.words import did_you_mean

if TYPE_CHECKING:
    from palmette.training.data.data_set import DataSet
    from palmette.training.data.images import Images

DATA_SETS: Mapping[str, DataSet] = LazyTable(
    __name__,
    {
        "digits": "digits:DIGITS",
        "MNIST": "idx:MNIST",
        "FashionMNIST": "idx:FASHION_MNIST",
        "CIFAR10": "cifar:CIFAR10",
        "CIFAR100": "cifar:CIFAR100",
        "TinyImageNet": "tiny_imagenet:TINY_IMAGENET",
    },
)
"""Name -> data set, imported on first use."""


def canonical(name: str) -> str | None:
    """Name in `DATA_SETS` that equals `name` but for case, hyphens and underscores, or None."""
    plain = {known.lower(): known for known in DATA_SETS}
    return plain.get(name.lower().replace("-", "").replace("_", ""))


def load(name_or_path: str | Path | tuple[Any, Any], *, folder: str | Path | None = None) -> Images:
    """Read a data set by its name, or a user's own.

    That is the path of an `.npz` file or a folder of pictures; two map-style data sets of PyTorch, for training
    and test; or ``"module:name"`` of these two or of a function that returns them.

    A named set is looked for in `folder`, in `$PALMETTE_DATA`, in the platform's cache folder and among the
    operating system's packages. Nothing is downloaded.
    """
    from palmette.training.data.map_style import read_named, read_pair

    if not isinstance(name_or_path, str | Path):
        return read_pair(name_or_path)
    name = canonical(name_or_path) if isinstance(name_or_path, str) else None
    if name is not None:
        return DATA_SETS[name].load(folder)
    from palmette.training.data.user_images import read_folder, read_npz

    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return read_folder(path)
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    names = ", ".join(DATA_SETS)
    if path.exists():
        raise ValueError(
            f"a data set is one of {names}, a folder, an .npz file or module:name, got {str(name_or_path)!r}"
        )
    if isinstance(name_or_path, str) and re.fullmatch(r"[\w.]+:[\w.]+", name_or_path):
        return read_named(name_or_path)
    hint = did_you_mean(str(name_or_path), DATA_SETS)
    raise FileNotFoundError(
        f"no data set is called {str(name_or_path)!r} ({names} are), and no such path exists{hint}"
    )
