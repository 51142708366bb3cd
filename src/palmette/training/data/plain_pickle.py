"""Pickle files restricted to numbers, strings, bytes, lists, dicts and numpy arrays of numbers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np


def load_plain(path: Path) -> Any:
    """Load a pickle file of plain data; `ValueError` names anything else in it.

    A pickle is a program that may call anything. Here it may call three stand-ins, enough to build arrays and
    without attributes that it could change. Strings of Python 2 are loaded as bytes.
    """
    try:
        with path.open("rb") as file:
            return _Plain(file, encoding="bytes").load()
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{str(path)!r} is not a pickle of plain data: {error}") from error


class _EmptyArray:
    """Stand-in for numpy's `_reconstruct`: an empty array, which the pickle then fills."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> np.ndarray[Any, Any]:
        if kind is not _ARRAY:
            raise ValueError("only a plain numpy array can be made")
        return np.empty(0, np.uint8)


class _Number:
    """Stand-in for `numpy.dtype`: types of numbers, never objects or structures."""

    __slots__ = ()

    def __call__(self, code: object, align: object = False, copy: object = False) -> np.dtype[Any]:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not (isinstance(text, str) and text[:1] in tuple("biuf") and text[1:] in tuple("1248")):
            raise ValueError(f"an array in it has the type {text!r}, only numbers are allowed")
        return np.dtype(text)


class _Encode:
    """Stand-in for `_codecs.encode`, with which Python 3 writes bytes in an old pickle protocol."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise ValueError(f"only text can be encoded, as latin1, got {encoding!r}")
        return text.encode("latin1")


_ARRAY = "numpy.ndarray"
_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _EmptyArray(),
    ("numpy._core.multiarray", "_reconstruct"): _EmptyArray(),
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _Number(),
    ("_codecs", "encode"): _Encode(),
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"it asks for {module}.{name}, which is not an array, list, dict, string or bytes")
        return _ALLOWED[module, name]
