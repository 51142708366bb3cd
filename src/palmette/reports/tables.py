"""Summary table of runs: a row for each method, mean and standard deviation over seeds."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palmette.pruning.methods import SCOPES, pattern_of, rank_of
from palmette.reports.phases import COLLAPSE, FOLLOWING, is_scored, judged, phases_of, turns
from palmette.reports.statistics import WITHIN, MeanSd, last_within
from palmette.words import counted, in_percent

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

Record = Mapping[str, Any]
Run = tuple[Any, Sequence[Record]]
"""An `Experiment` or an `OwnExperiment`, and its records."""

NOTES = (
    f"kept: the last round up to which every accuracy is within {100 * WITHIN:g} point of the dense network's "
    "(judged on validation images where there are any), or the network that a search found.\n"
    "index up: the round with the lowest PQ Index (p=0.5, q=1) before a collapse, if at least "
    f"{FOLLOWING} rounds follow it; a collapse is an accuracy that stays more than {100 * COLLAPSE:g} points "
    "below the dense network's to the end. end: the last round.\n"
    "Accuracy is measured on the test set, density is the fraction of weights that remain, both in percent; "
    "± is the standard deviation over seeds."
)


def canonical_order(column: pd.Series) -> pd.Series:
    """Sort key for a column of settings: methods and scopes in their canonical order, all else by value."""
    order = {"method": rank_of, "scope": _rank_of_scope}.get(str(column.name))
    return column if order is None else column.map(order)


def _rank_of_scope(scope: str) -> float:
    """Rank in tables; patterns n:m come last, by m and then by n."""
    known, pattern = (*SCOPES, "channel"), pattern_of(scope)
    return known.index(scope) if pattern is None else len(known) + pattern[1] + pattern[0] / pattern[1]


def by_method(runs: Iterable[Run], names: Iterable[str] | None = None) -> dict[str, list[Sequence[Record]]]:
    """Records of the runs of each method, or each name, in order of first appearance."""
    runs = list(runs)
    groups: dict[str, list[Sequence[Record]]] = {}
    for name, (_, records) in zip(names or [e.label for e, _ in runs], runs, strict=True):
        groups.setdefault(name, []).append(records)
    return groups


def summary(runs: Iterable[Run], names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """A row for each method, or for each of `names`: [mean, standard deviation], the latter None for one run."""
    rows = []
    for method, many in by_method(runs, names).items():
        moments: dict[str, list[int | None]] = {
            "dense": [0 for _ in many],
            "kept": [last_kept(records) for records in many],
            "index_turned_up": [turns(phases_of(records))["turned_up"] for records in many],
            "end": [len(records) - 1 for records in many],
        }
        row: dict[str, Any] = {"method": method, "runs": len(many)}
        for name, rounds in moments.items():
            row[name] = _at([(records, t) for records, t in zip(many, rounds, strict=True) if t is not None])
        rows.append(row | {"stopped": dict(Counter(records[-1]["stopped"] for records in many))})
    return rows


def last_kept(records: Sequence[Record]) -> int:
    """Last round up to which a run is within a point of its dense network; the answer of `prune_and_retrain`."""
    if search := records[-1].get("search"):
        return int(search["answer"])
    return len(records) - 1 if is_scored(records) else last_within(judged(records))


def as_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of `summary` as a table for the terminal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))  # fits 80 columns
    titles = ("method", "dense\naccuracy", "kept\ndensity", "\naccuracy", "index up\ndensity", "\naccuracy")
    for title in (*titles, "end\ndensity", "\naccuracy"):
        name = title == "method"  # long names wrap, so that numbers do not
        table.add_column(title, justify="left" if name else "right", no_wrap=not name)
    for row in rows:
        pairs = [row["dense"]["accuracy"]]
        for moment in ("kept", "index_turned_up", "end"):
            pairs += [row[moment]["density"], row[moment]["accuracy"]]
        table.add_row(row["method"], *("never" if p is None else in_percent(p[0], p[0]) for p in pairs))
        if row["runs"] > 1:
            deviations = ("" if p is None or p[1] is None else f"±{in_percent(p[1], p[0])}" for p in pairs)
            table.add_row("", *deviations, style="dim")
    return table


def why_stopped(rows: Sequence[Mapping[str, Any]]) -> str:
    """Reasons why runs ended, once if all had the same."""
    if len({reason for row in rows for reason in row["stopped"]}) == 1:
        counts = sorted({row["runs"] for row in rows})
        each = f"{' or '.join(map(str, counts))} run{'s' if counts != [1] else ''} of each method"
        return f"{each}; all ended because {next(iter(rows[0]['stopped']))}."
    lines = []
    for row in rows:
        reasons = (f"{reason} ({count} of {row['runs']})" for reason, count in row["stopped"].items())
        lines.append(f"{row['method']} ended because {'; '.join(reasons)}.")
    return "\n".join(lines)


def as_text(rows: Sequence[Mapping[str, Any]], runs: Iterable[Run], far: Sequence[str] = ()) -> str:
    """The table as a text file, with sentences of how far methods go, notes and the ids of its runs."""
    from rich.console import Console

    page = Console(file=io.StringIO(), width=120, color_system=None)
    page.print(as_table(rows))
    turned = [row for row in rows if 0 < row["index_turned_up"]["runs"] < row["runs"]]
    some = {row["method"]: counted(row["index_turned_up"]["runs"], "run") for row in turned}
    notes = [f"The index of {method} turned up in {of} only." for method, of in some.items()]
    ids = [experiment.id for experiment, _ in runs]
    text = page.file.getvalue()  # type: ignore[attr-defined]
    body = "\n".join(line.rstrip() for line in text.splitlines())
    lists = ["\n".join([title, *lines]) for title, lines in (("How far?", far), ("Runs:", ids)) if lines]
    return "\n\n".join([body, "\n".join([why_stopped(rows), *notes]), NOTES, *lists]) + "\n"


def _at(moments: Sequence[tuple[Sequence[Record], int]]) -> dict[str, Any]:
    at = [records[t] for records, t in moments]
    return {
        "runs": len(at),
        "round": _spread([t for _, t in moments]),
        "density": _spread([record["retrained"]["density"] for record in at]),
        "accuracy": _spread([record["test"]["accuracy"] for record in at]),
        "pq_index": _spread([i for record in at if (i := record["retrained"]["pq_index"]) is not None]),
    }


def _spread(values: Sequence[float]) -> list[float | None] | None:
    found = MeanSd.of(values)
    return [found.mean, None if math.isnan(found.sd) else found.sd] if found.n else None
