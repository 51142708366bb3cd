"""Numbers, settings and tables as text for readers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any


def counted(count: int, one: str) -> str:
    """A count with its noun.

    >>> counted(1, "run"), counted(0, "run"), counted(1200, "layer")
    ('1 run', '0 runs', '1,200 layers')
    """
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Question at the end of an error about an unknown name; empty where no known name is near.

    >>> did_you_mean("sapp", ["sap", "one-shot"]), did_you_mean("x", ["sap"])
    ("; did you mean 'sap'?", '')
    """
    names = {name.lower().replace("-", "_"): name for name in known}
    near = difflib.get_close_matches(given.lower().replace("-", "_"), names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def in_percent(fraction: float, reference: float) -> str:
    """Percent with the digits of `reference`: one decimal, or two significant digits below 1 %.

    >>> in_percent(0.255, 0.255), in_percent(0.00126, 0.00126), in_percent(0.1, 0.00126)
    ('25.5', '0.13', '10.00')
    """
    digits = 1 if reference >= 0.01 or reference <= 0 else 1 - math.floor(math.log10(100 * reference))
    return f"{100 * fraction:.{digits}f}"


def signed(value: float, *, scale: float = 100, digits: int = 2) -> str:
    """A difference with its sign, in points by default; empty for NaN.

    >>> signed(-0.0012), signed(0.026, scale=1, digits=3), signed(math.nan)
    ('−0.12', '+0.026', '')
    """
    return "" if math.isnan(value) else f"{scale * value:+.{digits}f}".replace("-", "−")


def mean_and_sd(mean: float, sd: float, *, scale: float = 100, digits: int = 2) -> str:
    """Mean ± standard deviation, in percent by default; the mean alone without a deviation, empty for NaN.

    >>> mean_and_sd(0.5, 0.25), mean_and_sd(0.5, math.nan), mean_and_sd(math.nan, math.nan)
    ('50.00 ± 25.00', '50.00', '')
    """
    if math.isnan(mean):
        return ""
    return f"{scale * mean:.{digits}f}" + ("" if math.isnan(sd) else f" ± {scale * sd:.{digits}f}")


def duration(seconds: float) -> str:
    """Duration in its two largest units.

    >>> duration(3.4), duration(83), duration(7260), duration(90 * 3600)
    ('3 s', '1 min 23 s', '2 h 1 min', '3 d 18 h')
    """
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2])


def size(count: int) -> str:
    """Number of bytes with a unit.

    >>> size(999), size(298_140), size(3_600_000)
    ('999 bytes', '298 kB', '3.6 MB')
    """
    for least, unit, digits in ((1e9, "GB", 1), (1e6, "MB", 1), (1e3, "kB", 0)):
        if count >= least:
            return f"{count / least:.{digits}f} {unit}"
    return f"{count} bytes"


def measured(value: float | None) -> str:
    """A measure of sparsity, to four digits.

    >>> measured(0.25), measured(None)
    ('0.2500', 'none')
    """
    return "none" if value is None else f"{value:.4f}"


def setting(value: Any) -> str:
    """Value of a setting; None, which is NaN in a column of numbers, is "none".

    >>> setting(3.0), setting(None), setting("layer")
    ('3', 'none', 'layer')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row: the first column left-aligned, the others right-aligned.

    >>> aligned([("", "before", "after"), ("fc.weight", "100", "10")])
    ['           before  after', 'fc.weight     100     10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
