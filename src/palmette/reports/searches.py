"""Figure of searches: every network that was tried, its density and its score, and the tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from palmette.reports.figures import LINES, STYLE, check_matplotlib
from palmette.reports.limits import limit_of
from palmette.reports.tables import Record, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SHOWN = 6  # times the tolerance; below, points only say that the network is broken


def draw_searches(runs: Sequence[Run], *, caption: str = "") -> Figure:
    """Score over density of all networks that searches tried, compared with the dense network of each run.

    Dots are within the tolerance, crosses are not; a ring is the network that a search found.
    """
    check_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(spec.label for spec, _ in runs))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axis = figure.subplots()
        for run in runs:
            _points(axis, run, LINES[names.index(run[0].label) % len(LINES)]["color"])
        for name, line in zip(names, LINES * len(names), strict=False):
            axis.plot([], [], "o", color=line["color"], label=name)
        axis.plot([], [], "x", color="#444444", label="too few weights")
        axis.plot([], [], "o", color="#444444", markersize=11, markerfacecolor="none", label="found by the search")
        _shade(axis, runs)
        axis.set_xscale("log")
        axis.set(
            title="Held-out score compared with the dense network", xlabel="density, % of the weights that remain"
        )
        axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.invert_xaxis()  # pruning proceeds to the right, as in every figure
        axis.legend(loc="lower left", fontsize=9.5)
        figure.supxlabel(caption, fontsize=10, color="#444444")
    return figure


def _points(axis: Axes, run: Run, colour: str) -> None:
    limit, records = limit_of(run), run[1]
    assert limit is not None
    dense = records[0]["search"]["score"]
    for record in records:
        score = record["search"]["score"]
        if score is None:  # training diverged
            continue
        good = (
            limit.tolerance.allows(score, dense=dense) if limit.tolerance.kind != "not-worse" else record["good"]
        )
        axis.plot(_percent(record), score - dense, "o" if good else "x", color=colour, alpha=0.75)
    found = records[limit.round]
    ring: dict[str, Any] = {"markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.8}
    axis.plot(_percent(found), found["search"]["score"] - dense, "o", color=colour, **ring)


def _percent(record: Record) -> float:
    return 100 * float(record["retrained"]["density"])


def _shade(axis: Axes, runs: Sequence[Run]) -> None:
    """Shade scores outside the tolerance, and leave out those far outside."""
    limits = [limit for run in runs if (limit := limit_of(run)) is not None]
    allowed = max(limit.tolerance.allowed(limit.dense_score, limit.score) for limit in limits)
    low, high = axis.get_ylim()
    if limits[0].tolerance.maximize:
        axis.set_ylim(max(low, -MOST_SHOWN * allowed) if allowed else low, high)
        axis.axhspan(axis.get_ylim()[0], -allowed, color="#000000", alpha=0.06, linewidth=0)
    else:
        axis.set_ylim(low, min(high, MOST_SHOWN * allowed) if allowed else high)
        axis.axhspan(allowed, axis.get_ylim()[1], color="#000000", alpha=0.06, linewidth=0)
