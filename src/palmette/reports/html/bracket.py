"""Picture of a search: every network tried, on a line of densities, and the bracket that it closed."""

from __future__ import annotations

import math
from html import escape

from palmette.reports.html.series import Series
from palmette.reports.limits import limit_of
from palmette.studies.search import attempts_of, bracket, shown_densities

_WIDTH, _ROW, _LEFT, _RIGHT = 400, 22, 18, 14
_GOOD, _BAD = "#2a9d6f", "#d1495b"


def brackets(series: Series) -> str:
    """One line per run: good networks as dots, rejected ones as crosses, the bracket as a bar; empty if none."""
    runs = [(experiment, records) for experiment, records in series.runs if limit_of((experiment, records))]
    if not runs:
        return ""
    tried = [(experiment, attempts_of(records)) for experiment, records in runs]
    lowest = min(a.kept / a.total for _, attempts in tried for a in attempts if a.kept)
    decades = max(1, math.ceil(-math.log10(lowest)))

    def x(density: float) -> float:
        place = -math.log10(max(density, 10.0**-decades)) / decades
        return round(_LEFT + place * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = []
    for decade in range(decades + 1):
        at, label = x(10.0**-decade), shown_densities(10.0**-decade)[0]
        parts.append(
            f'<line x1="{at}" x2="{at}" y1="0" y2="{_ROW * len(tried)}" stroke="currentColor" opacity="0.15"/>'
            f'<text x="{at}" y="{_ROW * len(tried) + 12}" font-size="10" text-anchor="middle">{label}</text>'
        )
    for row, (experiment, attempts) in enumerate(tried):
        tolerance, y = experiment.allowed_loss, _ROW * row + _ROW / 2
        assert tolerance is not None
        found = bracket(attempts, tolerance)
        ends = shown_densities(found.good.density, None if found.bad is None else found.bad.density)
        title = f"seed {experiment.seed}: good down to {ends[0]}, too few at {ends[1]}"
        parts.append(f"<g><title>{escape(title)}</title>")
        if found.bad is not None:
            left, right = x(found.good.density), x(found.bad.density)
            parts.append(
                f'<rect x="{left}" y="{y - 7}" width="{max(2.0, right - left):.1f}" height="14" opacity="0.25"/>'
            )
        for attempt in attempts:
            at = x(attempt.kept / attempt.total)
            if tolerance.allows(attempt.score, dense=attempts[0].score):
                parts.append(f'<circle cx="{at}" cy="{y}" r="3" fill="{_GOOD}"/>')
            else:
                cross = f"M{at - 3} {y - 3}L{at + 3} {y + 3}M{at - 3} {y + 3}L{at + 3} {y - 3}"
                parts.append(f'<path d="{cross}" stroke="{_BAD}" stroke-width="1.5"/>')
        parts.append("</g>")
    height = _ROW * len(tried) + 18
    what = "Networks tried by density: dots are good, crosses too few, the bar is the bracket"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{what}" fill="currentColor">'
        f'<title>{what}</title>{"".join(parts)}</svg><p class="quiet">{what}.</p>'
    )
