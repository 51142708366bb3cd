"""Scopes and settings of SAP on FashionMNIST with the MLP: the runs, and numbers about them."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from palmette.reports.comparison import at_densities
from palmette.studies.paper import ETAS, GAMMAS, PS, QS, SEEDS
from palmette.studies.records import read_runs
from results.answers import DENSITIES, SAP
from results.four_methods import MLP
from results.pictures import Many
from results.study import Study

if TYPE_CHECKING:
    import pandas as pd

STUDY = Study("fashionmnist-mlp-ablations")
SCOPES = ("neuron", "layer", "global")


@functools.cache
def everything() -> pd.DataFrame:
    """The runs of this study and, with the same seeds, those of the MLP in global scope."""
    import pandas as pd

    return pd.concat([MLP.frame[MLP.frame["seed"].isin(SEEDS)], STUDY.frame], ignore_index=True)


@functools.cache
def at_equal_density() -> pd.DataFrame:
    """Accuracy of each run at each of `DENSITIES`."""
    return at_densities(everything(), DENSITIES)


def many(name: str, scope: str = "global") -> Many:
    """The records of the runs of a method in a scope."""
    found = everything()
    ids = set(found.loc[(found["name"] == name) & (found["scope"] == scope), "id"])
    return [records for experiment, records in [*MLP.runs, *STUDY.runs] if experiment.id in ids]


def settings_of() -> dict[str, dict[str, str]]:
    """The settings of SAP in four rows of the paper, and the names of their methods."""
    return {
        "p varies, q = 1": {f"p = {p:g}": f"SAP (p={p:g}, q=1)" for p in PS},
        "q varies, p = 1": {f"q = {q:g}": f"SAP (p=1, q={q:g})" for q in QS},
        "η varies, γ = 1": {f"η = {e:g}": SAP + (f", eta={e:g}" if e else "") for e in ETAS},
        "γ varies, η = 0": {f"γ = {g:g}": SAP + (f", gamma={g:g}" if g != 1 else "") for g in GAMMAS},
    }


def accuracy(name: str, scope: str, density: float) -> pd.Series:
    """At a density, by seed."""
    p = at_equal_density()
    here = p[(p["name"] == name) & (p["scope"] == scope) & (p["density"] == density)]
    return here.set_index("seed")["test_accuracy"].dropna()


def remaining(frame: pd.DataFrame, name: str, round: int) -> float:
    """Mean density of a method in global scope in a round; NaN unless all runs got there."""
    here = frame[(frame["name"] == name) & (frame["scope"] == "global") & (frame["round"] == round)]
    return float(here["density"].mean()) if len(here) == len(SEEDS) else math.nan


def records_of(frame: pd.DataFrame, name: str) -> list[tuple[float, ...]]:
    """Kept weights and accuracy in every round of every seed, to tell whether two settings are the same runs."""
    here = frame[frame["name"] == name].sort_values(["seed", "round"])
    return list(here[["seed", "round", "kept", "test_accuracy"]].itertuples(index=False, name=None))


def read_layers() -> pd.DataFrame:
    """A row for each layer of SAP (0.5, 1) in three scopes."""
    import pandas as pd

    found = pd.concat([read_runs(study.folder, layers=True) for study in (MLP, STUDY)])
    usual = (found["method"] == "sap") & (found["p"] == 0.5) & (found["eta"] == 0) & (found["gamma"] == 1)
    return found[usual & found["seed"].isin(SEEDS)]


def layer_mean(layers: pd.DataFrame, scope: str, layer: str, round: int, value: str) -> float:
    """Of a layer in a scope and a round, over seeds."""
    here = layers[(layers["scope"] == scope) & (layers["layer"] == layer) & (layers["round"] == round)]
    return float(here[value].mean())
