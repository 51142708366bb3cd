"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row: the first column left-aligned, the others right-aligned.

    >>> aligned([("", "before", "after"), ("fc.weight", "100", "10")])
    ['           before  after', 'fc.weight     100     10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
