"""Checkpoints on the Hugging Face Hub: headers when they are opened, values by range requests when they are read.

Headers lie in a temporary folder, in sparse files of the full size. Values wider than 16 bits, which `measure`
reads twice, are kept there too; others are not stored.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from palmette.checkpoints.formats import safetensors, sharded
from palmette.checkpoints.formats.contents import Contents
from palmette.checkpoints.formats.raw import Bytes
from palmette.errors import NotReadable, PalmetteError, extra, first_line, reason_of
from palmette.pruning.masks import MASKS_SUFFIX

SCHEME = "hf://"
_FILES = ("model.safetensors", "model.safetensors.index.json")
_LONGEST_HEADER = 10**8
_PARTIAL = 206
_PATIENCE = 60  # seconds without a byte
_OTHERWISE = "`hf download` it, then measure the folder"
_AT_ONCE = 1 << 25  # bytes in one request for a file that is fetched whole


def is_address(path: str | Path) -> bool:
    """Whether `path` is an address on the Hub; a `Path` has lost one slash.

    >>> is_address("hf://org/model"), is_address(Path("hf://org/model")), is_address("hf/model.safetensors")
    (True, True, False)
    """
    return f"{path}/".startswith(SCHEME.removesuffix("/"))


def address(path: str | Path) -> str:
    """The address with both slashes."""
    return SCHEME + str(path).removeprefix("hf:").lstrip("/")


def on_disk(path: str | Path, what: str) -> Path:
    """The path; an address on the Hub is refused for `what`."""
    if is_address(path):
        model = address(path).removeprefix(SCHEME)
        raise ValueError(f"{what} needs files on this machine; `hf download {model.split('@')[0]}` fetches them")
    return Path(path)


@dataclass(frozen=True)
class Place:
    """Parsed Hub address: a repository, a file or folder in it, and a revision.

    >>> Place.of("hf://org/model")
    Place(repository='org/model', inside='', revision=None)
    >>> Place.of("hf://org/model/unet/a.safetensors@v1") == Place.of("hf://org/model@v1/unet/a.safetensors")
    True
    """

    repository: str
    inside: str = ""
    revision: str | None = None

    @staticmethod
    def of(address: str) -> Place:
        """Parse an address; the revision may also follow the repository, as in huggingface_hub."""
        found = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/@]+))?(?:/([^@]*))?(?:@(.+))?", address)
        if found is None or (found[2] and found[4]):
            raise ValueError(f"an address on the Hub is hf://org/model[/file][@revision], got {address!r}")
        return Place(found[1], (found[3] or "").strip("/"), found[2] or found[4])


def read(place: Place) -> Contents:
    """Tensors of a Hub repository; only headers are fetched, except for files of `palmette.save`."""
    repository = Repository(place.repository, place.revision)
    main = _main_file(repository, place.inside)
    folder = PurePosixPath(main).parent
    if (config := str(folder / "config.json")) in repository.names:
        repository.copy(config)
    if not main.endswith(".index.json"):
        return safetensors.read(repository.begin(main), repository.source)
    index = repository.copy(main)
    for shard in dict.fromkeys(sharded.shard_of_each(index).values()):
        if (file := str(folder / shard)) in repository.names:
            repository.begin(file)
    return sharded.read(index, repository.source)


def _main_file(repository: Repository, inside: str) -> str:
    """The file to open: `inside` itself, or the weights of this folder of the repository."""
    if inside in repository.names:
        return inside
    folder = f"{inside}/" if inside else ""
    names = [name.removeprefix(folder) for name in repository.names if name.startswith(folder)]
    if inside and not names:
        raise NotReadable(f"{repository} has no file {inside!r}")
    found = [name for name in _FILES if name in names] or [n for n in names if "/" not in n and _is_read(n)]
    if len(found) > 1 and found[0] not in _FILES:
        listed = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
        raise NotReadable(f"{repository} has several files; name one of {listed} in the address")
    if not found:
        raise NotReadable(f"{repository} has no safetensors file in {folder or 'its main folder'}; {_OTHERWISE}")
    return folder + found[0]


def _is_read(name: str) -> bool:
    return name.endswith(".safetensors") and not name.endswith(MASKS_SUFFIX)


class Repository:
    """A model repository at one commit, so that nothing in it changes while it is read.

    Args:
        name: organization and model.
        revision: branch, tag or commit; the main branch by default.
    """

    def __init__(self, name: str, revision: str | None = None) -> None:
        with extra("hub", "hf:// needs huggingface_hub"):
            from huggingface_hub import HfApi
        self.name, self.revision = name, revision
        api = HfApi()
        self.endpoint = api.endpoint
        with explained(self.endpoint, self.name, self.revision):
            info = api.model_info(name, revision=revision)
        self.commit, self.names = info.sha, [file.rfilename for file in info.siblings or ()]
        self.folder = Path(tempfile.mkdtemp(prefix="palmette-hub-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._tags: dict[str, str] = {}
        self._kept: set[tuple[Path, int, int]] = set()

    def __str__(self) -> str:
        return repr(self.name if self.revision is None else f"{self.name}@{self.revision}")

    def copy(self, name: str) -> Path:
        """Fetch a small file as a whole."""
        file = self._place(name)
        file.write_bytes(self._get(name).content)
        return file

    def begin(self, name: str) -> Path:
        """Fetch the header of a safetensors file, into a sparse file of its size; a packed file as a whole."""
        if not name.endswith(".safetensors"):
            raise NotReadable(f"{name!r} in {self} is not a safetensors file; {_OTHERWISE}")
        first = self._get(name, 0, 8)
        size, start = int(first.headers["Content-Range"].split("/")[-1]), first.content
        if (length := int.from_bytes(start, "little")) <= min(size - 8, _LONGEST_HEADER):
            start += self._get(name, 8, length).content
        file = self._place(name)
        with file.open("wb") as handle:
            handle.write(start)
            if b'"palmette-packed' in start:
                for at in range(len(start), size, _AT_ONCE):
                    handle.write(self._get(name, at, min(_AT_ONCE, size - at)).content)
            handle.truncate(size)
        return file

    def source(self, file: Path, dtype: torch.dtype) -> Bytes:
        """Reader of values in a file that has been begun."""
        return partial(self._keep if dtype.itemsize > 2 else self._bytes, file)

    def _bytes(self, file: Path, start: int, count: int) -> np.ndarray[Any, Any]:
        name = file.relative_to(self.folder).as_posix()
        return np.frombuffer(bytearray(self._get(name, start, count).content if count else b""), np.uint8)

    def _keep(self, file: Path, start: int, count: int) -> np.ndarray[Any, Any]:
        """Bytes that are fetched once, and read from `file` afterwards."""
        if (file, start, count) in self._kept:
            return np.fromfile(file, np.uint8, count, offset=start)
        data = self._bytes(file, start, count)
        try:
            with file.open("r+b") as handle:
                handle.seek(start)
                handle.write(data.data)
        except OSError as error:
            raise NotReadable(
                f"{self} has weights of more than 16 bits, which could not be kept in {str(self.folder)!r}: "
                f"{reason_of(error)}; set TMPDIR to another folder"
            ) from error
        self._kept.add((file, start, count))
        return data

    def _place(self, name: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def _get(self, name: str, start: int | None = None, count: int = 0) -> Any:
        """Response with a whole file, or `count` bytes of it."""
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        url = f"{self.endpoint}/{self.name}/resolve/{self.commit}/{quote(name)}"
        headers = build_hf_headers(library_name="palmette") | {"Accept-Encoding": "identity"}
        if start is not None:
            headers["Range"] = f"bytes={start}-{start + count - 1}"
        with explained(self.endpoint, self.name, self.revision):
            response = http_backoff("GET", url, headers=headers, timeout=_PATIENCE)
            hf_raise_for_status(response)
        if start is not None and response.status_code != _PARTIAL:
            raise NotReadable(f"{self.endpoint} sends whole files only, not parts of {name!r}; {_OTHERWISE}")
        tag = _tag(response)
        if self._tags.setdefault(name, tag) != tag:
            raise NotReadable(f"{name!r} in {self} changed while it was read; measure it again")
        return response


def _tag(response: Any) -> str:
    """Tag of the version of a file; storage behind the Hub may have another."""
    answers = [*response.history, response]
    linked = [tag for answer in answers if (tag := answer.headers.get("X-Linked-ETag"))]
    return str(linked[0] if linked else answers[-1].headers.get("ETag"))


@contextmanager
def explained(
    endpoint: str, name: str, revision: str | None = None, *, kind: type[PalmetteError] = NotReadable
) -> Iterator[None]:
    """Turn errors of the Hub about a model into a `kind` with one sentence."""
    from huggingface_hub import errors

    what = repr(name if revision is None else f"{name}@{revision}")
    try:
        yield
    except errors.GatedRepoError as error:
        raise kind(f"{what} is gated: accept its terms at {endpoint}/{name}, then `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise kind(
            f"{what} is not a model on the Hub, or is private: check the name, or `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise kind(f"{name!r} has no revision {revision!r}") from error
    except errors.HFValidationError as error:
        raise kind(f"{what} cannot be the name of a model: {first_line(error)}") from error
    except errors.OfflineModeIsEnabled as error:
        raise kind(f"{what} is on the Hub, but HF_HUB_OFFLINE is set") from error
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", "an error")
        cure = "`hf auth login` with a token that may do this" if code in (401, 403) else "try again later"
        raise kind(f"{endpoint} answers {code} for {what}; {cure}") from error
    except Exception as error:  # of the network, by a class of whichever HTTP package is used
        raise kind(f"{endpoint} cannot be reached: {first_line(error)}") from error
