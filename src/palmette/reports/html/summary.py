"""Verdict of the HTML report: how far each series went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.reports.html.series import Series, Study
from palmette.reports.limits import answer, ranked
from palmette.reports.phases import has_validation, phases_of, turns
from palmette.reports.statistics import WITHIN, MeanSd
from palmette.studies.experiment import OwnExperiment
from palmette.studies.record import value_of
from palmette.studies.search import shown_score
from palmette.words import counted, in_percent

Outcome = dict[str, Any]


def outcome(series: Series) -> Outcome:
    """Results of a series within `WITHIN` of dense: lists of one number per run, and counts of runs."""
    reach = series.reach
    found = [turns(phases_of(records)) for records in series.records]
    both = list(zip(found, reach.rounds, strict=True))
    return {
        "series": series.name,
        "n": len(series.runs),
        "reach": reach,
        "own": any(isinstance(experiment, OwnExperiment) for experiment, _ in series.runs),
        "dense": [value_of(records[0]["test"]) for records in series.records],
        "round": reach.rounds,
        "density": reach.densities,
        "accuracy": [value_of(r[t]["test"]) for r, t in zip(series.records, reach.rounds, strict=True)],
        "turned_up": [t for turn in found if (t := turn["turned_up"]) is not None],
        "turned_in_time": sum(turn["turned_up"] is not None and turn["turned_up"] <= t for turn, t in both),
        "collapsed": [t for turn in found if (t := turn["collapsed"]) is not None],
        "last": [value_of(records[-1]["test"]) for records in series.records],
        "last_density": [records[-1]["retrained"]["density"] for records in series.records],
    }


def verdict(study: Study) -> list[str]:
    """Sentences about the limit of the network, the series that goes furthest, and the index."""
    rows, reaches = [outcome(series) for series in study.series], [series.reach for series in study.series]
    names = [series.name for series in study.series for _ in series.runs]
    searched = [reach for reach in reaches if reach.limits]
    best = ranked(searched or reaches)[0]
    least = "at least " if best.ended else ""
    share = f"{1 - best.density:.0%} of the weights can go within"
    if searched:
        many = counted(round(MeanSd.of([limit.retrainings for limit in best.limits]).mean), "retraining")
        lead = f"About {share} {best.limits[0].tolerance} of the dense {study.scored} ({best.name}, {many})."
        return [lead, answer(study.runs, names)] if len(rows) > 1 else [lead]
    if study.scored == "score":
        return [f"{row['series']} ended with {percent(row['density'])} of the weights." for row in rows]
    n, in_time = (sum(row[name] for row in rows) for name in ("n", "turned_in_time"))
    turned, collapsed = (sum(len(row[name]) for row in rows) for name in ("turned_up", "collapsed"))
    within = f" ({in_time} while accuracy was within one point of dense)" if turned else ""
    return [
        *([f"In hindsight, {least}{share} one point of accuracy."] if best.cut else []),
        answer(study.runs, names),
        f"The PQ Index turned up in {turned} of {counted(n, 'run')}{within}; {collapsed} collapsed.",
    ]


def sentence(row: Mapping[str, Any]) -> str:
    """Result of one series, to follow its density."""
    if row["own"]:
        tested = f"Test score {quality(row, 'accuracy')}, dense {quality(row, 'dense')}."
    else:
        tested = f"Accuracy {percent(row['accuracy'])}, dense {percent(row['dense'])}"
        tested += f" (round {number(row['round'])}, n = {row['n']})."
    if row["own"] and not row["reach"].limits:
        return f"of the weights remained at the end. {tested}"
    text = str(row["reach"])
    return f"{text[0].upper()}{text[1:]}. {tested}"


def percent(values: Sequence[float]) -> str:
    """Mean and deviation in percent, with one digit or as many as small values need.

    >>> percent([0.25, 0.26]), percent([0.0012]), percent([0.000012])
    ('25.5 ± 0.7%', '0.12%', '0.0012%')
    """
    spread = MeanSd.of(values)
    deviation = f" ± {in_percent(spread.sd, spread.mean)}" if spread.n > 1 else ""
    return f"{in_percent(spread.mean, spread.mean)}{deviation}%"


def quality(row: Mapping[str, Any], name: str) -> str:
    """Accuracies in percent, or scores of the user's functions as they are: mean and deviation."""
    if not row["own"]:
        return percent(row[name])
    spread = MeanSd.of(row[name])
    return shown_score(spread.mean) + (f" ± {shown_score(spread.sd)}" if spread.n > 1 else "")


def number(values: Sequence[float]) -> str:
    """Mean and deviation of rounds.

    >>> number([3, 4]), number([7])
    ('3.5 ± 0.7', '7')
    """
    spread = MeanSd.of(values)
    return f"{spread.mean:.1f} ± {spread.sd:.1f}" if spread.n > 1 else f"{spread.mean:g}"


def judged_on(study: Study) -> str:
    """Sentence about the data that decide what is within one point."""
    if study.scored == "score":
        return "The scores shown are those of the function `test`; another score decides a search."
    held = [has_validation(records) for _, records in study.runs]
    judged = f"Within {100 * WITHIN:g} point is judged on"
    if all(held):
        return f"{judged} validation images; the accuracies shown are on the test set."
    some = " where a run has no validation accuracy" if any(held) else ""
    return (
        f"{judged} the test set{some}: it describes curves and must not be used to choose a round. "
        "The first round below counts, even if a later one recovers."
    )
