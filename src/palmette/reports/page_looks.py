"""How the charts of the page look: colours, dashes, shapes, axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.reports.figures import LINES

# Okabe and Ito's again, in an order in which no layer looks like the method that has its number.
LAYER_COLOURS = ("#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#D55E00", "#0072B2", "currentColor", "#999999")
PHASE_COLOURS = ("#56B4E9", "#E69F00", "#6b6b6b")
_DASHES: Mapping[Any, list[float]] = {"-": [1, 0]}
_SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"}

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

# A logarithmic axis has a tick for each digit of each decade, and numbers for some: lines for those only.
# The opacity comes on top of that of the configuration.
LABELLED: dict[str, Any] = {
    name: {"condition": {"test": "datum.label !== ''", "value": 1}, "value": 0}
    for name in ("gridOpacity", "tickOpacity")
}


def look(names: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, dash and shape of each series, in the order of the figures: a method looks the same in both."""
    lines = [LINES[number % len(LINES)] for number in range(len(names))]
    return [
        {
            "name": name,
            # Black would vanish on a dark page.
            "colour": "currentColor" if line["color"] == "#000000" else line["color"],
            "dash": _DASHES.get(line["linestyle"]) or [2 * part for part in line["linestyle"][1]],
            "shape": _SHAPES.get(line["marker"], "cross"),
        }
        for name, line in zip(names, lines, strict=True)
    ]
