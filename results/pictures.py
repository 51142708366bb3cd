"""Pictures that the paper does not have: accuracy by density on a logarithmic axis, and differences by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from palmette.reports.figures import LINES, PANELS, STYLE, Panel, points
from palmette.reports.tables import Record
from results.answers import Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Many = Sequence[Sequence[Record]]
LOWEST = 78
TRADE_OFF: Panel = PANELS[-1]
LOOK = {"markersize": 4.5, "linewidth": 1.6, "markeredgecolor": "white", "markeredgewidth": 0.5}


def trade_offs(panels: Mapping[str, Mapping[str, Many]], *, caption: str, legends: bool = False) -> Figure:
    """Accuracy by density, a panel for each title and a line for each name; what lies far below is cut off."""
    with matplotlib.rc_context(STYLE | {"font.size": 10, "axes.titlesize": 11}):
        figure = Figure(figsize=(12.8, 3.7), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False).flatten()
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for number, (name, many) in enumerate(lines.items()):
                found = points(TRADE_OFF, many)
                x, y, _ = zip(*found, strict=True)
                style = LINES[number] | LOOK | {"markevery": (number, 4)}
                axis.plot(x, y, label=name, **style)
                bars = {"ecolor": LINES[number]["color"], "elinewidth": 0.8, "alpha": 0.6}
                x, y, sd = zip(*(point for point in found if point[1] >= LOWEST), strict=True)
                axis.errorbar(x, y, yerr=sd, fmt="none", **bars)
            axis.set(title=title, xlabel="density, %", xscale="log", ylim=(LOWEST, 90.5), xlim=(120, 0.15))
            _plain(axis)
            if legends:
                axis.legend(loc="lower left", fontsize=8.5, handlelength=3)
        axes[0].set_ylabel("test accuracy, %")
        if not legends:
            handles, names = axes[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside upper right", ncols=len(names), handlelength=3)
        figure.supxlabel(caption, x=0.006, ha="left", fontsize=9, color="#444444")
    return figure


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
        figure.supxlabel(caption, x=0.006, ha="left", fontsize=9, color="#444444")
    return figure


def _plain(axis: Axes) -> None:
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
