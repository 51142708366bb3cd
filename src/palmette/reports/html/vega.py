"""Vega-Lite through Altair: what the charts of the page have in common."""

from __future__ import annotations

from typing import Any

HEIGHT = 230
ROUND = "round of pruning"


def altair_() -> Any:
    """The module, or the line that installs it."""
    try:
        import altair
    except ImportError as error:
        raise ImportError("the page needs altair: pip install 'palmette[report]'") from error
    return altair


def spec_of(chart: Any) -> dict[str, Any]:
    """What the page has to keep of a chart."""
    spec: dict[str, Any] = chart.to_dict()
    for key in ("config", "$schema"):  # the page has one configuration for all, and looks no schema up
        spec.pop(key, None)
    return spec


def base(table: str) -> Any:
    """A chart of a table of the page, as wide as its panel."""
    alt = altair_()
    return alt.Chart(alt.NamedData(name=table), width="container", height=HEIGHT)


def word(field: str, title: str | None = None) -> Any:
    """A word in a tooltip of `answering` points: without a format Vega-Lite 6 asks the cell around them for it."""
    alt = altair_()
    return alt.Tooltip(f"{field}:N", title=title or field, format="", formatType="toString")


def answering(points: Any, *fields: str) -> Any:
    """Points that show their tooltip, and a ring, wherever in the panel the pointer is nearest to them."""
    alt = altair_()
    hover = {"on": "pointerover", "clear": "pointerout", "nearest": True, "empty": False}
    near = alt.selection_point(name="near", fields=list(fields), **hover)
    ring = alt.condition(near, alt.value(1), alt.value(0))
    # A name of its own: Altair would count, and the same runs give another page.
    return (
        points.mark_point(size=190, strokeWidth=2).encode(opacity=ring).add_params(near).properties(name="points")
    )


def over_rounds(last: int, kind: str = "Q") -> Any:
    """Rounds go right up to the last, as numbers (Q) or one by one (O)."""
    alt = altair_()
    axis = {"values": ticks(last), "format": "d", "labelAngle": 0, "grid": False}
    if kind == "Q":
        scale = alt.Scale(domain=[0, max(last, 1)], nice=False)
        return alt.X("round:Q", title=ROUND, scale=scale, axis=alt.Axis(**axis))
    scale = alt.Scale(domain=list(range(last + 1)))  # those of a run that ended before would hide the numbers
    return alt.X("round:O", title=ROUND, scale=scale, axis=alt.Axis(**axis))


def ticks(last: int) -> list[int]:
    """At most ten of the rounds from 0 to the last, both among them.

    >>> ticks(30), ticks(15), ticks(17)
    ([0, 5, 10, 15, 20, 25, 30], [0, 3, 6, 9, 12, 15], [0, 3, 6, 9, 12, 15, 17])
    """
    steps = [
        digit * 10**power for power in range(10) for digit in (1, 2, 3, 4, 5) if last <= 8 * digit * 10**power
    ]
    step = next((step for step in steps[:5] if last % step == 0), steps[0])
    # What is too near to the last would have no place beside it.
    return [*range(0, last - step // 2, step), last]
