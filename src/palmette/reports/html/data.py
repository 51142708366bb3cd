"""What the page shows, as plain tables: runs -> studies -> series -> mean and deviation, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from palmette.reports.phases import by_round, mean, phases_of, phases_of_mean, turns
from palmette.reports.statistics import Spread
from palmette.reports.tables import Record, Run, label
from palmette.reports.words import setting
from palmette.studies.experiment import BELONGS_TO, OWN_DATA, Experiment, Method
from palmette.studies.paper import MODEL_NAMES
from palmette.training.recipe import Recipe

Table = list[dict[str, Any]]

MEASURES: dict[str, Callable[[Record], float | None]] = {
    "accuracy": lambda record: record["test"]["accuracy"],
    "density": lambda record: record["retrained"]["density"],
    "kept": lambda record: record["retrained"]["kept"],
    "pq_index": lambda record: record["retrained"]["pq_index"],
    "gini_index": lambda record: record["retrained"]["gini_index"],
}
_UNKNOWN = {"validation", *(field.name for field in fields(Recipe))}
_DEFAULTS = Experiment()
IN_LABEL = ("method", "p", "q")
"""Settings that the name of a method says."""


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seed only: one line of a chart."""

    name: str
    runs: tuple[Run, ...]

    @property
    def many(self) -> list[Sequence[Record]]:
        """The records of each run."""
        return [records for _, records in self.runs]


@dataclass(frozen=True)
class Study:
    """All series of one model on one data set: what may be drawn into one chart."""

    data: str
    model: str
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        """As a heading has it."""
        return f"{MODEL_NAMES.get(self.model, self.model)} on {self.data}"

    @property
    def runs(self) -> list[Run]:
        """All runs, series by series."""
        return [run for series in self.series for run in series.runs]


def studies(runs: Iterable[Run]) -> list[Study]:
    """The runs that left records, by data and model."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted((run for run in runs if run[1]), key=lambda run: _order(run[0])):
        groups.setdefault((run[0].data, run[0].model), []).append(run)
    return [Study(data, model, _series(many)) for (data, model), many in sorted(groups.items())]


def settings(study: Study) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings that all runs share, and those in which series differ; the seeds are left out."""
    every = {series.name: meant(series.runs[0][0]) for series in study.series}
    names = list(dict.fromkeys(name for values in every.values() for name in values))
    values = {name: [of.get(name) for of in every.values()] for name in names}
    common = {name: many[0] for name, many in values.items() if all(v == many[0] for v in many)}
    return common, {
        series: {name: value for name, value in of.items() if name not in common} for series, of in every.items()
    }


def curves(study: Study) -> Table:
    """A row for each series and round: mean and deviation of each measure, over the `n` runs that reached it."""
    rows = []
    for series in study.series:
        found = phases_of_mean(series.many)
        marks = {t: name for name, t in turns(found).items()}
        for t, at in enumerate(by_round(series.many)):
            row: dict[str, Any] = {"series": series.name, "round": t, "n": len(at)}
            for name, of in MEASURES.items():
                found_at = Spread.of(map(of, at))
                row[name] = found_at.mean if found_at.n else None
                row[f"{name}_sd"] = found_at.sd if found_at.n > 1 else None
            rows.append(row | {"phase": found[t], "mark": marks.get(t)})
    return rows


def rounds(study: Study) -> Table:
    """A row for each run and round, with the numbers of the record and the phase of the run."""
    return [
        {"series": series.name, "seed": experiment.seed, "run": experiment.id, "round": t}
        | {name: of(record) for name, of in MEASURES.items()}
        | {"phase": phase}
        for series in study.series
        for experiment, records in series.runs
        for t, (record, phase) in enumerate(zip(records, phases_of(records), strict=True))
    ]


def layers(study: Study) -> Table:
    """A row for each series, round and layer: means over runs of density, index and of how many weights went."""
    rows = []
    for series in study.series:
        for t, at in enumerate(by_round(series.many)):
            for depth, name in enumerate(at[0]["retrained"]["layers"]):
                of = [record["retrained"]["layers"][name] for record in at]
                row = {"series": series.name, "round": t, "layer": name, "depth": depth, "n": len(at)}
                row |= {key: _short(mean([values[key] for values in of])) for key in ("density", "pq_index")}
                rows.append(row | {"cut": mean([record["cut"]["layers"][name] for record in at])})
    return rows


def index_maps(study: Study) -> Table:
    """A row for each series and round: the mean index for each p and q, p by p, as one list."""
    rows = []
    for series in study.series:
        for t, at in enumerate(by_round(series.many)):
            flat = [[value for row in record["index_map"]["pq_index"] for value in row] for record in at]
            index = [_short(mean(values)) for values in zip(*flat, strict=True)]
            rows.append({"series": series.name, "round": t, "n": len(at), "pq_index": index})
    return rows


def _short(value: float | None) -> float | None:
    """To five digits: there are a hundred of these for each round, and more would be most of the page."""
    return None if value is None else float(f"{value:.5g}")


def _order(experiment: Experiment) -> tuple[Any, ...]:
    # The order of `palmette run`, so that a method has the colour it has in the figure.
    rest = [
        (name, value if isinstance(value, int | float) else 0, str(value))
        for name, value in meant(experiment).items()
    ]
    return get_args(Method).index(experiment.method), experiment.p, experiment.q, sorted(rest), experiment.seed


def meant(experiment: Experiment) -> dict[str, Any]:
    """The settings that mean something for this run, seed left out."""
    every = asdict(experiment)
    return {
        name: value
        for name, value in every.items()
        if name != "seed"
        and (name not in BELONGS_TO or every[BELONGS_TO[name][0]] in BELONGS_TO[name][1])
        and not (experiment.data == OWN_DATA and name in _UNKNOWN)
    }


def _series(runs: Sequence[Run]) -> tuple[Series, ...]:
    every = [meant(experiment) for experiment, _ in runs]
    values: dict[str, set[Any]] = {}
    for own in every:
        for name, value in own.items():
            values.setdefault(name, set()).add(value)
    # As in tables, what is the default goes without saying; the settings below the charts have it.
    varied = {name for name in values if len(values[name]) > 1 and name not in IN_LABEL}
    groups: dict[str, list[Run]] = {}
    for run, own in zip(runs, every, strict=True):
        more = [said(n, own[n]) for n in own if n in varied and own[n] != getattr(_DEFAULTS, n)]
        groups.setdefault(", ".join([label(run[0]), *more]), []).append(run)
    return tuple(Series(name, tuple(many)) for name, many in groups.items())


def said(name: str, value: Any) -> str:
    """A setting in a name.

    >>> said("gamma", 3.0), said("clip", None)
    ('gamma=3', 'clip=none')
    """
    return f"{name}={setting(value)}"
