"""How the charts of the page look: colours, dashes, shapes, axes."""

from __future__ import annotations

from typing import Any

from palmette.reports.figures import LINES

# Okabe and Ito's again, in an order in which no layer looks like the method that has its number.
LAYER_COLOURS = ("#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#D55E00", "#0072B2", "currentColor")
# Light, middle and dark: told apart in black and white too.
PHASE_COLOURS = ("#9BD3F5", "#DB9200", "#5c5c5c")
DASHES: tuple[list[float], ...] = tuple(
    [1, 0] if line["linestyle"] == "-" else [2 * part for part in line["linestyle"][1]] for line in LINES
)
# The markers of the figures as paths in a square from -1 to 1.
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
# Those of the figures, so that a method looks the same in both; black would vanish on a dark page.
LOOKS: tuple[dict[str, Any], ...] = tuple(
    {"colour": "currentColor" if line["color"] == "#000000" else line["color"], "dash": dash, "shape": shape}
    for line, dash, shape in zip(LINES, DASHES, SHAPES, strict=True)
)
"""Colour, dash and shape of the series of a chart: no two are alike to the colour-blind or in black and white."""

# `currentColor` is the colour of the text around the chart: dark on light, light on dark, black on paper.
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
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


def logarithmic(scale: str, form: str) -> dict[str, Any]:
    """Of the axis of a logarithmic scale, "x" or "y": which ticks have numbers and lines.

    There is a tick for each digit of each decade, and Vega numbers some: lines for those only. Within less than a
    decade its ticks go in equal steps, and all are numbered. The opacity comes on top of the configuration's.
    """
    narrow = f"domain('{scale}')[1] < 10 * domain('{scale}')[0]"
    seen = {"condition": {"test": f"datum.label !== '' || {narrow}", "value": 1}, "value": 0}
    text = f"{narrow} ? format(datum.value, '{form}') : datum.label"
    return {"format": form, "tickCount": 8, "labelExpr": text, "gridOpacity": seen, "tickOpacity": seen}
