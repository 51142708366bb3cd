"""Pictures that the paper does not have: accuracy by density on a logarithmic axis, and differences by round."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from palmette.reports.figures import LINES, PANELS, STYLE, Panel, furnish, points
from palmette.reports.tables import Record
from results.answers import METHODS, Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Many = Sequence[Sequence[Record]]
INK = "#444444"
LETTERS = 180
"""Of a caption in a line."""
SOLID: dict[str, Any] = {"linestyle": "-", "linewidth": 1.8, "markersize": 4.5}
DASHED: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.1, "markersize": 3}
TRADE_OFF: Panel = PANELS[-1]
LOOK = {"markersize": 4.5, "linewidth": 1.6, "markeredgecolor": "white", "markeredgewidth": 0.5}


def trade_offs(
    panels: Mapping[str, Mapping[str, Many]], lowest: int, *, caption: str, legends: bool = False
) -> Figure:
    """Accuracy by density, a panel for each title and a line for each name, cut off at `lowest`."""
    top = best(panels)
    with matplotlib.rc_context(STYLE | {"font.size": 10, "axes.titlesize": 11}):
        figure = Figure(figsize=(12.8, 3.7), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False).flatten()
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for number, (name, many) in enumerate(lines.items()):
                if not (found := points(TRADE_OFF, many)):
                    continue
                x, y, _ = zip(*found, strict=True)
                style = LINES[number] | LOOK | {"markevery": (number, 4)}
                axis.plot(x, y, label=name, **style)
                bars = {"ecolor": LINES[number]["color"], "elinewidth": 0.8, "alpha": 0.6}
                if len(many) > 1:
                    x, y, sd = zip(*(point for point in found if point[1] >= lowest), strict=True)
                    axis.errorbar(x, y, yerr=sd, fmt="none", **bars)
            axis.set(title=title, xlabel="density, %", xscale="log", xlim=(120, 0.15), ylim=(lowest, top + 1.5))
            _plain(axis)
            if legends:
                axis.legend(loc="lower left", fontsize=8.5, handlelength=3)
        axes[0].set_ylabel("test accuracy, %")
        if not legends:
            handles, names = axes[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside upper right", ncols=len(names), handlelength=3)
        figure.supxlabel(caption, x=0.006, ha="left", fontsize=9, color=INK)
    return figure


def best(panels: Mapping[str, Mapping[str, Many]]) -> int:
    """The best accuracy in percent, rounded down."""
    found = (points(TRADE_OFF, many) for lines in panels.values() for many in lines.values())
    return math.floor(max(accuracy for line in found for _, accuracy, _ in line))


def by_round(panels: Mapping[str, tuple[float, Sequence[Difference]]], *, caption: str) -> Figure:
    """Differences round by round with their intervals, each panel with the factor for its unit."""
    with matplotlib.rc_context(STYLE | {"font.size": 10, "axes.titlesize": 11}):
        figure = Figure(figsize=(9.6, 3.1), layout="constrained")
        for axis, (title, (scale, found)) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            axis.axhline(0, color="#666666", linewidth=1)
            for t, d in enumerate(found):
                axis.plot([t, t], [scale * d.low, scale * d.high], color=LINES[0]["color"], linewidth=1.4)
            axis.plot([scale * d.mean for d in found], "o", color=LINES[0]["color"], markersize=5)
            axis.set(title=title, xlabel="round", xticks=range(len(found)))
        figure.supxlabel(caption, x=0.006, ha="left", fontsize=9, color=INK)
    return figure


def _plain(axis: Axes) -> None:
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def in_one(
    panels: Mapping[str, Panel],
    studies: Mapping[str, Mapping[str, Many]],
    *,
    dashed: Collection[str],
    marks: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    caption: str,
) -> Figure:
    """Studies of one network in the same panels: a colour and a mark for each method.

    The lines of the studies in `dashed` are so; `marks` are points to set beside the lines of a method, by panel.
    """
    columns = 4 if len(panels) > 4 else 2
    rows = -(-len(panels) // columns)
    kinds = {words: DASHED if words in dashed else SOLID for words in studies}
    with matplotlib.rc_context(STYLE | {"font.size": 10, "axes.titlesize": 10.5, "axes.labelsize": 10}):
        figure = Figure(figsize=(12.8, 1.0 + 3.0 * rows), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.09)  # type: ignore[union-attr,call-arg]
        axes = figure.subplots(rows, columns).flatten()
        for axis, (key, panel) in zip(axes, panels.items(), strict=True):
            for words, lines in studies.items():
                for name, many in lines.items():
                    x, y, _ = zip(*points(panel, many), strict=True)
                    axis.plot(x, y, **_look(name), **kinds[words], markevery=max(1, len(x) // 8))
            for name, of_panels in marks.items():
                if found := of_panels.get(key):
                    open_mark = {"linestyle": "none", "markerfacecolor": "none", "markersize": 6.5}
                    axis.plot(*zip(*found, strict=True), **_look(name), **open_mark)
            furnish(axis, panel)
        names = dict.fromkeys(name for lines in studies.values() for name in lines)
        keys = [Line2D([], [], label=name, linestyle="none", markersize=8, **_look(name)) for name in names]
        keys += [Line2D([], [], label=words, color=INK, **kind) for words, kind in kinds.items()]
        if marks:
            published: dict[str, Any] = {
                "linestyle": "none",
                "marker": "o",
                "markerfacecolor": "none",
                "markersize": 6.5,
            }
            keys.append(Line2D([], [], label="published", color=INK, **published))
        figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), handlelength=2.6, fontsize=9.5)
        figure.supxlabel(textwrap.fill(caption, LETTERS), x=0.006, ha="left", fontsize=9, color=INK)
    return figure


def _look(name: str) -> dict[str, Any]:
    return {key: LINES[METHODS.index(name)][key] for key in ("color", "marker")}
