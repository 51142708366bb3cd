"""Verdict of the HTML report: how far each series went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from palmette.reports.html.series import Series, Study
from palmette.reports.limits import limit_of
from palmette.reports.phases import has_validation, phases_of, turns
from palmette.reports.statistics import WITHIN, Difference, MeanSd
from palmette.reports.tables import last_kept
from palmette.reports.words import counted, in_percent
from palmette.studies.experiment import OwnExperiment
from palmette.studies.record import value_of
from palmette.studies.search import shown_score

Outcome = dict[str, Any]
_WITHIN_NOISE = "Within noise: the 95 % interval of the difference includes 0."
_NAMED = 4
"""How many tied series are named; the last of more is the number of others."""


def outcome(series: Series) -> Outcome:
    """How far a series went within `WITHIN` of dense: lists of one number per run, and counts of runs."""
    kept = [last_kept(records) for records in series.records]
    found = [turns(phases_of(records)) for records in series.records]
    both = list(zip(series.records, kept, strict=True))
    return {
        "series": series.name,
        "n": len(kept),
        "limits": [limit for run in series.runs if (limit := limit_of(run)) is not None],
        "own": any(isinstance(experiment, OwnExperiment) for experiment, _ in series.runs),
        "dense": [value_of(records[0]["test"]) for records in series.records],
        "round": kept,
        "density": [records[t]["retrained"]["density"] for records, t in both],
        "accuracy": [value_of(records[t]["test"]) for records, t in both],
        "at_the_end": sum(t == len(records) - 1 for records, t in both),
        "turned_up": [t for turn in found if (t := turn["turned_up"]) is not None],
        "turned_in_time": sum(
            turn["turned_up"] is not None and turn["turned_up"] <= t for turn, t in zip(found, kept, strict=True)
        ),
        "collapsed": [t for turn in found if (t := turn["collapsed"]) is not None],
        "last": [value_of(records[-1]["test"]) for records in series.records],
        "last_density": [records[-1]["retrained"]["density"] for records in series.records],
    }


def density(series: Series) -> float:
    """Density of the last round within one point of dense, as a mean over seeds."""
    return _mean(outcome(series))


def verdict(study: Study) -> list[str]:
    """How far the network can be pruned, which series goes furthest, and what the index did."""
    rows = [outcome(series) for series in study.series]
    searched = [row for row in rows if row["limits"]]
    if searched:
        best = min(searched, key=_mean)
        tolerance = best["limits"][0].tolerance
        point = str(tolerance) == "0.01" and not best["own"]
        loss = "one point of accuracy" if point else f"{tolerance} of the dense score"
        many = counted(round(MeanSd.of([limit.retrainings for limit in best["limits"]]).mean), "retraining")
        found = f"About {1 - _mean(best):.0%} of the weights can go within {loss} ({best['series']}, {many})."
        same = len({str(row["limits"][0].tolerance) for row in searched}) == 1 and len(searched) == len(rows)
        return [found, _compared(rows, within=f"{tolerance} of")] if same and len(rows) > 1 else [found]
    if study.scored == "score":
        return [f"{row['series']} ended with {percent(row['density'])} of the weights." for row in rows]
    n, in_time = (sum(row[name] for row in rows) for name in ("n", "turned_in_time"))
    turned, collapsed = (sum(len(row[name]) for row in rows) for name in ("turned_up", "collapsed"))
    far = [row for row in rows if any(row["round"])]
    several = [row for row in far if row["n"] > 1] or far  # the best of many single runs is the luckiest
    least = min(map(_mean, several), default=1.0)
    lead = [f"In hindsight, {1 - least:.0%} of the weights can go within one point of accuracy."]
    within = f" ({in_time} while accuracy was within one point of dense)" if turned else ""
    return [
        *(lead if far else []),
        _furthest(rows),
        f"The PQ Index turned up in {turned} of {counted(n, 'run')}{within}; {collapsed} collapsed.",
    ]


def sentence(row: Mapping[str, Any]) -> str:
    """Result of one series, to follow its density."""
    if limits := row["limits"]:
        bad = [limit.bad_density for limit in limits if limit.bad_density is not None]
        less = f"; {percent(bad)} is too few" if bad else "; fewer were not tried"
        sure = sum(limit.confirmed for limit in limits)
        data = " by the score that decides" if row["own"] else f" ({percent(row['dense'])}) on held-out data"
        return (
            f"of the weights stay within {limits[0].tolerance} of dense{data}{less}. "
            f"{number([limit.retrainings for limit in limits])} retrainings; both ends trained twice in {sure} of "
            f"{counted(row['n'], 'run')}. {_tested(row)}"
        )
    if row["own"]:
        return f"of the weights remained at the end. {_tested(row)}"
    if not any(row["round"]):
        dense_only = row["at_the_end"] == row["n"]
        why = "no cut was trained yet." if dense_only else "the first cut already costs more than one point."
        return f"of the weights, accuracy {percent(row['dense'])} (n = {row['n']}): {why}"
    open_ended = {0: "", row["n"]: " All runs ended there: more may be possible."}.get(
        row["at_the_end"], f" {row['at_the_end']} of {row['n']} runs ended there."
    )
    return (
        f"of the weights stay within one point of dense ({percent(row['dense'])}): "
        f"{1 / _mean(row):.1f} times fewer, accuracy {percent(row['accuracy'])} "
        f"(round {number(row['round'])}, n = {row['n']}).{open_ended}"
    )


def percent(values: Sequence[float]) -> str:
    """Mean and deviation in percent, with one digit or as many as small values need.

    >>> percent([0.25, 0.26]), percent([0.0012]), percent([0.000012])
    ('25.5 ± 0.7 %', '0.12 %', '0.0012 %')
    """
    spread = MeanSd.of(values)
    deviation = f" ± {in_percent(spread.sd, spread.mean)}" if spread.n > 1 else ""
    return f"{in_percent(spread.mean, spread.mean)}{deviation} %"


def quality(row: Mapping[str, Any], name: str) -> str:
    """Accuracies in percent, or scores of the user's functions as they are: mean and deviation."""
    if not row["own"]:
        return percent(row[name])
    spread = MeanSd.of(row[name])
    return shown_score(spread.mean) + (f" ± {shown_score(spread.sd)}" if spread.n > 1 else "")


