"""The charts of one method: its layers, where its cuts came from, its p–q maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palmette.measures.pq_map import P_GRID, Q_GRID
from palmette.reports.html.theme import DASHES, LAYER_COLOURS, SHAPES, logarithmic
from palmette.reports.html.vega import HEIGHT, altair_, answering, base, over_rounds, spec_of, word

FEW_LAYERS = len(LAYER_COLOURS)
"""Up to so many layers have a line each; more are the rows of a map."""
GRID = {"p": [p for p in P_GRID for _ in Q_GRID], "q": [q for _ in P_GRID for q in Q_GRID]}
"""The p and q of each number of a p–q map."""
# Of the names of layers as much as there is place for, without what almost all end in.
_NAME = "replace(datum.label, regexp('[.]weight$'), '')"
_NAMES = {"labelExpr": _NAME, "labelLimit": {"expr": "max(130, containerSize()[0] / 3)"}}


def _of_one(table: str, names: Sequence[str]) -> Any:
    """A chart of the one series that is chosen."""
    chosen = altair_().param(name="method", value=names[0])
    return base(table).transform_filter("datum.series == method").add_params(chosen)


def _layer_tooltip() -> list[Any]:
    alt = altair_()
    return [
        word("layer"),
        "round:Q",
        alt.Tooltip("density:Q", format=".2%"),
        alt.Tooltip("pq_index:Q", title="PQ Index", format=".4g"),
        alt.Tooltip("cut:Q", title="weights cut", format=",.0f"),
        alt.Tooltip("n:Q", title="seeds"),
    ]


def _layer_channel(channel: Any, layers: Sequence[str], looks: Sequence[Any]) -> Any:
    alt = altair_()
    scale = alt.Scale(domain=list(layers), range=list(looks[: len(layers)]))
    return channel(
        "layer:N", scale=scale, legend=alt.Legend(orient="bottom", columns=3, title=None, labelExpr=_NAME)
    )


def _layer_colour(layers: Sequence[str]) -> Any:
    alt = altair_()
    if len(layers) <= FEW_LAYERS:
        return _layer_channel(alt.Color, layers, LAYER_COLOURS)
    return alt.Color("layer:O", scale=alt.Scale(domain=list(layers), scheme="viridis"), legend=None)


def layers_chart(
    measure: str, title: str, names: Sequence[str], layers: Sequence[str], last: int, *, form: str
) -> dict[str, Any]:
    """A line for each layer, or a row of a map where they are many."""
    alt = altair_()
    one = _of_one("layers", names).transform_filter(f"isValid(datum.{measure}) && datum.{measure} > 0")
    if len(layers) <= FEW_LAYERS:
        scale = alt.Scale(type="log", nice=False, padding=6)
        line = one.encode(
            x=over_rounds(last),
            y=alt.Y(f"{measure}:Q", title=None, scale=scale, axis=alt.Axis(**logarithmic("y", form))),
            color=_layer_channel(alt.Color, layers, LAYER_COLOURS),
        )
        dash = _layer_channel(alt.StrokeDash, layers, DASHES)
        shape = _layer_channel(alt.Shape, layers, SHAPES)
        chart = alt.layer(
            line.mark_line(strokeWidth=2.2).encode(strokeDash=dash),
            line.mark_point(filled=True, size=60, opacity=1).encode(shape=shape),
            answering(line.encode(tooltip=_layer_tooltip()), "layer", "round"),
        )
    else:
        chart = (
            one.mark_rect()
            .encode(
                x=over_rounds(last, "O"),
                y=alt.Y(
                    "layer:N",
                    title=None,
                    sort=list(layers),
                    axis=alt.Axis(grid=False, labelFontSize=10, labelOverlap=False, **_NAMES),
                ),
                color=alt.Color(
                    f"{measure}:Q",
                    title=title,
                    scale=alt.Scale(scheme="viridis", type="log"),
                    legend=alt.Legend(orient="bottom", format=form, gradientLength=200),
                ),
                tooltip=_layer_tooltip(),
            )
            .properties(height=max(HEIGHT, 13 * len(layers)))
        )
    return spec_of(chart)


def cut_chart(names: Sequence[str], layers: Sequence[str], last: int) -> dict[str, Any]:
    """A bar for each cut, of the layers it took from."""
    alt = altair_()
    chart = (
        _of_one("layers", names)
        .mark_bar(width={"band": 0.86}, stroke="currentColor", strokeWidth=0.5)
        .encode(
            x=over_rounds(last, "O"),
            y=alt.Y("cut:Q", title=None, stack="normalize", axis=alt.Axis(format="%", tickCount=5)),
            color=_layer_colour(layers),
            opacity=alt.condition("datum.cut > 0", alt.value(1), alt.value(0)),  # of none, an edge would stay
            order=alt.Order("depth:Q"),
            tooltip=_layer_tooltip(),
        )
    )
    return spec_of(chart)


def map_chart(names: Sequence[str], top: float) -> dict[str, Any]:
    """The index for each p and q, at the round that is chosen."""
    alt = altair_()
    chart = (
        _of_one("maps", names)
        .transform_filter("datum.round == round")
        .transform_calculate(p=str(GRID["p"]), q=str(GRID["q"]))
        .transform_flatten(["pq_index", "p", "q"])
        .mark_rect()
        .encode(
            x=alt.X("q:O", axis=alt.Axis(labelAngle=0, grid=False)),
            y=alt.Y("p:O", sort="descending", axis=alt.Axis(grid=False, titleAngle=0, titlePadding=12)),
            color=alt.Color(
                "pq_index:Q",
                title="PQ Index",
                scale=alt.Scale(scheme="viridis", type="sqrt", domain=[0, top]),
                legend=alt.Legend(orient="bottom", format="~g", gradientLength=200, tickCount=4),
            ),
            tooltip=[
                "p:Q",
                "q:Q",
                alt.Tooltip("pq_index:Q", title="PQ Index", format=".4g"),
                "round:Q",
                alt.Tooltip("n:Q", title="seeds"),
            ],
        )
        .add_params(alt.param(name="round", value=0))
    )
    return spec_of(chart)
