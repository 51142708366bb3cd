"""Record of a round, one line of ``records.jsonl``, and the records of many runs as one table."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from palmette.errors import RunDamaged, extra, reason_of
from palmette.pruning.stopping import RoundSummary, StopRule
from palmette.studies.disk.archives import unpacked
from palmette.studies.disk.shape import check_line
from palmette.studies.experiment import SEALED, Experiment, OwnExperiment, read_spec, with_checksum
from palmette.studies.folder import RunDir, find_runs

if TYPE_CHECKING:
    import pandas as pd

AnyExperiment: TypeAlias = Experiment | OwnExperiment

VERSION = 2
"""Format version of records. A line without a version has version 1; those of a search have version 2."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Record of a round: the retrained network, the cut, and the pruned network.

    Args:
        round: :math:`t`; round 0 has the dense network.
        train: scores of the last epoch of training, by name: loss, accuracy and others of the trainer.
        test: scores of :math:`w_t` on the test data.
        validation: scores on held-out data; None without held-out data.
        retrained: result of `measured` for :math:`w_t \\odot m_t`.
        pruned: the same for :math:`w_t \\odot m_{t+1}`, without layers, and its differences from `retrained`.
        cut: number of weights cut, in the network ("weights") and in each of the "layers".
        index_map: PQ Index over a grid of p and q.
        good: whether the network is within the tolerance of a search; None without a search.
        stopped: why the run ended with this round; None if it continued.
        search: score and its standard error, round of the network that was cut ("start"), round with the same
            masks ("repeats"), round of the best good network so far ("answer"), and the bracket ("good_density",
            "bad_density"); None without a search.
        masks: SHA-256 of the masks :math:`m_t`; None if they are not on disk, and in records of earlier versions.
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
    search: Mapping[str, Any] | None = None
    masks: str | None = None

    @property
    def is_repeat(self) -> bool:
        """Whether the round trained the masks of an earlier one again."""
        return self.search is not None and self.search["repeats"] is not None

    @property
    def in_history(self) -> bool:
        """Whether stop rules read the round: a search rejects some, and repeats others."""
        return self.good is not False and not self.is_repeat

    def to_json(self) -> dict[str, Any]:
        """Record as plain values, in the order of the file."""
        line = {field.name: getattr(self, field.name) for field in fields(self)}
        line = {name: v for name, v in line.items() if v is not None or name not in ("good", "search", "masks")}
        return line if self.search is None else {**line, "version": VERSION}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Record:
        """Inverse of `to_json`, for this version and earlier ones; raises ValueError for other lines."""
        version = line.get("version", 1)
        if type(version) is not int:
            raise ValueError(f"has a line whose version is no whole number, {version!r}")
        if version > VERSION:
            raise RunDamaged(
                f"a record of version {version} was written by a newer palmette; this one reads version "
                f"{VERSION}; update it"
            )
        check_line(line)
        try:
            return cls(**{name: value for name, value in line.items() if name != "version"})
        except TypeError as error:
            raise ValueError(f"has a line that is not a record: {error!r}") from error

    def flat(self) -> dict[str, Any]:
        """Numbers of the whole network under flat names, one per column."""
        flat: dict[str, Any] = {"round": self.round}
        for part, scores in (("test", self.test), ("train", self.train), ("validation", self.validation)):
            named = {"accuracy": None, "loss": None} | dict(scores or {})
            flat |= {f"{part}_{name}": value for name, value in named.items()}
        flat |= {name: value for name, value in self.retrained.items() if name != "layers"}
        for name, value in self.pruned.items():
            inner = value if isinstance(value, Mapping) else {"": value}
            flat |= {f"pruned_{f'{name}_{key}' if key else name}": number for key, number in inner.items()}
        if self.search is not None:
            flat |= {"good": self.good, **self.search}
        return flat | {"cut_weights": self.cut["weights"], "stopped": self.stopped}

    def flat_layers(self) -> dict[str, dict[str, Any]]:
        """Numbers of each layer, by name."""
        cut = self.cut["layers"]
        return {name: {**values, "cut_weights": cut[name]} for name, values in self.retrained["layers"].items()}

    def summary(self, *, p: float = 0.5, q: float = 1.0) -> RoundSummary:
        """Summary of the round for stop rules, with the index at `p` and `q`."""
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
    """Score that decides: the result of the user's function, or the accuracy."""
    return None if scores is None else scores.get("score", scores.get("accuracy"))


def replay(
    rule: StopRule, records: Iterable[Mapping[str, Any] | Record], *, p: float = 0.5, q: float = 1.0
) -> int | None:
    """Round at which `rule` would have stopped a run, or None.

    As in the run, the rule does not read rounds that a search rejected or repeated.

    Args:
        rule: a rule such as `IndexTurnsUp()`, or a function of the history.
        records: records of a run, such as `RunDir(folder).records()`.
        p, q: norms of the index that the rule reads; pass those of the run's budget.

    >>> from tempfile import TemporaryDirectory
    >>> from palmette import AtDensity, Experiment, replay, run
    >>> with TemporaryDirectory() as folder:
    ...     experiment = Experiment(method="lottery-ticket", model="linear", rounds=4, epochs=1)
    ...     records = run(experiment, folder).records()
    >>> replay(AtDensity(0.7), records), replay(AtDensity(0.1), records)
    (2, None)
    """
    if not callable(rule):
        raise TypeError(f"rule must be a stop rule such as AtDensity(0.1), got {rule!r}")
    if isinstance(records, Mapping):
        raise TypeError("records must be those of all rounds, in order, got a single one")
    history: list[RoundSummary] = []
    for record in records:
        read = record if isinstance(record, Record) else Record.from_json(record)
        if not read.in_history:
            continue
        history.append(read.summary(p=p, q=q))
        if rule(history):
            return read.round
    return None


