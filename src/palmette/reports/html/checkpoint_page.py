"""HTML page of a `how_compressible` report, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from palmette.checkpoints.compressibility import Compressibility, Measurement
from palmette.checkpoints.verdict import scope_of_numbers
from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.methods import SCOPES, Scope
from palmette.reports.html.document import document
from palmette.reports.html.theme import LAYER_COLOURS
from palmette.words import counted, measured, size

if TYPE_CHECKING:
    from palmette.checkpoints.headroom import Headroom

_COLOURS = dict(zip(SCOPES, LAYER_COLOURS, strict=False))
_STYLE = """
td.bar { min-width: 5.5rem; }
.scroll th, .scroll td { padding-right: .9rem; }
td.bar span { display: block; height: .4rem; margin-top: .15rem; border-radius: 2px; }
tr.whole td { font-weight: 650; border-top: 2px solid var(--quiet); }
@media print { td.bar { min-width: 3.5rem; } .scroll td:not(.name) { white-space: nowrap; } }
"""
_MEANINGS = (
    ("PQ Index, Gini, Hoyer", "measures of sparsity: 0 if all magnitudes are equal, larger if few are large"),
    ("bound", "largest fraction that the PQI bound allows to remove (Theorem 2)"),
    ("tail", "sum of |w|^p over that fraction, the smallest, divided by the sum over the rest: the bound's η"),
    ("neuron, layer, global", "next cut of SAP, with weights compared within that scope"),
    ("dead", "neurons whose weights are all zero"),
    ("after", "size after the cut in scope neuron: the remaining values and one bit per weight"),
)
_OF_NUMBERS = (*_MEANINGS[:3], ("SAP cuts", "next cut of SAP"))


def page(report: Compressibility) -> str:
    """Return the page as text; the same report gives the same page."""
    numbers = report.plain_numbers
    notices = "".join(f'<p class="notice">{escape(text)}</p>\n' for text in report.warnings)
    verdict = "".join(f"<p>{escape(text)}</p>\n" for text in report.verdict)
    meanings = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, text in (_OF_NUMBERS if numbers else _MEANINGS)
    )
    without_data = "" if numbers else ", measured without data"
    return document(
        title=f"How compressible is {report.title}?",
        lead=f"{counted(report.whole.d, 'number' if numbers else 'weight')} in {parts(report)}{without_data}. "
        f"Budget: {escape(str(report.budget))}.",
        body=f"""<h2>Verdict</h2>
<div class="verdict">
{verdict}</div>
{notices}<div class="cards">
{_cards(report.whole, numbers)}</div>
{_headroom(report.headroom)}<h2>{"Vectors" if numbers else "Layers"}</h2>
<div class="scroll">{_table(report, numbers)}</div>
<dl>{meanings}</dl>
{_left_out(report.left_out)}""",
        policy="img-src data:",
        style=_STYLE,
    )


def parts(report: Compressibility) -> str:
    """Number of layers, or of vectors."""
    return counted(len(report.layers), "vector" if report.plain_numbers else "layer")


def _cards(whole: Measurement, numbers: bool) -> str:
    accent = "var(--accent)"
    cards = [
        (
            "PQ Index",
            measured(whole.pq_index),
            f"Gini {measured(whole.gini_index)}, Hoyer {measured(whole.hoyer)}",
            accent,
        )
    ]
    for scope in ("global",) if numbers else SCOPES:
        text = counted(whole.sap_cut[scope], "number" if numbers else "weight")
        if not numbers:
            text += f"; {size(whole.bytes)} become {size(whole.bytes_after[scope])}"
        title = "SAP would cut" if numbers else f"Next cut, scope {scope}"
        cards.append((title, f"{whole.share_cut(scope):.1%}", text, _COLOURS[scope]))
    return "".join(
        f'<div class="card" style="border-top-color: {colour}"><h3>{escape(title)}</h3>'
        f'<p class="big">{big}</p><p>{escape(text)}</p></div>\n'
        for title, big, text, colour in cards
    )


def _table(report: Compressibility, numbers: bool) -> str:
    measures = ("PQ Index", "Gini", "Hoyer", "bound", "tail")
    titles = ("", "shape", "weights", *measures, *SCOPES, "dead", "size", "after")
    if numbers:
        titles = ("", "numbers", *measures, "SAP cuts")
    head = "".join(f"<th>{title}</th>" for title in titles)
    most = max((m.share_cut(scope) for m in report.layers for scope in SCOPES), default=0.0) or 1.0
    rows = "".join(f"<tr>{_row(m, most, numbers)}</tr>\n" for m in report.layers)
    if len(report.layers) > 1:
        rows += f'<tr class="whole">{_row(report.whole, most, numbers)}</tr>\n'
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"


def _row(m: Measurement, most: float, numbers: bool) -> str:
    plain = [
        f"{m.d:,}",
        *(measured(x) for x in (m.pq_index, m.gini_index, m.hoyer)),
        "none" if m.removable is None else f"{m.removable:.1%}",
        measured(m.tail_mass),
    ]
    name = f'<td class="name">{escape(m.name).replace(".", ".<wbr>")}</td>'
    if numbers:
        return name + _cells(plain) + _bar(m, scope_of_numbers(m), most)
    last = [f"{m.dead_neurons:,}", size(m.bytes), size(m.bytes_after["neuron"])]
    bars = "".join(_bar(m, scope, most) for scope in SCOPES)
    return name + _cells([" × ".join(map(str, m.shape)), *plain]) + bars + _cells(last)


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"<td>{text}</td>" for text in texts)


def _bar(m: Measurement, scope: Scope, most: float) -> str:
    width = max(0.0, min(100.0, 100 * m.share_cut(scope) / most))
    bar = f'<span style="width: {width:.1f}%; background: {_COLOURS[scope]}"></span>'
    return f'<td class="bar">{m.share_cut(scope):.1%}{bar}</td>'


def _headroom(headroom: Sequence[Headroom]) -> str:
    """Largest cuts without retraining, and the sensitivity curves below each other."""
    if not headroom:
        return ""
    head = "".join(f"<th>{title}</th>" for title in ("", "cut", "density", "score", "loss", ""))
    rows = "".join(_tried(found) for found in headroom)
    return (
        f"<h2>Without retraining</h2>\n<p>Tolerance {escape(str(headroom[0].tolerance))}: the largest cut within "
        "it, the cut that the index suggests, and every other cut that was tried.</p>\n"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n'
    )


def _tried(found: Headroom) -> str:
    notes = [(found.largest, "largest"), (found.suggested, "suggested")]
    notes += [(cut, "") for cut in found.curve if cut is not found.largest]
    return "".join(
        f'<tr><td class="name">{found.scope}</td>'
        + _cells(
            (
                f"{c.share:.1%}",
                f"{c.density:.1%}",
                f"{c.score.value:.4f}",
                f"{found.loss(c):.4f}",
                note or ("" if c.allowed else "outside"),
            )
        )
        + "</tr>\n"
        for c, note in notes
    )


def _left_out(tensors: Sequence[LeftOut]) -> str:
    if not tensors:
        return ""
    items = "".join(
        f"<li><code>{escape(t.name)}</code> {' × '.join(map(str, t.shape))}: {escape(t.why)}</li>" for t in tensors
    )
    return f"<details><summary>Left out: {counted(len(tensors), 'tensor')}</summary><ul>{items}</ul></details>"
