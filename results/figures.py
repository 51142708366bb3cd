"""Figures of the studies: those of the paper, an overview, and comparisons that the paper does not have."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from palmette.files import write_whole
from palmette.reports.comparison import name_of
from palmette.reports.figures import PANELS, STYLE, Panel, as_file, draw, points, style_axis
from palmette.reports.paper.drawing import PRUNED, RETRAINED
from palmette.reports.paper.drawing import draw as draw_paper
from palmette.reports.paper.published import NOTE, name_in_file, published
from palmette.reports.paper.runs import RunCollection
from palmette.reports.tables import Record, Run
from palmette.studies.paper import ETAS, FIGURES, GAMMAS, PS, QS
from results.records import BASES, METHODS, SAP, SAP2, SCOPES, Study, study

SETTINGS = {
    "p varies, q = 1": {f"p = {p:g}": f"SAP (p={p:g}, q=1)" for p in PS},
    "q varies, p = 1": {f"q = {q:g}": f"SAP (p=1, q={q:g})" for q in QS},
    "η_r varies, γ = 1": {f"η_r = {e:g}": SAP + (f", eta={e:g}" if e else "") for e in ETAS},
    "γ varies, η_r = 0": {f"γ = {g:g}": SAP + (f", gamma={g:g}" if g != 1 else "") for g in GAMMAS},
}
"""Settings of SAP that the paper varies, and the names of their methods."""
OPEN = {"linestyle": "none", "marker": "o", "color": "#b2182b", "markerfacecolor": "none", "markersize": 7.5}
TWO: Sequence[dict[str, Any]] = (
    {"color": "#222222", "marker": "."},
    {"color": "#8c8c8c", "marker": ".", "linestyle": (0, (4, 2))},
)
THREE: Sequence[dict[str, Any]] = (
    {"color": "#440154"},
    {"color": "#21918c", "linestyle": (0, (5, 1))},
    {"color": "#b5a300", "linestyle": ":"},
)
"""Looks of two studies and of three scopes: not the colours of methods."""
Curve = tuple[Sequence[tuple[float, float]], dict[str, Any]]
"""Points, and the style of the line."""
Cell = tuple[Panel, Mapping[str, Curve]]


def write(of: Study) -> None:
    """All figures of a study."""
    for name, figure in _figures(of).items():
        write_whole(of.folder / f"{name}.png", _png(figure))


def front(of: Study) -> bytes:
    """The picture of the front page: accuracy by density, and density by round."""
    return _png(draw([r for name in of.methods for r in _runs(of, name)], panels=(PANELS[3], PANELS[2])))


def _png(figure: Figure) -> bytes:
    """With a palette, which is a third of the size."""
    whole, small = Image.open(io.BytesIO(as_file(figure, "png"))).convert("RGB"), io.BytesIO()
    whole.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def _figures(of: Study) -> dict[str, Figure]:
    found = {name: _paper(of, name) for name in of.about.get("figures", ())}
    if of.name in BASES:
        return found | {"scopes": _scopes(of)}
    if len(of.methods) == len(METHODS):
        caption = f"Mean and sd over {of.seeds} seeds, until the first of them stops" if of.seeds > 1 else "1 seed"
        found["overview"] = draw([run for name in of.methods for run in _runs(of, name)], caption=caption)
    if (of.folder.parent / f"{of.name}-20").exists():
        found["epochs"] = _variants({"200 epochs per round": of, "20 epochs": study(f"{of.name}-20")}, of.methods)
    if (of.folder / "clipped-first.tar.xz").exists():
        clipped = study(of.name, "clipped-first.tar.xz")
        found["clipped-first"] = _variants({"masked first": of, "clipped first": clipped}, [SAP2])
    return found


def _runs(of: Study, name: str, scope: str = "global") -> list[Run]:
    """Runs of a method as far as all of them go: a mean over fewer would jump."""
    every = [*(study(BASES[of.name]).runs if of.name in BASES else []), *of.runs]
    seeds = set(of.own["seed"])
    found = [(e, r) for e, r in every if name_of(e) == name and e.scope == scope and e.seed in seeds]
    reached = min((len(records) for _, records in found), default=0)
    return [(e, records[:reached]) for e, records in found]


def _records(of: Study, name: str, scope: str = "global") -> list[Sequence[Record]]:
    return [records for _, records in _runs(of, name, scope)]


def _paper(of: Study, name: str) -> Figure:
    """A figure of the paper from the runs of a study."""
    figure = replace(FIGURES[name], data=of.own["data"].iloc[0])
    last = int(of.own["round"].max())
    folders = [study(n).folder / "runs.tar.xz" for n in (BASES.get(of.name), of.name) if n]
    seeds = sorted(of.own["seed"].unique().tolist()) if of.name in BASES else None
    picture = RunCollection.below(folders, warn=print).select(figure, seeds=seeds, rounds=of.about.get("until"))
    assert picture is not None
    # Values of later rounds would squeeze the others.
    values = {key: [(t, v) for t, v in line if t <= last] for key, line in published(figure).items()}
    return draw_paper(picture, published=values, log=of.name in BASES)


def _scopes(of: Study) -> Figure:
    """Accuracy by density: a panel for each method, a line for each scope."""
    cells: list[Cell] = []
    for name in METHODS:
        curves: dict[str, Curve] = {}
        for scope, look in zip(SCOPES, THREE, strict=True):
            shown = [(x, y) for x, y, _ in points(PANELS[-1], _records(of, name, scope)) if y > 50]
            curves[f"{scope} scope"] = shown, look
        cells.append((replace(PANELS[-1], title=name), curves))
    return _chart(cells, caption="Test accuracy, %, means over seeds; above 50 %.", share="all")


def _variants(of: Mapping[str, Study], names: Sequence[str]) -> Figure:
    """Two studies of one network: a column for each method, a row for each value, and what was published."""
    first = next(iter(of.values()))
    theirs, last = published(FIGURES[first.about["figures"][0]]), int(first.own["round"].max()) + 1
    panels: Mapping[str, Panel] = {"index": PANELS[1], "accuracy": PANELS[3]}
    if theirs:
        keys = ["retrained/remaining", "retrained/pq_index", "pruned/accuracy", "pruned/pq_index"]
        panels = {key: (RETRAINED | PRUNED)[key] for key in keys[: 2 if len(names) > 1 else 4]}
    cells: list[Cell] = []
    for key, panel in panels.items():
        title = "After the cut: " * key.startswith("pruned") + panel.title
        for name in names:
            curves: dict[str, Curve] = {}
            for (words, one), look in zip(of.items(), TWO, strict=True):
                shown = [(x, y) for x, y, _ in points(panel, _records(one, name)) if not theirs or x <= last]
                curves[words] = shown, look | {"markevery": 1 if theirs else 3}
            marks = theirs.get((key, name_in_file(_runs(first, name)[0][0])), [])
            if early := [(t, v) for t, v in marks if t <= last]:
                curves["published"] = early, OPEN
            cells.append((replace(panel, title=name + "\n" + title if len(names) > 1 else title), curves))
    caption = f"Open marks: {NOTE}." if theirs else "Means over seeds."
    if len(names) == 1:
        return _chart(cells, caption=caption, columns=len(panels))
    return _chart(cells, caption=caption, columns=len(names), share="row")


def _chart(
    cells: Sequence[Cell], *, caption: str, columns: int = 4, share: Literal["row", "all", False] = False
) -> Figure:
    """Panels in rows, a legend above them."""
    rows = -(-len(cells) // columns)
    with matplotlib.rc_context(STYLE | {"font.size": 10, "axes.titlesize": 10.5, "lines.markersize": 4.5}):
        figure = Figure(figsize=(12.8, 1.4 + 2.9 * rows), layout="constrained")
        names: dict[str, Any] = {}
        axes = figure.subplots(rows, columns, squeeze=False, sharey=share, sharex=share == "all").flatten()
        for axis, (panel, curves) in zip(axes, cells, strict=True):
            for label, (shown, style) in curves.items():
                (names[label],) = axis.plot(*zip(*shown, strict=True), label=label, **style)
            style_axis(axis, panel)
        figure.legend(names.values(), names, loc="outside upper center", ncols=4, handlelength=3, fontsize=9)
        figure.supxlabel(textwrap.fill(caption, 180), x=0.006, ha="left", fontsize=9, color="#444444")
    return figure
