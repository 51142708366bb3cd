"""Building blocks of the report's Vega-Lite charts, made with Altair."""

from __future__ import annotations

from typing import Any

from palmette.errors import extra
from palmette.reports.html.series import NUMBERS
from palmette.reports.html.theme import log_axis

HEIGHT = 230
ROUND = "round of pruning"
_COUNTS = {"n": "seeds", "cut": "weights cut"}
_TEXTS = {"series": "method", "seed": "seed", "phase": "phase", "layer": "layer"}


def load_altair() -> Any:
    """Import Altair, or raise with the command that installs it."""
    with extra("report", "the page needs altair"):
        import altair
    return altair


def to_spec(chart: Any) -> dict[str, Any]:
    """Vega-Lite of a chart, without the configuration that all charts of the page share."""
    spec: dict[str, Any] = chart.to_dict()
    for key in ("config", "$schema"):
        spec.pop(key, None)
    return spec


def base(table: str) -> Any:
    """Chart of a table of the page, as wide as its panel."""
    alt = load_altair()
    return alt.Chart(alt.NamedData(name=table), width="container", height=HEIGHT)


def level(value: float) -> Any:
    """Dashed line across a chart at this height."""
    alt = load_altair()
    line = alt.Chart(alt.sequence(0, 1), width="container", height=HEIGHT)
    return line.mark_rule(strokeDash=[6, 4], color="currentColor").encode(y=alt.datum(value))


def log_y(measure: str, form: str) -> Any:
    """Logarithmic y axis, its numbers in the format `form`."""
    alt = load_altair()
    scale = alt.Scale(type="log", nice=False, padding=6)
    return alt.Y(f"{measure}:Q", title=None, scale=scale, axis=alt.Axis(**log_axis("y", form)))


def tooltip(*columns: str) -> list[Any]:
    """Tooltip of these columns, numbers with the titles and formats of `NUMBERS`."""
    alt = load_altair()
    rows = []
    for column in columns:
        name = column.removesuffix("_sd")
        kind, title, form = "Q", _COUNTS.get(column, column), {"format": ",.0f"} if column in _COUNTS else {}
        if name in NUMBERS:
            title, form = NUMBERS[name].title if name == column else "± sd", {"format": NUMBERS[name].form}
        elif column in _TEXTS:
            # Without a format Vega-Lite 6 takes the one of the cell around `hover_points`.
            kind, title, form = "N", _TEXTS[column], {"format": "", "formatType": "toString"}
        rows.append(alt.Tooltip(f"{column}:{kind}", title=title, **form))
    return rows


def hover_points(points: Any, *fields: str) -> Any:
    """Points that show a ring and their tooltip while they are nearest to the pointer."""
    alt = load_altair()
    hover = {"on": "pointerover", "clear": "pointerout", "nearest": True, "empty": False}
    near = alt.selection_point(name="near", fields=list(fields), **hover)
    ring = alt.condition(near, alt.value(1), alt.value(0))
    # Named, because Altair numbers unnamed views and the same runs would give another page.
    return (
        points.mark_point(size=190, strokeWidth=2).encode(opacity=ring).add_params(near).properties(name="points")
    )


def round_axis(last: int, kind: str = "Q") -> Any:
    """X axis of rounds 0 to `last`, as numbers (Q) or as categories (O)."""
    alt = load_altair()
    axis = alt.Axis(values=round_ticks(last), format="d", labelAngle=0, grid=False)
    # Explicit, because a method that ended early would shorten the axis.
    domain = {"domain": [0, max(last, 1)], "nice": False} if kind == "Q" else {"domain": list(range(last + 1))}
    return alt.X(f"round:{kind}", title=ROUND, scale=alt.Scale(**domain), axis=axis)


def round_ticks(last: int) -> list[int]:
    """At most ten rounds from 0 to `last`, both included.

    >>> round_ticks(30), round_ticks(15), round_ticks(17)
    ([0, 5, 10, 15, 20, 25, 30], [0, 3, 6, 9, 12, 15], [0, 3, 6, 9, 12, 15, 17])
    """
    steps = [
        digit * 10**power for power in range(10) for digit in (1, 2, 3, 4, 5) if last <= 8 * digit * 10**power
    ]
    step = next((step for step in steps[:5] if last % step == 0), steps[0])
    return [*range(0, last - step // 2, step), last]  # a tick too close to the last would overlap it
