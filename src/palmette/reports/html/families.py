"""Families of a large study: series that differ in one setting only, to be compared in one chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.reports.html.series import IN_LABEL, Study, setting_text, settings, settings_of
from palmette.reports.html.theme import LOOKS
from palmette.studies.experiment import Experiment
from palmette.studies.paper import METHODS

AT_ONCE = len(LOOKS)
"""How many series are distinguishable in one chart, by colour-blind readers and in black and white."""
_DEFAULTS = Experiment()
_PAPER = [Experiment(**method).label for method in METHODS]  # type: ignore[arg-type]


def families(study: Study) -> dict[str, list[int]]:
    """Title of each family -> numbers of its series, at most `AT_ONCE`.

    Methods with all else equal come first, then each setting with all else equal, larger families first, and last
    the smallest series within one point of dense. Settings are equal if those that are not the default are: a
    setting that one method does not have is no difference. Of too many values of a setting the two ends and some
    between are taken, of too many methods those of the paper.
    """
    own = [_not_default(values) for values in settings(study)[1].values()]
    found: list[tuple[str, list[int]]] = []
    for setting in dict.fromkeys(name for one in own for name in one):
        free = IN_LABEL if setting == "method" else (setting,)
        groups: dict[str, list[int]] = {}
        for number, series in enumerate(study.series):
            if setting in settings_of(series.runs[0][0]):
                equal = {name: value for name, value in own[number].items() if name not in free}
                groups.setdefault(repr(equal), []).append(number)
        for numbers in groups.values():
            members = {number: study.series[number].runs[0][0] for number in numbers}
            if len({getattr(member, setting) for member in members.values()}) < 2:
                continue
            shown = _spread(numbers)
            if setting == "method" and len(numbers) > AT_ONCE:
                paper = [number for number, member in members.items() if member.label in _PAPER]
                shown = paper if len(paper) > 1 else shown
            count = f"{len(shown)} of {len(numbers)}" if len(shown) < len(numbers) else f"{len(numbers)}"
            fixed = {n: v for n, v in own[numbers[0]].items() if n not in (*free, *IN_LABEL)}
            found.append((f"{_title(setting, members[numbers[0]], fixed)} · {count}", shown))
    found.sort(key=lambda family: (not family[0].startswith("method"), -len(family[1])))
    smallest = sorted(range(len(study.series)), key=lambda number: study.series[number].reach.density)[:AT_ONCE]
    return dict(found) | {f"smallest within one point of dense · {len(smallest)}": smallest}


def _not_default(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name == "method" or value != getattr(_DEFAULTS, name)}


def _title(setting: str, member: Experiment, fixed: Mapping[str, Any]) -> str:
    texts = [setting_text(name, value) for name, value in fixed.items()]
    if setting in ("p", "q"):
        other = "q" if setting == "p" else "p"
        texts.insert(0, setting_text(other, getattr(member, other)))
    elif setting != "method":
        texts.insert(0, member.label)
    return f"{setting}, with {', '.join(texts)}" if texts else setting


def _spread(numbers: Sequence[int]) -> list[int]:
    """At most `AT_ONCE` of them at equal distances, both ends included."""
    if len(numbers) <= AT_ONCE:
        return list(numbers)
    return [numbers[round(step * (len(numbers) - 1) / (AT_ONCE - 1))] for step in range(AT_ONCE)]
