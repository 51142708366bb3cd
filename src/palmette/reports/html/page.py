"""HTML report of any set of runs: verdict, charts, tables and settings in one self-contained file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from palmette.reports.html.bracket import brackets
from palmette.reports.html.charts import Chart, charts
from palmette.reports.html.controls import controls, furthest, initial_looks, symbols
from palmette.reports.html.document import bundled, document, table
from palmette.reports.html.method_charts import GRID
from palmette.reports.html.series import TABLES, Series, Study, Table, settings, studies
from palmette.reports.html.summary import judged_on, number, outcome, percent, quality, sentence, verdict
from palmette.reports.html.theme import AT_ONCE, CONFIG, LOOKS
from palmette.reports.phases import RULE
from palmette.reports.tables import Run
from palmette.words import counted, setting

_CARDS = 4
"""How many cards a study of many series has."""
_GLOSSARY = """<dl class="glossary">
<div><dt>dense, density</dt>
<dd>The dense network is trained before anything is cut; density is the fraction of its weights that remain.</dd>
</div>
<div><dt>round, method</dt>
<dd>A round cuts the least important weights and retrains the rest; the method says how many and which.</dd></div>
<div><dt>PQ Index, Gini Index</dt>
<dd>How unequal the magnitudes of the remaining weights are: 0 if all are equal, near 1 if few dominate.</dd></div>
</dl>
"""
_NOSCRIPT = '<noscript><p class="notice">The charts need JavaScript; the text and tables do not.</p></noscript>\n'


def page(runs: Iterable[Run], *, title: str = "", notices: Sequence[str] = ()) -> str:
    """Return the page as text; the same runs give the same page.

    Args:
        runs: experiments and their records. Runs of one model and data set make a section; runs that differ only
            in their seed make a line.
        title: default: the model and data set, or how many there are.
        notices: sentences at the top, such as which runs could not be read.

    The element `data` has the numbers of the records as JSON.
    """
    library = _library()
    found = studies(runs)
    if not found:
        raise ValueError("a page needs at least one run with a finished round, got none")
    tables = [{name: make(study) for name, make in TABLES.items()} for study in found]
    drawn = [_charts(*pair) for pair in zip(found, tables, strict=True)]
    content = {
        "config": CONFIG,
        "grid": GRID,
        "looks": AT_ONCE,
        "studies": list(map(_as_data, found, tables, drawn)),
    }
    sections = map(_section, range(len(found)), found, drawn, tables, initial_looks(found))
    warnings = [f'<p class="notice">{escape(text)}</p>\n' for text in [*notices, *_unfinished(found)]]
    count = sum(len(study.runs) for study in found)
    default = f"How far can {len(found)} networks be pruned?"
    if len(found) == 1:
        default = f"How far can it be pruned? {found[0].title}"
    return document(
        title=title or default,
        lead=f"{counted(count, 'run')} of training, pruning and retraining.",
        body=_NOSCRIPT + symbols() + "".join(warnings) + _contents(found) + "\n".join(sections),
        policy="script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:",
        source=" from records on disk",
        scripts=f'<script type="application/json" id="data">{_json(content)}</script>\n'
        f"<script>\n{library}\n</script>\n<script>\n{bundled('page.js')}\n</script>\n",
    )


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that defines `vegaEmbed`."""
    try:
        static = files("js_lib_vega_embed") / "static" / "js_lib_vega_embed"
    except ModuleNotFoundError as error:
        needed = "django-js-lib-vega-embed"
        raise ImportError(f"the page needs {needed}: pip install 'palmette[report]'") from error
    script = (static / "vega-embed-full.js").read_text(encoding="utf-8")
    return re.sub("</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _json(value: Any) -> str:
    # "<" could close the element that holds the text.
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _prose(text: str) -> str:
    """Escape for HTML, without line breaks inside a number, an equation or a method such as SAP (p=0.5, q=1)."""
    return re.sub(" (?=[±%=])|(?<=[±=]) |(?<=,) (?=q ?=)|(?<=SAP) ", "&nbsp;", escape(text))


def _charts(study: Study, tables: Mapping[str, Table]) -> dict[str, Chart]:
    names = list(dict.fromkeys(row["layer"] for row in tables["layers"]))
    top = max((value for row in tables["maps"] for value in row["pq_index"] if value is not None), default=1.0)
    return charts(study, layers=names, top=top)


def _as_data(study: Study, tables: Mapping[str, Table], drawn: Mapping[str, Chart]) -> dict[str, Any]:
    return {
        "name": re.sub(r"[^\w.]+", "-", f"{study.data}-{study.model}").strip("-"),
        # Column names once instead of in every row: half the size.
        "tables": {
            name: {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}
            for name, rows in tables.items()
        },
        "panels": {name: {"table": chart.table, "specs": chart.specs} for name, chart in drawn.items()},
    }


def _contents(studies: Sequence[Study]) -> str:
    """Links to the sections, if there are several."""
    if len(studies) == 1:
        return ""
    links = "".join(
        f'<li><a href="#study-{number}">{escape(study.title)}</a>, {counted(len(study.runs), "run")}</li>\n'
        for number, study in enumerate(studies)
    )
    return f'<nav aria-label="Sections"><ul>\n{links}</ul></nav>\n'


def _section(
    number: int,
    study: Study,
    drawn: Mapping[str, Chart],
    tables: Mapping[str, Table],
    looks: Mapping[str, int],
) -> str:
    methods = "".join(f"<option>{escape(series.name)}</option>" for series in study.series)
    last = max(len(records) for _, records in study.runs) - 1
    all_methods, one_method = (
        "".join(
            _figure(number, name, chart, f"{study.title}: {_described(study, name, chart, tables)}")
            for name, chart in drawn.items()
            if chart.one_method is one
        )
        for one in (False, True)
    )
    return f"""<section id="study-{number}" aria-label="{escape(study.title)}">
<h2>{escape(study.title)}</h2>
<div class="verdict">
{"".join(f"<p>{_prose(text)}</p>" for text in verdict(study))}
</div>
{"" if number else _GLOSSARY}{_cards(study, looks)}
<div class="scroll" data-table="results, {escape(study.title)}">{_outcomes(study)}</div>
<p class="quiet">{_prose(judged_on(study))}</p>
{controls(study, looks)}
<div class="panels">
{all_methods}
</div>
<p class="rule"><b>Rule of the phases.</b> {_prose(RULE)} Diao et al. 2023, Figure 1 and Appendix A;
the thresholds are palmette’s.</p>
<h3 class="part">One method in detail</h3>
<div class="controls inner" role="group" aria-label="Method and round">
<label class="chip">method <select data-signal="method">{methods}</select></label>
<label class="chip">round of the p–q map
<input type="range" data-signal="round" min="0" max="{last}" value="0" step="1"><output>0</output></label>
</div>
<div class="panels">
{one_method}
</div>
<h3 class="part">Settings</h3>
{_settings(study)}
</section>"""


def _cards(study: Study, looks: Mapping[str, int]) -> str:
    """One card per series; of many series, cards of those that go furthest."""
    if len(study.series) <= AT_ONCE:
        colours = [LOOKS[looks[series.name]]["colour"] for series in study.series]
        return f'<div class="cards">\n{"".join(map(_card, study.series, colours))}</div>'
    best = furthest(study)[:_CARDS]
    return f"""<h3 class="part">The {_CARDS} of {len(study.series)} that go furthest</h3>
<div class="cards">\n{"".join(_card(series, "var(--quiet)", "h4") for series in best)}</div>"""


def _card(series: Series, colour: str, heading: str = "h3") -> str:
    row = outcome(series)
    return (
        f'<div class="card" style="border-top-color: {colour}"><{heading}>{_prose(row["series"])}</{heading}>'
        f'<p class="big">{percent(row["density"])}</p><p>{_prose(sentence(row))}</p>{brackets(series)}</div>\n'
    )


def _figure(number: int, name: str, chart: Chart, description: str) -> str:
    title, level = escape(chart.title), "h4" if chart.one_method else "h3"
    half, label = " half" if chart.one_method else "", escape(description)
    # The marks that a caption explains are read out as nothing.
    caption = re.sub("[↑★]", r'<span aria-hidden="true">\g<0></span>', _prose(chart.caption))
    return f"""<figure class="panel{half}" data-study="{number}" data-panel="{name}">
<div><{level}>{title}</{level}><button type="button" data-download aria-label="CSV of {label}">CSV</button></div>
<div class="chart" role="img" aria-label="{label}"></div>
<figcaption>{caption}</figcaption>
</figure>
"""


def _described(study: Study, name: str, chart: Chart, tables: Mapping[str, Table]) -> str:
    """Title of a chart; of curves also where each begins and ends."""
    if name not in study.numbers:
        return chart.title
    ends = []
    for series in study.series:
        rows = [row for row in tables["curves"] if row["series"] == series.name and row[name] is not None]
        if rows:
            first, last = (f"{row[name]:.3g} in round {row['round']}" for row in (rows[0], rows[-1]))
            ends.append(f"{series.name} from {first} to {last}")
    return f"{chart.title}, {'; '.join(ends)}"


def _outcomes(study: Study) -> str:
    titles = ("method", "n", f"dense {study.scored}", "density kept", f"{study.scored} there", "at round")
    rows = [
        [
            row["series"],
            str(row["n"]),
            *(quality(row, "dense"), percent(row["density"]), quality(row, "accuracy")),
            number(row["round"]),
            *(_some(row[name], row["n"]) for name in ("turned_up", "collapsed")),
            f"{quality(row, 'last')} at {percent(row['last_density'])}",
        ]
        for row in map(outcome, study.series)
    ]
    return table((*titles, "index rose after", "collapsed at", "last round"), [map(_prose, row) for row in rows])


def _some(rounds: Sequence[float], n: int) -> str:
    if not rounds:
        return "never"
    return number(rounds) + (f" ({len(rounds)}\u00a0of\u00a0{n})" if len(rounds) < n else "")


def _settings(study: Study) -> str:
    common, own = settings(study)
    shared = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_value(value)}</dd></div>" for name, value in common.items()
    )
    names = list(dict.fromkeys(name for values in own.values() for name in values))
    rows = []
    for series in study.series:
        seeds, values = ", ".join(str(experiment.seed) for experiment, _ in series.runs), own[series.name]
        rows.append(
            [_prose(series.name), seeds, *(_value(values[name]) if name in values else "" for name in names)]
        )
    ids = "".join(f"<li><code>{escape(experiment.id)}</code></li>" for experiment, _ in study.runs)
    summary = f"Ids of {len(study.runs)} runs" if len(study.runs) > 1 else "Id of the run"
    varied = table(("series", "seeds", *names), rows)
    return f"""<dl>{shared}</dl>
<div class="scroll settings" data-table="settings, {escape(study.title)}">{varied}</div>
<details><summary>{summary}</summary><ul>{ids}</ul></details>"""


def _value(value: Any) -> str:
    names = {True: "yes", False: "no", "": "none"}
    if isinstance(value, bool | str) and value in names:
        return names[value]
    return escape(setting(value))


def _unfinished(studies: Sequence[Study]) -> list[str]:
    runs = [run for study in studies for run in study.runs]
    count = sum(records[-1]["stopped"] is None for _, records in runs)
    if not count:
        return []
    which = f"{count} of {len(runs)} runs" if len(runs) > 1 else "The run"
    return [f"{which} {'is' if count == 1 else 'are'} not finished: the rounds so far are shown."]
