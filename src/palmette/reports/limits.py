"""Limit of each method, and of all, in a sentence for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import fmean

from palmette.reports.statistics import WITHIN, Difference
from palmette.reports.tables import Run, last_kept
from palmette.studies.search import Limit, attempts_of
from palmette.words import counted, in_percent

_NAMED = 3
"""How many methods that tie with the first are named."""


def limit_of(run: Run) -> Limit | None:
    """Limit that a run found; None for a run without a search."""
    spec, records = run
    if spec.allowed_loss is None or not records or not records[-1].get("search"):
        return None
    stopped = records[-1]["stopped"] or "it is not finished"
    return Limit.of(attempts_of(records), spec.allowed_loss, stopped=stopped)


def how_far(runs: Sequence[Run], names: Iterable[str] | None = None) -> list[str]:
    """A sentence for each method: how far, how sure, and after how many retrainings."""
    return [f"{reach.name}: {reach}" for reach in _reaches(runs, names)]


def answer(runs: Sequence[Run], names: Iterable[str] | None = None) -> str:
    """One sentence for all runs: how far the network can be pruned, and by which method."""
    found = _reaches(runs, names)
    losses = {reach.loss for reach in found}
    within = f"within {losses.pop()}" if len(losses) == 1 else "within the allowed loss"
    if not any(reach.cut for reach in found):
        trained = any(len(records) > 1 for _, records in runs)
        return f"No cut stays {within}." if trained else "No cut was trained."
    best, *others = ranked(found)
    single = sorted((r for r in found if len(r.runs) == 1 < len(best.runs)), key=lambda reach: reach.density)
    if all(reach.ended == len(reach.runs) for reach in found):
        every = _all_runs(len(runs))
        return f"No limit was reached: {every} ended {within}, {best.name} at a density of {best.percent}."
    if len(found) == 1:
        return f"{best.name}: {best}"
    among = " of the methods with several runs" if single else ""
    more = f"{best.ended_there}, so it may go further" if best.ended else ""
    if single:
        more += f"; the best single run is of {single[0].name}: {single[0].percent}"
    place = f"a density of {best.percent}{_compared(best, others)}"
    return f"{best.name} goes furthest{among} {within}: {place}{more}{best.caution}."


def ranked(found: Sequence[Reach]) -> list[Reach]:
    """Methods by density, the one that goes furthest first.

    The best of many single runs is the luckiest: where methods of several runs were cut, these alone are ranked.
    """
    several = [reach for reach in found if len(reach.runs) > 1]
    return sorted(several if any(reach.cut for reach in several) else found, key=lambda reach: reach.density)


def _compared(best: Reach, others: Sequence[Reach]) -> str:
    """A clause about the methods that tie with the best, or the one that comes next."""
    tied = list(takewhile(lambda other: Difference.between(best.densities, other.densities).tied, others))
    if tied:
        named = [f"{reach.name} at {reach.percent}" for reach in tied[:_NAMED]]
        named += [counted(len(tied) - _NAMED, "other")] if len(tied) > _NAMED else []
        return f", a tie with {', '.join([*named[:-2], ' and '.join(named[-2:])])}"
    if not others:
        return ""
    seeds = min(len(best.runs), len(others[0].runs))
    noise = f", beyond the noise of {seeds} seeds" if seeds > 1 else ""
    return f"; next is {others[0].name} at {others[0].percent}{noise}"


@dataclass(frozen=True)
class Reach:
    """Limit of the runs of one method; as text, a clause without its name."""

    name: str
    runs: Sequence[Run]

    @cached_property
    def limits(self) -> list[Limit]:
        """Limits that searches found; empty if a run is no search."""
        found = [limit for run in self.runs if (limit := limit_of(run)) is not None]
        return found if len(found) == len(self.runs) else []

    @cached_property
    def rounds(self) -> list[int]:
        """Round of the last good network of each run."""
        return [limit.round for limit in self.limits] or [last_kept(records) for _, records in self.runs]

    @cached_property
    def densities(self) -> list[float]:
        """Density of the last good network of each run."""
        if self.limits:
            return [limit.density for limit in self.limits]
        return [records[t]["retrained"]["density"] for (_, records), t in zip(self.runs, self.rounds, strict=True)]

    @property
    def density(self) -> float:
        """Mean of the densities."""
        return fmean(self.densities)

    @property
    def percent(self) -> str:
        """Mean of the densities in percent, with the range of several."""
        return _percent(self.densities)

    @property
    def cut(self) -> bool:
        """Whether any cut stays within the loss."""
        return any(self.rounds)

    @property
    def ended(self) -> int:
        """Number of runs in which no sparser network exceeded the loss."""
        if self.limits:
            return sum(limit.bad_density is None for limit in self.limits)
        return sum(t == len(records) - 1 for (_, records), t in zip(self.runs, self.rounds, strict=True))

    @property
    def ended_there(self) -> str:
        """A clause with the number of runs that ended while they were good."""
        if not self.ended:
            return ""
        runs = len(self.runs)
        return f"; {_all_runs(runs) if self.ended == runs else f'{self.ended} of {runs} runs'} ended there"

    @property
    def loss(self) -> str:
        """Loss that is allowed."""
        if not self.limits:
            return f"{WITHIN:g} of dense (in hindsight)"
        tolerance = self.limits[0].tolerance
        return "the noise of dense" if tolerance.kind == "not-worse" else f"{tolerance} of dense"

    @property
    def caution(self) -> str:
        """A clause if the held-out data are too few for the loss."""
        return max((limit.caution for limit in self.limits), default="")

    def __str__(self) -> str:
        limits = self.limits
        if not limits and not self.cut:
            trained = any(len(records) > 1 for _, records in self.runs)
            return f"in hindsight no cut stays within {WITHIN:g} of dense" if trained else "no cut was trained"
        down = f"down to {self.percent} of the weights"
        if not limits:
            return f"in hindsight within {WITHIN:g} of dense {down}{self.ended_there}"
        if len(limits) == 1:
            return f"{limits[0]}{self.caution}"
        bad = [limit.bad_density for limit in limits if limit.bad_density is not None]
        less = f"; {_percent(bad)} is too few" if bad else "; fewer were not tried"
        sure = sum(limit.confirmed for limit in limits)
        return (
            f"within {self.loss} {down}{less}; "
            f"{fmean(limit.retrainings for limit in limits):.1f} retrainings; "
            f"both ends trained twice in {sure} of {counted(len(limits), 'run')}{self.caution}"
        )


def _reaches(runs: Sequence[Run], names: Iterable[str] | None) -> list[Reach]:
    groups: dict[str, list[Run]] = {}
    for name, run in zip(names or [spec.label for spec, _ in runs], runs, strict=True):
        groups.setdefault(name, []).append(run)
    return [Reach(name, many) for name, many in groups.items()]


def _all_runs(count: int) -> str:
    return {1: "the run", 2: "both runs"}.get(count, f"all {count:,} runs")


def _percent(values: Sequence[float]) -> str:
    """Mean in percent, with the range of values that differ."""
    mean = fmean(values)
    low, high = (in_percent(value, mean) for value in (min(values), max(values)))
    return f"{in_percent(mean, mean)}%" + (f" ({low} to {high})" if low != high else "")
