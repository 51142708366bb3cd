"""Damage to files: flipped bits, cut ends, spliced parts, extreme lengths, deep nesting, odd JSON."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

LARGEST = 1 << 16  # bytes of a mutated file: larger ones find nothing more, more slowly
_WHOLE = [0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 255, 256, 65535]
_POWERS = [2**bits + more for bits in (15, 16, 31, 32, 40, 60, 63, 64) for more in (-1, 0, 1)]
_EXTREME = [*_WHOLE, *_POWERS, *(-power for power in _POWERS)]
_OPENING = (b"[", b"{", b"(", b"]", b'{"a":', b"a=[", b"\x80", b"\xff", b"a.", b"\x0a\x80\x01", b"2\x86", b"}(")
_ODD: list[Any] = [None, True, -1, 0, 1.5, 1e308, float("nan"), float("inf"), "", "x", "../../x", "\ud800"]
_ODD += [[], {}, [[]], {"a": [1]}, [1] * 200, "x" * 300, "module." * 2000, 10**400, *_POWERS]


def mutated(rng: random.Random, whole: bytes, others: Sequence[bytes]) -> bytes:
    """A copy of a file with one to four pieces of damage; `others` are files to splice from."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        whole = rng.choice(_MUTATIONS)(rng, whole, rng.choice(others))[:LARGEST]
    return whole


def _flip(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    found = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 8)) if found else 0):
        found[_place(rng, found)] ^= 1 << rng.randrange(8)
    return bytes(found)


def _overwrite(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    at, size = _place(rng, whole), rng.choice((1, 2, 4, 8))
    value = rng.choice(_EXTREME) % (1 << 8 * size)
    return whole[:at] + value.to_bytes(size, rng.choice(("little", "big"))) + whole[at + size :]


def _cut(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    return whole[: _place(rng, whole)]


def _delete(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    at = _place(rng, whole)
    return whole[:at] + whole[at + rng.choice((1, 2, 4, 8, 64)) :]


def _splice(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    at, first = _place(rng, whole), _place(rng, other)
    part = other[first : first + rng.choice((1, 4, 16, 64, 1024))]
    return whole[:at] + part + whole[at + rng.choice((0, len(part))) :]


def _repeat(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    at = _place(rng, whole)
    part = whole[at : at + rng.choice((1, 2, 3, 8, 40))]
    return whole[:at] + part * rng.choice((2, 3, 50, 3000)) + whole[at:]


def _nest(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    at = rng.choice((0, _place(rng, whole)))
    return whole[:at] + rng.choice(_OPENING) * rng.choice((10, 200, 20_000)) + whole[at:]


def _number(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    """Replace a number in text."""
    if not (found := list(re.finditer(rb"-?\d+", whole))):
        return _overwrite(rng, whole, other)
    one = rng.choice(found)
    return whole[: one.start()] + str(rng.choice([*_EXTREME, 10**400, -(10**30)])).encode() + whole[one.end() :]


def _value(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    """Replace, remove or wrap a value in JSON, also in one of several lines of it."""
    first, newline, rest = whole.partition(b"\n")
    try:
        root = {"": json.loads(first)}
    except (ValueError, RecursionError):
        return _number(rng, whole, other)
    places = _places(root)
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1:
            holder[key] = rng.choice([holder[key]]) if rng.random() < 0.1 else [holder[key]]
        case _:
            holder[key] = rng.choice(_ODD)
    return json.dumps(root.get("")).encode() + newline + rest


def _places(root: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Every container in JSON with every key or index of it."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [root]
    while waiting and len(found) < 5000:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys if isinstance(one[key], dict | list)]
    return found


def _place(rng: random.Random, whole: bytes | bytearray) -> int:
    """A place, more often near the ends, where headers are."""
    if not whole:
        return 0
    near = rng.choice((len(whole), len(whole), min(len(whole), 128)))
    at = rng.randrange(near)
    return at if rng.random() < 0.8 else len(whole) - 1 - at


_MUTATIONS: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    *(_flip, _flip, _overwrite, _overwrite, _cut, _delete, _splice, _repeat, _nest),
    *(_number, _value, _value),
)
