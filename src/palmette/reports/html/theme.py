"""Style of the report's charts: colours, dashes, shapes and axes."""

from __future__ import annotations

from typing import Any

from palmette.reports.figures import LINES

# Lines need a contrast of 3:1 with light and dark pages; black would vanish on a dark one.
_ON_A_PAGE = {"#E69F00": "#C77F00", "#56B4E9": "#2F93CF", "#CC79A7": "#C66A9E", "#000000": "currentColor"}
# Ordered so that no layer has the colour of the method with the same number.
LAYER_COLOURS = ("#C77F00", "#2F93CF", "#C66A9E", "#009E73", "#D55E00", "#0072B2", "currentColor")
# Light, medium and dark: distinguishable in black and white, by their outlines on any page.
PHASE_COLOURS = ("#9BD3F5", "#DB9200", "#5c5c5c")
DASHES: tuple[list[float], ...] = tuple(
    [1, 0] if line["linestyle"] == "-" else [2 * part for part in line["linestyle"][1]] for line in LINES
)
# Markers of the figures as SVG paths in a square from -1 to 1.
_PATHS = {
    "o": "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    "s": "M-.85,-.85H.85V.85H-.85Z",
    "^": "M0,-1L1,.8H-1Z",
    "D": "M0,-1.15L1.15,0L0,1.15L-1.15,0Z",
    "v": "M0,1L1,-.8H-1Z",
    "P": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
    "X": "M0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0L-1,-.5L-.5,-1Z",
}
SHAPES: tuple[str, ...] = tuple(_PATHS[line["marker"]] for line in LINES)
# Marks on curves; no method has one of these shapes.
ARROW = "M0,-1.1L.9,-.1H.35V1H-.35V-.1H-.9Z"
STAR = "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.89L0,.44L-.65,.89L-.42,.14L-1.05,-.34L-.26,-.36Z"
# As in the figures, so that a method looks the same in both.
LOOKS: tuple[dict[str, Any], ...] = tuple(
    {"colour": _ON_A_PAGE.get(line["color"], line["color"]), "dash": dash, "shape": shape}
    for line, dash, shape in zip(LINES, DASHES, SHAPES, strict=True)
)
"""Colour, dash and shape per series: distinguishable by colour-blind readers and in black and white."""
AT_ONCE = len(LOOKS)
"""How many series a chart shows at once."""

# `currentColor` is the text colour around the chart: dark on light, light on dark, black on paper.
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{f"{part}Color": "currentColor" for part in ("label", "title", "grid", "domain", "tick")},
        "labelOpacity": 0.8,
        "titleOpacity": 0.8,
        "titleFontWeight": "normal",
        "gridOpacity": 0.13,
        "domainOpacity": 0.4,
        "tickOpacity": 0.4,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 130,
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "labelLimit": 130},
}

_POWERS = [f"1e{power}" for power in range(-9, 13)]
_STEPS, _SHORT = (
    [f"{digit}e{power}" for power in range(-9, 13) for digit in digits] for digits in ((1, 2, 5), (1, 2, 3, 5, 7))
)


def log_axis(scale: str, form: str) -> dict[str, Any]:
    """Ticks and labels of the logarithmic scale "x" or "y", chosen in the browser by its span.

    From 5-fold: 1, 2, 3, 5 and 7 of each decade; from 30-fold: 1, 2 and 5; from 300-fold: powers of ten. Shorter
    scales have Vega's own ticks, which would label 0.09 of a longer one and then leave no room for 0.1.
    """
    span = f"domain('{scale}')[1] / domain('{scale}')[0]"
    short, steps, powers = (f"[{', '.join(many)}]" for many in (_SHORT, _STEPS, _POWERS))
    ticks = f"{span} < 30 ? {short} : {span} < 300 ? {steps} : {powers}"
    return {
        "values": {"expr": f"{span} < 5 ? null : {ticks}"},
        "tickCount": 8,
        "labelExpr": f"format(datum.value, '{form}')",
    }
