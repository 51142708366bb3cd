"""Runs for tables and pages: one rule for what is left out, and a sentence about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from palmette.errors import RunDamaged
from palmette.reports.own_runs import with_distinct_names
from palmette.reports.tables import Run
from palmette.studies.folder import find_runs
from palmette.studies.record import experiment_of, records_of, value_of
from palmette.studies.status import standing

_NAMED = 3
"""Most runs that a sentence names; more are counted."""


def whole_runs(folders: Iterable[str | Path]) -> tuple[dict[Path, Run], list[str]]:
    """The runs in `folders`, at any depth, by folder; and sentences about runs that are left out or damaged.

    A run in training has the rounds that it has finished. A run that is damaged, or has no finished round or no
    test score, is left out; without any other, that is an error. A folder that is given twice, or lies in
    another one, counts once. One run in two folders is refused: it would count as two seeds. Networks of one name
    get distinct names, see `with_distinct_names`.
    """
    given = list(folders)
    runs: dict[Path, Run] = {}
    left_out: list[str] = []
    empty: dict[str, list[str]] = {}  # why, if that is known -> names
    nothing: type[Exception] = FileNotFoundError
    for rundir in find_runs(*given):
        try:
            experiment, records = experiment_of(rundir), records_of(rundir)
        except RunDamaged as error:
            nothing = RunDamaged
            left_out.append(f"left out: {error}")
            continue
        if not records:
            why = (standing(rundir, experiment).failure or "").removeprefix(experiment.id).lstrip()
            empty.setdefault(why, []).append(rundir.path.name)
        elif any(value_of(record["test"]) is None for record in records):
            lacking = "has no test score; prune_and_retrain takes a function `test`"
            left_out.append(f"left out: {str(rundir.path)!r} {lacking}")
        else:
            runs[rundir.path] = (experiment, records)
            if damage := rundir.mask_damage(records):
                left_out.append(f"{damage}; the numbers of the run are intact")
    left_out += [_without_a_round(names, why) for why, names in empty.items()]
    if not runs:
        places = ", ".join(repr(str(folder)) for folder in given)
        raise nothing("; ".join([f"no run to read in {places}", *left_out]))
    own = with_distinct_names(runs)
    found: dict[Path, Run] = {path: (own.get(path, e), records) for path, (e, records) in runs.items()}
    known: dict[str, Path] = {}
    for path, (e, _) in found.items():
        if (other := known.setdefault(e.id, path)) != path:
            raise ValueError(f"one run is in {str(other)!r} and in {str(path)!r}; give one of them")
    return found, left_out


def _without_a_round(names: Sequence[str], why: str) -> str:
    """A sentence about runs without a finished round.

    >>> print(_without_a_round(["a", "b"], ""))
    left out, as no round is finished: a, b
    >>> print(_without_a_round(["a", "b", "c", "d"], "diverged: its loss is nan"))
    left out, as no round is finished: a, b, c and 1 more, which failed: diverged: its loss is nan
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    failed = f", which failed: {why}" if why else ""
    return f"left out, as no round is finished: {', '.join(names[:_NAMED])}{more}{failed}"
