"""Charts of the HTML report as Vega-Lite: one entry of `charts` each, drawn from `series.NUMBERS` or tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palmette.reports.html import vega
from palmette.reports.html.method_charts import cut_chart, layers_chart, map_chart
from palmette.reports.html.series import NUMBERS, Study
from palmette.reports.html.theme import ARROW, LOOKS, PHASE_COLOURS, STAR, log_axis
from palmette.reports.phases import FOLLOWING, PHASES
from palmette.reports.statistics import WITHIN

FEW_ROUNDS, EVERY = 12, 5
"""Lines of more rounds have a marker at every fifth, offset per line so that overlapping ones stay visible."""
_COMMA = ", (?![^(]*[)])"  # where a long name may break: not within parentheses
X_AXES = {"round": vega.ROUND, "density": "density: weights that remain", "kept": "parameters that remain"}
"""Choices of x axis: column of the curves -> title."""


@dataclass(frozen=True)
class Chart:
    """One chart of the report.

    Args:
        title, caption: shown above and below it.
        table: name of the table it draws.
        specs: Vega-Lite for each choice in `X_AXES`; a single spec has the key "".
        one_method: show the method that is selected, not all of them.
    """

    title: str
    caption: str
    table: str
    specs: dict[str, dict[str, Any]]
    one_method: bool = False


def charts(study: Study, *, layers: Sequence[str], top: float) -> dict[str, Chart]:
    """All charts of a study in the order of the page; `top` is the largest index of its p–q maps."""
    names = [series.name for series in study.series]
    last = max(len(records) for _, records in study.runs) - 1
    n = max(len(series.runs) for series in study.series)
    over = f"Mean of up to {n} seeds, to the end of the shortest run, with a band of one standard deviation. "
    over = over if n > 1 else ""
    marks = f"↑ lowest index before a collapse, if at least {FOLLOWING} rounds follow; ★ collapse (mean curve)."

    def curve(column: str, title: str, caption: str, *, log: bool = False) -> Chart:
        return Chart(title, caption, "curves", _curves(column, last, log=log))

    def of_method(title: str, caption: str, table: str, spec: dict[str, Any]) -> Chart:
        return Chart(title, caption, table, {"": spec}, one_method=True)

    pq = "at p = 0.5, q = 1"
    found = {
        study.scored: curve(study.scored, f"Test {study.scored}", over + marks),
        "pq_index": curve(
            "pq_index",
            "PQ Index",
            f"PQ Index of the remaining weights {pq}: lower means more equal magnitudes. {marks}",
            log=True,
        ),
        "density": curve("density", "Density", "Fraction of weights that remain.", log=True),
        "gini_index": curve("gini_index", "Gini Index", "Gini Index of the remaining weights."),
    }
    return found | {
        "trade_off": _trade_off(study, last),
        "phases": Chart("Phases by run", "One stripe per seed.", "rounds", {"": _phases(study, names, last)}),
        "layer_density": of_method(
            "Density by layer",
            "Fraction of each layer’s weights that remain. Layers without weights are not drawn.",
            "layers",
            layers_chart("density", "density", names, layers, last, form="~%"),
        ),
        "layer_index": of_method(
            "PQ Index by layer",
            f"PQ Index of each layer’s remaining weights {pq}.",
            "layers",
            layers_chart("pq_index", "PQ Index", names, layers, last, form=".3~g"),
        ),
        "cut": of_method(
            "Share of each cut by layer",
            "One bar per round, divided by the weights cut from each layer, the first layer at the bottom.",
            "layers",
            cut_chart(names, layers, last),
        ),
        "map": of_method(
            "p–q map",
            "PQ Index of the retrained network, with one colour scale for all rounds. Undefined at p = q = 1.",
            "maps",
            map_chart(names, top),
        ),
    }


def _trade_off(study: Study, last: int) -> Chart:
    """Scores by density; of accuracies the difference from dense, as far as it is near the tolerance."""
    caption, column, least = "Score by density: smaller networks to the right.", "score", None
    if study.scored == "accuracy":
        column, least = "change", -5 * WITHIN
        caption = (
            "Accuracy minus that of the dense network, by density: smaller networks to the right. The dashed line "
            f"is a loss of {100 * WITHIN:g} point, and losses of more than {-100 * least:g} are left out."
        )
    spec = _curves(column, last, log=False, least=least)["density"]
    return Chart("Compression trade-off", caption, "curves", {"": spec})


def _curves(column: str, last: int, *, log: bool, least: float | None = None) -> dict[str, dict[str, Any]]:
    """Mean, band and marks of one column, for each choice of x axis.

    With `least`, smaller values are left out, and a line shows the tolerance.
    """
    alt = vega.load_altair()
    every = EVERY if last >= FEW_ROUNDS else 1

    def by_look(channel: Any, key: str) -> Any:
        scale = alt.Scale(domain=list(range(len(LOOKS))), range=[look[key] for look in LOOKS])
        return channel("look:N", scale=scale, legend=None)

    percent = NUMBERS[column].form.endswith("%")
    y = vega.log_y(column, "~%" if percent else ".3~g")
    defined = f"isValid(datum.{column}) && datum.{column} > 0"
    low = f"max(datum.{column} - datum.{column}_sd, datum.{column} / 10)"  # a log axis has no 0
    if not log:
        axis = alt.Axis(format=("%" if least is None else "+~%") if percent else ".3~g", tickCount=6)
        y = alt.Y(f"{column}:Q", title=None, scale=alt.Scale(zero=False), axis=axis)
        defined, low = f"isValid(datum.{column})", f"datum.{column} - datum.{column}_sd"
    if least is not None:
        defined, low = f"{defined} && datum.{column} >= {least}", f"max({low}, {least})"
    high = f"datum.{column} + datum.{column}_sd"
    if column in ("accuracy", "density", "pq_index", "gini_index"):
        low, high = f"max({low}, 0)", f"min({high}, 1)"
    specs = {}
    for kind in X_AXES:
        drawn = defined if kind == "round" else f"{defined} && datum.{kind} > 0"
        curve = (
            vega.base("curves")
            .transform_calculate(look="indexof(shown, datum.series)")
            .transform_filter(f"datum.look >= 0 && {drawn}")
            .transform_calculate(low=low, high=high)
            .encode(x=_x(kind, last), color=by_look(alt.Color, "colour"))
        )
        line = curve.mark_line(strokeWidth=2.2, clip=False).encode(
            y=y, order=alt.Order("round:Q"), strokeDash=by_look(alt.StrokeDash, "dash")
        )
        # Size 0 instead of a filter: Vega warns about a layer without points.
        marked = alt.condition(f"datum.round % {every} == datum.look % {every}", alt.value(64), alt.value(0))
        points = curve.mark_point(filled=True, opacity=1).encode(
            y=y, shape=by_look(alt.Shape, "shape"), size=marked
        )
        turns = curve.mark_point(filled=True, opacity=1, stroke="currentColor").encode(
            y=y,
            shape=alt.ShapeValue({"expr": f"datum.mark == 'turned_up' ? '{ARROW}' : '{STAR}'"}),
            size=alt.condition("isValid(datum.mark)", alt.value(170), alt.value(0)),
            strokeWidth=alt.condition("isValid(datum.mark)", alt.value(1.2), alt.value(0)),
        )
        values = vega.tooltip("series", "round", "density", "kept", column, f"{column}_sd", "n", "phase")
        hover = vega.hover_points(curve.encode(y=y, tooltip=values), "series", "round")
        # No `order` here: Vega-Lite would draw one area per point.
        band = curve.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=None, scale=y["scale"]), y2="high:Q")
        tolerance = [] if least is None else [vega.level(-WITHIN)]
        specs[kind] = vega.to_spec(alt.layer(*tolerance, band, line, points, turns, hover).add_params(_shown()))
    return specs


def _x(kind: str, last: int) -> Any:
    if kind == "round":
        return vega.round_axis(last)
    alt = vega.load_altair()
    scale = alt.Scale(type="log", reverse=True, nice=False, padding=8)  # pruning goes to the right
    axis = alt.Axis(grid=False, **log_axis("x", "~%" if kind == "density" else "~s"))
    return alt.X(f"{kind}:Q", title=X_AXES[kind], scale=scale, axis=axis)


def _shown() -> Any:
    """Parameter with the series that are switched on, each at the position of its look."""
    return vega.load_altair().param(name="shown", value=[])


def _phases(study: Study, names: Sequence[str], last: int) -> dict[str, Any]:
    alt = vega.load_altair()
    lines = max(len(re.split(_COMMA, name)) for name in names)
    broken = f"split(datum.label, regexp('{_COMMA}'))"
    axis = alt.Axis(ticks=False, domain=False, labelExpr=broken, labelOffset=-7 * (lines - 1))
    chart = (
        vega.base("rounds")
        .transform_filter("indexof(shown, datum.series) >= 0")
        .mark_rect(stroke="currentColor", strokeWidth=0.5)
        .encode(
            x=vega.round_axis(last, "O"),
            y=alt.Y("series:N", title=None, sort=list(names), axis=axis),
            yOffset=alt.YOffset("seed:N"),
            color=alt.Color(
                "phase:N",
                title=None,
                scale=alt.Scale(domain=list(PHASES), range=list(PHASE_COLOURS)),
                legend=alt.Legend(orient="top", symbolType="square"),
            ),
            tooltip=vega.tooltip("series", "seed", "round", "phase", study.scored, "pq_index", "density"),
        )
        .properties(height=max(vega.HEIGHT, 17 * lines * min(len(names), len(LOOKS))))
        .add_params(_shown())
    )
    return vega.to_spec(chart)
