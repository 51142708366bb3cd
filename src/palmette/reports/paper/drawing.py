"""Figures of the paper drawn from runs, with its panels, axes and lines, and error bars over seeds.

Diao et al. 2023, Section 4 and appendix; where the text does not define the layout, it follows the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from palmette.reports.figures import (
    LINES,
    PERCENT,
    SHARE,
    STYLE,
    Panel,
    accuracy_of,
    check_matplotlib,
    density_of,
    index_of,
    reader,
    round_of,
    style_axis,
)
from palmette.reports.html.theme import PHASE_COLOURS
from palmette.reports.paper.layout import INK, Curve, PanelRow, Sheet, draw_curve, draw_rows
from palmette.reports.paper.published import NOTE, Values, name_in_file
from palmette.reports.paper.runs import FigureRuns
from palmette.reports.phases import COLLAPSE, FOLLOWING, PHASES, Phase, by_round, mean, phases_of_mean, turns
from palmette.reports.tables import Record, Run
from palmette.studies.experiment import Experiment
from palmette.studies.paper import PaperFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups: TypeAlias = dict[str, list[Run]]  # runs by the name of their line
ROUND = "round $t$"
FAINT = {"color": "#c4c4c4", "linestyle": "-", "linewidth": 0.8, "zorder": 1.2}
SCOPES = {"neuron": "Neuron-wise pruning", "layer": "Layer-wise pruning", "global": "Global pruning"}


def draw(
    source: FigureRuns, *, published: Values | None = None, log: bool | None = None, sheet: Sheet | None = None
) -> Figure:
    """Draw a figure of the paper from its runs, each line as far as all of its runs go.

    Args:
        source: the figure and its runs.
        published: values to add as open marks to the panels of retrained and pruned models.
        log: put remaining weights on logarithmic axes, falling to the right; by default only in figures of scopes,
            whose curves are too close on the paper's linear axes.
        sheet: width of the figure, and whether it has title and caption.
    """
    check_matplotlib()
    import matplotlib

    figure = source.figure
    if not source.runs:
        raise ValueError(f"{figure.name} cannot be drawn: there is no run with a finished round")
    sheet = sheet or Sheet()
    log = is_logarithmic(figure) if log is None else log
    scaled = ", scaled down" if source.scaled_down else ""
    title = f"{figure.number}.  {figure.title}{scaled}".replace("η_r", r"$\eta_r$").replace("γ", r"$\gamma$")
    caption = f"{source.caption} Open marks: {NOTE}." if published else source.caption
    source = source.truncated()
    sizes = {"font.size": 10, "axes.titlesize": 10.5, "axes.labelsize": 10}
    with matplotlib.rc_context(STYLE | {name: sheet.type * size for name, size in sizes.items()}):
        if figure.kind == "hypothesis":
            return _hypothesis(source, sheet, title, caption)
        if figure.kind == "p-q map":
            return _maps(source, sheet, title, caption)
        if figure.kind == "rounds":
            rows = _rounds(source, published or {})
        else:
            rows = _scopes(source) if figure.kind == "scopes" else _ablations(source)
        return draw_rows([_logarithmic(row) if log else row for row in rows], sheet, title=title, caption=caption)


def is_logarithmic(figure: PaperFigure) -> bool:
    """Whether remaining weights are on logarithmic axes unless others are asked for."""
    return figure.kind == "scopes"


def _logarithmic(row: PanelRow) -> PanelRow:
    """Row with remaining weights on logarithmic axes."""
    cells = []
    for panel, curves in row.cells:
        right, up = panel.x is density_of, panel.y is density_of
        cells.append((replace(panel, log_x=right, falling=right, log_y=up), curves))
    return replace(row, cells=cells)


RETRAINED = {
    "retrained/accuracy": Panel("Accuracy, %", round_of, accuracy_of, ROUND, bounds=PERCENT),
    "retrained/remaining": Panel("Remaining weights, %", round_of, density_of, ROUND, bounds=PERCENT),
    "retrained/pq_index": Panel("PQ Index", round_of, index_of, ROUND, bounds=SHARE),
    "retrained/gini_index": Panel("Gini Index", round_of, reader("retrained", "gini_index"), ROUND, bounds=SHARE),
}
# Differences are retrained minus pruned, as in the paper; a record has pruned minus retrained.
PRUNED = {
    "pruned/accuracy": Panel(
        "Accuracy, %", round_of, reader("pruned", "test", "accuracy", scale=100), ROUND, bounds=PERCENT
    ),
    "pruned/accuracy_difference": Panel(
        "Accuracy, retrained − pruned, points",
        round_of,
        reader("pruned", "accuracy_difference", scale=-100),
        ROUND,
    ),
    "pruned/pq_index": Panel("PQ Index", round_of, reader("pruned", "pq_index"), ROUND, bounds=SHARE),
    "pruned/pq_index_difference": Panel(
        "PQ Index, retrained − pruned", round_of, reader("pruned", "pq_index_difference", scale=-1), ROUND
    ),
}
TRADE_OFF = Panel("", density_of, accuracy_of, "remaining weights, %", bounds=PERCENT)


def _rounds(source: FigureRuns, published: Values) -> list[PanelRow]:
    groups = _groups(source, attrgetter("label"))
    return [
        PanelRow("(a) Retrained models", _cells(RETRAINED, groups, LINES, published)),
        PanelRow("(b) Pruned models", _cells(PRUNED, groups, LINES, published), legend=False),
    ]


def _ablations(source: FigureRuns) -> list[PanelRow]:
    """Retrained models with one of two settings varied and the other one fixed."""
    halves = [("p", "$p$", {"q": 1.0}, "$q=1$"), ("q", "$q$", {"p": 1.0}, "$p=1$")]
    if source.figure.kind == "eta and gamma":
        halves = [
            ("eta", r"$\eta_r$", {"gamma": 1.0}, r"$\gamma=1$"),
            ("gamma", r"$\gamma$", {"eta": 0.0}, r"$\eta_r=0$"),
        ]
    rows = []
    for letter, (name, sign, fixed, fixed_text) in zip("ab", halves, strict=True):
        groups = _groups(source.only(**fixed), lambda e, name=name, sign=sign: f"{sign} = {getattr(e, name):g}")  # type: ignore[misc]
        looks = [line | {"color": c} for line, c in zip(LINES, _shades(len(groups)), strict=False)]
        cells = _cells(RETRAINED, groups, looks)
        rows.append(PanelRow(f"({letter}) {sign} varies, {fixed_text}", cells))
    return rows


def _scopes(source: FigureRuns) -> list[PanelRow]:
    layers = list(source.runs[0][1][0]["retrained"]["layers"])
    last = len(layers) - 1
    named = dict(sorted({round(last / 2): "middle", 0: "first", last: "last"}.items()))  # two have no middle
    sap = Experiment()
    parts = {scope: source.only(scope=scope) for scope in SCOPES}

    def of_layers(heading: str, name: str, scale: float, *, legend: bool) -> PanelRow:
        of_whole, cells = density_of if name == "density" else index_of, []
        read = [reader("retrained", "layers", layer, name, scale=scale) for layer in layers]
        for scope, title in SCOPES.items():
            many = [records for _, records in parts[scope].only(method="sap", p=sap.p, q=sap.q).runs]
            curves = [Curve("", FAINT, many, read[i]) for i in range(len(layers)) if i not in named]
            curves += [
                Curve(f"{place} ({_short(layers[i])})", look, many, read[i])
                for (i, place), look in zip(named.items(), LINES[4:], strict=False)
            ]
            bounds = PERCENT if name == "density" else SHARE
            cells.append((Panel(title, round_of, of_whole, ROUND, bounds=bounds), curves))
        return PanelRow(f"{heading}, {sap.label}", cells, share_y=True, legend=legend)

    trade_off = [
        (replace(TRADE_OFF, title=title), _curves(_groups(parts[scope], attrgetter("label")), LINES))
        for scope, title in SCOPES.items()
    ]
    return [
        PanelRow("(a) Accuracy, %", trade_off, share_y=True),
        of_layers("(b) Remaining weights, %", "density", 100, legend=True),
        of_layers("(c) PQ Index", "pq_index", 1, legend=False),
    ]


def _hypothesis(source: FigureRuns, sheet: Sheet, title: str, caption: str) -> Figure:
    """Accuracy and index by round, with the phases that are found."""
    from matplotlib.figure import Figure

    name, many = source.runs[0][0].label, [records for _, records in source.runs]
    size = (sheet.width, 1.1 * sheet.width) if sheet.narrow else (0.6 * sheet.width, 5.7)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for axis, key, look in zip(axes, ("retrained/accuracy", "retrained/pq_index"), LINES, strict=False):
        draw_curve(axis, RETRAINED[key], Curve(name, look, many))
        style_axis(axis, RETRAINED[key])
    axes[0].set_xlabel("")
    bottom, top = axes[0].get_ylim()
    axes[0].set_ylim(bottom, top + 0.22 * (top - bottom))  # room for the names of the phases
    axes[0].set_yticks([tick for tick in axes[0].get_yticks() if bottom <= tick <= min(100, top)])
    found = phases_of_mean(many) if source.last else []  # a single round has no phase
    index = [mean([index_of(record) for record in at]) for at in by_round(many)]
    before = [v for v, phase in zip(index, found, strict=False) if phase == "falling" and v is not None]
    falls = "index falls" if before and before[-1] < before[0] else "index does not fall"
    texts = (f"regularized\n{falls}", "compressed\nindex rises", "collapsed\naccuracy is lost")
    for phase, colour, text in zip(PHASES, PHASE_COLOURS, texts, strict=True):
        rounds = [t for t, p in enumerate(found) if p == phase]
        if not rounds:
            continue
        start, end = max(0, rounds[0] - 0.5), min(len(found) - 1, rounds[-1] + 0.5)
        for axis in axes:
            axis.axvspan(start, end, color=colour, alpha=0.13, linewidth=0, zorder=0)
            if start:
                axis.axvline(start, color=INK, linestyle=(0, (2, 2)), linewidth=0.9, zorder=1)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center", "va": "top"}
        axes[0].annotate(text, ((start + end) / 2, 1), (0, -4), fontsize=9 * sheet.type, color=INK, **place)
    sheet.add_title_and_caption(figure, title, f"{name}. {caption} {_verdict(found)}")
    return figure


def _verdict(found: Sequence[Phase]) -> str:
    """Rule of the phases, and what it finds.

    >>> _verdict(["falling", "falling", "falling", "collapsed"]).partition("Found: ")[2]
    'no rise, a collapse from round 3 on.'
    """
    rule = (
        f"Rule: a collapse starts where every later accuracy is more than {100 * COLLAPSE:g} points below that of "
        f"round 0; a rise needs at least {FOLLOWING} rounds between the lowest index and a collapse or the end."
    )
    if not found:
        return f"{rule} One round shows neither."
    turned, collapsed = turns(found).values()
    rise = "no rise" if turned is None else f"a rise from round {turned + 1} on"
    end = "no collapse" if collapsed is None else f"a collapse from round {collapsed} on"
    return f"{rule} Found: {rise}, {end}."


def _maps(source: FigureRuns, sheet: Sheet, title: str, caption: str) -> Figure:
    """One map of the index per method (rows) and round (columns)."""
    from matplotlib.figure import Figure

    caption = f"{caption} × where there is no index: p = q, or no weight is left. Each method has its own scale."
    lettered = zip("abcdefgh", _groups(source, attrgetter("label")).items(), strict=False)
    rows, rounds = [row for row in lettered if row[1][1]], shown_rounds(source.last)
    wide = 2.75 * len(rounds) + 0.9
    side = 2.75 * (sheet.width / wide if sheet.narrow else 1)
    size = min(wide, sheet.width), 0.9 * (not sheet.bare) + (side + 0.4 * sheet.narrow) * len(rows)
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False).flatten()
    grid = source.runs[0][1][0]["index_map"]
    for part, (letter, (name, many)) in zip(parts, rows, strict=True):
        part.suptitle(f"({letter}) {name}", x=0.006, ha="left", fontsize=11.5 * sheet.type, fontweight="bold")
        axes = part.subplots(1, len(rounds), squeeze=False).flatten()
        maps = [_mean_map([records[t] for _, records in many if len(records) > t]) for t in rounds]
        values = [v for one in maps for row in one for v in row if not math.isnan(v)]
        low, high = min(values, default=0.0), max(values, default=1.0)
        for axis, t, one in zip(axes, rounds, maps, strict=True):
            axis.grid(False)
            axis.set(title=f"$t = {t}$", facecolor="white", xlabel="$q$", ylabel="" if t else "$p$")
            step = 5 if sheet.narrow else 2
            axis.set_xticks(range(0, len(grid["q"]), step), [f"{q:g}" for q in grid["q"][::step]])
            axis.set_yticks(range(0, len(grid["p"]), 2), [f"{p:g}" for p in grid["p"][::2]])
            axis.set(xlim=(-0.5, len(grid["q"]) - 0.5), ylim=(len(grid["p"]) - 0.5, -0.5))
            if not one:
                axis.text(0.5, 0.5, "not reached\nby all runs", ha="center", va="center", transform=axis.transAxes)
                continue
            image = axis.imshow(one, vmin=low, vmax=high, cmap="cividis", aspect="auto")
            for i, row in enumerate(one):
                for j in (j for j, value in enumerate(row) if math.isnan(value)):
                    axis.text(j, i, "×", ha="center", va="center", color=INK, fontsize=9 * sheet.type)
        if values:
            part.colorbar(image, ax=axes, label="PQ Index", aspect=16, pad=0.015)
    sheet.add_title_and_caption(figure, title, caption)
    return figure


def shown_rounds(last: int) -> list[int]:
    """Four rounds: the paper's for its T of 30 and 15, else at equal distances.

    >>> shown_rounds(30), shown_rounds(15), shown_rounds(2)
    ([0, 10, 20, 30], [0, 4, 8, 15], [0, 1, 2])
    """
    return [0, 4, 8, 15] if last == 15 else sorted({round(last * part / 3) for part in range(4)})


def _mean_map(records: Sequence[Record]) -> list[list[float]]:
    """Mean index over runs for each p (rows) and q (columns); NaN where there is none."""
    maps = [record["index_map"]["pq_index"] for record in records]
    found = [[mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*maps, strict=True)]
    return [[math.nan if value is None else value for value in row] for row in found]


def _groups(source: FigureRuns, name: Callable[[Experiment], str]) -> Groups:
    """Runs of each line in the order of the paper; a line that was not run is empty."""
    groups: Groups = {name(e): [] for e in source.planned}
    for run in source.runs:
        groups[name(run[0])].append(run)
    return groups


def _curves(
    groups: Groups, looks: Sequence[dict[str, Any]], published: Values | None = None, key: str = ""
) -> list[Curve]:
    """One line per group that has runs; an empty group keeps its look reserved."""
    found = []
    for (name, many), look in zip(groups.items(), looks, strict=False):
        if many:
            marks = (published or {}).get((key, name_in_file(many[0][0])), [])
            found.append(Curve(name, look, [records for _, records in many], published=marks))
    return found


def _cells(
    panels: dict[str, Panel], groups: Groups, looks: Sequence[dict[str, Any]], published: Values | None = None
) -> list[tuple[Panel, list[Curve]]]:
    return [(panel, _curves(groups, looks, published, key)) for key, panel in panels.items()]


def _short(layer: str, most: int = 22) -> str:
    """Name of a layer, or its end if it is long.

    >>> _short("layer4.1.conv2.weight"), _short("encoder.layers.11.attention.output.dense.weight")
    ('layer4.1.conv2', '…ttention.output.dense')
    """
    name = layer.removesuffix(".weight")
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _shades(count: int) -> list[str]:
    """Colours from dark to light, so that ordered values are readable in black and white."""
    import matplotlib
    from matplotlib.colors import to_hex

    shades = matplotlib.colormaps["viridis"]
    return [to_hex(shades(0.85 * i / max(1, count - 1))) for i in range(count)]