def _tested(row: Mapping[str, Any]) -> str:
    if row["own"]:
        return f"Test score {quality(row, 'accuracy')}, dense {quality(row, 'dense')}."
    return f"Test accuracy {percent(row['accuracy'])}."


def number(values: Sequence[float]) -> str:
    """Mean and deviation of rounds.

    >>> number([3, 4]), number([7])
    ('3.5 ± 0.7', '7')
    """
    spread = MeanSd.of(values)
    return f"{spread.mean:.1f} ± {spread.sd:.1f}" if spread.n > 1 else f"{spread.mean:g}"


def judged_on(study: Study) -> str:
    """Which data decide what is within one point."""
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


def _furthest(rows: Sequence[Outcome]) -> str:
    if not any(t for row in rows for t in row["round"]):
        dense_only = all(row["at_the_end"] == row["n"] for row in rows)
        return "No cut was trained yet." if dense_only else "No cut stays within one point of dense."
    if len(rows) == 1:
        return f"{percent(rows[0]['density'])} of the weights stay within one point of dense."
    # The best of many single runs is the luckiest: where some series have several runs, one of these leads.
    several = [row for row in rows if row["n"] > 1]
    single = [row for row in rows if row["n"] == 1]
    if not single or not any(t for row in several for t in row["round"]):
        return _compared(rows)
    best = min(single, key=_mean)
    return (
        f"{_compared(several, ' of the methods with several runs')} "
        f"The best single run is of {best['series']}: {percent(best['density'])}."
    )


def _compared(rows: Sequence[Outcome], among: str = "", *, within: str = "one point of") -> str:
    """Which series goes furthest; those that differ within noise are tied."""
    best, *others = sorted(rows, key=_mean)
    where = f"furthest{among} within {within} dense"
    tied = [best, *takewhile(lambda row: _equal(row, best), others)]
    if len(tied) > 1:
        names = [row["series"] for row in tied]
        last = names.pop() if len(names) <= _NAMED else f"{len(names) - _NAMED + 1} others"
        low, high = (in_percent(_mean(row), _mean(best)) for row in (best, tied[-1]))
        text = f"{', '.join(names[: _NAMED - 1])} and {last} go {where}"
        if low == high:
            return f"{text}, equally far: {low} % of the weights."
        return f"{text}: {low} to {high} % of the weights. {_WITHIN_NOISE}"
    text = f"{best['series']} goes {where}: {percent(best['density'])} of the weights"
    if not others:
        return f"{text}."
    n = min(best["n"], others[0]["n"])
    noise = f"The difference is beyond the noise of {n} seeds." if n > 1 else "Their noise is unknown."
    return f"{text}; next is {others[0]['series']} with {percent(others[0]['density'])}. {noise}"


def _mean(row: Mapping[str, Any]) -> float:
    return MeanSd.of(row["density"]).mean


def _equal(row: Outcome, other: Outcome) -> bool:
    """Whether two series keep equal densities within one point of dense, exactly or within noise."""
    found = Difference.between(row["density"], other["density"])
    return found.mean == 0 or found.low <= 0 <= found.high
