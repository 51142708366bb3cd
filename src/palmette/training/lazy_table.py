"""Tables of names whose values are imported on first use, so that listing the names costs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

Value = TypeVar("Value", covariant=True)


class LazyTable(Mapping[str, Value]):
    """Read-only table of objects; `homes` maps their names to ``"module:attribute"`` within `package`.

    >>> table: LazyTable[float] = LazyTable("xml", {"version": "etree.ElementTree:VERSION"})
    >>> "version" in table, list(table), table["version"]
    (True, ['version'], '1.3.0')
    """

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        self._package, self._homes = package, homes

    def __getitem__(self, name: str) -> Value:
        module, _, attribute = self._homes[name].partition(":")
        value: Value = getattr(importlib.import_module(f"{self._package}.{module}"), attribute)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)
