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


def over_rounds(kind: str = "Q") -> Any:
    """Rounds go right, as numbers (Q) or one by one (O)."""
    alt = altair_()
    if kind == "Q":
        # Of few rounds Vega would mark the halves too, in spite of tickMinStep, and call them by the next whole.
        halves = {"test": "datum.value % 1", "value": 0}
        axis = alt.Axis(
            tickMinStep=1,
            grid=False,
            labelExpr="datum.value % 1 ? '' : format(datum.value, 'd')",
            tickOpacity={"condition": halves, "value": 1},
        )
        return alt.X("round:Q", title=ROUND, axis=axis)
    axis = alt.Axis(labelAngle=0, grid=False, labelOverlap="parity")
    return alt.X("round:O", title=ROUND, axis=axis)
