"""The sensitivity curve: score over density without retraining, a line for each scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from palmette.reports.figures import LINES, STYLE, check_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from palmette.checkpoints.headroom import Headroom

Corner = Literal["lower left", "upper left"]
HOLLOW: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.8}
MOST_SHOWN = 6  # times the tolerance; below, curves only say that the network is broken


def draw(headroom: Sequence[Headroom], *, title: str = "", score: str = "score") -> Figure:
    """Figure of the sensitivity curves of `how_compressible(model, evaluate=…).headroom`.

    A line for each scope connects the cuts that were tried. Large markers show the largest cut within the
    tolerance, hollow ones the cut that the index suggests; the shaded scores are outside the tolerance. Scores
    worse than six times the tolerance are not shown, unless a suggested cut has one.

    Args:
        headroom: the `headroom` of a report, or some of its scopes.
        title: above the figure, such as the name of the network.
        score: label of the score, such as "validation accuracy".

    Save it with ``figure.savefig("sensitivity.png")``, or as reproducible bytes with
    `palmette.reports.figures.as_file`.
    """
    if not headroom:
        raise ValueError(
            "headroom must hold at least one scope, got none; it comes from how_compressible(model, evaluate=…)"
        )
    check_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        axis = figure.subplots()
        for found, line in zip(headroom, LINES, strict=False):
            _curve(axis, found, line["color"], line["linestyle"], line["marker"])
        _limit(axis, headroom)
        axis.set(title=title, xlabel="density, % of the weights that remain", ylabel=score)
        axis.invert_xaxis()  # pruning proceeds to the right, as in every figure
        # Away from the dense score.
        corner: Corner = "lower left" if headroom[0].tolerance.maximize else "upper left"
        axis.plot([], [], "o", color="#444444", markersize=9, **HOLLOW, label="suggested by the index")
        axis.legend(loc=corner, fontsize=9.5, handletextpad=0.4)
    return figure


def _curve(axis: Axes, found: Headroom, colour: str, dashes: Any, marker: str) -> None:
    density = [100 * cut.density for cut in found.curve]
    scores = [cut.score.value for cut in found.curve]
    axis.plot(density, scores, color=colour, linestyle=dashes, marker=marker, markersize=3.5, linewidth=1.6)
    largest, suggested = found.largest, found.suggested
    label = f"scope {found.scope}: {largest.share:.0%} can go, {suggested.share:.0%} suggested"
    line: dict[str, Any] = {"color": colour, "linestyle": "none", "marker": marker, "zorder": 3}
    axis.plot(100 * largest.density, largest.score.value, markersize=10, label=label, **line)
    axis.plot(100 * suggested.density, suggested.score.value, markersize=9, **HOLLOW, **line)


def _limit(axis: Axes, headroom: Sequence[Headroom]) -> None:
    """Shade scores outside the tolerance, and show no more of them than helps to compare."""
    first = headroom[0]
    dense, sign = first.dense.score.value, 1 if first.tolerance.maximize else -1
    allowed = first.tolerance.allowed(first.dense.score, first.largest.score)
    worst = max(found.loss(cut) for found in headroom for cut in found.curve)
    best = min(found.loss(cut) for found in headroom for cut in (*found.curve, found.suggested))
    suggested = max(found.loss(found.suggested) for found in headroom)
    shown = max(min(worst, MOST_SHOWN * allowed), suggested, 1.5 * allowed) or 1.0
    margin = 0.06 * (shown - best)
    ends = dense - sign * (shown + margin), dense - sign * (best - margin)
    axis.set_ylim(min(ends), max(ends))
    axis.axhspan(dense - sign * allowed, ends[0], color="#000000", alpha=0.06, linewidth=0, zorder=0)
    axis.axhline(dense - sign * allowed, color="#666666", linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
    axis.annotate(
        "outside the tolerance",
        (0.01, dense - sign * allowed),
        xycoords=("axes fraction", "data"),
        xytext=(0, -4 * sign),
        textcoords="offset points",
        ha="left",
        va="top" if sign > 0 else "bottom",
        fontsize=9,
        color="#444444",
    )
