"""Scopes and settings of SAP: the runs of such a study with those of four methods that it shares, and numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from palmette.reports.comparison import at_densities
from palmette.studies.paper import ETAS, GAMMAS, PS, QS, SEEDS
from palmette.studies.record import read_runs
from results.answers import DENSITIES, LEVEL, SAP, Difference, Spread, adjusted
from results.four_methods import CIFAR_CNN_20, MLP
from results.pictures import Many
from results.study import Study, spread

if TYPE_CHECKING:
    import pandas as pd

SCOPES = ("neuron", "layer", "global")
CLEAR = 3
"""So many standard deviations of seeds are two runs apart, of which it is said that one is ahead."""
Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two methods, each with its scope."""


@dataclass(frozen=True)
class Ablation:
    """The runs of `study` and, with the same `seeds`, those of `base` in global scope at the usual settings.

    `figures` are those of the paper with such panels; its data set may be another.
    """

    study: Study
    base: Study
    seeds: tuple[int, ...]
    figures: tuple[str, str, str]

    @functools.cached_property
    def last(self) -> int:
        """The last round of the study; those of `base` may go on, and are left out from there."""
        return int(self.study.frame["round"].max())

    @functools.cached_property
    def everything(self) -> pd.DataFrame:
        """A row for each run and round."""
        import pandas as pd

        base = self.base.frame
        base = base[base["seed"].isin(self.seeds) & (base["round"] <= self.last)]
        return pd.concat([base, self.study.frame], ignore_index=True)

    @functools.cached_property
    def varied(self) -> bool:
        """Whether a run has other values of p, q, η_r or γ; the others of the study are in other scopes."""
        return bool((self.study.frame["scope"] == "global").any())

    @functools.cached_property
    def noise(self) -> pd.Series:
        """The standard deviation of the accuracy over all seeds of `base`, by method and density."""
        points = at_densities(self.base.frame, DENSITIES)
        return points.groupby(["name", "density"])["test_accuracy"].std().dropna()

    @functools.cached_property
    def at_equal_density(self) -> pd.DataFrame:
        """Accuracy of each run at each of `DENSITIES`."""
        return at_densities(self.everything, DENSITIES)

    @functools.cached_property
    def ends(self) -> pd.DataFrame:
        """The last round of each run."""
        return self.everything.sort_values("round").groupby(["name", "scope", "seed"]).last().reset_index()

    @functools.cached_property
    def layers(self) -> pd.DataFrame:
        """A row for each layer and round of SAP (0.5, 1) in three scopes."""
        import pandas as pd

        found = pd.concat([read_runs(study.folder, layers=True) for study in (self.base, self.study)])
        usual = (found["method"] == "sap") & (found["p"] == 0.5) & (found["eta"] == 0) & (found["gamma"] == 1)
        return found[usual & found["seed"].isin(self.seeds) & (found["round"] <= self.last)]

    def many(self, name: str, scope: str = "global") -> Many:
        """The records of the runs of a method in a scope."""
        found = self.everything
        ids = set(found.loc[(found["name"] == name) & (found["scope"] == scope), "id"])
        both = [*self.base.runs, *self.study.runs]
        return [records[: self.last + 1] for experiment, records in both if experiment.id in ids]

    def accuracy(self, name: str, scope: str, density: float) -> pd.Series:
        """At a density, by seed."""
        p = self.at_equal_density
        here = p[(p["name"] == name) & (p["scope"] == scope) & (p["density"] == density)]
        return here.set_index("seed")["test_accuracy"].dropna()

    def shown(self, name: str, scope: str, density: float) -> str:
        """The same as it stands in a table; empty unless all runs got there."""
        found = Spread.of(self.accuracy(name, scope, density))
        return spread(found) if found.n == len(self.seeds) else ""

    def gap(self, one: tuple[str, str], other: tuple[str, str], density: float) -> Difference:
        """Between two methods in their scopes, at a density, over pairs of equal seed."""
        return Difference.of((self.accuracy(*one, density) - self.accuracy(*other, density)).dropna().tolist())

    def clear(self, one: tuple[str, str], other: tuple[str, str], density: float) -> int:
        """1 or -1 where one is ahead or behind at this density: by the interval, or of one seed by `CLEAR`."""
        found = self.gap(one, other, density)
        if len(self.seeds) > 1:
            return found.sign
        noise = [self.noise.get((name, density), 0.0) for name, _ in (one, other)]
        return 0 if not abs(found.mean) > CLEAR * max(noise) else 1 if found.mean > 0 else -1

    def judged(self, columns: Mapping[str, Pair]) -> dict[tuple[str, float], tuple[Difference, int]]:
        """Differences at all densities, and 1 or -1 for what holds when all of them are judged together.

        Of one seed there is no test, and each is judged by `clear`.
        """
        enough, pairs = min(3, len(self.seeds)), {}
        for title, (one, other) in columns.items():
            for d in DENSITIES:
                values = (self.accuracy(*one, d) - self.accuracy(*other, d)).dropna().tolist()
                if len(values) >= enough:
                    pairs[title, d] = values
        if len(self.seeds) == 1:
            return {(t, d): (Difference.of(v), self.clear(*columns[t], d)) for (t, d), v in pairs.items()}
        sure = {key for key, p in adjusted(pairs).items() if p < LEVEL}
        found = {key: Difference.of(values) for key, values in pairs.items()}
        return {key: (d, (1 if d.mean > 0 else -1) if key in sure else 0) for key, d in found.items()}

    def remaining(self, name: str, round: int) -> float:
        """Mean density of a method in global scope in a round; NaN unless all runs got there."""
        f = self.everything
        here = f[(f["name"] == name) & (f["scope"] == "global") & (f["round"] == round)]
        return float(here["density"].mean()) if len(here) == len(self.seeds) else math.nan

    def kept_by(self, name: str, round: int) -> float:
        """The same, of a run that ended before in its last round; NaN while one is under way to it."""
        f = self.everything
        here = f[(f["name"] == name) & (f["scope"] == "global") & (f["round"] <= round)].sort_values("round")
        last = here.groupby("seed").last()
        there = last[(last["round"] == round) | last["stopped"].notna()]
        return float(there["density"].mean()) if len(there) == len(self.seeds) else math.nan

    def records_of(self, name: str) -> list[tuple[float, ...]]:
        """Kept weights and accuracy by seed and round, to tell whether two settings are the same runs."""
        here = self.everything[self.everything["name"] == name].sort_values(["seed", "round"])
        return list(here[["seed", "round", "kept", "test_accuracy"]].itertuples(index=False, name=None))

    def layer_mean(self, scope: str, layer: str, round: int, value: str) -> float:
        """Of a layer in a scope and a round, over seeds; NaN where there is none."""
        found = self.layers
        here = found[(found["scope"] == scope) & (found["layer"] == layer) & (found["round"] == round)]
        return float(here[value].mean())


FASHION = Ablation(Study("fashionmnist-mlp-ablations"), MLP, SEEDS, ("fig19", "fig28", "fig31"))
CNN = Ablation(Study("cifar10-cnn-ablations"), CIFAR_CNN_20, (0,), ("fig4", "fig5", "fig6"))
ABLATIONS = (FASHION, CNN)


def settings_of() -> dict[str, dict[str, str]]:
    """The settings of SAP in four rows of the paper, and the names of their methods."""
    return {
        "p varies, q = 1": {f"p = {p:g}": f"SAP (p={p:g}, q=1)" for p in PS},
        "q varies, p = 1": {f"q = {q:g}": f"SAP (p=1, q={q:g})" for q in QS},
        "η_r varies, γ = 1": {f"η_r = {e:g}": SAP + (f", eta={e:g}" if e else "") for e in ETAS},
        "γ varies, η_r = 0": {f"γ = {g:g}": SAP + (f", gamma={g:g}" if g != 1 else "") for g in GAMMAS},
    }
