"""Where a data set is looked for and put, and what to say when it is not there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """How to recognise a data set: names its folder may have, and files of which one must be in it.

    `system` are folders of the operating system's own packages; `package` says how to install one.
    """

    folders: tuple[str, ...]
    marks: tuple[str, ...]
    system: tuple[str, ...] = ()
    package: str = ""


_IDX = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")
_DEBIAN = "/usr/share/datasets/fashion-mnist"

PLACES = {
    "MNIST": Place(("mnist", "MNIST", "MNIST/raw"), _IDX),
    "FashionMNIST": Place(
        ("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
        _IDX,
        system=(_DEBIAN,),
        package="`apt-get install dataset-fashion-mnist` on Debian and Ubuntu",
    ),
    "CIFAR10": Place(
        ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "CIFAR10", "CIFAR-10"),
        ("data_batch_1.bin", "data_batch_1", "train/airplane"),
    ),
    "CIFAR100": Place(
        ("cifar-100-binary", "cifar-100-python", "cifar100", "CIFAR100", "CIFAR-100", "CIFAR-100-dataset"),
        ("train.bin", "meta", "train/apple"),
    ),
    "TinyImageNet": Place(("tiny-imagenet-200", "TinyImageNet"), ("wnids.txt",)),
}


def cache_folder() -> Path:
    """The folder that this platform has for what can be got again, and in it one for palmette."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "palmette"


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder beside `target` for what is to become it.

    What one that was killed has left there is removed; of two that are at it at once, the last to come wins.
    """
    prefix = f".{target.name}-"
    for left in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
        yield Path(folder)


def home(folder: str | Path | None = None) -> Path:
    """Where a download goes: the folder given, or `$PALMETTE_DATA`, or the cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    return Path(os.environ["PALMETTE_DATA"]).expanduser() if os.environ.get("PALMETTE_DATA") else cache_folder()


def candidates(name: str, folder: str | Path | None = None) -> Iterator[Path]:
    """Every folder in which the set `name` is looked for, in this order."""
    place = PLACES[name]
    if folder is not None:
        yield from (Path(folder).expanduser() / sub for sub in place.folders)
        # Only a folder that was named may be the set itself: elsewhere MNIST would pass for FashionMNIST.
        yield Path(folder).expanduser()
    for base in dict.fromkeys((home(), cache_folder())):
        yield from (base / sub for sub in place.folders)
    yield from (Path(path) for path in place.system)


def find(name: str, folder: str | Path | None = None) -> Path:
    """The first folder that holds the set `name`; `FileNotFoundError` says where it was looked for."""
    for path in candidates(name, folder):
        if any((path / mark).exists() for mark in PLACES[name].marks):
            return path
    raise FileNotFoundError(_not_found(name, folder))


def _not_found(name: str, folder: str | Path | None) -> str:
    place = PLACES[name]
    looked = [f"{str(base)!r}" for base in dict.fromkeys((home(folder), home(), cache_folder()))]
    looked += [f"{path!r}" for path in place.system]
    ways = [f"`palmette data get {name}`", *([place.package] if place.package else [])]
    unset = "" if os.environ.get("PALMETTE_DATA") else " ($PALMETTE_DATA is not set)"
    return (
        f"{name} was not found; looked in {', '.join(looked)}{unset} for a folder "
        f"{' or '.join(place.folders)} with {' or '.join(place.marks)}; to get it: {' or '.join(ways)}"
    )
