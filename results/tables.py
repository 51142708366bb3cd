"""Tables of four methods: round by round, at equal density, and the turns of the index."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from palmette.reports.phases import RULE
from palmette.reports.statistics import ENOUGH, WIDE
from results.answers import (
    DENSITIES,
    LEVEL,
    LT,
    METHODS,
    ONE_SHOT,
    SAP,
    SAP2,
    Difference,
    Shape,
    Spread,
    column,
    present,
    rebounds,
    turned,
)
from results.study import bold, difference, listed, percent, prose, ranged, signed, spread, table

if TYPE_CHECKING:
    import pandas as pd

OTHERS = (SAP, SAP2, ONE_SHOT)


def mean_density(frame: pd.DataFrame, name: str, round: int) -> float:
    """Of a method in a round."""
    return float(column(frame, name, round, "density").mean())


def largest_drop(frame: pd.DataFrame, name: str) -> tuple[int, float]:
    """The round in which a cut costs most accuracy before retraining, and how much, on average over seeds."""
    lost = -frame[frame["name"] == name].groupby("round")["pruned_accuracy_difference"].mean()
    return int(lost.idxmax()), max(float(lost.max()), 0.0)


def _row(equal: pd.DataFrame, name: str, density: float) -> dict[str, Any]:
    """Of a table of `equal_density`; of a method without runs nothing."""
    found = equal[(equal["method"] == name) & (equal["density"] == density)].to_dict("records")
    nothing = dict.fromkeys(("accuracy", "sd", "difference", "low", "high", "adjusted"), math.nan)
    return found[0] if found else nothing | {"n": 0, "pairs": 0}


def accuracy_at(equal: pd.DataFrame, name: str, density: float, n: int) -> str:
    """Accuracy at a density, and how many runs got there if not all `n`; empty where none did."""
    row = _row(equal, name, density)
    fewer = f" (n = {row['n']})" if 0 < row["n"] < n else ""
    return spread(Spread(row["accuracy"], row["sd"], row["n"])) + fewer


def gap(equal: pd.DataFrame, name: str, density: float) -> str:
    """The difference to the baseline at a density, with its interval."""
    row = _row(equal, name, density)
    return difference(Difference(row["difference"], row["low"], row["high"], row["pairs"]))


def holds(equal: pd.DataFrame, name: str, density: float) -> int:
    """1 or -1 where a difference is beyond the noise after correction for all of the table, else 0."""
    row = _row(equal, name, density)
    return 0 if not row["adjusted"] < LEVEL else 1 if row["difference"] > 0 else -1


def reached(equal: pd.DataFrame, name: str) -> float:
    """The least density at which a method can be compared."""
    return float(equal[(equal["method"] == name) & (equal["pairs"] > 0)]["density"].min())


def largest_gap(equal: pd.DataFrame, least: float = 0.0) -> str:
    """The largest difference of SAP to Lottery Ticket at a density of `least` or more, in words."""
    rows = equal[equal["method"].isin((SAP, SAP2)) & (equal["density"] >= least) & (equal["pairs"] > 0)]
    if rows.empty:
        return "nothing can be said yet"
    worst = rows.loc[rows["difference"].abs().idxmax()]
    sure, seeds = rows[rows["adjusted"] < LEVEL], int(rows["pairs"].max())
    held = [f"{signed(r.difference)} ({r.method} at {percent(r.density)})" for r in sure.itertuples()]
    noise = f"beyond the noise of {seeds} seeds"
    if seeds == 1:
        verdict = "one seed does not tell the noise"
    elif sure.empty:
        verdict = f"none is {noise}"
    elif len(sure) == 1 and worst["adjusted"] < LEVEL:
        verdict = f"it alone is {noise}"
    else:
        verdict = f"{noise} {'is' if len(held) == 1 else 'are'} {listed(held)}"
    which = f"the largest of {len(rows)} differences" if len(rows) > 1 else "the one difference"
    at = f"{worst['method']} at {percent(worst['density'])}"
    return f"{which} is {signed(worst['difference'])} points ({at}), and {verdict}"


def shown_rounds(last: int) -> list[int]:
    """Those of a table: about seven with the last, or all where they are few.

    >>> shown_rounds(30), shown_rounds(11), shown_rounds(4)
    ([0, 5, 10, 15, 20, 25, 30], [0, 3, 6, 9, 11], [0, 1, 2, 3, 4])
    """
    return [*range(0, last, 5 if last > 15 else 3 if last > 8 else 1), last]


def _ended(runs: pd.DataFrame) -> bool:
    """Whether none of the runs is under way."""
    return bool(runs[runs["stopped"].notna()]["id"].nunique() == runs["id"].nunique())


def rounds_table(frame: pd.DataFrame) -> str:
    """Accuracy and density of each method in about seven rounds, or in all where they are few."""
    rows, shown = [], shown_rounds(int(frame["round"].max()))
    for name in present(frame):
        mine, cells = frame[frame["name"] == name], []
        over = "ended" if _ended(mine) else ""
        for t in shown:
            accuracy = Spread.of(column(frame, name, t, "test_accuracy"))
            fewer = f", n = {accuracy.n}" if accuracy.n < frame["seed"].nunique() else ""
            at = f" at {percent(mean_density(frame, name, t))}{fewer}" if accuracy.n else over
            cells.append(spread(accuracy) + at)
        rows.append((name, *cells))
    n = frame["seed"].nunique()
    over_seeds = f"mean ± standard deviation over n = {n} seeds" if n > 1 else "one run of each"
    note = f"Test accuracy in percent, {over_seeds}, at a share of the weights."
    return table(("method", *(f"T = {t}" for t in shown)), rows) + "\n\n" + note


def density_tables(equal: pd.DataFrame) -> list[str]:
    """Accuracy at equal density, and differences to Lottery Ticket."""
    accuracies, gaps = [], []
    methods = [name for name in METHODS if name in set(equal["method"])]
    others = [name for name in methods if name != LT]
    count, n = int(equal["adjusted"].notna().sum()), int(equal["n"].max())
    for d in DENSITIES:
        cells = [accuracy_at(equal, name, d, n) for name in methods]
        if not any(cells):
            continue
        accuracies.append((percent(d), *cells))
        shown = [bold(gap(equal, name, d), holds(equal, name, d)) for name in others]
        if any(shown):
            gaps.append((percent(d), *shown))
    if not accuracies:
        return [f"No run has come down to {percent(DENSITIES[0])} of the weights yet."]
    return [
        table(("weights", *methods), accuracies, words=0),
        f"Test accuracy in percent, {'mean ± standard deviation, ' * (n > 1)}n = {n} where nothing is said; empty "
        "where not reached.",
        *([table(("weights", *(f"{name} − {LT}" for name in others)), gaps, words=0)] if gaps else []),
        prose(
            f"Points of accuracy, {'mean over pairs' if n > 1 else 'difference of two runs'} of equal seed (so "
            "equal initial weights and order of images)."
            if gaps
            else f"Beside {LT} nothing can be laid yet.",
            "Accuracy between two rounds is interpolated in the logarithm of the density, but not across a cut "
            f"that leaves less than 1/{WIDE} of the weights (unless a round is within 5 %).",
            "The 95 % interval is by percentile bootstrap, Student's where there are fewer than "
            f"{ENOUGH} pairs, for which a bootstrap is too narrow. These are {count} comparisons, so some "
            "intervals leave out 0 by chance: **bold** is what holds when all are judged together (paired "
            f"t-tests, Holm's correction, {LEVEL:.0%})."
            if n > 1
            else "One pair has no interval." * bool(gaps),
        ),
    ]


def hypothesis(frame: pd.DataFrame, shapes: dict[str, Shape]) -> list[str]:
    """Where the index turns, and whether beyond the noise; and the phases by the rule of the report."""
    rows, moments = [], []
    for name, s in shapes.items():
        places = [f"{s.index[i]:.3f} ({percent(s.accuracy[i])})" for i in range(4)]
        places[1] += f", {rounds(s.lowest)}"
        steps = zip((s.fall, s.rise, s.fall_again), (-1, 1, -1), strict=True)
        seen = [(d.mean * wanted > 0) if d.pairs == 1 else (d.sign == wanted) for d, wanted in steps]
        seen[2] &= seen[1]
        places[2] = f"{places[2]}, {rounds(s.highest)}" if seen[1] else ""
        rows.append((name, *places, *("yes" if yes else "no" for yes in seen)))
        up, *later = (_moment(frame, name, at) for at in turned(frame, name).values())
        peaks = [high for _, _, high, _ in rebounds(frame, name)]
        moments.append((name, up, ranged(peaks, digits=3) if peaks else "", *later))
    titles = ("method", "start", "lowest before a collapse", "highest after that", "end")
    return [
        table((*titles, "falls", "rises", "falls again"), rows),
        prose(
            "PQ Index (p = 0.5, q = 1), and accuracy in brackets.",
            "The even seeds say by their mean which rounds are the lowest and the highest for the odd ones, and "
            "the odd ones for the even: so no value is chosen by itself. *Yes* where the 95 % interval of the "
            "paired change leaves out 0."
            if frame["seed"].nunique() > 1
            else "With one seed the rounds are chosen by what is shown, and *yes* says nothing about noise.",
        ),
        table(
            (
                "method",
                "the index turned up, before a collapse, after",
                "its highest then",
                "collapsed from",
                "within a point of dense until",
            ),
            moments,
        ),
        prose(
            "Round, share of the weights and accuracy, run by run, by [the rule of the "
            f"report](../../docs/report.md): {RULE} The last column is the last round before the first that is "
            "more than one point below the dense network. Where an index is flat, its lowest round is where "
            "noise puts it, and is no turn."
        ),
    ]


def _moment(frame: pd.DataFrame, name: str, at: dict[str, Spread]) -> str:
    if not at:
        return "never" if _ended(frame[frame["name"] == name]) else "not yet"
    n = at["round"].n
    fewer = f", in {n} runs" if n < frame["seed"].nunique() else ""
    accuracy = f"{100 * at['test_accuracy'].mean:.1f} %"
    digits = int(frame["seed"].nunique() > 1)
    return f"T = {spread(at['round'], scale=1, digits=digits)}: {percent(at['density'].mean)}, {accuracy}{fewer}"


def rounds(found: tuple[int, int]) -> str:
    """The rounds that two halves of the seeds have found.

    >>> rounds((24, 24)), rounds((8, 6))
    ('T = 24', 'T = 6 or 8')
    """
    return "T = " + " or ".join(map(str, sorted(set(found))))
