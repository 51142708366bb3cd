"""The three phases of the hypothesis: the index falls, then rises, then the network collapses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from palmette.reports.statistics import MeanSd

if TYPE_CHECKING:
    from palmette.reports.tables import Record

Phase = Literal["falling", "rising", "collapsed"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Each = TypeVar("Each")

COLLAPSE = 0.05
"""Loss of accuracy, compared with the dense network, that is a collapse if it lasts to the end."""
FOLLOWING = 2
"""Rounds that must follow the lowest index before it counts as a turn."""

RULE = (
    f"Collapsed: from this round to the end, every accuracy is more than {100 * COLLAPSE:g} points below that of "
    "round 0. Rising: the rounds before a collapse that come after the one with the lowest PQ Index (p = 0.5, "
    f"q = 1), if there are at least {FOLLOWING}; each is above it, if only by noise. Falling: all earlier "
    "rounds. Judged run by run on validation images if there are any, else on the test set; the rule describes a "
    "finished curve and cannot be used to choose a round."
)


def phases(accuracy: Sequence[float], index: Sequence[float | None]) -> list[Phase]:
    """Phase of each round, from accuracies (0 to 1) and PQ Indices of rounds 0, 1, 2, …

    An accuracy that recovers is no collapse; an index that falls below its earlier minimum has not turned up. A
    missing index (None) is skipped. If several rounds have the lowest index, the last one counts.

    >>> phases([0.9, 0.9, 0.9, 0.88, 0.3], [0.3, 0.1, 0.2, 0.3, 0.2])
    ['falling', 'falling', 'rising', 'rising', 'collapsed']

    Diao et al. 2023, Figure 1 and Appendix A; the thresholds are ours.
    """
    if len(accuracy) != len(index):
        raise ValueError(f"phases needs as many accuracies as indices, got {len(accuracy)} and {len(index)}")
    standing = len(accuracy)
    while standing and accuracy[standing - 1] < accuracy[0] - COLLAPSE - 1e-9:
        standing -= 1
    known = [(value, -t) for t, value in enumerate(index[:standing]) if value is not None]
    lowest = -min(known)[1] if known else standing
    turned = lowest + 1 if standing - lowest - 1 >= FOLLOWING else standing
    parts = zip(PHASES, (turned, standing - turned, len(accuracy) - standing), strict=True)
    return [phase for phase, rounds in parts for _ in range(rounds)]


def phases_of(records: Sequence[Record]) -> list[Phase]:
    """Phase of each round of a run; those of a search, or of scores of any kind, count as falling."""
    if records[-1].get("search") or is_scored(records):
        return ["falling"] * len(records)
    return phases(judged(records), [record["retrained"]["pq_index"] for record in records])


def phases_of_mean(many: Sequence[Sequence[Record]]) -> list[Phase]:
    """Phases of the mean curve of several runs, to the end of the shortest."""
    if any(records[-1].get("search") or is_scored(records) for records in many):
        return ["falling"] * min(map(len, many))
    accuracy = [MeanSd.of(at).mean for at in by_round(list(map(judged, many)))]
    return phases(accuracy, [mean([record["retrained"]["pq_index"] for record in at]) for at in by_round(many)])


def turns(found: Sequence[Phase]) -> dict[str, int | None]:
    """Round of the lowest index if it turns up there, and first round of the collapse; None if there is none.

    >>> turns(["falling", "falling", "rising", "rising", "collapsed"])
    {'turned_up': 1, 'collapsed': 4}
    """
    return {
        "turned_up": found.index("rising") - 1 if "rising" in found else None,
        "collapsed": found.index("collapsed") if "collapsed" in found else None,
    }


def by_round(many: Sequence[Sequence[Each]]) -> list[list[Each]]:
    """Items of each round that all runs reached, such as records: a mean over fewer runs would jump."""
    return [[records[t] for records in many] for t in range(min(map(len, many), default=0))]


def is_scored(records: Sequence[Record]) -> bool:
    """Whether the user's functions gave the scores, which may be of any kind: accuracies, losses, R²."""
    return "score" in records[0]["test"]


def judged(records: Sequence[Record]) -> list[float]:
    """Accuracies that judge a run: validation if all rounds have it, else test."""
    part = "validation" if has_validation(records) else "test"
    return [record[part]["accuracy"] for record in records]


def has_validation(records: Sequence[Record]) -> bool:
    """Whether every round has a validation accuracy (a negative loss or a percentage is none)."""
    return all(record["validation"] and record["validation"]["accuracy"] is not None for record in records)


def mean(values: Sequence[Any]) -> float | None:
    """Mean of the values that are not None; None without one."""
    found = MeanSd.of(values)
    return found.mean if found.n else None
