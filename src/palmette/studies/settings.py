"""Settings as text: TOML, seeds, stop rules, and names that are safe for files. Imports no torch."""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from dataclasses import Field
from pathlib import Path
from typing import Any, cast

from palmette.measures.parameters import as_number, is_number

_LONGEST = 1 << 14  # a file has forty lines; tomllib takes the square of the length of a key
_KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def typed(field: Field[Any], value: Any) -> object:
    """`value` as the built-in type of the field; "none" is None where the field allows it."""
    name, kind = field.name, float if field.default is None else cast(Any, type(field.default))
    optional = field.default is None or "None" in str(field.type)
    if optional and (value is None or value == "none"):
        return None
    number = kind in (int, float) and not isinstance(value, bool) and is_number(value, whole=kind is int)
    if not (number or (kind in (bool, str) and isinstance(value, kind))):
        raise TypeError(f"{name} must be {_KINDS[kind]}, got {name}={value!r}")
    if kind is float and not math.isfinite(as_number(value)):
        raise ValueError(f"{name} must be finite, got {name}={value!r}")
    if kind is int and not 0 <= value < 2**63:  # range of integers in TOML
        raise ValueError(f"{name} must be at least 0 and below 2**63, got {name}={value!r}")
    if kind is str and any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise ValueError(f"{name} must be text without control characters, got {name}={value!r}")
    return kind(value) + 0 if number else value  # + 0: -0.0 is 0.0


def toml_at(text_or_path: str | Path) -> tuple[str, dict[str, Any]]:
    """Prefix for error messages, and content of a TOML text or file."""
    text, place = str(text_or_path), ""
    try:
        if isinstance(text_or_path, Path) or re.fullmatch(r".*\.toml", text):
            place = f"{text_or_path}: "
            if not Path(text_or_path).is_file():
                raise FileNotFoundError(
                    f"no experiment at {text!r}: a TOML file with settings, such as `epochs = 20`"
                )
            text = Path(text_or_path).read_text(encoding="utf-8-sig")  # some editors write a BOM
        if len(text) > _LONGEST:
            raise ValueError(f"settings take at most {_LONGEST:,} letters of TOML, got {len(text):,}")
        given = tomllib.loads(text)
        repr(given)  # as errors show values: dotted keys nest without recursion
        return place, given
    except RecursionError as error:
        raise ValueError(f"{place}its values are nested too deep") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise placed(place, error) from error


def placed(place: str, error: Exception) -> Exception:
    """Error of the same kind, with the place before its message.

    >>> placed("grid.toml: ", ValueError("p is missing"))
    ValueError('grid.toml: p is missing')
    """
    if isinstance(error, UnicodeDecodeError):
        return ValueError(f"{place}this file is not UTF-8 text; save it as UTF-8")
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{place}{error}")


def seeds(text: str) -> list[int]:
    """Parse seeds from the command line.

    >>> seeds("0..3,7")
    [0, 1, 2, 3, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,99})\s*(?:\.\.\s*([0-9]{1,99})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < 100_000:
            rule = "seeds must be numbers or rising ranges of up to 100,000, such as 0..3,7"
            raise ValueError(f"{rule}, got {part!r} in {text!r}")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def slug(name: str) -> str:
    """Last part of a name or path, in characters that are safe in file names."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()
    return re.sub("[^a-z0-9_]+", "-", last)[-24:].strip("-") or "own"
