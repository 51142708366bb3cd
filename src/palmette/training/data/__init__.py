"""Data sets as tensors: one reader each, `load` for all of them, also for a user's own images.

>>> load("digits")
Images(digits: 1,500 training and 297 test images of 1×8×8 in 10 classes)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from palmette.training.data.cifar import cifar10, cifar100
from palmette.training.data.digits import digits
from palmette.training.data.folder import read_folder, read_npz
from palmette.training.data.idx import fashion_mnist, mnist
from palmette.training.data.images import Images
from palmette.training.data.split import validation_split
from palmette.training.data.tiny_imagenet import tiny_imagenet

__all__ = ["DATA", "SHA256", "Images", "load", "validation_split"]

# A reader takes the folder to look in first, or None.
DATA: dict[str, Callable[[Path | None], Images]] = {
    "digits": digits,
    "MNIST": mnist,
    "FashionMNIST": fashion_mnist,
    "CIFAR10": cifar10,
    "CIFAR100": cifar100,
    "TinyImageNet": tiny_imagenet,
}

# `Images.sha256` of the official releases, as far as they were at hand.
SHA256: dict[str, str] = {
    "digits": "f33d4f0aeecdc89cb0f329792526f99670fa5d7b2d5d7872f10563c0b3c38513",
    "MNIST": "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
    "FashionMNIST": "ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
    "CIFAR10": "9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df",
}


def canonical(name: str) -> str | None:
    """The name in `DATA` that is meant, whatever its capitals, hyphens and underscores: None if there is none."""
    plain = {known.lower(): known for known in DATA}
    return plain.get(name.lower().replace("-", "").replace("_", ""))


def load(name_or_path: str | Path, *, folder: str | Path | None = None) -> Images:
    """Read a data set by its name, or a user's own by the path of an `.npz` file or a folder of pictures.

    Args:
        name_or_path: a name of `DATA` (capitals and hyphens do not matter), or a path.
        folder: where a named set is looked for first; then in `$PALMETTE_DATA`, the platform's cache folder
            and where the operating system's package puts it. Nothing is ever downloaded here.
    """
    name = canonical(name_or_path) if isinstance(name_or_path, str) else None
    if name is not None:
        return DATA[name](None if folder is None else Path(folder))
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return read_folder(path)
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    names = ", ".join(DATA)
    if path.exists():
        raise ValueError(f"a data set is one of {names}, a folder or an .npz file, got {str(name_or_path)!r}")
    raise FileNotFoundError(f"no data set is called {str(name_or_path)!r} ({names} are), nor is there such a path")
