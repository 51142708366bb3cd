"""What the records say: at equal density, round by round, and about the hypothesis; fractions, as everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy import stats

from palmette.reports.comparison import at_densities, compare, differences
from palmette.reports.phases import phases, turns
from palmette.reports.statistics import Difference as Difference
from palmette.reports.statistics import Spread as Spread
from palmette.reports.statistics import holm as holm

if TYPE_CHECKING:
    import pandas as pd

Key = TypeVar("Key", bound=Hashable)
DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
"""Where methods are compared, on every page the same."""
LEVEL = 0.05
SAP, SAP2, LT, ONE_SHOT = "SAP (p=0.5, q=1)", "SAP (p=1, q=2)", "Lottery Ticket", "One Shot"
METHODS = (SAP, SAP2, LT, ONE_SHOT)
SHORT = {SAP: "SAP (0.5, 1)", SAP2: "SAP (1, 2)"}
"""Where there is little place."""


def adjusted(pairs: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    """The p-values of t-tests of paired differences, by `holm` over all; none of fewer than three pairs."""
    tests = {key: float(stats.ttest_1samp(values, 0.0).pvalue) for key, values in pairs.items() if len(values) > 2}
    return dict(zip(tests, holm(list(tests.values())), strict=True))


def equal_density(frame: pd.DataFrame, at: Sequence[float] = DENSITIES) -> pd.DataFrame:
    """The frame of `compare` beside Lottery Ticket, and `adjusted`: the p-value of a paired t-test, by `holm` over
    all of the table.

    Where Lottery Ticket has no run yet there is no pair.
    """
    if not (frame["name"] == LT).any():
        nothing = dict.fromkeys(("difference", "low", "high", "adjusted"), math.nan)
        return compare(frame, at=at).assign(pairs=0, **nothing)
    found = compare(frame, at=at, baseline=LT)
    points = at_densities(frame, list(at))
    points = points.assign(difference=differences(points, LT))
    groups = points.groupby(["scope", "density", "name"], sort=False)
    tests = adjusted({key: group["difference"].dropna().tolist() for key, group in groups})
    keys = list(zip(found["scope"], found["density"], found["method"], strict=True))
    return found.assign(adjusted=[tests.get(key, math.nan) for key in keys])


def falling(values: Sequence[float]) -> bool:
    """Each smaller than the one before."""
    return all(a > b for a, b in itertools.pairwise(values))


def column(frame: pd.DataFrame, name: str, round: int, value: str) -> pd.Series:
    """A value of all runs of a method in a round, by seed."""
    here = frame[(frame["name"] == name) & (frame["round"] == round)]
    return here.set_index("seed")[value].sort_index()


def between(frame: pd.DataFrame, one: tuple[str, int], other: tuple[str, int]) -> Difference:
    """The accuracy of one method in one round less another's in another, in pairs of equal seed."""
    a, b = (column(frame, *at, "test_accuracy") for at in (one, other))
    return Difference.of((a - b).dropna().tolist())


@dataclass(frozen=True)
class Shape:
    """The index of a method over its rounds: where it is lowest and where it is highest after that.

    `lowest` and `highest` are the rounds of the mean curve of the even seeds, and of the odd ones. The rest is
    measured at the rounds that the other half of the seeds has found: `fall`, `rise`, `fall_again`, and the means
    at the start, the lowest, the highest and the end of each run.
    """

    lowest: tuple[int, int]
    highest: tuple[int, int]
    fall: Difference
    rise: Difference
    fall_again: Difference
    index: tuple[float, ...]
    accuracy: tuple[float, ...]
    density: tuple[float, ...]
    steepest: int | None

    @property
    def as_said(self) -> bool:
        """Falls, rises and falls, each beyond the noise."""
        return (self.fall.sign, self.rise.sign, self.fall_again.sign) == (-1, 1, -1)


def present(frame: pd.DataFrame) -> tuple[str, ...]:
    """Those of the four methods that have a run."""
    return tuple(name for name in METHODS if (frame["name"] == name).any())


