"""How far each method can prune, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from palmette.reports.statistics import WITHIN, Difference
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
    return [_sentence(name, many) for name, many in _by_name(runs, names).items()]


def answer(runs: Sequence[Run], names: Iterable[str] | None = None) -> str:
    """How far the network can be pruned, and by which method: one sentence for all runs."""
    found = {name: list(map(_reach, many)) for name, many in _by_name(runs, names).items()}
    everyone = [reach for many in found.values() for reach in many]
    losses = {reach.loss for reach in everyone}
    within = f"within {losses.pop()}" if len(losses) == 1 else "within the allowed loss"
    if not any(reach.round for reach in everyone):
        cut = any(len(records) > 1 for _, records in runs)
        return f"No cut stays {within}." if cut else "No cut was trained."
    densities = {name: [reach.density for reach in many] for name, many in found.items()}
    best, *others = sorted(densities, key=lambda name: fmean(densities[name]))
    if all(reach.open for reach in everyone):
        some = "the run ended" if len(everyone) == 1 else f"all {counted(len(everyone), 'run')} ended"
        return f"No limit was reached: {some} {within}, {best} at a density of {_percent(densities[best])}."
    if not others:
        return _sentence(best, runs)
    ended = sum(reach.open for reach in found[best])
    more = f"; {ended} of {counted(len(found[best]), 'run')} ended there, so it may go further" if ended else ""
    more += max(reach.caution for reach in found[best])
    gap = Difference.between(densities[best], densities[others[0]])
    second = f"{others[0]} at {_percent(densities[others[0]])}"
    tie = f", a tie with {second}" if gap.mean == 0 or gap.low <= 0 <= gap.high else f"; next is {second}"
    return f"{best} goes furthest {within}: a density of {_percent(densities[best])}{tie}{more}."


@dataclass(frozen=True)
class _Reach:
    """How far a run stayed good: round and density, and whether nothing sparser was found bad."""

    round: int
    density: float
    open: bool
    loss: str
    caution: str = ""


def _reach(run: Run) -> _Reach:
    if limit := limit_of(run):
        loss = "the noise of dense" if limit.tolerance.kind == "not-worse" else f"{limit.tolerance} of dense"
        return _Reach(limit.round, limit.density, limit.bad_density is None, loss, limit.caution)
    _, records = run
    kept = last_kept(records)
    density = records[kept]["retrained"]["density"]
    return _Reach(kept, density, kept == len(records) - 1, f"{WITHIN:g} of dense (in hindsight)")


def _by_name(runs: Sequence[Run], names: Iterable[str] | None) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for name, run in zip(names or [spec.label for spec, _ in runs], runs, strict=True):
        groups.setdefault(name, []).append(run)
    return groups


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
