"""The charts of the page, as Vega-Lite: what is drawn from which table. The tables are put in by the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palmette.reports.html.data import Study
from palmette.reports.html.method_charts import cut_chart, layers_chart, map_chart
from palmette.reports.html.theme import LOOKS, PHASE_COLOURS, logarithmic
from palmette.reports.html.vega import HEIGHT, ROUND, altair_, answering, base, over_rounds, spec_of, word
from palmette.reports.phases import FOLLOWING, PHASES

FEW_ROUNDS, EVERY = 12, 5
"""A line of more rounds has its marker at every fifth, each line at others: so that all of them can be seen."""
_COMMA = ", (?![^(]*[)])"  # where a long name may be broken: not within parentheses
X_AXES = {"round": ROUND, "density": "density: weights that remain", "kept": "parameters that remain"}
"""What the reader may choose to go right: column of the curves -> title of the axis."""


@dataclass(frozen=True)
class Panel:
    """One chart of the page.

    Args:
        title, caption: what is above and below it.
        table: which table of the study it draws.
        specs: by the column that goes right; one under "" where the reader has no choice.
    """

    title: str
    caption: str
    table: str
    specs: dict[str, dict[str, Any]]


def panels(study: Study, *, layers: Sequence[str], top: float) -> dict[str, Panel]:
    """All charts of a study by their names; `top` is the largest index of its p–q maps."""
    names = [series.name for series in study.series]
    last = max(len(records) for _, records in study.runs) - 1
    every = EVERY if last >= FEW_ROUNDS else 1
    n = max(len(series.runs) for series in study.series)
    over = f"Mean of up to {n} seeds; the band is one standard deviation. " if n > 1 else ""
    lowest = f"▲ lowest index before a collapse, if {FOLLOWING} rounds or more follow there"
    marked = f"{lowest}; ✚ collapse (of the mean curve)."
    return {
        "accuracy": Panel(
            "Test accuracy",
            f"{over}{marked}",
            "curves",
            _curves("accuracy", "test accuracy", last, every, axis="%"),
        ),
        "pq_index": Panel(
            "PQ Index",
            f"Of the weights that remain, at p = 0.5 and q = 1: lower is less compressible. {marked}",
            "curves",
            _curves("pq_index", "PQ Index", last, every, log=True, axis=".3~g"),
        ),
        "density": Panel(
            "Density",
            "The share of the weights that remain.",
            "curves",
            _curves("density", "density", last, every, log=True, axis="~%"),
        ),
        "gini_index": Panel(
            "Gini Index",
            "Of the weights that remain.",
            "curves",
            _curves("gini_index", "Gini Index", last, every, axis=".3~g"),
        ),
        "trade_off": Panel(
            "Compression trade-off",
            "Accuracy against what remains: further to the right is smaller, higher is better.",
            "curves",
            {"": _curves("accuracy", "test accuracy", last, every, axis="%")["density"]},
        ),
        "phases": Panel("Phases, run by run", "One stripe for each seed.", "rounds", {"": _phases(names, last)}),
        "layer_density": Panel(
            "Density, layer by layer",
            "The share of each layer’s weights that remain. What has none left is not drawn.",
            "layers",
            {"": layers_chart("density", "density", names, layers, last, form="~%")},
        ),
        "layer_index": Panel(
            "PQ Index, layer by layer",
            "Of the weights of the layer that remain, at p = 0.5 and q = 1.",
            "layers",
            {"": layers_chart("pq_index", "PQ Index", names, layers, last, form=".3~g")},
        ),
        "cut": Panel(
            "Where each round’s cut came from",
            "Each bar is one cut; its parts are the layers, the first at the bottom, by the weights that went.",
            "layers",
            {"": cut_chart(names, layers, last)},
        ),
        "map": Panel(
            "p–q map",
            "PQ Index of the retrained network; colours are the same in all rounds. There is none at p = q = 1.",
            "maps",
            {"": map_chart(names, top)},
        ),
    }


def _x(kind: str, last: int) -> Any:
    alt = altair_()
    if kind == "round":
        return over_rounds(last)
    # Pruning goes to the right.
    scale = alt.Scale(type="log", reverse=True, nice=False, padding=8)
    form = "~%" if kind == "density" else "~s"
    return alt.X(f"{kind}:Q", title=X_AXES[kind], scale=scale, axis=alt.Axis(grid=False, **logarithmic("x", form)))


def _curves(
    measure: str, title: str, last: int, every: int, *, axis: str, log: bool = False
) -> dict[str, dict[str, Any]]:
    """Mean, band and marks of one measure, for each choice of what goes right."""
    alt = altair_()

    def channel(key: str) -> Any:
        return alt.Scale(domain=list(range(len(LOOKS))), range=[look[key] for look in LOOKS])

    percent = measure in ("accuracy", "density")
    tooltip = [
        word("series", "method"),
        alt.Tooltip("round:Q"),
        alt.Tooltip("density:Q", format=".2%"),
        alt.Tooltip("kept:Q", title="parameters", format=",.0f"),
        alt.Tooltip(f"{measure}:Q", title=title, format=".2%" if percent else ".4g"),
        alt.Tooltip(f"{measure}_sd:Q", title="± sd", format=".2%" if percent else ".4g"),
        alt.Tooltip("n:Q", title="seeds"),
        word("phase"),
    ]
    scale = alt.Scale(type="log", nice=False, padding=6) if log else alt.Scale(zero=False)
    y = alt.Y(
        f"{measure}:Q",
        title=None,
        scale=scale,
        axis=alt.Axis(**logarithmic("y", axis)) if log else alt.Axis(format=axis, tickCount=6),
    )
    sure = f"isValid(datum.{measure})" + (f" && datum.{measure} > 0" if log else "")
    # A logarithmic axis has no place for a band that reaches 0.
    low = f"datum.{measure} - datum.{measure}_sd"
    low = f"max({low}, datum.{measure} / 10)" if log else low
    specs = {}
    for kind in X_AXES:
        # Nor has one that goes right for a network without weights.
        there = sure if kind == "round" else f"{sure} && datum.{kind} > 0"
        curve = (
            base("curves")
            .transform_calculate(look="indexof(shown, datum.series)")
            .transform_filter(f"datum.look >= 0 && {there}")
            .transform_calculate(low=low, high=f"datum.{measure} + datum.{measure}_sd")
            .encode(x=_x(kind, last), color=alt.Color("look:N", scale=channel("colour"), legend=None))
        )
        line = curve.mark_line(strokeWidth=2.2, clip=False).encode(
            y=y,
            order=alt.Order("round:Q"),
            strokeDash=alt.StrokeDash("look:N", scale=channel("dash"), legend=None),
        )
        shape = alt.Shape("look:N", scale=channel("shape"), legend=None)
        # Of size 0 and not filtered out: Vega would complain of a layer without a point.
        marked = alt.condition(f"datum.round % {every} == datum.look % {every}", alt.value(64), alt.value(0))
        points = curve.mark_point(filled=True, opacity=1).encode(y=y, shape=shape, size=marked)
        marks = curve.mark_point(filled=True, opacity=1, stroke="currentColor").encode(
            y=y,
            shape=alt.ShapeValue({"expr": "datum.mark == 'turned_up' ? 'triangle-up' : 'cross'"}),
            size=alt.condition("isValid(datum.mark)", alt.value(170), alt.value(0)),
            strokeWidth=alt.condition("isValid(datum.mark)", alt.value(1.2), alt.value(0)),
        )
        hover = answering(curve.encode(y=y, tooltip=tooltip), "series", "round")
        # No `order` here: Vega-Lite would make an area of each point.
        band = curve.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q")
        specs[kind] = spec_of(alt.layer(band, line, points, marks, hover).add_params(_shown()))
    return specs


def _shown() -> Any:
    """The series that are switched on, each at the number of its look."""
    return altair_().param(name="shown", value=[])


def _phases(names: Sequence[str], last: int) -> dict[str, Any]:
    alt = altair_()
    lines = max(len(re.split(_COMMA, name)) for name in names)
    broken = f"split(datum.label, regexp('{_COMMA}'))"
    axis = alt.Axis(ticks=False, domain=False, labelExpr=broken, labelOffset=-7 * (lines - 1))
    chart = (
        base("rounds")
        .transform_filter("indexof(shown, datum.series) >= 0")
        .mark_rect()
        .encode(
            x=over_rounds(last, "O"),
            y=alt.Y("series:N", title=None, sort=list(names), axis=axis),
            yOffset=alt.YOffset("seed:N"),
            color=alt.Color(
                "phase:N",
                title=None,
                scale=alt.Scale(domain=list(PHASES), range=list(PHASE_COLOURS)),
                legend=alt.Legend(orient="top", symbolType="square"),
            ),
            tooltip=[
                alt.Tooltip("series:N", title="method"),
                "seed:N",
                "round:Q",
                "phase:N",
                alt.Tooltip("accuracy:Q", title="test accuracy", format=".2%"),
                alt.Tooltip("pq_index:Q", title="PQ Index", format=".4g"),
                alt.Tooltip("density:Q", format=".2%"),
            ],
        )
        .properties(height=max(HEIGHT, 17 * lines * min(len(names), len(LOOKS))))
        .add_params(_shown())
    )
    return spec_of(chart)
