"""The verdict in plain words: how far each series went, and when its index turned."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from palmette.reports.page_data import Series, Study
from palmette.reports.phases import has_validation, phases_of, turns
from palmette.reports.tables import WITHIN, last_kept
from palmette.reports.words import in_percent

Row = dict[str, Any]


def outcome(series: Series) -> Row:
    """How far a series went within `WITHIN` of dense, as lists of one number a run, and how often it got there."""
    many = series.many
    kept = [last_kept(records) for records in many]
    at = [records[t] for records, t in zip(many, kept, strict=True)]
    turned = [turns(phases_of(records)) for records in many]
    return {
        "series": series.name,
        "n": len(many),
        "dense": [records[0]["test"]["accuracy"] for records in many],
        "round": kept,
        "density": [record["retrained"]["density"] for record in at],
        "accuracy": [record["test"]["accuracy"] for record in at],
        "at_the_end": sum(t == len(records) - 1 for t, records in zip(kept, many, strict=True)),
        "turned_up": [turn["turned_up"] for turn in turned if turn["turned_up"] is not None],
        "turned_in_time": sum(
            turn["turned_up"] is not None and turn["turned_up"] <= t for turn, t in zip(turned, kept, strict=True)
        ),
        "collapsed": [turn["collapsed"] for turn in turned if turn["collapsed"] is not None],
        "last": [records[-1]["test"]["accuracy"] for records in many],
        "last_density": [records[-1]["retrained"]["density"] for records in many],
    }


def verdict(study: Study) -> list[str]:
    """Two sentences: which series goes furthest, and whether the hypothesis was seen."""
    rows = [outcome(series) for series in study.series]
    return [_furthest(rows), _hypothesis(rows)]


def sentence(row: Mapping[str, Any]) -> str:
    """What became of one series, to follow the share of its weights."""
    if not any(row["round"]):
        so_far = "the first cut is already more than one point below."
        if row["at_the_end"] == row["n"]:
            so_far = "nothing was trained after a cut so far."
        return f"of the weights have an accuracy of {percent(row['dense'])} (n = {row['n']}): {so_far}"
    open_ended = {0: "", row["n"]: " No run had left it at its end: it may go further."}.get(
        row["at_the_end"], f" {row['at_the_end']} of {row['n']} runs had not left it at the end."
    )
    times = 1 / statistics.fmean(row["density"])
    return (
        f"of the weights are enough to stay within one point of the dense network ({percent(row['dense'])}): "
        f"{times:.1f} times fewer, with an accuracy of {percent(row['accuracy'])} "
        f"(round {number(row['round'])}, n = {row['n']}).{open_ended}"
    )


def percent(values: Sequence[float]) -> str:
    """Mean and deviation, in percent: one digit, or as many as it takes to say how little is left.

    >>> percent([0.25, 0.26]), percent([0.0012]), percent([0.000012])
    ('25.5 ± 0.7 %', '0.12 %', '0.0012 %')
    """
    mean = statistics.fmean(values)
    deviation = f" ± {in_percent(statistics.stdev(values), mean)}" if len(values) > 1 else ""
    return f"{in_percent(mean, mean)}{deviation} %"


def number(values: Sequence[float]) -> str:
    """Mean and deviation of rounds.

    >>> number([3, 4]), number([7])
    ('3.5 ± 0.7', '7')
    """
    mean = statistics.fmean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:g}"


def judged_on(study: Study) -> str:
    """Which data decided what is within one point."""
    held = [has_validation(records) for _, records in study.runs]
    if all(held):
        return (
            f"Within {100 * WITHIN:g} point is judged on validation images; accuracies shown are on the test set."
        )
    some = " where a run has no validation accuracy" if any(held) else ""
    return (
        f"Within {100 * WITHIN:g} point is judged on the test set{some}: it describes curves, and is no way to "
        "choose a round. The first round that falls below counts, even if a later one is better again."
    )


def _furthest(rows: Sequence[Row]) -> str:
    if all(row["at_the_end"] == row["n"] and not any(row["round"]) for row in rows):
        return "So far there are dense networks only: nothing was trained after a cut."
    if not any(round for row in rows for round in row["round"]):
        return "No cut stays within one point of dense: the first of each run is already more than that below."
    if len(rows) == 1:
        return f"Within one point of dense, {percent(rows[0]['density'])} of the weights are enough."
    best, second = (ranked := sorted(rows, key=lambda row: statistics.fmean(row["density"])))[:2]
    equal = [row["series"] for row in ranked if row["density"] == best["density"]]
    if len(equal) > 1:
        return (
            f"{', '.join(equal[:-1])} and {equal[-1]} go furthest in these rounds and within one point of dense, "
            f"and equally far: {percent(best['density'])} of the weights."
        )
    gap = statistics.fmean(second["density"]) - statistics.fmean(best["density"])
    noise = [statistics.stdev(row["density"]) for row in (best, second) if row["n"] > 1]
    text = (
        f"{best['series']} goes furthest in these rounds and within one point of dense: "
        f"{percent(best['density'])} of the weights; "
        f"{second['series']} comes next with {percent(second['density'])}."
    )
    if len(noise) < 2:
        return f"{text} A single seed says nothing about noise."
    beyond = "more" if gap > sum(noise) else "no more"
    return f"{text} They differ by {beyond} than their two standard deviations together."


def _hypothesis(rows: Sequence[Row]) -> str:
    n = sum(row["n"] for row in rows)
    turned = sum(len(row["turned_up"]) for row in rows)
    in_time = sum(row["turned_in_time"] for row in rows)
    collapsed = sum(len(row["collapsed"]) for row in rows)
    if n == 1 and not turned:
        return "The PQ Index did not turn up for good: the run ended, or collapsed, before that."
    if n == 1:
        while_good = "while accuracy was still" if in_time else "when accuracy was no longer"
        end = "collapsed later" if collapsed else "did not collapse"
        return f"The PQ Index turned up for good {while_good} within one point of dense; the run {end}."
    if not turned:
        return f"The PQ Index turned up for good in none of {n} runs: they ended, or collapsed, before that."
    return (
        f"The PQ Index turned up for good in {turned} of {n} runs, in {in_time} of these while accuracy was still "
        f"within one point of dense; {collapsed} of {n} collapsed."
    )
