"""How a figure of the paper looks: rows of panels, each row with its heading and legend, and a caption below."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from palmette.reports.figures import Panel, furnish, points
from palmette.reports.tables import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

WIDTH = 12.8
"""Of a figure, in inches."""
INK = "#444444"


@dataclass(frozen=True)
class Curve:
    """One line: its name in the legend, its look, the records of its runs.

    `y` takes the place of what the panel reads from a record; `published` are points to set beside it.
    """

    name: str
    look: dict[str, Any]
    many: Sequence[Sequence[Record]]
    y: Callable[[Record], float | None] | None = None
    published: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Row:
    """Panels side by side below a heading, over one horizontal axis; `alike` gives them one vertical axis too.

    A row without a legend has that of the row above it.
    """

    heading: str
    cells: Sequence[tuple[Panel, Sequence[Curve]]]
    alike: bool = False
    legend: bool = True


def page(rows: Sequence[Row], *, title: str, caption: str, open_marks: str = "") -> Figure:
    """The rows below each other; `open_marks` says what published points are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.75 + sum(2.75 + 0.3 * row.legend for row in rows)), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False, hspace=0.03).flatten()
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)  # type: ignore[union-attr,call-arg]
    grid = []
    for part, row in zip(parts, rows, strict=True):
        axes = part.subplots(1, len(row.cells), sharex=True, sharey=row.alike, squeeze=False).flatten()
        for axis, (panel, curves) in zip(axes, row.cells, strict=True):
            for number, curve in enumerate(curves):
                draw_curve(axis, panel, curve, number)
            furnish(axis, panel)
            if not axis.has_data():
                axis.text(0.5, 0.5, "not run", ha="center", va="center", color=INK, transform=axis.transAxes)
        part.suptitle(row.heading, x=0.006, ha="left", fontsize=11.5, fontweight="bold")
        if row.legend:
            _legend(part, row, open_marks)
        grid.append(axes)
    furnish_page(figure, title, caption)
    _align(figure, grid)
    return figure


def _align(figure: Figure, grid: Sequence[Sequence[Axes]]) -> None:
    """One left and one right edge for all panels of a column, whatever the width of their numbers."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for column in zip(*grid, strict=True):
        boxes = [axis.get_position() for axis in column]
        left, right = max(box.x0 for box in boxes), min(box.x1 for box in boxes)
        for axis, box in zip(column, boxes, strict=True):
            axis.set_position((left, box.y0, right - left, box.height))


def furnish_page(figure: Figure, title: str, caption: str) -> None:
    """Title and caption, as wide as the figure."""
    width = figure.get_figwidth()  # letters to the inch: capitals and digits are wide
    figure.suptitle(textwrap.fill(title, int(width * 9)), x=0.006, ha="left", fontsize=13, fontweight="bold")
    figure.supxlabel(textwrap.fill(caption, int(width * 13)), x=0.006, ha="left", fontsize=9.5, color=INK)


def draw_curve(axis: Axes, panel: Panel, curve: Curve, number: int = 0) -> None:
    """A line with bars; `number` says which of its panel it is."""
    found = points(panel if curve.y is None else replace(panel, y=curve.y), curve.many)
    if found:
        x, mean, deviation = (list(values) for values in zip(*found, strict=True))
        # Where lines lie on each other the marks of each are seen, since they begin at different rounds.
        every = max(1, round(len(x) / 10))
        look: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.5, "markeredgecolor": "white"}
        look |= {"markeredgewidth": 0.5, "markevery": (number % every, every)}
        axis.plot(x, mean, **look | curve.look, label=curve.name or "_")
        if any(deviation) and curve.name:
            axis.errorbar(
                x, mean, yerr=deviation, fmt="none", ecolor=curve.look["color"], elinewidth=0.9, alpha=0.75
            )
    if curve.published:
        open_mark = {"markerfacecolor": "none", "markeredgecolor": curve.look["color"], "markeredgewidth": 0.9}
        axis.plot(
            *zip(*curve.published, strict=True),
            linestyle="none",
            marker=curve.look["marker"],
            markersize=5.5,
            label="_",
            zorder=1.5,
            **open_mark,
        )


def _legend(part: SubFigure, row: Row, open_marks: str) -> None:
    from matplotlib.lines import Line2D

    named: dict[str, dict[str, Any]] = {c.name: c.look for _, curves in row.cells for c in curves if c.name}
    keys = [
        Line2D(
            [], [], label=name, linewidth=1.6, markersize=5, markeredgecolor="white", markeredgewidth=0.5, **look
        )
        for name, look in named.items()
    ]
    if any(curve.published for _, curves in row.cells for curve in curves):
        keys.append(
            Line2D([], [], label=open_marks, color=INK, linestyle="none", marker="o", markerfacecolor="none")
        )
    faint = [curve.look for _, curves in row.cells for curve in curves if not curve.name]
    keys += [Line2D([], [], label="the other layers", **look) for look in faint[:1]]
    part.legend(handles=keys, loc="outside upper right", ncols=len(keys), handlelength=2.8, fontsize=10)
