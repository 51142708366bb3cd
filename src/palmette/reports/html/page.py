"""One self-contained HTML file: charts, tables and verdict of any set of runs, which opens from disk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from palmette import __version__
from palmette.reports.html import data as page_data
from palmette.reports.html.charts import Panel, panels
from palmette.reports.html.controls import controls, looks_of, symbols
from palmette.reports.html.data import Series, Study, Table
from palmette.reports.html.families import AT_ONCE, density
from palmette.reports.html.method_charts import GRID
from palmette.reports.html.summary import judged_on, number, outcome, percent, sentence, verdict
from palmette.reports.html.theme import CONFIG, LOOKS
from palmette.reports.phases import RULE
from palmette.reports.tables import Run
from palmette.reports.words import counted, setting

_OVER_ROUNDS = ("accuracy", "pq_index", "density", "gini_index", "trade_off", "phases")
_FURTHEST = 4
_OF_ONE = ("layer_density", "layer_index", "cut", "map")
_TABLES = {
    "curves": page_data.curves,
    "rounds": page_data.rounds,
    "layers": page_data.layers,
    "maps": page_data.index_maps,
}


def page(runs: Iterable[Run], *, title: str = "", notices: Sequence[str] = ()) -> str:
    """The page as text; the same runs give the same page.

    Args:
        runs: what was run and its records, as `palmette report` reads them; those of one model and data set come
            together, and runs that differ in their seed only are one line.
        title: of the page; the model and data set by default, or how many there are.
        notices: sentences to put above all else, such as which runs could not be read.

    The numbers in the page are those of the records: the element `data` has them as JSON.
    """
    library = _library()
    found = page_data.studies(runs)
    if not found:
        raise ValueError("a page needs at least one run with a finished round, got none")
    shown = [_shown(study) for study in found]
    sections = [_section(*each) for each in zip(range(len(found)), found, shown, looks_of(found), strict=True)]
    data = {
        "config": CONFIG,
        "grid": GRID,
        "looks": AT_ONCE,
        "studies": [_plain(study, one) for study, one in zip(found, shown, strict=True)],
    }
    count = sum(len(study.runs) for study in found)
    warnings = "".join(f'<p class="notice">{escape(notice)}</p>\n' for notice in [*notices, *_unfinished(found)])
    return Template(_text("page.html")).substitute(
        version=escape(__version__),
        title=escape(title or _title(found)),
        lead=f"{counted(count, 'run')}: networks that were trained, pruned and trained again.",
        css=_text("page.css"),
        body=symbols() + warnings + _contents(found) + "\n".join(sections),
        data=_json(data),
        library=library,
        script=_text("page.js"),
    )


def _title(found: Sequence[Study]) -> str:
    if len(found) == 1:
        return f"How far can it be pruned? {found[0].title}"
    return f"How far can {len(found)} networks be pruned?"


def _contents(found: Sequence[Study]) -> str:
    """Links to the sections, where there is more than one."""
    if len(found) == 1:
        return ""
    links = "".join(
        f'<li><a href="#study-{number}">{escape(study.title)}</a>, {counted(len(study.runs), "run")}</li>\n'
        for number, study in enumerate(found)
    )
    return f'<nav aria-label="Sections"><ul>\n{links}</ul></nav>\n'


def _prose(text: str) -> str:
    """For HTML, and with no line that ends within a number, an equation or a method, as SAP (p=0.5, q=1)."""
    return re.sub(" (?=[±%=])|(?<=[±=]) |(?<=,) (?=q ?=)|(?<=SAP) ", "&nbsp;", escape(text))


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which makes `vegaEmbed` known to the page."""
    try:
        from vl_convert import javascript_bundle
    except ImportError as error:
        raise ImportError("the page needs vl-convert-python: pip install 'palmette[report]'") from error
    script = javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return re.sub("</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _text(name: str) -> str:
    return files("palmette.reports.html").joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    # "<" could end the element that the text is in.
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _shown(study: Study) -> tuple[dict[str, Table], dict[str, Panel]]:
    tables = {name: make(study) for name, make in _TABLES.items()}
    names = list(dict.fromkeys(row["layer"] for row in tables["layers"]))
    top = max((value for row in tables["maps"] for value in row["pq_index"] if value is not None), default=1.0)
    return tables, panels(study, layers=names, top=top)


def _plain(study: Study, shown: tuple[dict[str, Table], dict[str, Panel]]) -> dict[str, Any]:
    tables, charts = shown
    return {
        "name": re.sub(r"[^\w.]+", "-", f"{study.data}-{study.model}").strip("-"),
        # Names once and not in every row: half the size.
        "tables": {
            name: {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}
            for name, rows in tables.items()
        },
        "panels": {name: {"table": chart.table, "specs": chart.specs} for name, chart in charts.items()},
    }


def _section(
    number: int, study: Study, shown: tuple[dict[str, Table], dict[str, Panel]], looks: Mapping[str, int]
) -> str:
    charts = shown[1]
    names = [series.name for series in study.series]
    methods = "".join(f"<option>{escape(name)}</option>" for name in names)
    last = max(len(records) for _, records in study.runs) - 1
    return f"""<section id="study-{number}" aria-label="{escape(study.title)}">
<h2>{escape(study.title)}</h2>
<div class="verdict">
{"".join(f"<p>{_prose(text)}</p>" for text in verdict(study))}
</div>
{_cards(study, looks)}
<div class="scroll">{_outcomes(study)}</div>
<p class="quiet">{_prose(judged_on(study))}</p>
{controls(study, looks)}
<div class="panels">
{"".join(_figure(number, name, charts[name]) for name in _OVER_ROUNDS)}
</div>
<p class="rule"><b>The rule that found the phases.</b> {_prose(RULE)} Diao et al. 2023, Figure 1 and Appendix A;
the thresholds are palmette’s.</p>
<h4>Inside one method</h4>
<div class="controls inner" role="group" aria-label="Method and round">
<label class="chip">method <select data-signal="method">{methods}</select></label>
<label class="chip">round of the p–q map
<input type="range" data-signal="round" min="0" max="{last}" value="0" step="1"><output>0</output></label>
</div>
<div class="panels">
{"".join(_figure(number, name, charts[name], half=True) for name in _OF_ONE)}
</div>
<h4>Settings</h4>
{_settings(study)}
</section>"""


def _cards(study: Study, looks: Mapping[str, int]) -> str:
    """One for each series; where they are many, one for each of those that go furthest."""
    if len(study.series) <= AT_ONCE:
        colours = [LOOKS[looks[series.name]]["colour"] for series in study.series]
        return f'<div class="cards">\n{"".join(map(_card, study.series, colours))}</div>'
    best = sorted(study.series, key=density)[:_FURTHEST]
    return f"""<h4>The {_FURTHEST} of {len(study.series)} that go furthest</h4>
<div class="cards">\n{"".join(_card(series, "var(--quiet)") for series in best)}</div>"""


def _card(series: Series, colour: str) -> str:
    row = outcome(series)
    return (
        f'<div class="card" style="border-top-color: {colour}"><h3>{_prose(row["series"])}</h3>'
        f'<p class="big">{percent(row["density"])}</p><p>{_prose(sentence(row))}</p></div>\n'
    )


def _figure(number: int, name: str, chart: Panel, *, half: bool = False) -> str:
    title = escape(chart.title)
    return f"""<figure class="panel{" half" if half else ""}" data-study="{number}" data-panel="{name}">
<div><h3>{title}</h3><button type="button" data-download title="The data of this panel">CSV</button></div>
<div class="chart" role="img" aria-label="{title}"></div>
<figcaption>{_prose(chart.caption)}</figcaption>
</figure>
"""


def _outcomes(study: Study) -> str:
    titles = ("method", "n", "dense accuracy", "density within one point", "accuracy there", "at round")
    head = "".join(f"<th>{title}</th>" for title in (*titles, "index rose after", "collapsed at", "last round"))
    rows = []
    for series in study.series:
        row = outcome(series)
        cells = [
            row["series"],
            str(row["n"]),
            percent(row["dense"]),
            percent(row["density"]),
            percent(row["accuracy"]),
        ]
        cells += [number(row["round"]), _some(row["turned_up"], row["n"]), _some(row["collapsed"], row["n"])]
        cells.append(f"{percent(row['last'])} at {percent(row['last_density'])}")
        rows.append("<tr>" + "".join(f"<td>{_prose(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _some(rounds: Sequence[float], n: int) -> str:
    if not rounds:
        return "never"
    return number(rounds) + (f" ({len(rounds)}\u00a0of\u00a0{n})" if len(rounds) < n else "")


def _settings(study: Study) -> str:
    common, own = page_data.settings(study)
    shared = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_value(value)}</dd></div>" for name, value in common.items()
    )
    names = list(dict.fromkeys(name for values in own.values() for name in values))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", "seeds", *names))
    rows = "".join(_own(series, own[series.name], names) for series in study.series)
    ids = "".join(f"<li><code>{escape(experiment.id)}</code></li>" for experiment, _ in study.runs)
    summary = f"{len(study.runs)} runs by their ids" if len(study.runs) > 1 else "The id of the run"
    return f"""<dl>{shared}</dl>
<div class="scroll settings"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<details><summary>{summary}</summary><ul>{ids}</ul></details>"""


def _own(series: Series, values: Mapping[str, Any], names: Sequence[str]) -> str:
    seeds = ", ".join(str(experiment.seed) for experiment, _ in series.runs)
    cells = [_prose(series.name), seeds, *(_value(values[name]) if name in values else "" for name in names)]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _value(value: Any) -> str:
    names = {True: "yes", False: "no", "": "none"}
    if isinstance(value, bool | str) and value in names:
        return names[value]
    return escape(setting(value))


def _unfinished(found: Sequence[Study]) -> list[str]:
    runs = [run for study in found for run in study.runs]
    open_ended = sum(records[-1]["stopped"] is None for _, records in runs)
    if not open_ended:
        return []
    if open_ended == 1:
        which = f"1 of {len(runs)} runs" if len(runs) > 1 else "The run"
        return [f"{which} is not finished: it counts as far as it is."]
    return [f"{open_ended} of {len(runs)} runs are not finished: they count as far as they are."]