def read_runs(folder: str | Path, *, layers: bool = False) -> pd.DataFrame:
    """Read all runs in `folder`, at any depth, into a table with a row for each run and round.

    Columns are the id of the run, its settings, the round and its numbers: `test_accuracy`, `density`, `pq_index`
    and so on describe the retrained network, `pruned_…` the same network after the cut of that round,
    `cut_weights` the number of weights cut. Undefined values, such as an index of zeros, are NaN. `seconds` is the
    run's share of the time of its fleet of `members` networks, `images_per_second` the speed of the fleet; both
    cover the last training of the round, from where it was resumed.

    Args:
        folder: a run folder, or one with run folders in it; other files are ignored.
        layers: return a row for each run, round and layer instead, with the numbers of that layer.

    >>> from tempfile import TemporaryDirectory
    >>> from palmette import Experiment, read_runs, run
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
    rows: list[dict[str, Any]] = []
    for rundir in runs:
        experiment, records = experiment_of(rundir), records_of(rundir)
        if why := rundir.mask_damage(records):
            warnings.warn(f"{why}; the numbers of the run are intact", stacklevel=2)
        rows += rows_of(experiment, records, rundir.timings(), layers=layers)
    return framed(rows)


def framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a pandas DataFrame."""
    with extra("report", "a table of runs needs pandas"):
        import pandas as pd
    return pd.DataFrame(rows)


def rows_of(
    experiment: AnyExperiment,
    records: Iterable[Mapping[str, Any]],
    timings: Iterable[Mapping[str, Any]],
    *,
    layers: bool = False,
) -> list[dict[str, Any]]:
    """Rows of one run in `read_runs`."""
    unknown = dict.fromkeys(field.name for field in fields(Experiment))  # settings that an OwnExperiment lacks
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
    """Settings of the run in a folder; raise if they are damaged or differ from `asked`."""
    if rundir.path.is_file():
        unpacked(rundir.path)  # raises: `find_runs` could not unpack it
    if not rundir.experiment.is_file():
        raise RunDamaged(
            f"the run folder {str(rundir.path)!r} has records, but no experiment.toml with "
            "its settings; run its command again to restore the file"
        )
    try:
        there = read_spec(rundir.experiment)
        text = rundir.experiment.read_bytes().decode("utf-8-sig")
    except Exception as error:  # settings that nobody checked can break anything
        why = reason_of(error)
        raise RunDamaged(f"the run folder {str(rundir.path)!r} has no readable settings: {why}") from error
    if (named := _id_unless_whole(text, there)) is not None:
        raise RunDamaged(
            f"{str(rundir.experiment)!r} was changed: it was written for the run {named}, and has settings of "
            f"{there.id}; restore it from a copy, or remove {str(rundir.path)!r} to start the run again"
        )
    if asked is not None and asked != there:
        raise RunDamaged(
            f"{str(rundir.path)!r} holds the run {there.id}, not {asked.id}; give another folder, "
            "or remove that one"
        )
    if isinstance(there, OwnExperiment) and not there.run:
        return replace(there, run=run_of_version_1(rundir))
    return there


def _id_unless_whole(text: str, experiment: AnyExperiment) -> str | None:
    """Id in the first line of experiment.toml if it or the checksum belongs to other settings, else None."""
    head, (above, sealed, _) = text.partition("\n")[0], text.rpartition(SEALED)
    version = re.search(r"^version = (\d+)$", text, re.MULTILINE)
    # The id of an OwnExperiment does not contain its settings; since version 5 all have a checksum.
    unsealed = isinstance(experiment, Experiment) or version is None or int(version[1]) < 5
    whole = text == with_checksum(above) if sealed else unsealed
    if (found := re.fullmatch(r"# (\S+-([0-9a-f]{8}))", head)) and isinstance(experiment, OwnExperiment):
        whole &= not experiment.run or found[2] == experiment.run
    elif found:
        whole &= found[1] in (experiment.id, *experiment.earlier_ids)
    return None if whole else head.removeprefix("# ")


def run_of_version_1(rundir: RunDir) -> str:
    """Token of a version 1 run, from its timings: equal for copies, different for any two trainings."""
    times = rundir.timings_file.read_bytes() if rundir.timings_file.exists() else b""
    return hashlib.sha256(times.partition(b"\n")[0]).hexdigest()[:8]


def records_of(rundir: RunDir, *, resuming: bool = False) -> list[dict[str, Any]]:
    """Records of a run as plain values, as `RunDir.records` gives them; raise `RunDamaged` if one is invalid."""
    records = rundir.records(resuming=resuming)
    try:
        for record in records:
            Record.from_json(record)
        if len({record.get("search") is None for record in records}) > 1:
            raise ValueError("has rounds with a search and rounds without")
        if [record["round"] for record in records] != list(range(len(records))):
            raise ValueError("has missing or duplicate rounds")
    except RunDamaged as error:
        raise RunDamaged(f"{str(rundir.records_file)!r}: {error}") from error
    except ValueError as error:
        raise RunDamaged(
            f"{str(rundir.records_file)!r} {error}; remove {str(rundir.path)!r} to start again"
        ) from error
    return records
