"""Record: what a round leaves behind, one line of ``records.jsonl``; and all records of many runs as one table."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from palmette.errors import RunDamaged
from palmette.pruning.stopping import RoundSummary, StopRule
from palmette.studies.experiment import Experiment, OwnExperiment, read_spec
from palmette.studies.folder import RunDir, find_runs

if TYPE_CHECKING:
    import pandas as pd

AnyExperiment: TypeAlias = Experiment | OwnExperiment

VERSION = 1
"""Of the format of records. A line without a version has version 1."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A round: the network as trained, the cut, and the network just after it.

    Args:
        round: :math:`t`, counted from 0, the dense network.
        train: scores of the last epoch of training, by name: loss, accuracy and what else the trainer gives.
        test: scores of :math:`w_t` on the test data.
        validation: scores on held-out data; None without any.
        retrained: what `measured` gives for :math:`w_t \\odot m_t`.
        pruned: the same for :math:`w_t \\odot m_{t+1}`, without layers, and its differences from `retrained`.
        cut: how many weights went, of the network ("weights") and of each of the "layers".
        index_map: the PQ Index over a grid of p and q.
        good: whether `prune_and_retrain` found the network good; None where nobody judges.
        stopped: why the run ended with this round; None if it did not.
        version: of the format.
    """

    round: int
    train: Mapping[str, float | None]
    test: Mapping[str, float | None]
    validation: Mapping[str, float | None] | None
    retrained: Mapping[str, Any]
    pruned: Mapping[str, Any]
    cut: Mapping[str, Any]
    index_map: Mapping[str, Any]
    good: bool | None = None
    stopped: str | None = None
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """The record as plain values, in the order in which they are written."""
        line = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.good is None:
            del line["good"]
        if self.version == 1:
            del line["version"]
        return line

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Record:
        """Read what `to_json` gave, of this version or an earlier one; ValueError if the line is no record."""
        if (version := line.get("version", 1)) > VERSION:
            raise RunDamaged(
                f"a record of version {version} was written by a newer palmette, and this one reads version "
                f"{VERSION}; update it"
            )
        try:
            record = cls(**{"stopped": line["stopped"], **line})
            layers = record.flat_layers().values()
            record.flat(), record.test["accuracy"], record.index_map["pq_index"]
            for numbers in (record.retrained, *layers):
                # Added, for these are numbers always; an index may be None.
                numbers["total"] + numbers["kept"] + numbers["density"], numbers["pq_index"], numbers["gini_index"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"has a line that is no record: {error!r}") from error
        if sum(layer["total"] for layer in layers) != record.retrained["total"]:
            raise ValueError(f"lacks a layer in round {record.round}")
        return record

    def flat(self) -> dict[str, Any]:
        """The numbers of the whole network as one level of names, a column each."""
        flat: dict[str, Any] = {"round": self.round}
        for part, scores in (("test", self.test), ("train", self.train), ("validation", self.validation)):
            named = {"accuracy": None, "loss": None} | dict(scores or {})
            flat |= {f"{part}_{name}": value for name, value in named.items()}
        flat |= {name: value for name, value in self.retrained.items() if name != "layers"}
        for name, value in self.pruned.items():
            inner = value if isinstance(value, Mapping) else {"": value}
            flat |= {f"pruned_{f'{name}_{key}' if key else name}": number for key, number in inner.items()}
        return flat | {"cut_weights": self.cut["weights"], "stopped": self.stopped}

    def flat_layers(self) -> dict[str, dict[str, Any]]:
        """The numbers of each layer, by its name."""
        cut = self.cut["layers"]
        return {name: {**values, "cut_weights": cut[name]} for name, values in self.retrained["layers"].items()}

    def summary(self, *, p: float = 0.5, q: float = 1.0) -> RoundSummary:
        """What stop rules read of the round, with the index at `p` and `q`."""
        index = self.retrained["pq_index"]
        if (p, q) != (0.5, 1.0):
            grid = self.index_map
            if p not in grid["p"] or q not in grid["q"]:
                raise ValueError(
                    f"records have the index at p in {grid['p']} and q in {grid['q']}, got {p=}, {q=}"
                )
            index = grid["pq_index"][grid["p"].index(p)][grid["q"].index(q)]
        return RoundSummary(
            round=self.round,
            density=self.retrained["density"],
            index=math.nan if index is None else index,
            kept=self.retrained["kept"],
            cut=self.cut["weights"],
            train=value_of(self.train),
            validation=value_of(self.validation),
        )


def value_of(scores: Mapping[str, float | None] | None) -> float | None:
    """The score that counts: that of the user's own function, or the accuracy."""
    return None if scores is None else scores.get("score", scores.get("accuracy"))


