"""Download a data set from its authors: resumable, checked by MD5, and complete or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from palmette.files import sync
from palmette.training.data import DATA_SETS, canonical
from palmette.training.data.data_set import Download, download_folder
from palmette.words import did_you_mean

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes received so far, and their total if the server sends it."""
_RESUME = "run the same command again to resume"
_CHUNK = 1 << 18
_TIMEOUT = 30  # seconds without a byte


def get(name: str, *, folder: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download the data set `name` and return its folder, where `load` finds it.

    It goes into `folder`, or `$PALMETTE_DATA`, or the platform's cache folder. Files that exist are not downloaded
    again, and an interrupted download resumes.
    """
    data_set = DATA_SETS.get(canonical(name) or name)
    if data_set is None or not data_set.downloads:
        names = [known for known in DATA_SETS if DATA_SETS[known].downloads]
        hint = did_you_mean(name, names)
        raise ValueError(f"no data set to download is called {name!r}; there are {', '.join(names)}{hint}")
    target = download_folder(folder) / data_set.folders[0]
    if len(data_set.downloads) > 1:
        for file in data_set.downloads:
            path = target / file.name
            if not (path.exists() or path.with_suffix("").exists()):  # gzipped or plain
                fetch(file, path, progress=progress)
        return target
    (file,) = data_set.downloads
    archive = target.with_name(file.name)
    if data_set.is_in(target):  # a killed process may have left what it was made of
        _partial(archive).unlink(missing_ok=True)
        _remove_scratch(target)
        return target
    if not archive.exists():
        archive = _fetched(file, archive, progress)
    elif (found := _md5(archive)) != file.md5:
        rule = f"must have the published MD5 {file.md5}"
        raise ValueError(f"{str(archive)!r} already existed and {rule}, got {found}; remove it and start again")
    unpack(archive, target)
    archive.unlink(missing_ok=True)
    return target


def fetch(file: Download, path: Path, *, progress: Progress | None = None) -> None:
    """Download one file to `path` by way of `path`.partial, from which a later call resumes."""
    _fetched(file, path, progress).replace(path)
    sync(path.parent)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _fetched(file: Download, path: Path, progress: Progress | None) -> Path:
    """Download one file to `path`.partial, checked and synced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    have = partial.stat().st_size if partial.exists() else 0
    try:
        with _opened(file.url, have) as answer:
            # A server without ranges sends 200 and the whole file.
            have = have if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            need, free = int(length or 0), shutil.disk_usage(path.parent).free
            if free < need:
                raise OSError(f"{str(path.parent)!r} needs {need:,} bytes for {path.name}, {free:,} are free")
            with partial.open("ab" if have else "wb") as output:
                while chunk := answer.read(_CHUNK):
                    output.write(chunk)
                    have += len(chunk)
                    if progress:
                        progress(file.name, have, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # range not satisfiable: the partial file is complete
            kind = FileNotFoundError if error.code in (404, 410) else OSError
            raise kind(f"{file.url} could not be downloaded: {error.code} {error.reason}") from error
        total = have
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        why = getattr(error, "reason", None) or error
        raise ConnectionError(f"{file.url} stopped after {have:,} bytes ({why}); {_RESUME}") from error
    if total is not None and have != total:
        raise ConnectionError(f"{file.url} stopped after {have:,} of {total:,} bytes; {_RESUME}")
    if (found := _md5(partial)) != file.md5:
        partial.unlink()
        rule = f"must have the published MD5 {file.md5}"
        raise ValueError(f"{file.url} {rule}, got {found} from {have:,} bytes; the file was deleted")
    sync(partial)
    return partial


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .zip or .tar.gz that holds one folder, and make that folder `target`."""
    _remove_scratch(target)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
        folder = Path(name)
        try:
            if archive.name.removesuffix(".partial").endswith(".zip"):
                with zipfile.ZipFile(archive) as pack:
                    pack.extractall(folder)
            else:
                with tarfile.open(archive) as pack:
                    pack.extractall(folder, filter="data")  # refuses links and paths that lead outside
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{str(archive)!r} is not a whole archive: {error}") from error
        inside = [path for path in folder.iterdir() if path.is_dir()]
        if len(inside) != 1:
            raise ValueError(f"{str(archive)!r} must hold one folder, got {len(inside)}")
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        if hasattr(os, "sync"):  # one call: a release may have 100,000 files, each of which a power cut may empty
            os.sync()
        try:
            inside[0].replace(target)
        except OSError:
            if not (target.is_dir() and any(target.iterdir())):  # else another process was faster
                raise


def _remove_scratch(target: Path) -> None:
    """Remove the folders in which killed processes have unpacked."""
    for left in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _opened(url: str, have: int) -> HTTPResponse:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"a download must use http or https, got {url!r}")
    headers = {"User-Agent": "palmette", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    if not isinstance(answer, HTTPResponse):
        raise ValueError(f"a download must use http or https, {url!r} led elsewhere")
    return answer
