"""Series of the HTML report: runs grouped by study and settings, and the tables that its charts draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from palmette.pruning.methods import rank_of
from palmette.reports.limits import Reach
from palmette.reports.phases import by_round, mean, phases_of, phases_of_mean, turns
from palmette.reports.statistics import MeanSd
from palmette.reports.tables import Record, Run
from palmette.studies.experiment import Experiment, OwnExperiment
from palmette.studies.paper import MODEL_NAMES
from palmette.studies.record import AnyExperiment, value_of
from palmette.studies.spec import BELONGS_TO
from palmette.words import setting

Table = list[dict[str, Any]]


class Number(NamedTuple):
    """Number of a round that charts may draw: its title, its format in tooltips (d3), and how to read it.

    `read` receives the record of the round and that of the dense network.
    """

    title: str
    form: str
    read: Callable[[Record, Record], float | None]


NUMBERS = {
    "accuracy": Number("test accuracy", ".2%", lambda record, _: record["test"]["accuracy"]),
    "change": Number(
        "difference from dense",
        "+.2%",
        lambda record, dense: record["test"]["accuracy"] - dense["test"]["accuracy"],
    ),
    "score": Number("test score", ".4~g", lambda record, _: value_of(record["test"])),
    "density": Number("density", ".2%", lambda record, _: record["retrained"]["density"]),
    "kept": Number("parameters", ",.0f", lambda record, _: record["retrained"]["kept"]),
    "pq_index": Number("PQ Index", ".4g", lambda record, _: record["retrained"]["pq_index"]),
    "gini_index": Number("Gini Index", ".4g", lambda record, _: record["retrained"]["gini_index"]),
}
"""Columns of `curves` and `rounds`."""
_SCORES = {"accuracy": "accuracy", "change": "accuracy", "score": "score"}
"""Numbers that only studies with such scores have; the score of own functions is in place of the accuracy."""
IN_LABEL = ("method", "p", "q")
"""Settings that are part of a method's name."""
# Of an `OwnExperiment`.
_OF_FUNCTIONS = ("run", "trained", "evaluate", "test", "own_rules", "initial")


@dataclass(frozen=True)
class Series:
    """Runs that differ only in their seed: one line of a chart."""

    name: str
    runs: tuple[Run, ...]

    @property
    def records(self) -> list[Sequence[Record]]:
        """Records of each run."""
        return [records for _, records in self.runs]

    @cached_property
    def reach(self) -> Reach:
        """Limit of its runs."""
        return Reach(self.name, self.runs)


@dataclass(frozen=True)
class Study:
    """All series of one model on one data set: one section of the page."""

    data: str
    model: str
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        """Heading of the section."""
        return f"{MODEL_NAMES.get(self.model, self.model)} on {self.data}"

    @property
    def scored(self) -> str:
        """Number that says how good a network is: "accuracy", or "score" with functions of the user."""
        return "score" if any(isinstance(e, OwnExperiment) for e, _ in self.runs) else "accuracy"

    @property
    def numbers(self) -> dict[str, Number]:
        """Numbers of its records that charts draw."""
        return {n: number for n, number in NUMBERS.items() if _SCORES.get(n, self.scored) == self.scored}

    @property
    def runs(self) -> list[Run]:
        """All runs, series by series."""
        return [run for series in self.series for run in series.runs]


def studies(runs: Iterable[Run]) -> list[Study]:
    """Group the runs that have records by data set and model."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted((run for run in runs if run[1]), key=lambda run: _order(run[0])):
        groups.setdefault((run[0].data, run[0].model), []).append(run)
    return [Study(data, model, _series(many)) for (data, model), many in sorted(groups.items())]


def settings(study: Study) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings that all runs share, and per series those that differ; seeds are left out."""
    every = {series.name: settings_of(series.runs[0][0]) for series in study.series}
    first = next(iter(every.values()))
    names = dict.fromkeys(name for values in every.values() for name in values)
    common = {n: first.get(n) for n in names if all(values.get(n) == first.get(n) for values in every.values())}
    own = {name: {n: v for n, v in values.items() if n not in common} for name, values in every.items()}
    return common, own


