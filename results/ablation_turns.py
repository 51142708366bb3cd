"""Where the index of SAP's settings turns, of those whose accuracy collapses, and where accuracy falls fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from palmette.reports.phases import COLLAPSE, phases
from results.ablation_runs import Ablation, settings_of
from results.answers import falls_again
from results.study import listed, prose, ranged, table

if TYPE_CHECKING:
    import pandas as pd

FALL = 0.1
"""So much of the index at the start must be lost before it counts as a fall."""
RULE = (
    f"Settings whose accuracy collapses: more than {100 * COLLAPSE:g} points below the dense network, to the end. "
    "Index (p = 0.5, q = 1) and, in brackets, accuracy in percent: at the start, at the lowest before the "
    "collapse, at the highest after that, and at the end; the round of that highest index, and the round that "
    f"costs the most accuracy. *Falls*: by a tenth of the start or more; *rises*: above the start; *falls again*: "
    "to less than half of the highest."
)


@dataclass(frozen=True)
class Turns:
    """A run that collapses: index and accuracy at its start, lowest, highest and last; and two rounds."""

    index: tuple[float, ...]
    accuracy: tuple[float, ...]
    peak: int
    steepest: int

    @property
    def as_said(self) -> bool:
        """Falls, rises and falls."""
        return self.index[1] <= (1 - FALL) * self.index[0] and falls_again(self.index)

    @property
    def near(self) -> bool:
        """Accuracy falls fastest within a round of the peak."""
        return abs(self.peak - self.steepest) <= 1


def turns_of(run: pd.DataFrame) -> Turns | None:
    """Of the rounds of a run; None where it does not collapse."""
    by_round = run.set_index("round").sort_index()
    index, accuracy = by_round["pq_index"], by_round["test_accuracy"]
    found = phases(accuracy.tolist(), index.tolist())
    if "collapsed" not in found:
        return None
    lowest = int(index.iloc[: found.index("collapsed")].idxmin())
    peak = int(index.loc[lowest:].idxmax())
    at = [0, lowest, peak, by_round.index[-1]]
    return Turns(tuple(index[at]), tuple(accuracy[at]), peak, int(accuracy.diff().idxmin()))


def collapsed(a: Ablation) -> dict[str, tuple[Turns, ...]]:
    """The runs that collapse, by setting; settings with the same runs are one."""
    f = a.everything[a.everything["scope"] == "global"]
    same: dict[tuple[str, tuple[Turns, ...]], list[str]] = {}
    for words, name in (setting for row in settings_of().values() for setting in row.items()):
        symbol, _, value = words.partition(" = ")
        runs = (turns_of(run) for _, run in f[f["name"] == name].groupby("seed"))
        if found := tuple(run for run in runs if run):
            same.setdefault((symbol, found), []).append(value)
    return {f"{symbol} = {listed(values)}": runs for (symbol, runs), values in same.items()}


def section(a: Ablation) -> list[str]:
    """The table of turns; nothing while nothing has collapsed."""
    if not (found := collapsed(a)):
        return []
    several = len(a.seeds) > 1
    rows = []
    for words, runs in found.items():
        cells = [f"{_mean(runs, 'index', i):.3f} ({100 * _mean(runs, 'accuracy', i):.1f})" for i in range(4)]
        rounds = [ranged(values, digits=0) for values in ([r.peak for r in runs], [r.steepest for r in runs])]
        said = sum(run.as_said for run in runs)
        rows.append((words, *cells, *rounds, f"{said} of {len(runs)}" if several else "yes" if said else "no"))
    titles = ("setting", "start", "lowest", "highest", "end", "T of the highest", "T of the steepest loss")
    each = "Run by run; means over the runs that collapse, and how many of them do as said." if several else ""
    return [
        "## The hypothesis",
        table((*titles, "falls, rises, falls"), rows),
        prose(RULE, *filter(None, [each])),
    ]


def _mean(runs: Sequence[Turns], what: str, moment: int) -> float:
    return float(sum(getattr(run, what)[moment] for run in runs) / len(runs))


def point(a: Ablation) -> str:
    """The answer in a few sentences; empty while there is none."""
    runs = [run for of_setting in collapsed(a).values() for run in of_setting]
    if not (said := [run for run in runs if run.as_said]):
        return ""
    dense, low, high = (ranged((100 * run.accuracy[i] for run in said), digits=1) for i in range(3))
    peaks = [run for run in runs if falls_again(run.index)]
    return (
        f"**The index falls, rises and falls in {len(said)} of {len(runs)} {_units(a)} whose accuracy "
        f"collapses.** It is lowest at {low} % accuracy (the dense network has {dense} %) and highest at {high} "
        f"%. Accuracy falls fastest within a round of the peak in {sum(run.near for run in peaks)} of the "
        f"{len(peaks)} {_units(a)} that have one. [All of it](#the-hypothesis)."
    )


def claims(a: Ablation) -> list[tuple[str, str]]:
    """What the paper says of the index in its Figures 5 and 6."""
    found = collapsed(a)
    runs = [run for of_setting in found.values() for run in of_setting]
    peaks = [run for run in runs if falls_again(run.index)]
    shape = inflection = "**Not known yet**"
    if peaks:
        said = sum(run.as_said for run in runs)
        never = [words for words, of_setting in found.items() if not any(run.as_said for run in of_setting)]
        shape = (
            f"**{_verdict(said, len(runs))},** [in {said} of {len(runs)}](#the-hypothesis) {_units(a)} whose "
            "accuracy collapses" + (f"; never for {listed(never)}" if never else "")
        )
        near = sum(run.near for run in peaks)
        far = [
            f"{words} (T = {run.peak} and {run.steepest})"
            for words, of_setting in found.items()
            for run in of_setting
            if run in peaks and not run.near and len(a.seeds) == 1
        ]
        inflection = (
            f"**{_verdict(near, len(peaks))}:** in {near} of {len(peaks)} {_units(a)} with a peak accuracy falls "
            "fastest within a round of it"
            + (f"; not for {listed(far)}" if far else "")
            + ". No logistic curve was "
            "fitted"
        )
    return [
        ("The index of SAP with these settings does what the hypothesis says", shape),
        ("Accuracy roughly follows a logistic decay; its inflection point is the peak of the index", inflection),
    ]


def _units(a: Ablation) -> str:
    return "runs" if len(a.seeds) > 1 else "settings"


def _verdict(count: int, of: int) -> str:
    return "Yes" if count >= 0.9 * of else "Mostly" if 2 * count > of else "No"
