"""Records of the studies: read them, and pack new ones with `python -m results.records RUNS ARCHIVE`."""

from __future__ import annotations

import functools
import io
import json
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.reports.comparison import read, with_names
from palmette.reports.reading import whole_runs
from palmette.reports.statistics import Curve, Difference, at_own_densities
from palmette.reports.tables import Run
from palmette.studies.folder import find_runs

if TYPE_CHECKING:
    import pandas as pd

HERE = Path(__file__).parent
SAP, SAP2, LT, ONE_SHOT = "SAP (p=0.5, q=1)", "SAP (p=1, q=2)", "Lottery Ticket", "One Shot"
METHODS = (SAP, SAP2, LT, ONE_SHOT)
SCOPES = ("neuron", "layer", "global")
RANGE = (0.02, 0.5)
"""Densities over which methods are compared as a whole, the same for all studies: from a half to a fiftieth."""
BASES = {"fashionmnist-mlp-ablations": "fashionmnist-mlp", "cifar10-cnn-ablations": "cifar10-cnn-20"}
"""Studies of scopes and settings, and the study that has their runs in global scope with the usual settings."""
BySeed = dict[int, float]


@dataclass(frozen=True)
class Study:
    """The study in the folder `name`; `archive` holds its runs, and `study.toml` what records do not say."""

    name: str
    archive: str = "runs.tar.xz"

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return HERE / self.name

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Title, commands with their times, hardware, versions and date."""
        return tomllib.loads((self.folder / "study.toml").read_text(encoding="utf-8"))

    @functools.cached_property
    def own(self) -> pd.DataFrame:
        """A row for each run and round, with the name of the method."""
        return with_names(read([self.folder / self.archive]))

    @functools.cached_property
    def frame(self) -> pd.DataFrame:
        """The same; for scopes and settings with the runs of equal seeds of the study in `BASES`."""
        if self.name not in BASES:
            return self.own
        import pandas as pd

        base = study(BASES[self.name]).own
        return pd.concat([base[base["seed"].isin(self.own["seed"].unique())], self.own], ignore_index=True)

    @functools.cached_property
    def runs(self) -> list[Run]:
        """Experiment and records of each run."""
        return list(whole_runs([self.folder / self.archive])[0].values())

    @property
    def methods(self) -> list[str]:
        """The methods of the paper that it has in global scope."""
        return [name for name in METHODS if ((self.own["name"] == name) & (self.own["scope"] == "global")).any()]

    @property
    def seeds(self) -> int:
        """How many there are."""
        return int(self.own["seed"].nunique())

    @property
    def network(self) -> str:
        """Data and model, with the epochs per round if they are not the paper's."""
        epochs = self.own["epochs"].iloc[0]
        return str(self.about["title"]).partition(":")[0] + (f", E = {epochs}" if epochs != 200 else "")

    def at(self, name: str, round: int, value: str = "test_accuracy", scope: str = "global") -> BySeed:
        """A value of a method in a round, by seed; round -1 is the last of each run."""
        f = self.frame[(self.frame["name"] == name) & (self.frame["scope"] == scope)]
        f = f.sort_values(["seed", "round"])
        f = f.groupby("seed").tail(1) if round == -1 else f[f["round"] == round]
        return dict(zip(f["seed"].tolist(), f[value].tolist(), strict=True))

    def curves(self, name: str, scope: str = "global") -> list[Curve]:
        """Density and accuracy of each run of a method, round by round."""
        return [(run["density"].tolist(), run["test_accuracy"].tolist()) for run in self.each(name, scope)]

    def apart(
        self, name: str, low: float = RANGE[0], high: float = RANGE[1], *, scope: str = "global",
        base: str = LT, base_scope: str | None = None,
    ) -> Difference:  # fmt: skip
        """Difference of a method from another, over the rounds of its own with such a density."""
        other = self.curves(base, base_scope or scope)
        return at_own_densities(self.curves(name, scope), other, low=low, high=high)

    def each(self, name: str, scope: str = "global") -> list[pd.DataFrame]:
        """The rounds of each run of a method."""
        f = self.frame[(self.frame["name"] == name) & (self.frame["scope"] == scope)]
        return [run.sort_values("round").reset_index(drop=True) for _, run in f.groupby("seed")]


@functools.cache
def study(name: str, archive: str = "runs.tar.xz") -> Study:
    """The study of that name, read once."""
    return Study(name, archive)


def studies() -> list[Study]:
    """All studies on record."""
    return [study(file.parent.name) for file in sorted(HERE.glob("*/runs.tar.xz"))]


def keep(runs: Path, archive: Path) -> None:
    """Write an archive such as `results/STUDY/runs.tar.xz` from what it holds and from the run folders in `runs`.

    Masks, states and locks are left out, and numbers keep six digits. A run on record stays, unless `runs` has as
    many rounds of it or more: long studies come in pieces.
    """
    found = {run.path.name: run for run in find_runs(runs)}
    if not found:
        raise FileNotFoundError(f"no run in {str(runs)!r}")
    files: dict[str, str] = {}
    if archive.exists():
        with tarfile.open(archive) as opened:
            members = [(entry.name, opened.extractfile(entry)) for entry in opened if entry.isfile()]
            files = {name: file.read().decode() for name, file in members if file is not None}
    for name, run in found.items():
        records = run.records()
        if files.get(f"{name}/{run.records_file.name}", "").count("\n") > len(records):
            continue
        files[f"{name}/{run.experiment.name}"] = run.experiment.read_text(encoding="utf-8")
        files[f"{name}/{run.records_file.name}"] = _lines(records)
        files[f"{name}/{run.timings_file.name}"] = _lines(run.timings())
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w:xz", preset=9) as opened:
        for path, text in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            opened.addfile(entry, io.BytesIO(text.encode()))
    partial.replace(archive)


def _lines(values: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(_short(value))}\n" for value in values)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    return [_short(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python -m results.records RUNS ARCHIVE")
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