def last_round(frame: pd.DataFrame, name: str) -> int:
    """The last one that a run of a method has; -1 where there is none."""
    return int(frame.loc[frame["name"] == name, "round"].max()) if name in present(frame) else -1


def shape(frame: pd.DataFrame, name: str) -> Shape:
    """The shape of the index of a method, its turns found in one half of the seeds and measured in the other."""
    runs = frame[frame["name"] == name].sort_values("round")
    halves = [half for _, half in runs.groupby(runs["seed"] % 2)]
    found = [_turns(half) for half in halves]
    values = []
    for half, (lowest, highest) in zip(reversed(halves), found, strict=True):
        for _, run in half.groupby("seed"):
            at = run.set_index("round")[["pq_index", "test_accuracy", "density"]]
            if highest in at.index:
                values.append(at.loc[[0, lowest, highest, at.index[-1]]].to_numpy())
    everything = np.asarray(values)  # seeds, four moments, three values
    index = everything[:, :, 0]
    fall, rise, fall_again = (Difference.of((index[:, i + 1] - index[:, i]).tolist()) for i in range(3))
    means = everything.mean(0)
    curve = runs.groupby("round")["test_accuracy"].mean()
    return Shape(
        (found[0][0], found[-1][0]),
        (found[0][1], found[-1][1]),
        fall,
        rise,
        fall_again,
        index=tuple(means[:, 0].tolist()),
        accuracy=tuple(means[:, 1].tolist()),
        density=tuple(means[:, 2].tolist()),
        steepest=int(curve.diff().idxmin()) if len(curve) > 1 else None,
    )


def _turns(runs: pd.DataFrame) -> tuple[int, int]:
    """The round with the lowest mean index before a collapse, and that with the highest from there on."""
    reached = runs.groupby("id")["round"].max().min()
    means = runs[runs["round"] <= reached].groupby("round")[["pq_index", "test_accuracy"]].mean()
    found = phases(means["test_accuracy"].tolist(), means["pq_index"].tolist())
    standing = len(found) - found.count("collapsed")
    lowest = int(means["pq_index"].iloc[:standing].idxmin())
    return lowest, int(means["pq_index"].loc[lowest:].idxmax())


def turned(frame: pd.DataFrame, name: str) -> dict[str, dict[str, Spread]]:
    """By the rule of the report, run by run: when the index turned up, when the network collapsed, and the last
    round before the first that is more than a point below the dense network."""
    found: dict[str, list[dict[str, float]]] = {"turned_up": [], "collapsed": [], "kept": []}
    for _, run in frame[frame["name"] == name].sort_values("round").groupby("id"):
        accuracy = run["test_accuracy"].tolist()
        rounds: dict[str, int | None] = dict(turns(phases(accuracy, run["pq_index"].tolist())))
        below = (t for t, a in enumerate(accuracy) if a < accuracy[0] - 0.01 - 1e-9)
        rounds["kept"] = next(below, len(accuracy)) - 1
        for moment, t in rounds.items():
            if t is not None:
                found[moment].append({v: float(run[v].iloc[t]) for v in ("round", "density", "test_accuracy")})
    return {
        moment: {key: Spread.of([row[key] for row in rows]) for key in (rows[0] if rows else ())}
        for moment, rows in found.items()
    }


def falls_again(index: Sequence[float]) -> bool:
    """Whether the index of a run, at its start, lowest, highest and last, comes to lie above its start and then
    falls by half."""
    start, _, high, end = index
    return high > max(start, 2 * end)


def rebounds(frame: pd.DataFrame, name: str) -> list[tuple[float, float, float, float]]:
    """The index of each run that turned up, by the rule of the report: at the start, lowest, highest, last."""
    found = []
    for _, run in frame[frame["name"] == name].sort_values("round").groupby("id"):
        index = run["pq_index"].tolist()
        t = turns(phases(run["test_accuracy"].tolist(), index))["turned_up"]
        if t is not None:
            found.append((index[0], index[t], max(index[t:]), index[-1]))
    return found
