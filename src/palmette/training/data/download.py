"""Get a data set from its authors: only when asked, resumed where it stopped, whole and checked or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from palmette.training.data.places import PLACES, home, scratch

# Called with the name of the file, the bytes that are there, and of how many if the server says so.
Progress = Callable[[str, int, int | None], None]
_CHUNK = 1 << 18
_PATIENCE = 30  # seconds without a byte


@dataclass(frozen=True)
class Remote:
    """A file of a release: its address and the MD5 that its authors, or those who keep it, published."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_TORONTO = "https://www.cs.toronto.edu/~kriz"

REMOTES: dict[str, tuple[Remote, ...]] = {
    "MNIST": (
        Remote(f"{_MNIST}/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Remote(f"{_MNIST}/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        Remote(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        Remote(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "FashionMNIST": (
        Remote(f"{_FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(f"{_FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Remote(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Remote(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "CIFAR10": (Remote(f"{_TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    "CIFAR100": (Remote(f"{_TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    "TinyImageNet": (
        Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
    ),
}


def get(name: str, *, folder: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download the set `name` and return its folder, one in which `load` finds it.

    It goes into `folder`, or `$PALMETTE_DATA`, or the platform's cache folder. What is there already is not
    downloaded again; what was interrupted goes on where it stopped.
    """
    if name not in REMOTES:
        raise ValueError(f"palmette downloads {', '.join(REMOTES)}, got {name!r}")
    target = home(folder) / PLACES[name].folders[0]
    remotes = REMOTES[name]
    if len(remotes) > 1:
        for remote in remotes:
            path = target / remote.name
            if not (path.exists() or path.with_suffix("").exists()):  # gzipped or plain
                fetch(remote, path, progress=progress)
        return target
    if any((target / mark).exists() for mark in PLACES[name].marks):
        return target
    archive = target.with_name(remotes[0].name)
    if not archive.exists():
        fetch(remotes[0], archive, progress=progress)
    elif (found := _md5(archive)) != remotes[0].md5:
        rule = f"must have the MD5 {remotes[0].md5} that was published"
        raise ValueError(f"{str(archive)!r} was there already and {rule}, got {found}; remove it and start again")
    unpack(archive, target)
    archive.unlink()
    return target


def fetch(remote: Remote, path: Path, *, progress: Progress | None = None) -> None:
    """Download one file to `path`, by way of `path`.partial, which a later call takes up again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    have = partial.stat().st_size if partial.exists() else 0
    try:
        with _opened(remote.url, have) as answer:
            # A server that knows no ranges sends 200 and the file from its beginning.
            have = have if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            _check_room(path, 0 if total is None else total - have)
            with partial.open("ab" if have else "wb") as file:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    if progress:
                        progress(remote.name, have, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # asked for what comes after the end: the partial file is as long as the whole
            kind = FileNotFoundError if error.code in (404, 410) else OSError
            raise kind(f"{remote.url} could not be downloaded: {error.code} {error.reason}") from error
        total = have
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        why = getattr(error, "reason", None) or error
        raise ConnectionError(
            f"{remote.url} stopped after {have:,} bytes ({why}); the same again goes on"
        ) from error
    if total is not None and have != total:
        raise ConnectionError(f"{remote.url} stopped after {have:,} of {total:,} bytes; the same again goes on")
    if (found := _md5(partial)) != remote.md5:
        partial.unlink()
        rule = f"must have the MD5 {remote.md5} that was published"
        raise ValueError(f"{remote.url} {rule}, got {found} from {have:,} bytes; it was thrown away")
    partial.replace(path)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .zip or .tar.gz that holds one folder, which becomes `target`, whole or not at all."""
    with scratch(target) as folder:
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as pack:
                    pack.extractall(folder)
            else:
                with tarfile.open(archive) as pack:
                    pack.extractall(folder, filter="data")  # no link or path that leads outside
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{str(archive)!r} is not a whole archive: {error}") from error
        inside = [path for path in folder.iterdir() if path.is_dir()]
        if len(inside) != 1:
            raise ValueError(f"{str(archive)!r} must hold one folder, got {len(inside)}")
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        inside[0].replace(target)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _opened(url: str, have: int) -> HTTPResponse:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"a download must be by http or https, got {url!r}")
    headers = {"User-Agent": "palmette", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_PATIENCE)
    if not isinstance(answer, HTTPResponse):
        raise ValueError(f"a download must be by http or https, {url!r} led elsewhere")
    return answer


def _check_room(path: Path, need: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise OSError(f"{str(path.parent)!r} needs {need:,} bytes for {path.name}, {free:,} are free")
