"""A named data set: how it is read, where it is looked for, and what to download."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from palmette.training.data.images import Images


@dataclass(frozen=True)
class Download:
    """A file of a release: its address, and the MD5 that its publisher gives."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DataSet:
    """An entry of `palmette.training.data.DATA_SETS`."""

    name: str
    read: Callable[[Path], Images]  # from the folder of the set
    sha256: str = ""  # `Images.sha256` of the official release
    folders: tuple[str, ...] = ()  # possible names; downloads go to the first; none for a bundled set
    markers: tuple[str, ...] = ()  # files or folders, one of which identifies the folder of the set
    system_folders: tuple[str, ...] = ()  # where packages of an operating system install the set
    install: str = ""  # how to install such a package
    downloads: tuple[Download, ...] = ()  # one archive, or all files of the set

    def load(self, folder: str | Path | None = None) -> Images:
        """Find the set, in `folder` first, and read it."""
        return self.read(self.find(folder))

    def find(self, folder: str | Path | None = None) -> Path:
        """First folder that holds the set; `FileNotFoundError` lists the places searched."""
        if not self.folders:
            return Path(__file__).parent
        if found := next(filter(self.is_in, self._candidates(folder)), None):
            return found
        bases = dict.fromkeys((download_folder(folder), download_folder(), cache_folder()))
        searched = ", ".join(repr(str(path)) for path in (*bases, *self.system_folders))
        unset = "" if os.environ.get("PALMETTE_DATA") else " ($PALMETTE_DATA is not set)"
        ways = [f"`palmette data get {self.name}`", *([self.install] if self.install else [])]
        raise FileNotFoundError(
            f"{self.name} was not found; looked in {searched}{unset} for a folder {' or '.join(self.folders)} "
            f"with {' or '.join(self.markers)}; to get it: {' or '.join(ways)}"
        )

    def is_in(self, folder: Path) -> bool:
        """Whether one of the markers is in `folder`."""
        return any((folder / marker).exists() for marker in self.markers)

    def _candidates(self, folder: str | Path | None) -> Iterator[Path]:
        if folder is not None:
            yield from (Path(folder).expanduser() / name for name in self.folders)
            # Only an explicit folder may be the set itself: elsewhere, MNIST would pass for FashionMNIST.
            yield Path(folder).expanduser()
        for base in dict.fromkeys((download_folder(), cache_folder())):
            yield from (base / name for name in self.folders)
        yield from map(Path, self.system_folders)


def download_folder(folder: str | Path | None = None) -> Path:
    """Folder for downloads: `folder`, or `$PALMETTE_DATA`, or the cache folder."""
    if folder is None:
        folder = os.environ.get("PALMETTE_DATA") or cache_folder()
    return Path(folder).expanduser()


def cache_folder() -> Path:
    """Palmette's folder in the platform's folder for caches."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "palmette"
