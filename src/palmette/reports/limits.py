"""How far each method can prune, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from palmette.reports.statistics import WITHIN
from palmette.reports.tables import Run, last_kept
from palmette.reports.words import counted, in_percent
from palmette.studies.search import Limit, attempts_of


def limit_of(run: Run) -> Limit | None:
    """Limit that a run found; None for a run without a search."""
    spec, records = run
    if spec.allowed_loss is None or not records or not records[-1].get("search"):
        return None
    stopped = records[-1]["stopped"] or "it is not finished"
    return Limit.of(attempts_of(records), spec.allowed_loss, stopped=stopped)


def how_far(runs: Sequence[Run], names: Iterable[str] | None = None) -> list[str]:
    """A sentence for each method: how far, how sure, and after how many retrainings."""
    groups: dict[str, list[Run]] = {}
    for name, run in zip(names or [spec.label for spec, _ in runs], runs, strict=True):
        groups.setdefault(name, []).append(run)
    return [_sentence(name, many) for name, many in groups.items()]


def _sentence(name: str, runs: Sequence[Run]) -> str:
    limits = [limit for run in runs if (limit := limit_of(run)) is not None]
    if len(limits) < len(runs):
        return _in_hindsight(name, runs)
    if len(limits) == 1:
        return f"{name}: {limits[0]}{limits[0].caution}"
    densities = [limit.density for limit in limits]
    bad = [limit.bad_density for limit in limits if limit.bad_density is not None]
    less = f"; {_percent(bad)} is too few" if bad else "; fewer were not tried"
    sure = sum(limit.confirmed for limit in limits)
    twice = f"; both ends trained twice in {sure} of {counted(len(limits), 'run')}"
    tolerance = limits[0].tolerance
    loss = "the noise" if tolerance.kind == "not-worse" else str(tolerance)
    return (
        f"{name}: within {loss} of dense down to {_percent(densities)} of the weights{less}; "
        f"{fmean(limit.retrainings for limit in limits):.1f} retrainings{twice}"
        f"{max(limit.caution for limit in limits)}"
    )


def _in_hindsight(name: str, runs: Sequence[Run]) -> str:
    """How far a run without a search stayed within a point, which only its end shows."""
    kept = [(records, last_kept(records)) for _, records in runs]
    densities = [records[t]["retrained"]["density"] for records, t in kept]
    ended = sum(t == len(records) - 1 for records, t in kept)
    more = f"; {ended} of {counted(len(kept), 'run')} ended there" if ended else ""
    return f"{name}: in hindsight within {WITHIN:g} of dense down to {_percent(densities)} of the weights{more}"


def _percent(values: Sequence[float]) -> str:
    """Mean in percent, with the range of several values."""
    mean = fmean(values)
    if len(values) == 1:
        return f"{in_percent(mean, mean)} %"
    low, high = (in_percent(value, mean) for value in (min(values), max(values)))
    return f"{in_percent(mean, mean)} % ({low} to {high})"
