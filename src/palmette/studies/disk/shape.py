"""Fields that a line of ``records.jsonl`` holds at least, and the kind of value of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

Kind: TypeAlias = Callable[[Any], bool]
"""Whether a value is of a kind; a value without order may raise TypeError."""


def _number(value: Any) -> bool:
    """A finite number, or None where it is undefined."""
    if type(value) is int:
        return -(1 << 63) < value < 1 << 63
    return value is None or (type(value) is float and math.isfinite(value))


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _fraction(value: Any) -> bool:
    return -1e-6 <= value <= 1 + 1e-6 and _number(value)  # rounded


def _or_none(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


_SCORES = {"accuracy": _or_none(_fraction)}
_NETWORK: dict[str, Kind] = {
    **dict.fromkeys(("total", "kept", "dead_neurons"), _count),
    "density": _fraction,
    **dict.fromkeys(("pq_index", "gini_index"), _or_none(_fraction)),
}
_SEARCH: dict[str, Kind] = dict.fromkeys(("score", "error", "good_density", "bad_density"), _number)
_SEARCH |= {"answer": _count, "start": _or_none(_count), "repeats": _or_none(_count)}
_LINE: dict[str, Kind] = {
    "round": _count,
    "stopped": lambda value: isinstance(value, str | None),
    "good": lambda value: isinstance(value, bool | None),
}


def check_line(line: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless all that readers take from a record is there, of its kind, and possible."""
    try:
        wrong = next(_wrong({"good": None, "search": None, **line}), None)
        whole, layers = line["retrained"]["total"], line["retrained"]["layers"].values()
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"has a line that is not a record: {error!r}") from error
    if wrong is not None:
        raise ValueError(f"has an impossible value in round {_shown(line['round'])}: {wrong}")
    if sum(layer["total"] for layer in layers) != whole:
        raise ValueError(f"lacks a layer in round {line['round']}")


def _wrong(line: Mapping[str, Any]) -> Iterator[str]:
    """Values that are not of their kind, or that no training has."""
    yield from _off({name: line[name] for name in _LINE}, _LINE)
    pruned, cut, search, accuracy = line["pruned"], line["cut"], line["search"], line["test"]["accuracy"]
    for scores in (line["train"], {**line["test"], "accuracy": accuracy}, pruned["test"]):
        yield from _off(scores, _SCORES)
    for scores in (line["validation"], pruned.get("validation")):
        yield from _off({} if scores is None else scores, _SCORES)
    whole, layers = dict(line["retrained"]), line["retrained"]["layers"]
    del whole["layers"]
    for network in (whole, *layers.values()):
        yield from _off(network, _NETWORK, needed=_NETWORK)
    after = {name: value for name, value in pruned.items() if name not in ("test", "validation")}
    yield from _off(after, _NETWORK)
    for network in (whole, {"total": whole["total"], **after}, *layers.values()):
        if network["kept"] > network["total"]:
            yield f"{network['kept']} of {network['total']} weights kept"
    if not (cut["weights"] <= whole["total"] and _count(cut["weights"])):
        yield f"{_shown(cut['weights'])} of {whole['total']} weights cut"
    yield from _off(cut["layers"], dict.fromkeys(cut["layers"], _count), needed=layers)
    if search is not None:
        yield from _off(search, _SEARCH, needed=_SEARCH)
        rounds = {name: search[name] for name in ("answer", "start", "repeats")}
        yield from (f"{name} {t}, a later round" for name, t in rounds.items() if (t or 0) > line["round"])
    p, q, index = (line["index_map"][name] for name in ("p", "q", "pq_index"))
    for row, length in ((p, len(index)), (q, len(q)), *((row, len(q)) for row in index)):
        if not (isinstance(row, list | tuple) and len(row) == length and all(map(_number, row))):
            yield "a map of the index with holes"


def _off(found: Mapping[str, Any], kinds: Mapping[str, Kind], *, needed: Iterable[str] = ()) -> Iterator[str]:
    """Names and values that are not of their kind, which is a number by default; KeyError if one is missing."""
    for name in needed:
        found[name]
    for name, value in found.items():
        if not kinds.get(name, _number)(value):
            yield f"{name} {_shown(value)}"


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Mapping | list | str) else repr(value)[:40]