def replay(
    rule: StopRule, records: Iterable[Mapping[str, Any] | Record], *, p: float = 0.5, q: float = 1.0
) -> int | None:
    """The round at which `rule` would have ended a run; None if it would not have.

    Args:
        rule: such as `IndexTurnsUp()`, or a function of the history.
        records: of a run, such as `RunDir(folder).records()`.
        p, q: of the index that the rule reads: those of the run's budget, if they are not the usual ones.

    >>> from tempfile import TemporaryDirectory
    >>> from palmette import AtDensity, Experiment, run
    >>> with TemporaryDirectory() as folder:
    ...     experiment = Experiment(method="lottery-ticket", model="linear", rounds=4, epochs=1)
    ...     records = run(experiment, folder).records()
    >>> replay(AtDensity(0.7), records), replay(AtDensity(0.1), records)
    (2, None)
    """
    history: list[RoundSummary] = []
    for record in records:
        read = record if isinstance(record, Record) else Record.from_json(record)
        history.append(read.summary(p=p, q=q))
        if rule(history):
            return read.round
    return None


def read_runs(folder: str | Path, *, layers: bool = False) -> pd.DataFrame:
    """All runs in `folder`, at any depth, as one table with a row for each run and round.

    Columns are the id of the run, its settings, the round and its numbers: `test_accuracy`, `density`, `pq_index`
    and so on describe the retrained network, `pruned_…` the same network after the cut of that round,
    `cut_weights` how many went. What does not exist, such as an index of zeros, is NaN. `seconds` is the run's
    share of the time of its fleet, of which it was one of `members`, and `images_per_second` the speed of all of
    them; of the last time that the round was trained, or of its rest after it was resumed.

    Args:
        folder: a run folder, or one with run folders in it; all else is passed over.
        layers: a row for each run, round and layer instead, with the numbers of that layer.

    >>> from tempfile import TemporaryDirectory
    >>> from palmette import Experiment, run
    >>> with TemporaryDirectory() as folder:
    ...     for seed in (0, 1):
    ...         experiment = Experiment(method="lottery-ticket", model="linear", epochs=1, rounds=1, seed=seed)
    ...         rundir = run(experiment, f"{folder}/{experiment.id}")
    ...     table = read_runs(folder)
    >>> table[["method", "seed", "round", "kept"]]
               method  seed  round  kept
    0  lottery-ticket     0      0   640
    1  lottery-ticket     0      1   512
    2  lottery-ticket     1      0   640
    3  lottery-ticket     1      1   512
    """
    runs = find_runs(folder)
    if not runs:
        raise FileNotFoundError(f"no run in {str(folder)!r}")
    found = ((experiment_of(rundir), records_of(rundir), rundir.timings()) for rundir in runs)
    return framed([row for one in found for row in rows_of(*one, layers=layers)])


def framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table of pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("a table of runs needs pandas: pip install 'palmette[report]'") from error
    return pd.DataFrame(rows)


def rows_of(
    experiment: AnyExperiment,
    records: Iterable[Mapping[str, Any]],
    timings: Iterable[Mapping[str, Any]],
    *,
    layers: bool = False,
) -> list[dict[str, Any]]:
    """The rows of one run in `read_runs`."""
    unknown = dict.fromkeys(field.name for field in fields(Experiment))  # of a run of the user's own function
    settings = {"id": experiment.id, **unknown, **experiment.settings()}
    times = {timing["round"]: timing for timing in timings}
    rows: list[dict[str, Any]] = []
    for record in records:
        if layers:
            parts = Record.from_json(record).flat_layers().items()
            rows += [settings | {"round": record["round"], "layer": name} | values for name, values in parts]
            continue
        timing = times.get(record["round"], {})
        speed = {name: timing.get(name) for name in ("seconds", "images_per_second", "members")}
        rows.append(settings | Record.from_json(record).flat() | speed)
    return rows


def experiment_of(rundir: RunDir, asked: AnyExperiment | None = None) -> AnyExperiment:
    """What is run in a folder, or an error if that cannot be read, or is not what was `asked` for."""
    if not rundir.experiment.exists():
        raise RunDamaged(
            f"the run folder {str(rundir.path)!r} has records, but no experiment.toml that says what is run "
            "in it; the command that ran it writes it anew"
        )
    try:
        there = read_spec(rundir.experiment)
    except (TypeError, ValueError) as error:
        raise RunDamaged(f"the run folder {str(rundir.path)!r} does not say what is run in it: {error}") from error
    if asked is not None and asked != there:
        raise RunDamaged(
            f"{str(rundir.path)!r} holds the run {there.id}, not {asked.id}; give another folder, "
            "or remove that one"
        )
    if isinstance(there, OwnExperiment) and not there.run:
        return replace(there, run=run_of_version_1(rundir))
    return there


def run_of_version_1(rundir: RunDir) -> str:
    """The token of a run whose folder has none: copies share it, and no two trainings take the same time."""
    times = rundir.timings_file.read_bytes() if rundir.timings_file.exists() else b""
    return hashlib.sha256(times.partition(b"\n")[0]).hexdigest()[:8]


def records_of(rundir: RunDir) -> list[dict[str, Any]]:
    """The records of a run as plain values, or an error that says what is wrong with them."""
    records = rundir.records()
    try:
        for record in records:
            Record.from_json(record)
        if [record["round"] for record in records] != list(range(len(records))):
            raise ValueError("lacks rounds, or has one twice")
    except ValueError as error:
        raise RunDamaged(
            f"{str(rundir.records_file)!r} {error}; remove {str(rundir.path)!r} to begin again"
        ) from error
    return records
