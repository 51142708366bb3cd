"""Charts of one method: its layers, the layers of each cut, and its p–q maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palmette.measures.pq import P_GRID, Q_GRID
from palmette.reports.html import vega
from palmette.reports.html.theme import DASHES, LAYER_COLOURS, SHAPES

FEW_LAYERS = len(LAYER_COLOURS)
"""Up to so many layers get one line each; more become the rows of a heat map."""
GRID = {"p": [p for p in P_GRID for _ in Q_GRID], "q": [q for _ in P_GRID for q in Q_GRID]}
"""p and q of each number in a p–q map."""
_LAYER = ("layer", "round", "density", "pq_index", "cut", "n")
_NAME = "replace(datum.label, regexp('[.]weight$'), '')"
_NAMES = {"labelExpr": _NAME, "labelLimit": {"expr": "max(130, containerSize()[0] / 3)"}}


def layers_chart(
    measure: str, title: str, names: Sequence[str], layers: Sequence[str], last: int, *, form: str
) -> dict[str, Any]:
    """One line per layer, or one row of a heat map where there are many."""
    alt = vega.load_altair()
    chart = _of_selected("layers", names).transform_filter(f"isValid(datum.{measure}) && datum.{measure} > 0")
    if len(layers) <= FEW_LAYERS:
        line = chart.encode(
            x=vega.round_axis(last), y=vega.log_y(measure, form), color=_by_layer(alt.Color, layers, LAYER_COLOURS)
        )
        dash, shape = _by_layer(alt.StrokeDash, layers, DASHES), _by_layer(alt.Shape, layers, SHAPES)
        return vega.to_spec(
            alt.layer(
                line.mark_line(strokeWidth=2.2).encode(strokeDash=dash),
                line.mark_point(filled=True, size=60, opacity=1).encode(shape=shape),
                vega.hover_points(line.encode(tooltip=vega.tooltip(*_LAYER)), "layer", "round"),
            )
        )
    axis = alt.Axis(grid=False, labelFontSize=10, labelOverlap=False, **_NAMES)
    rows = chart.mark_rect().encode(
        x=vega.round_axis(last, "O"),
        y=alt.Y("layer:N", title=None, sort=list(layers), axis=axis),
        color=alt.Color(
            f"{measure}:Q",
            title=title,
            scale=alt.Scale(scheme="viridis", type="log"),
            legend=alt.Legend(orient="bottom", format=form, gradientLength=200),
        ),
        tooltip=vega.tooltip(*_LAYER),
    )
    return vega.to_spec(rows.properties(height=max(vega.HEIGHT, 13 * len(layers))))


def cut_chart(names: Sequence[str], layers: Sequence[str], last: int) -> dict[str, Any]:
    """One bar per cut, divided by the layers it took weights from."""
    alt = vega.load_altair()
    colour = alt.Color("layer:O", scale=alt.Scale(domain=list(layers), scheme="viridis"), legend=None)
    if len(layers) <= FEW_LAYERS:
        colour = _by_layer(alt.Color, layers, LAYER_COLOURS)
    bars = _of_selected("layers", names).mark_bar(width={"band": 0.86}, stroke="currentColor", strokeWidth=0.5)
    return vega.to_spec(
        bars.encode(
            x=vega.round_axis(last, "O"),
            y=alt.Y("cut:Q", title=None, stack="normalize", axis=alt.Axis(format="%", tickCount=5)),
            color=colour,
            opacity=alt.condition("datum.cut > 0", alt.value(1), alt.value(0)),  # hides the edge of an empty bar
            order=alt.Order("depth:Q"),
            tooltip=vega.tooltip(*_LAYER),
        )
    )


def map_chart(names: Sequence[str], top: float) -> dict[str, Any]:
    """PQ Index for each p and q in the selected round."""
    alt = vega.load_altair()
    chart = (
        _of_selected("maps", names)
        .transform_filter("datum.round == round")
        .transform_calculate(p=str(GRID["p"]), q=str(GRID["q"]))
        .transform_flatten(["pq_index", "p", "q"])
        .mark_rect()
        .encode(
            x=alt.X("q:O", axis=alt.Axis(labelAngle=0, grid=False)),
            y=alt.Y("p:O", axis=alt.Axis(grid=False, titleAngle=0, titlePadding=12)),
            color=alt.Color(
                "pq_index:Q",
                title="PQ Index",
                scale=alt.Scale(scheme="cividis", type="sqrt", domain=[0, top]),
                legend=alt.Legend(orient="bottom", format="~g", gradientLength=200, tickCount=4),
            ),
            tooltip=vega.tooltip("p", "q", "pq_index", "round", "n"),
        )
        .add_params(alt.param(name="round", value=0))
    )
    return vega.to_spec(chart)


def _of_selected(table: str, names: Sequence[str]) -> Any:
    """Chart of the selected method alone."""
    selected = vega.load_altair().param(name="method", value=names[0])
    return vega.base(table).transform_filter("datum.series == method").add_params(selected)


def _by_layer(channel: Any, layers: Sequence[str], values: Sequence[Any]) -> Any:
    alt = vega.load_altair()
    scale = alt.Scale(domain=list(layers), range=list(values[: len(layers)]))
    legend = alt.Legend(orient="bottom", columns=3, title=None, labelExpr=_NAME)
    return channel("layer:N", scale=scale, legend=legend)