def curves(study: Study) -> Table:
    """One row per series and round: mean and deviation of each number over its `n` runs."""
    phases = {series.name: phases_of_mean(series.records) for series in study.series}
    marks = {name: {t: mark for mark, t in turns(found).items()} for name, found in phases.items()}
    dense = {series.name: [records[0] for records in series.records] for series in study.series}
    rows = []
    for name, t, records in _rounds(study):
        row: dict[str, Any] = {"series": name, "round": t, "n": len(records)}
        for column, number in study.numbers.items():
            spread = MeanSd.of(map(number.read, records, dense[name]))
            row[column] = spread.mean if spread.n else None
            row[f"{column}_sd"] = spread.sd if spread.n > 1 else None
        rows.append(row | {"phase": phases[name][t], "mark": marks[name].get(t)})
    return rows


def rounds(study: Study) -> Table:
    """One row per run and round, with the numbers of the record and the phase of the run."""
    return [
        {"series": series.name, "seed": experiment.seed, "run": experiment.id, "round": t}
        | {name: number.read(record, records[0]) for name, number in study.numbers.items()}
        | {"phase": phase}
        for series in study.series
        for experiment, records in series.runs
        for t, (record, phase) in enumerate(zip(records, phases_of(records), strict=True))
    ]


def layers(study: Study) -> Table:
    """One row per series, round and layer: means over runs of density, index and weights cut."""
    rows = []
    for series, t, records in _rounds(study):
        for depth, name in enumerate(records[0]["retrained"]["layers"]):
            of = [record["retrained"]["layers"][name] for record in records]
            row = {"series": series, "round": t, "layer": name, "depth": depth, "n": len(records)}
            row |= {key: _short(mean([values[key] for values in of])) for key in ("density", "pq_index")}
            rows.append(row | {"cut": mean([record["cut"]["layers"][name] for record in records])})
    return rows


def index_maps(study: Study) -> Table:
    """One row per series and round: mean index for each p and q, p by p, as one list."""
    rows = []
    for series, t, records in _rounds(study):
        flat = [[value for row in record["index_map"]["pq_index"] for value in row] for record in records]
        index = [_short(mean(values)) for values in zip(*flat, strict=True)]
        rows.append({"series": series, "round": t, "n": len(records), "pq_index": index})
    return rows


TABLES = {"curves": curves, "rounds": rounds, "layers": layers, "maps": index_maps}
"""Tables that the page embeds for its charts."""


def settings_of(experiment: AnyExperiment) -> dict[str, Any]:
    """Settings that apply to this run, without the seed."""
    every = asdict(experiment)
    return {
        name: value
        for name, value in every.items()
        if name != "seed"
        and (name != "saliency" or value)
        and (name not in BELONGS_TO or every[BELONGS_TO[name][0]] in BELONGS_TO[name][1])
        and name not in _OF_FUNCTIONS
    }


def setting_text(name: str, value: Any) -> str:
    """Setting as part of a name.

    >>> setting_text("gamma", 3.0), setting_text("clip", None)
    ('gamma=3', 'clip=none')
    """
    return f"{name}={setting(value)}"


def _rounds(study: Study) -> Iterator[tuple[str, int, list[Record]]]:
    """Each series by name and round, with the records of its runs, to the end of the shortest."""
    for series in study.series:
        for t, records in enumerate(by_round(series.records)):
            yield series.name, t, records


def _short(value: float | None) -> float | None:
    """Round to five digits: layers and maps are most of the page's size."""
    return None if value is None else float(f"{value:.5g}")


def _order(experiment: Experiment) -> tuple[Any, ...]:
    # Order of `palmette run`, so that a method has the same colour as in its figure.
    rest = [
        (name, value if isinstance(value, int | float) else 0, str(value))
        for name, value in settings_of(experiment).items()
    ]
    return rank_of(experiment.method), experiment.p, experiment.q, sorted(rest), experiment.seed


def _series(runs: Sequence[Run]) -> tuple[Series, ...]:
    """Runs by method and by every setting that varies and is not the default."""
    every = [settings_of(experiment) for experiment, _ in runs]
    names = {name for own in every for name in own} - set(IN_LABEL)
    varied = {name for name in names if len({own[name] for own in every if name in own}) > 1}
    groups: dict[str, list[Run]] = {}
    for run, own in zip(runs, every, strict=True):
        experiment = run[0]
        changed = [
            n for n in experiment.differences() if n in own and n in varied and n not in experiment.in_label
        ]
        more = [setting_text(n, own[n]) for n in changed]
        groups.setdefault(", ".join([experiment.label, *more]), []).append(run)
    return tuple(Series(name, tuple(many)) for name, many in groups.items())
