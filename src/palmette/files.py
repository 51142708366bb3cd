"""A safetensors file, written whole or not at all."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from palmette.errors import NotWritten


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    if not path.name or os.path.isdir(path):
        raise NotWritten(f"cannot write {str(path)!r}: that is a folder, and not the name of a file")
    if not os.path.isdir(path.parent):
        raise NotWritten(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        save_file(tensors, partial, metadata)
        partial.chmod(mode)  # save_file makes files that nobody else may read
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise NotWritten(f"cannot write {str(path)!r}: {said(error)}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def said(error: BaseException) -> str:
    """What a library raised, as part of a sentence."""
    if isinstance(error, KeyError):
        return f"there is no {error}"
    line = str(getattr(error, "strerror", None) or error).split("\n")[0].rstrip(".")
    return re.sub(r"^.*I/O error: (.*?) \(os error.*$", r"\1", line)
