"""Seals of files: damage is noticed, and so is a line or a file that is missing, doubled or from elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from palmette.errors import RunDamaged
from palmette.files import explained, sync

_SEAL = re.compile(rb', "seal": "([0-9a-f]{16})"\}$')
_STATE_SEAL = 73  # length of the seal of a state


@dataclass
class LinesRead:
    """Lines of a file.

    Args:
        values: what each line holds, without its seal.
        seals: seal of each line; that of a line without one is the seal that it would have.
        sealed: whether the last line has its seal, which covers all lines before it; True without lines.
    """

    values: list[dict[str, Any]]
    seals: list[str]
    sealed: bool = True


class SealedLines:
    """A file in a run folder with a JSON object per line, which has its seal as the last field.

    A seal is the beginning of the SHA-256 of the seal before it and of the line. The first one begins with
    `settings()`, which ties the file to its run. Lines of earlier versions have no seals.
    """

    def __init__(self, file: Path, settings: Callable[[], bytes], say: Callable[[str], None]) -> None:
        self.file, self._settings, self._say = file, settings, say
        self._end: tuple[int, int, str] | None = None  # size, last round and last seal, after it was last written

    def read(self, *, mend: bool = False) -> LinesRead:
        """Lines without one that is still being written; raise `RunDamaged` if one does not fit its seal.

        With `mend`, a damaged last line is left out.
        """
        found, before = LinesRead([], []), _seal(self._settings())
        try:
            lines = self.file.read_bytes().split(b"\n")[:-1] if self.file.exists() else []
        except OSError as error:
            raise RunDamaged(f"{str(self.file)!r} cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            try:
                match = _SEAL.search(line)
                content = line if match is None else line[: match.start()] + b"}"
                value, seal = _round(content), _seal(before.encode() + content)
                if match is None and ("seal" in value or (found.seals and found.sealed)):
                    raise ValueError("it has no seal")
                if match is not None and match[1].decode() != seal:
                    raise ValueError("it was changed, lines before it are missing, or it belongs to another run")
            except ValueError as error:
                if mend and number == len(lines):
                    break
                raise RunDamaged(
                    f"line {number} of {str(self.file)!r} is damaged: {error}. Restore the file from a copy, or "
                    f"remove {str(self.file.parent)!r} to start the run again"
                ) from error
            found.values.append(value)
            found.seals.append(before := seal)
            found.sealed = match is not None
        return found

    def ends_with(self, round: int) -> bool:
        """Whether the last line is known to be of this round, since this object wrote it."""
        size = self.file.stat().st_size if self.file.exists() else 0
        return self._end is not None and self._end[:2] == (size, round)

    def append(self, round: int, line: bytes) -> None:
        """Append a line of `plain_line`."""
        self.cut_torn()
        with self._writing(len(line)), self.file.open("ab", buffering=0) as opened:
            size, written = opened.seek(0, os.SEEK_END), 0
            before = self._end[2] if self._end is not None and self._end[0] == size else None
            if before is None:
                with suppress(RunDamaged):  # of timings, which then stay damaged
                    before = next(reversed(self.read().seals), None)
            line, seal = self.sealed(line, before)
            try:
                while written < len(line):  # a disk that fills up accepts a part first
                    written += opened.write(line[written:])
                sync(self.file, self.file.parent)
            except BaseException:
                opened.truncate(size)
                raise
        self._end = (size + len(line), round, seal)

    def sealed(self, line: bytes, before: str | None = None) -> tuple[bytes, str]:
        """Line with its seal, and the seal; `before` is the seal of the line before, None for the first."""
        seal = _seal((before or _seal(self._settings())).encode() + line)
        return line[:-1] + f', "seal": "{seal}"}}\n'.encode(), seal

    def cut_torn(self) -> None:
        """Remove a last line that is half-written."""
        content = b"\n" if not self.file.exists() or _ends_a_line(self.file) else self.file.read_bytes()
        if torn := len(content) - (content.rfind(b"\n") + 1):
            self._truncate(len(content) - torn)
            self._say(f"the last line of {str(self.file)!r} was half-written ({torn} bytes) and has been removed")

    def cut_damaged(self) -> None:
        """Remove a last line that is damaged, if all others are sound."""
        content = self.file.read_bytes() if self.file.exists() else b""
        if content.count(b"\n") > len(self.read(mend=True).values):
            self._truncate(content[:-1].rfind(b"\n") + 1)
            self._say(f"the last line of {str(self.file)!r} was damaged and has been replaced")

    def _truncate(self, size: int) -> None:
        with self._writing(0):
            os.truncate(self.file, size)
            sync(self.file)

    def _writing(self, size: int) -> AbstractContextManager[None]:
        return explained(self.file, size, self.file.parent, "run folder")


def plain_line(values: Mapping[str, Any]) -> bytes:
    """Values as a line, before it gets its seal."""
    # A round trip, because only the parser can turn NaN and infinities, which JSON lacks, into null.
    plain = json.loads(json.dumps(dict(values)), parse_constant=lambda _: None)
    return json.dumps(plain, ensure_ascii=False).encode()


def _seal(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _round(line: bytes) -> dict[str, Any]:
    """Values of a line; raise ValueError if they are not of a round."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(value, dict) or "round" not in value:
        raise ValueError("it is not the record of a round")
    return value


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as opened:
        if opened.seek(0, os.SEEK_END):
            opened.seek(-1, os.SEEK_END)
        return opened.read() in (b"", b"\n")


def sealed_state(state: Any, origin: bytes) -> memoryview:
    """File of tensors and plain values, with a SHA-256 of it and its origin: its name, and the settings."""
    import torch  # which reading records does without

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.write(_sealed(buffer.getbuffer(), origin))  # after the archive, where `torch.load` ignores it
    return buffer.getbuffer()


def read_state(file: Path, origin: bytes) -> Any:
    """State in a file of `sealed_state`, on the CPU; None if it is damaged or of another origin."""
    content = b""
    with suppress(OSError):  # an unreadable sector is damage too
        content = file.read_bytes()
    body = memoryview(content)[:-_STATE_SEAL]
    # Earlier versions sealed the content alone.
    earlier = b"\nsha256 %s\n" % hashlib.sha256(body).hexdigest().encode()
    if content[-_STATE_SEAL:] not in (_sealed(body, origin), earlier):
        return None
    import torch

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RunDamaged(f"{str(file)!r} holds more than tensors and plain values") from error


def _sealed(content: memoryview, origin: bytes) -> bytes:
    digest = hashlib.sha256(content)
    digest.update(origin)
    return b"\nsealed %s\n" % digest.hexdigest().encode()


def seal_of_masks(file: Path, *, only_head: bool) -> str | None:
    """Seal of a file of masks; without `only_head`, checked against its bits, which takes torch."""
    if only_head:
        with safe_open(file, "np") as opened:
            return (opened.metadata() or {}).get("sha256")
    from palmette.pruning.masks import check_masks_file

    return check_masks_file(file).get("sha256")
