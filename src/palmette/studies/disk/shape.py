"""What a line of ``records.jsonl`` holds at least, whoever wrote it: names, and numbers under them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_COUNTS = ("total", "kept", "dead_neurons")
_NETWORK = (*_COUNTS, "density", "pq_index", "gini_index")
_SEARCH = ("score", "error", "start", "repeats", "answer", "good_density", "bad_density")


def check_shapes(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ValueError` unless all that readers take from the records of a run is there, and of its kind."""
    for line in lines:
        _check_shape(line)
    if len({line.get("search") is None for line in lines}) > 1:
        raise ValueError("has rounds with a search and rounds without")


def _check_shape(line: Mapping[str, Any]) -> None:
    if not _is_count(line.get("round")):
        raise ValueError(f"has a line whose round is no whole number, {_shown(line.get('round'))}")
    for name, why in (("stopped", str), ("good", bool)):
        if not isinstance(line.get(name), why | None):
            raise ValueError(f"has {_shown(line[name])} as {name!r} in round {line['round']}")
    _numbers(line, "train")
    _numbers(line, "test", "accuracy")
    if line.get("validation") is not None:
        _numbers(line, "validation")
    if line.get("search") is not None:
        _numbers(line, "search", *_SEARCH)
        for name in ("start", "repeats", "answer"):
            if not (line["search"][name] is None or 0 <= line["search"][name] <= line["round"]):
                raise ValueError(f"has a line whose {name!r} is no earlier round")
        if type(line["search"]["answer"]) is not int:
            raise ValueError(f"has no answer in round {line['round']}")
    _network(line, "retrained", line.get("retrained"))
    pruned, cut, grid = (_mapping(line, name) for name in ("pruned", "cut", "index_map"))
    for name, value in pruned.items():
        _numbers(pruned, name) if isinstance(value, Mapping) else _numbers({name: {name: value}}, name)
    layers = _mapping(line["retrained"], "layers")
    for name, layer in layers.items():
        _network(line, name, layer)
    if not (_is_count(cut.get("weights")) and all(map(_is_count, _mapping(cut, "layers").values()))):
        raise ValueError(f"has no counts of the weights cut in round {line['round']}")
    p, q, index = (grid.get(name) for name in ("p", "q", "pq_index"))
    if not (isinstance(p, list) and isinstance(q, list) and isinstance(index, list) and len(index) == len(p)):
        raise ValueError(f"has no map of the index in round {line['round']}")
    for row in (p, q, *index):
        if not (isinstance(row, list) and all(map(_is_number, row)) and (row is p or len(row) == len(q))):
            raise ValueError(f"has no map of the index in round {line['round']}")


def _network(line: Mapping[str, Any], name: str, found: Any) -> None:
    if not isinstance(found, Mapping):
        raise ValueError(f"has no numbers for {name!r} in round {line['round']}")
    _numbers({name: {key: value for key, value in found.items() if key != "layers"}}, name, *_NETWORK)
    if not (all(_is_count(found[key]) for key in _COUNTS) and found["density"] is not None):
        raise ValueError(f"has no counts for {name!r} in round {line['round']}")


def _mapping(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(found := line.get(name), Mapping):
        raise ValueError(f"has a line without {name!r}")
    return found


def _numbers(line: Mapping[str, Any], name: str, *needed: str) -> None:
    found = _mapping(line, name)
    if missing := [key for key in needed if key not in found]:
        raise ValueError(f"has a line without {missing[0]!r} in {name!r}")
    if wrong := [key for key, value in found.items() if not _is_number(value)]:
        raise ValueError(f"has {_shown(found[wrong[0]])} as {wrong[0]!r} in {name!r}, which is no number")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_number(value: object) -> bool:
    """Whether a value is a finite number, or None where it is undefined."""
    if type(value) is int:
        return -(1 << 63) < value < 1 << 63
    return value is None or (type(value) is float and math.isfinite(value))


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Mapping | list | str) else repr(value)[:40]
