"""The charts of the page, as Vega-Lite: what is drawn from which table. The tables are put in by the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palmette.measures.pq_map import P_GRID, Q_GRID
from palmette.reports.page_data import Study
from palmette.reports.page_looks import LABELLED, LAYER_COLOURS, PHASE_COLOURS
from palmette.reports.phases import PHASES

if TYPE_CHECKING:
    import altair as alt

FEW_LAYERS = 8
"""Up to so many layers have a line each; more are the rows of a map."""
HEIGHT = 230
GRID = {"p": [p for p in P_GRID for _ in Q_GRID], "q": [q for _ in P_GRID for q in Q_GRID]}
"""The p and q of each number of a p–q map."""
X_AXES = {"round": "round of pruning", "density": "density: weights that remain", "kept": "parameters that remain"}
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


def panels(
    study: Study,
    looks: Sequence[Mapping[str, Any]],
    *,
    layers: Sequence[str],
    top: float,
) -> dict[str, Panel]:
    """All charts of a study by their names; `top` is the largest index of its p–q maps."""
    names = [series.name for series in study.series]
    looks = [style for style in looks if style["name"] in names]
    n = max(len(series.runs) for series in study.series)
    over = f"Mean of up to {n} seeds; the band is one standard deviation. " if n > 1 else ""
    marked = "▲ the index turns up for good, ✚ collapse (of the mean curve)."
    return {
        "accuracy": Panel(
            "Test accuracy",
            f"{over}{marked}",
            "curves",
            _curves("accuracy", "test accuracy", looks, axis="%"),
        ),
        "pq_index": Panel(
            "PQ Index",
            f"Of the weights that remain, at p = 0.5 and q = 1: lower is less compressible. {marked}",
            "curves",
            _curves("pq_index", "PQ Index", looks, log=True, axis="~g"),
        ),
        "density": Panel(
            "Density",
            "The share of the weights that remain.",
            "curves",
            _curves("density", "density", looks, log=True, axis="~%"),
        ),
        "gini_index": Panel(
            "Gini Index",
            "Of the weights that remain.",
            "curves",
            _curves("gini_index", "Gini Index", looks, axis="~g"),
        ),
        "trade_off": Panel(
            "Compression trade-off",
            "Accuracy against what remains: further to the right is smaller, higher is better.",
            "curves",
            {"": _curves("accuracy", "test accuracy", looks, axis="%")["density"]},
        ),
        "phases": Panel("Phases, run by run", "One stripe for each seed.", "rounds", {"": _phases(looks)}),
        "layer_density": Panel(
            "Density, layer by layer",
            "The share of each layer’s weights that remain. What has none left is not drawn.",
            "layers",
            {"": _layers("density", "density", names, layers, form="~%")},
        ),
        "layer_index": Panel(
            "PQ Index, layer by layer",
            "Of the weights of the layer that remain, at p = 0.5 and q = 1.",
            "layers",
            {"": _layers("pq_index", "PQ Index", names, layers, form="~g")},
        ),
        "cut": Panel(
            "Where each round’s cut came from",
            "Each bar is one cut; its parts are the layers, the first at the bottom, by the weights that went.",
            "layers",
            {"": _cut(names, layers)},
        ),
        "map": Panel(
            "p–q map",
            "PQ Index of the retrained network; colours are the same in all rounds. There is none at p = q = 1.",
            "maps",
            {"": _map(names, top)},
        ),
    }


def _altair() -> Any:
    try:
        import altair
    except ImportError as error:
        raise ImportError("the page needs altair: pip install 'palmette[report]'") from error
    return altair


def _spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    spec: dict[str, Any] = chart.to_dict()
    for key in ("config", "$schema"):  # the page has one configuration for all, and looks no schema up
        spec.pop(key, None)
    return spec


def _base(table: str) -> Any:
    alt = _altair()
    return alt.Chart(alt.NamedData(name=table), width="container", height=HEIGHT)


def _shown(looks: Sequence[Mapping[str, Any]]) -> Any:
    return _altair().param(name="shown", value=[style["name"] for style in looks])


def _round(kind: str = "Q") -> Any:
    alt = _altair()
    if kind == "Q":
        return alt.X("round:Q", title=X_AXES["round"], axis=alt.Axis(tickMinStep=1, grid=False, format="d"))
    axis = alt.Axis(labelAngle=0, grid=False, labelOverlap="parity")
    return alt.X("round:O", title=X_AXES["round"], axis=axis)


def _x(kind: str) -> Any:
    alt = _altair()
    if kind == "round":
        return _round()
    # Pruning goes to the right.
    scale = alt.Scale(type="log", reverse=True, nice=False, padding=8)
    form = "~%" if kind == "density" else "~s"
    axis = alt.Axis(grid=False, format=form, tickCount=6, tickOpacity=LABELLED["tickOpacity"])
    return alt.X(f"{kind}:Q", title=X_AXES[kind], scale=scale, axis=axis)


def _curves(
    measure: str, title: str, looks: Sequence[Mapping[str, Any]], *, axis: str, log: bool = False
) -> dict[str, dict[str, Any]]:
    """Mean, band and marks of one measure, for each choice of what goes right."""
    alt = _altair()
    domain = [style["name"] for style in looks]

    def channel(key: str) -> Any:
        return alt.Scale(domain=domain, range=[style[key] for style in looks])

    percent = measure in ("accuracy", "density")
    tooltip = [
        alt.Tooltip("series:N", title="method"),
        alt.Tooltip("round:Q"),
        alt.Tooltip("density:Q", format=".2%"),
        alt.Tooltip("kept:Q", title="parameters", format=",.0f"),
        alt.Tooltip(f"{measure}:Q", title=title, format=".2%" if percent else ".4g"),
        alt.Tooltip(f"{measure}_sd:Q", title="± sd", format=".2%" if percent else ".4g"),
        alt.Tooltip("n:Q", title="seeds"),
        alt.Tooltip("phase:N"),
    ]
    scale = alt.Scale(type="log", nice=False, padding=6) if log else alt.Scale(zero=False)
    y = alt.Y(
        f"{measure}:Q",
        title=None,
        scale=scale,
        axis=alt.Axis(format=axis, tickCount=6, **(LABELLED if log else {})),
    )
    sure = f"isValid(datum.{measure})" + (f" && datum.{measure} > 0" if log else "")
    # A logarithmic axis has no place for a band that reaches 0.
    low = f"datum.{measure} - datum.{measure}_sd"
    low = f"max({low}, datum.{measure} / 10)" if log else low
    specs = {}
    for kind in X_AXES:
        base = (
            _base("curves")
            .transform_filter("indexof(shown, datum.series) >= 0")
            .transform_filter(sure)
            .transform_calculate(low=low, high=f"datum.{measure} + datum.{measure}_sd")
            .encode(x=_x(kind), color=alt.Color("series:N", scale=channel("colour"), legend=None))
        )
        line = base.mark_line(strokeWidth=2.2, clip=False).encode(
            y=y,
            order=alt.Order("round:Q"),
            strokeDash=alt.StrokeDash("series:N", scale=channel("dash"), legend=None),
        )
        shape = alt.Shape("series:N", scale=channel("shape"), legend=None)
        points = base.mark_point(filled=True, size=26, opacity=1).encode(y=y, shape=shape)
        # Of size 0 and not filtered out: Vega would complain of a layer without a point.
        marks = base.mark_point(filled=True, opacity=1, stroke="currentColor").encode(
            y=y,
            shape=alt.ShapeValue({"expr": "datum.mark == 'turned_up' ? 'triangle-up' : 'cross'"}),
            size=alt.condition("isValid(datum.mark)", alt.value(170), alt.value(0)),
            strokeWidth=alt.condition("isValid(datum.mark)", alt.value(1.2), alt.value(0)),
        )
        hover = base.mark_point(filled=True, size=260, opacity=0).encode(y=y, tooltip=tooltip)
        # No `order` here: Vega-Lite would make an area of each point.
        band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q")
        specs[kind] = _spec(alt.layer(band, line, points, marks, hover).add_params(_shown(looks)))
    return specs


def _phases(looks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    alt = _altair()
    names = [style["name"] for style in looks]
    chart = (
        _base("rounds")
        .transform_filter("indexof(shown, datum.series) >= 0")
        .mark_rect()
        .encode(
            x=_round("O"),
            y=alt.Y("series:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False)),
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
        .add_params(_shown(looks))
    )
    return _spec(chart)


def _of_one(table: str, names: Sequence[str]) -> Any:
    """A chart of the one series that is chosen."""
    chosen = _altair().param(name="method", value=names[0])
    return _base(table).transform_filter("datum.series == method").add_params(chosen)


def _layer_tooltip() -> list[Any]:
    alt = _altair()
    return [
        "layer:N",
        "round:Q",
        alt.Tooltip("density:Q", format=".2%"),
        alt.Tooltip("pq_index:Q", title="PQ Index", format=".4g"),
        alt.Tooltip("cut:Q", title="weights cut", format=",.0f"),
        alt.Tooltip("n:Q", title="seeds"),
    ]


def _layer_colour(layers: Sequence[str]) -> Any:
    alt = _altair()
    if len(layers) <= FEW_LAYERS:
        scale = alt.Scale(domain=list(layers), range=list(LAYER_COLOURS[: len(layers)]))
        return alt.Color("layer:N", scale=scale, legend=alt.Legend(orient="bottom", columns=3, title=None))
    return alt.Color("layer:O", scale=alt.Scale(domain=list(layers), scheme="viridis"), legend=None)


def _layers(measure: str, title: str, names: Sequence[str], layers: Sequence[str], *, form: str) -> dict[str, Any]:
    alt = _altair()
    base = _of_one("layers", names).transform_filter(f"isValid(datum.{measure}) && datum.{measure} > 0")
    if len(layers) <= FEW_LAYERS:
        scale = alt.Scale(type="log", nice=False, padding=6)
        chart = base.mark_line(point={"size": 34, "filled": True, "opacity": 1}, strokeWidth=2.2).encode(
            x=_round(),
            y=alt.Y(f"{measure}:Q", title=None, scale=scale, axis=alt.Axis(format=form, tickCount=6, **LABELLED)),
            color=_layer_colour(layers),
            tooltip=_layer_tooltip(),
        )
    else:
        chart = (
            base.mark_rect()
            .encode(
                x=_round("O"),
                y=alt.Y(
                    "layer:N",
                    title=None,
                    sort=list(layers),
                    axis=alt.Axis(grid=False, labelFontSize=10, labelOverlap=False),
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
    return _spec(chart)


def _cut(names: Sequence[str], layers: Sequence[str]) -> dict[str, Any]:
    alt = _altair()
    chart = (
        _of_one("layers", names)
        .mark_bar(width={"band": 0.86})
        .encode(
            x=_round("O"),
            y=alt.Y("cut:Q", title=None, stack="normalize", axis=alt.Axis(format="%", tickCount=5)),
            color=_layer_colour(layers),
            order=alt.Order("depth:Q"),
            tooltip=_layer_tooltip(),
        )
    )
    return _spec(chart)


def _map(names: Sequence[str], top: float) -> dict[str, Any]:
    alt = _altair()
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
    return _spec(chart)
