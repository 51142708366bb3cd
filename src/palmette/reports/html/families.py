"""Which series of a large study to look at together: those that differ in one setting only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.reports.html.data import IN_LABEL, Series, Study, meant, said, settings
from palmette.reports.html.summary import outcome
from palmette.reports.html.theme import LOOKS
from palmette.reports.statistics import Spread
from palmette.reports.tables import label
from palmette.studies.experiment import Experiment
from palmette.studies.paper import METHODS

AT_ONCE = len(LOOKS)
"""So many series are told apart in one chart, by colour-blind readers and in black and white too."""
_DEFAULTS = Experiment()
_OF_PAPER = [label(Experiment(**method)) for method in METHODS]  # type: ignore[arg-type]


def families(study: Study) -> dict[str, list[int]]:
    """What may be compared -> numbers of the series, at most `AT_ONCE`.

    Of more values of a setting the ends and some between are taken, of more methods those of the paper.
    Methods with all else equal come first, then each setting with all else equal, the larger families before the
    smaller, and last the series that go furthest within one point of dense. All else is equal where what is not
    the default is: a setting that one of the methods does not have is no difference.
    """
    own = [_not_default(values) for values in settings(study)[1].values()]
    found: list[tuple[str, list[int]]] = []
    for setting in dict.fromkeys(name for one in own for name in one):
        free = IN_LABEL if setting == "method" else (setting,)
        groups: dict[str, list[int]] = {}
        for number, series in enumerate(study.series):
            if setting in meant(series.runs[0][0]):
                held = {name: value for name, value in own[number].items() if name not in free}
                groups.setdefault(repr(held), []).append(number)
        for many in groups.values():
            members = [study.series[number].runs[0][0] for number in many]
            if len({getattr(member, setting) for member in members}) > 1:
                with_ = [
                    said(name, value) for name, value in own[many[0]].items() if name not in (*free, *IN_LABEL)
                ]
                paper = [
                    number for number, member in zip(many, members, strict=True) if label(member) in _OF_PAPER
                ]
                few = paper if setting == "method" and len(many) > AT_ONCE and len(paper) > 1 else _spread(many)
                count = f"{len(few)} of {len(many)}" if len(few) < len(many) else f"{len(many)}"
                found.append((f"{_name(setting, members[0], with_)} · {count}", few))
    found.sort(key=lambda family: (not family[0].startswith("method"), -len(family[1])))
    furthest = sorted(range(len(study.series)), key=lambda number: density(study.series[number]))[:AT_ONCE]
    return dict(found) | {f"those that go furthest · {len(furthest)}": furthest}


def density(series: Series) -> float:
    """How much is left where accuracy is last within one point of dense: the mean over seeds."""
    return Spread.of(outcome(series)["density"]).mean


def _not_default(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name == "method" or value != getattr(_DEFAULTS, name)}


def _name(setting: str, member: Experiment, with_: Sequence[str]) -> str:
    if setting in ("p", "q"):
        other = "q" if setting == "p" else "p"
        with_ = [said(other, getattr(member, other)), *with_]
    elif setting != "method":
        with_ = [label(member), *with_]
    return f"{setting}, with {', '.join(with_)}" if with_ else setting


def _spread(many: Sequence[int]) -> list[int]:
    if len(many) <= AT_ONCE:
        return list(many)
    return [many[round(step * (len(many) - 1) / (AT_ONCE - 1))] for step in range(AT_ONCE)]
