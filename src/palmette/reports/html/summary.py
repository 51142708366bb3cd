"""The verdict in plain words: how far each series went, and when its index turned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from palmette.reports.html.data import Series, Study
from palmette.reports.phases import FOLLOWING, has_validation, phases_of, turns
from palmette.reports.statistics import WITHIN, Difference, Spread
from palmette.reports.tables import last_kept
from palmette.reports.words import in_percent

Row = dict[str, Any]
_WITHIN_NOISE = "within the noise: the 95 % interval of the difference between equal seeds includes 0"
_NAMED = 4
"""Series that go equally far and are named; the last of more is how many others there are."""


def outcome(series: Series) -> Row:
    """How far a series went within `WITHIN` of dense, as lists of one number a run, and how often it got there."""
    many = series.many
    kept = [last_kept(records) for records in many]
    at = [records[t] for records, t in zip(many, kept, strict=True)]
    turned = [turns(phases_of(records)) for records in many]
    return {
        "series": series.name,
        "n": len(many),
        "seeds": [experiment.seed for experiment, _ in series.runs],
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
    times = 1 / _mean(row)
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
    found = Spread.of(values)
    deviation = f" ± {in_percent(found.sd, found.mean)}" if found.n > 1 else ""
    return f"{in_percent(found.mean, found.mean)}{deviation} %"


def number(values: Sequence[float]) -> str:
    """Mean and deviation of rounds.

    >>> number([3, 4]), number([7])
    ('3.5 ± 0.7', '7')
    """
    found = Spread.of(values)
    return f"{found.mean:.1f} ± {found.sd:.1f}" if found.n > 1 else f"{found.mean:g}"


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
    # The best of many single runs is the luckiest: where some series have several runs, one of these leads.
    several = [row for row in rows if row["n"] > 1]
    single = [row for row in rows if row["n"] == 1]
    if not single or not any(round for row in several for round in row["round"]):
        return _compared(rows)
    lucky = min(single, key=_mean)
    return (
        f"{_compared(several, ' of those with several runs')} "
        f"Of single runs that of {lucky['series']} goes furthest: {percent(lucky['density'])}."
    )


def _compared(rows: Sequence[Row], among: str = "") -> str:
    """Which of the rows goes furthest; those that differ by no more than their noise go equally far."""
    best, *others = sorted(rows, key=_mean)
    where = f"furthest{among} in these rounds and within one point of dense"
    equal = [best, *takewhile(lambda row: _alike(row, best), others)]
    if len(equal) > 1:
        names = [row["series"] for row in equal]
        last = names.pop() if len(names) <= _NAMED else f"{len(names) - _NAMED + 1} others"
        text = f"{', '.join(names[: _NAMED - 1])} and {last} go {where}"
        if all(row["density"] == best["density"] for row in equal):
            return f"{text}, and equally far: {percent(best['density'])} of the weights."
        low, high = (in_percent(_mean(row), _mean(best)) for row in (best, equal[-1]))
        if low == high:
            return f"{text}, and equally far: about {low} % of the weights."
        whose = "The difference is" if len(equal) == 2 else "All differences from the first are"
        return f"{text}: {low} to {high} % of the weights. {whose} {_WITHIN_NOISE}."
    text = f"{best['series']} goes {where}: {percent(best['density'])} of the weights"
    if not others:
        return f"{text}."
    text += f"; {others[0]['series']} comes next with {percent(others[0]['density'])}."
    found = _difference(others[0], best)
    if found.pairs < 2:
        return f"{text} {'A single seed says' if found.pairs else 'Different seeds say'} nothing about noise."
    return f"{text} The difference is beyond the noise of {found.pairs} seeds."


def _mean(row: Mapping[str, Any]) -> float:
    return Spread.of(row["density"]).mean


def _difference(row: Row, other: Row) -> Difference:
    """Of the densities that two series reached within a point of dense, paired by seed."""
    one, two = (dict(zip(r["seeds"], r["density"], strict=True)) for r in (row, other))
    return Difference.between(one, two)


def _alike(row: Row, other: Row) -> bool:
    """Whether two series go equally far: without noise, or within it."""
    found = _difference(row, other)
    return found.mean == 0 or (found.pairs > 1 and found.sign == 0)


def _hypothesis(rows: Sequence[Row]) -> str:
    n = sum(row["n"] for row in rows)
    turned = sum(len(row["turned_up"]) for row in rows)
    in_time = sum(row["turned_in_time"] for row in rows)
    collapsed = sum(len(row["collapsed"]) for row in rows)
    if not turned:
        runs, they = ("", "the run") if n == 1 else (f" in any of {n} runs", "they")
        more = f"The lowest PQ Index was not followed by {FOLLOWING} rounds more{runs}"
        return f"{more}: {they} ended, or collapsed, before that."
    if n == 1:
        while_good = "while accuracy was still" if in_time else "when accuracy was no longer"
        end = "collapsed later" if collapsed else "did not collapse"
        return (
            f"Before {'the collapse' if collapsed else 'its end'} the PQ Index was lowest {while_good} within one "
            f"point of dense, and higher in the rounds that followed; the run {end}."
        )
    return (
        f"In {turned} of {n} runs the lowest PQ Index came {FOLLOWING} rounds or more before the end, or the "
        f"collapse, and the index was higher in between: in {in_time} of these while accuracy was still within "
        f"one point of dense. {collapsed} of {n} collapsed."
    )
