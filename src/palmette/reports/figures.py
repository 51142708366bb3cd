"""Curves over rounds or density: the mean of each method over seeds, with a band of one standard deviation."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from palmette.errors import extra
from palmette.reports.phases import by_round, is_scored
from palmette.reports.statistics import MeanSd
from palmette.reports.tables import Record, Run, by_method
from palmette.studies.record import value_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colours, safe for colour-blind readers; line and marker differ too, for black and white.
LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": (0, (6, 2)), "marker": "s"},
    {"color": "#009E73", "linestyle": (0, (6, 1.5, 1.5, 1.5)), "marker": "^"},
    {"color": "#CC79A7", "linestyle": (0, (2, 1.2)), "marker": "D"},
    {"color": "#E69F00", "linestyle": "-", "marker": "v"},
    {"color": "#56B4E9", "linestyle": (0, (6, 2)), "marker": "P"},
    {"color": "#000000", "linestyle": (0, (2, 1.2)), "marker": "X"},
)
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.edgecolor": "#666666",
    "axes.axisbelow": True,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "figure.dpi": 150,
}


@dataclass(frozen=True)
class Panel:
    """One panel: what of a record is plotted on x and y, its title and its scales.

    `falling` inverts the x axis, so that pruning always proceeds to the right. `bounds` are the least and the
    largest possible y.
    """

    title: str
    x: Callable[[Record], float | None]
    y: Callable[[Record], float | None]
    x_label: str
    log_x: bool = False
    log_y: bool = False
    falling: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def spread(self, mean: float, deviation: float) -> tuple[float, float]:
        """Mean ± deviation, within the possible values; a logarithmic axis cannot show a spread that reaches 0."""
        least, most = self.bounds
        low = max(mean - deviation, mean / 10 if self.log_y else -math.inf)
        return max(low, min(least, mean)), min(mean + deviation, max(most, mean))


def reader(*path: str, scale: float = 1) -> Callable[[Record], float | None]:
    """Function that reads one number of a record, such as the accuracy of `test`, times `scale`."""

    def read(record: Record) -> float | None:
        value: Any = record
        for name in path:
            value = value[name]
        return None if value is None else scale * float(value)

    return read


# Accuracy and density in percent; density and PQ Index of the retrained network.
round_of, accuracy_of = reader("round"), reader("test", "accuracy", scale=100)
density_of, index_of = reader("retrained", "density", scale=100), reader("retrained", "pq_index")

PERCENT, SHARE = (0.0, 100.0), (0.0, 1.0)
"""Bounds of panels."""
PANELS = (
    Panel("Test accuracy by round, %", round_of, accuracy_of, "round of pruning", bounds=PERCENT),
    Panel("PQ Index of the weights that remain", round_of, index_of, "round of pruning", log_y=True, bounds=SHARE),
    Panel("Density: weights that remain, %", round_of, density_of, "round of pruning", log_y=True, bounds=PERCENT),
    Panel(
        "Test accuracy by density, %",
        density_of,
        accuracy_of,
        "density, %",
        log_x=True,
        falling=True,
        bounds=PERCENT,
    ),
)


def score_of(record: Record) -> float | None:
    """Test score of any kind, as the user's function gave it."""
    return value_of(record["test"])


def draw(runs: Iterable[Run], *, panels: Sequence[Panel] = PANELS, caption: str = "") -> Figure:
    """Figure with `panels`, two per row, a legend above and a caption below; searches have another."""
    check_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    runs = list(runs)
    if runs and all(records[-1].get("search") for _, records in runs):
        from palmette.reports.searches import draw_searches

        return draw_searches(runs, caption=caption)
    groups = by_method(runs)
    if any(is_scored(records) for _, records in runs):
        named = {panel: panel.title.replace("accuracy", "score").removesuffix(", %") for panel in panels}
        panels = [
            replace(p, title=named[p], y=score_of, bounds=Panel.bounds) if p.y is accuracy_of else p
            for p in panels
        ]
    with matplotlib.rc_context(STYLE):
        rows = math.ceil(len(panels) / 2)
        figure = Figure(figsize=(10, 3.75 * rows), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.09)  # type: ignore[union-attr,call-arg]
        axes = figure.subplots(rows, 2).flatten()
        for axis, panel in zip(axes, panels, strict=True):
            for (name, many), line in zip(groups.items(), LINES * len(groups), strict=False):
                _curve(axis, panel, many, line | {"label": name})
            style_axis(axis, panel)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=min(4, len(names)), handlelength=3.2)
        figure.supxlabel(caption, fontsize=10, color="#444444")
    return figure


def check_matplotlib() -> None:
    """Raise ImportError with the install command if matplotlib is missing."""
    with extra("report", "a figure needs matplotlib"):
        import matplotlib  # noqa: F401


def as_file(figure: Figure, kind: Literal["png", "svg", "pdf"]) -> bytes:
    """The figure as file content; equal figures give equal bytes."""
    import matplotlib

    file = io.BytesIO()
    silent: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    # Type 42 embeds fonts, so that text in a PDF can be searched and edited.
    with matplotlib.rc_context({"svg.hashsalt": "palmette", "pdf.fonttype": 42}):
        figure.savefig(file, format=kind, metadata=silent[kind])
    return file.getvalue()


def points(panel: Panel, many: Sequence[Sequence[Record]]) -> list[tuple[float, float, float]]:
    """x, mean and standard deviation, round by round, to the end of the shortest run."""
    found = []
    for at in by_round(many):
        x, y = MeanSd.of(map(panel.x, at)).mean, MeanSd.of(map(panel.y, at))
        # A logarithmic axis cannot show 0, such as the density of a network without weights.
        if y.n and (x > 0 or not panel.log_x) and (y.mean > 0 or not panel.log_y):
            found.append((x, y.mean, y.sd if y.n > 1 else 0.0))
    return found


def _curve(axis: Axes, panel: Panel, many: Sequence[Sequence[Record]], line: dict[str, Any]) -> None:
    """Plot the mean with a band of one standard deviation."""
    found = points(panel, many)
    if not found:
        return
    x, mean = [x for x, _, _ in found], [m for _, m, _ in found]
    every = max(1, len(x) // 8)
    axis.plot(x, mean, markevery=every, markeredgecolor="white", markeredgewidth=0.8, **line)
    low, high = zip(*(panel.spread(m, d) for _, m, d in found), strict=True)
    axis.fill_between(x, low, high, color=line["color"], alpha=0.18, linewidth=0)


def style_axis(axis: Axes, panel: Panel) -> None:
    """Set title, labels and scales."""
    axis.set(title=panel.title, xlabel=panel.x_label)
    axis.margins(x=0.02)
    for log, which in ((panel.log_x, "x"), (panel.log_y, "y")):
        if log:
            getattr(axis, f"set_{which}scale")("log")
            _label(getattr(axis, f"{which}axis"))
    if panel.falling and not axis.xaxis_inverted():  # a shared axis may be inverted already
        axis.invert_xaxis()
    if not panel.log_x:
        axis.locator_params(axis="x", integer=True, min_n_ticks=1)  # rounds are whole numbers, even a single one


def _label(axis: Axis) -> None:
    """Plain tick labels on a logarithmic axis: powers of ten, with 2 and 5 or even steps on a short range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())  # an inverted axis has its larger end first
    powers = LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,))
    axis.set_major_locator(MaxNLocator(5) if high < 5 * low else powers)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
