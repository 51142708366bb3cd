"""Controls of the HTML report: which series are drawn, and over which x axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from palmette.reports.html.charts import X_AXES
from palmette.reports.html.series import Series, Study
from palmette.reports.html.theme import AT_ONCE, LOOKS


def initial_looks(studies: Sequence[Study]) -> list[dict[str, int]]:
    """Per study, the series drawn at first with the number of their look.

    A method looks the same in all studies unless there are more methods than looks. A study with more series than
    looks starts with those that go furthest.
    """
    largest = sorted(studies, key=lambda study: -len(study.series))
    every = dict.fromkeys(series.name for study in largest for series in study.series)
    if len(every) <= AT_ONCE:
        numbers = {name: number for number, name in enumerate(every)}
        return [{series.name: numbers[series.name] for series in study.series} for study in studies]
    return [{series.name: number for number, series in enumerate(furthest(study)[:AT_ONCE])} for study in studies]


def furthest(study: Study) -> list[Series]:
    """Series of a study, that with the smallest density within the loss first; of equal ones, the first first."""
    return sorted(study.series, key=lambda series: series.reach.density)


def symbols() -> str:
    """SVG symbol of each look: `#look-0`, `#look-1`, …"""
    lines = "".join(
        f'<g id="look-{number}" fill="{look["colour"]}" stroke="{look["colour"]}">'
        f'<path d="M0,7H40" stroke-width="2.5" stroke-dasharray="{_dash(look["dash"])}"/>'
        f'<path d="{look["shape"]}" transform="translate(20,7) scale(5)" stroke="none"/></g>'
        for number, look in enumerate(LOOKS)
    )
    return f'<svg width="0" height="0" class="symbols" aria-hidden="true"><defs>{lines}</defs></svg>\n'


def controls(study: Study, looks: Mapping[str, int]) -> str:
    """Bar above the charts: methods and x axis; of many series, those that are drawn, unless all are asked for."""
    options = "".join(f'<option value="{name}">{escape(text)}</option>' for name, text in X_AXES.items())
    x = f'<label class="chip">x axis <select data-x>{options}</select></label>'
    chips = "".join(_chip(series.name, looks.get(series.name)) for series in study.series)
    many = len(study.series) > AT_ONCE
    choice = f"""<div class="controls inner" role="group" aria-label="Choice of methods and x axis">
{x}
<button type="button" class="chip" data-all aria-expanded="false">choose from all {len(study.series)} …</button>
<span class="quiet" data-full role="status" hidden>At most {AT_ONCE} at once: switch one off first.</span>
</div>"""
    return f"""{choice if many else ""}
<div class="controls" role="group" aria-label="Methods">
{chips}{"" if many else x}
</div>"""


def _chip(name: str, look: int | None) -> str:
    on = "" if look is None else f' checked data-look="{look}"'
    return (
        f'<label class="chip"{" hidden" if look is None else ""}>'
        f'<input type="checkbox" autocomplete="off" data-signal="shown" value="{escape(name)}"{on}>'
        f'<svg width="40" height="14" aria-hidden="true"><use href="#look-{look}"/></svg>{escape(name)}</label>\n'
    )


def _dash(dash: Sequence[float]) -> str:
    return " ".join(f"{part:g}" for part in dash) if dash[1] else "none"
