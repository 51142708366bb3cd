"""Layout of a figure of the paper: rows of panels with headings and legends, and a caption below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from palmette.reports.figures import Panel, points, style_axis
from palmette.reports.paper.published import NAME
from palmette.reports.tables import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

INK = "#444444"
_NARROW = 9.0
"""Width in inches below which type is smaller, and at most two panels of four are next to each other."""


@dataclass(frozen=True)
class Sheet:
    """What a figure is drawn on.

    Args:
        width: in inches.
        bare: leave out title and caption, for a document that has its own.
    """

    width: float = 12.8
    bare: bool = False

    def __post_init__(self) -> None:
        if not 3 <= self.width <= 40:
            raise ValueError(f"--width must be 3 to 40 inches, got {self.width:g}")

    @property
    def narrow(self) -> bool:
        """Whether this is a column of text, not a screen."""
        return self.width < _NARROW

    @property
    def type(self) -> float:
        """Size of type, relative to that of a wide figure."""
        return 0.75 if self.narrow else 1.0

    def columns(self, panels: int) -> int:
        """Number of panels next to each other."""
        return 2 if self.narrow and panels > 3 else panels

    def height(self, columns: int) -> float:
        """Height of a row of panels in inches."""
        return 0.6 + 0.7 * self.width / max(2, columns) if self.narrow else 2.75

    def add_title_and_caption(self, figure: Figure, title: str, caption: str) -> None:
        """Add title and caption, wrapped to the width of the figure, unless the sheet is bare."""
        if self.bare:
            return
        width = figure.get_figwidth() / self.type  # times characters per inch: capitals and digits are wide
        style: dict[str, Any] = {"x": 0.006, "ha": "left"}
        text = textwrap.fill(title, int(width * 9))
        figure.suptitle(text, fontsize=13 * self.type, fontweight="bold", **style)
        figure.supxlabel(textwrap.fill(caption, int(width * 13)), fontsize=9.5 * self.type, color=INK, **style)


@dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Args:
        name: in the legend; empty for none.
        look: colour, dash and marker.
        many: records of each run.
        y: read from a record instead of the panel's y.
        published: points drawn as open marks.
    """

    name: str
    look: dict[str, Any]
    many: Sequence[Sequence[Record]]
    y: Callable[[Record], float | None] | None = None
    published: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class PanelRow:
    """Panels with curves next to each other, below a heading, that share the x axis and optionally the y axis.

    A row without a legend shares that of the row above.
    """

    heading: str
    cells: Sequence[tuple[Panel, Sequence[Curve]]]
    share_y: bool = False
    legend: bool = True


def draw_rows(rows: Sequence[PanelRow], sheet: Sheet, *, title: str, caption: str) -> Figure:
    """Draw all rows."""
    from matplotlib.figure import Figure

    columns = [sheet.columns(len(row.cells)) for row in rows]
    lines = [math.ceil(len(row.cells) / many) for row, many in zip(rows, columns, strict=True)]
    heights = [
        line * sheet.height(many) + 0.3 * row.legend for row, many, line in zip(rows, columns, lines, strict=True)
    ]
    size = sheet.width, 0.75 * (not sheet.bare) + sum(heights)
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False, hspace=0.03, height_ratios=heights).flatten()
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)  # type: ignore[union-attr,call-arg]
    grid = []
    for part, row, many, line in zip(parts, rows, columns, lines, strict=True):
        axes = part.subplots(line, many, sharex=True, sharey=row.share_y, squeeze=False).flatten()
        for axis, (panel, curves) in zip(axes, row.cells, strict=True):
            for number, curve in enumerate(curves):
                draw_curve(axis, panel, curve, number)
            style_axis(axis, panel)
            if not axis.has_data():
                axis.text(0.5, 0.5, "not run", ha="center", va="center", color=INK, transform=axis.transAxes)
        part.suptitle(row.heading, x=0.006, ha="left", fontsize=11.5 * sheet.type, fontweight="bold")
        if row.legend:
            _legend(part, row, sheet)
        grid += [axes[start : start + many] for start in range(0, len(axes), many)]
    sheet.add_title_and_caption(figure, title, caption)
    _align(figure, grid)
    return figure


def _align(figure: Figure, grid: Sequence[Sequence[Axes]]) -> None:
    """Align the left and right edges of the panels in each column."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for column in zip(*grid, strict=True):
        boxes = [axis.get_position() for axis in column]
        left, right = max(box.x0 for box in boxes), min(box.x1 for box in boxes)
        for axis, box in zip(column, boxes, strict=True):
            axis.set_position((left, box.y0, right - left, box.height))


def draw_curve(axis: Axes, panel: Panel, curve: Curve, number: int = 0) -> None:
    """Draw a line with error bars; `number` is its position among the lines of the panel."""
    found = points(panel if curve.y is None else replace(panel, y=curve.y), curve.many)
    if found:
        x, mean, deviation = (list(values) for values in zip(*found, strict=True))
        # Markers start at different rounds, so that those of overlapping lines stay visible.
        every = max(1, round(len(x) / 10))
        look: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.5, "markeredgecolor": "white"}
        look |= {"markeredgewidth": 0.5, "markevery": (number % every, every)}
        axis.plot(x, mean, **look | curve.look, label=curve.name or "_")
        if any(deviation) and curve.name:
            spread = [panel.spread(m, d) for m, d in zip(mean, deviation, strict=True)]
            ends = [[m - low for m, (low, _) in zip(mean, spread, strict=True)]]
            ends += [[high - m for m, (_, high) in zip(mean, spread, strict=True)]]
            bars: dict[str, Any] = {"fmt": "none", "elinewidth": 0.9, "alpha": 0.75}
            axis.errorbar(x, mean, yerr=ends, ecolor=curve.look["color"], **bars)
    if curve.published:
        open_mark = {"marker": curve.look["marker"], "markersize": 5.5, "markeredgewidth": 0.9}
        open_mark |= {"markerfacecolor": "none", "markeredgecolor": curve.look["color"]}
        axis.plot(*zip(*curve.published, strict=True), linestyle="none", label="_", zorder=1.5, **open_mark)


def _legend(part: SubFigure, row: PanelRow, sheet: Sheet) -> None:
    from matplotlib.lines import Line2D

    curves = [curve for _, many in row.cells for curve in many]
    style: dict[str, Any] = {"linewidth": 1.6, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.5}
    named = {curve.name: curve.look for curve in curves if curve.name}
    keys = [Line2D([], [], label=name, **style | look) for name, look in named.items()]
    if any(curve.published for curve in curves):
        open_mark: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}
        keys.append(Line2D([], [], label=NAME, color=INK, **open_mark))
    faint = [curve.look for curve in curves if not curve.name]
    keys += [Line2D([], [], label="the other layers", **look) for look in faint[:1]]
    # Next to the heading, where there is room.
    where: dict[str, Any] = {"loc": "outside lower center" if sheet.narrow else "outside upper right"}
    size = 10 * sheet.type
    part.legend(handles=keys, ncols=sheet.columns(len(keys)), handlelength=2.8, fontsize=size, **where)
