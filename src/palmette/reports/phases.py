"""The three phases of the hypothesis: the index falls, then rises, then the network collapses."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from palmette.reports.tables import Record

Phase = Literal["falling", "rising", "collapsed"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Each = TypeVar("Each")

COLLAPSE = 0.05
"""How far below the dense network's an accuracy must be, from some round to the end, to be a collapse."""
FOLLOWING = 2
"""How many rounds must follow the lowest index before it counts as a turn."""

RULE = (
    f"Collapsed: from this round to the end, every accuracy is more than {100 * COLLAPSE:g} points below that of "
    "round 0. Rising: the rounds before a collapse that come after the one with the lowest PQ Index (p = 0.5, "
    f"q = 1), if there are at least {FOLLOWING}; each is above it, if only by noise. Falling: all rounds before "
    "those. Judged run by run on validation images where there are any, else on the test set; the rule describes "
    "a curve that is known to its end, and is no way to choose a round."
)


def phases(accuracy: Sequence[float], index: Sequence[float | None]) -> list[Phase]:
    """The phase of each round, from accuracies (0 to 1) and PQ Indices of rounds 0, 1, 2, …

    An accuracy that recovers is no collapse, and an index that falls below its lowest again had not turned up. An
    index that does not exist (None) is passed over. Of several rounds with the lowest index the last one counts.

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
    """The phase of each round of a run."""
    return phases(judged(records), [record["retrained"]["pq_index"] for record in records])


def phases_of_mean(many: Sequence[Sequence[Record]]) -> list[Phase]:
    """The phases of the mean curve of several runs, over those that reached a round."""
    accuracy = [statistics.fmean(at) for at in by_round(list(map(judged, many)))]
    return phases(accuracy, [mean([record["retrained"]["pq_index"] for record in at]) for at in by_round(many)])


def turns(found: Sequence[Phase]) -> dict[str, int | None]:
    """The round with the lowest index, if others rise from it, and the first of the collapse; None for none.

    >>> turns(["falling", "falling", "rising", "rising", "collapsed"])
    {'turned_up': 1, 'collapsed': 4}
    """
    return {
        "turned_up": found.index("rising") - 1 if "rising" in found else None,
        "collapsed": found.index("collapsed") if "collapsed" in found else None,
    }


def by_round(many: Sequence[Sequence[Each]]) -> list[list[Each]]:
    """What there is of each round, such as records, of the runs that reached it."""
    last = max(map(len, many), default=0)
    return [[records[t] for records in many if len(records) > t] for t in range(last)]


def judged(records: Sequence[Record]) -> list[float]:
    """The accuracies that a run is judged by."""
    part = "validation" if has_validation(records) else "test"
    return [record[part]["accuracy"] for record in records]


def has_validation(records: Sequence[Record]) -> bool:
    """Whether a run has validation accuracies; minus a loss, or percent, is none."""
    return all(record["validation"] and record["validation"]["accuracy"] is not None for record in records)


def mean(values: Sequence[Any]) -> float | None:
    """The mean of those that exist; None where none does."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
