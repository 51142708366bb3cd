"""Pickle files restricted to numbers, strings, bytes, lists, dicts and numpy arrays of numbers."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from palmette.checkpoints.formats.inert import Call, Name, read_inert

_MAKE_ARRAY = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_NAMES = {*_MAKE_ARRAY, "numpy.ndarray", "numpy.dtype", "_codecs.encode"}


def load_plain(path: Path) -> Any:
    """Load a pickle file of plain data: a value, or a dict of values; `ValueError` names anything else in it.

    Nothing is called: the arrays that it describes are made here. Strings of Python 2 are loaded as bytes.
    """
    try:
        found = read_inert(BytesIO(path.read_bytes()), _why_not)
        return {key: _value(one) for key, one in found.items()} if isinstance(found, dict) else _value(found)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{str(path)!r} is not a pickle of plain data: {error}") from error


def _why_not(name: str) -> str:
    return "" if name in _NAMES else f"it asks for {name}, which is not an array, list, dict, string or bytes"


def _value(found: Any) -> Any:
    if not isinstance(found, Call | Name):
        return found
    if not (
        isinstance(found, Call)
        and found.name in _MAKE_ARRAY
        and found.args[:1] == (Name("numpy.ndarray"),)
        and isinstance(found.state, tuple)
        and len(found.state) == 5
    ):
        raise ValueError("only a plain numpy array can be made")
    _, shape, kind, by_columns, content = found.state
    code = kind.args[0] if isinstance(kind, Call) and kind.name == "numpy.dtype" and kind.args else None
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    if not (isinstance(text, str) and text[:1] in tuple("biuf") and text[1:] in tuple("1248")):
        what = text if isinstance(text, str) else type(text).__name__
        raise ValueError(f"an array in it has the type {what!r}, only numbers are allowed")
    swapped = isinstance(kind.state, tuple) and kind.state[1:2] in ((">",), (b">",))
    array = np.frombuffer(content, np.dtype(text).newbyteorder(">" if swapped else "<"))
    return array.reshape(shape, order="F" if by_columns else "C")  # not a copy: a pickle may name it many times
