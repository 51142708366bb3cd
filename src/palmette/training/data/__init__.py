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

# `Images.sha256` of the official releases. CIFAR100 was at hand as PNG files, not as its authors' archive; that of
# TinyImageNet is of what Pillow 13 makes of the JPEG files.
SHA256: dict[str, str] = {
    "digits": "76716b394ca734ff3d2d0a09e359a488decf31baf51ae561cd98919f83f713ea",
    "MNIST": "fbe7fe16df5a24bd38eda4fe87de8afdf53e6140d985c905c64c6d43960e3a67",
    "FashionMNIST": "bc3e2fc8009243b94f20b9de872029872154c40451a7326ef1250968af2e8dfc",
    "CIFAR10": "cb4f9c8a05f08f14b1b9b43b8c6c4b877c55ba9236381e93701e6b47c10942c3",
    "CIFAR100": "cb8e83a53fdb301ed75a357bc37a99a55d7cf0ce1c872500b951af4af0c2e999",
    "TinyImageNet": "5c64fd42c34a36fc5fcea8f4ab9bc611136e03e4422b19a5a7335a0e229f9254",
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
