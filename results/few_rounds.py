"""What a page says of a study that has come through few rounds: does the network train, and is it pruned?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from results import readings
from results.answers import ONE_SHOT, SAP, SHORT, Spread, between, column, falling, last_round, present
from results.readings import Reading, Shapes
from results.study import EPOCHS, Study, difference, listed, percent, prose, ranged, spread, table
from results.tables import largest_drop, mean_density

if TYPE_CHECKING:
    import pandas as pd

FEW = 5
"""Up to this round nothing is said about equal density and the turns of the index."""
CLASSES = {"CIFAR100": 100, "TinyImageNet": 200}
"""Of a data set; the others have ten."""
BEFORE = {"test_accuracy": (100, 2), "pq_index": (1, 3)}
AFTER = {"pruned_test_accuracy": (100, 2), "pruned_pq_index": (1, 3)}
"""Accuracy and index around a cut, each with its factor and digits."""
GAIN = 0.01
"""From there on a pruned network is better than the dense one by more than seeds are."""
LEARNT = 5
"""How many times as good as guessing a network that trains is."""


def few(study: Study) -> bool:
    """Whether no run has gone further."""
    return int(study.frame["round"].max()) <= FEW


def reading(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """By rule: that it trains, what was cut, what that did to the index, and what it cost."""
    f = study.frame
    said = [_trains(f), _ratios(f), _index(f), _cost(f)]
    return replace(readings.unread(study, equal, shapes), points=said)


def _trains(f: pd.DataFrame) -> str:
    first = f.iloc[0]
    dense = Spread.of(column(f, present(f)[0], 0, "test_accuracy"))
    guess = 1 / CLASSES.get(first["data"], 10)
    verdict = "It trains" if dense.mean > LEARNT * guess else "It hardly trains"
    return (
        f"**{verdict}:** after {first['epochs']} epochs the dense network is right for {spread(dense)} % of the "
        f"test images, where guessing is for {percent(guess)}."
    )


def _ratio(f: pd.DataFrame) -> pd.DataFrame:
    return f.assign(ratio=f["cut_weights"] / f["kept"])


def _paths(f: pd.DataFrame, value: str) -> dict[str, list[float]]:
    """Round by round, for each method by its short name."""
    return {
        SHORT.get(name, name): [float(v) for v in f[f["name"] == name].groupby("round")[value].mean().dropna()]
        for name in present(f)
    }


def _ratios(f: pd.DataFrame) -> str:
    """The shares that methods cut, and whether those of SAP become smaller."""
    cuts = _paths(_ratio(f), "ratio")
    last = min(last_round(f, name) for name in present(f))
    adaptive = [path for name, path in cuts.items() if name in SHORT.values()]
    verdict = "What is cut"
    if last and adaptive:
        falls = all(map(falling, adaptive))
        verdict = f"SAP {'lowers its ratio from round to round' if falls else 'does not always lower its ratio'}"
    shown = "; ".join(f"{name} cuts {_in_turn(path)}" for name, path in cuts.items())
    left = listed([percent(mean_density(f, name, last)) for name in present(f)])
    return (
        f"**{verdict}:** of what is left, {shown}."
        + f" So {left} of the weights remain at T = {last}." * (last > 0)
        + " At p = 0.5, q = 1 the ratio is the index itself." * (SAP in present(f))
        + " The index grows with the epochs, so these are not the paper's ratios."
        * (int(f["epochs"].iloc[0]) != EPOCHS)
    )


def _in_turn(shares: Sequence[float]) -> str:
    """Each round's, or one for all.

    >>> _in_turn([0.2, 0.2]), _in_turn([0.3, 0.25])
    ('20 % each time', '30 % and 25 %')
    """
    shown = [percent(share) for share in shares]
    return f"{shown[0]} each time" if len(shown) > 1 and len(set(shown)) == 1 else listed(shown)


def _index(f: pd.DataFrame) -> str:
    """Whether cuts lower the index, and how it goes from round to round."""
    fall = -f.loc[f["cut_weights"] > 0, "pruned_pq_index_difference"].dropna()
    lower, paths = int((fall > 0).sum()), _paths(f, "pq_index")
    every = lower == len(fall)
    text = (
        f"**{'Every' if every else 'Not every'} cut lowers the index** of the weights that it is made in, "
        f"{'as the paper says' if every else 'though the paper says so'}: {lower} of {len(fall)}, by "
        f"{ranged(fall, digits=3)}."
    )
    if f["round"].max() < 1:
        return text
    shown = "; ".join(f"{', '.join(f'{v:.3f}' for v in path)} with {name}" for name, path in paths.items())
    other = [name for name, path in paths.items() if not falling(path)]
    return (
        f"{text} Trained again, the networks have {shown}: so "
        + (f"not with {listed(other)} in every round, and else " if other and len(other) < len(paths) else "")
        + (
            "it falls, as the hypothesis has it at first."
            if len(other) < len(paths)
            else "it does not always fall."
        )
        + " What comes later these rounds do not show."
    )


def _cost(f: pd.DataFrame) -> str:
    """Accuracy after a cut, and after training again."""
    drop = {SHORT.get(name, name): largest_drop(f, name) for name in present(f)}
    at_once = listed(
        [f"{100 * lost:.2f} ({name}, T = {t})" if lost else f"none ({name})" for name, (t, lost) in drop.items()]
    )
    text = f"**What it costs:** a cut network that is not trained again has lost at most {at_once} points."
    last = {name: last_round(f, name) for name in present(f)}
    found = {name: between(f, (name, t), (name, 0)) for name, t in last.items() if t}
    if not found:
        return text
    changes = [f"{difference(d)} ({SHORT.get(name, name)}, T = {last[name]})" for name, d in found.items()]
    gains = max(d.mean for d in found.values()) > GAIN and int(f["epochs"].iloc[0]) < EPOCHS
    brief = "; so brief a training leaves much to gain, and this says nothing about longer ones" * gains
    return f"{text} Trained again, it is {listed(changes)} points from dense{brief}."


def every_round(f: pd.DataFrame) -> list[str]:
    """A row for each method and round."""
    f, rows = _ratio(f), []
    for name in present(f):
        for t in range(last_round(f, name) + 1):
            at = {value: Spread.of(column(f, name, t, value)) for value in ("density", "ratio", *BEFORE, *AFTER)}
            before, after = (
                [spread(at[v], scale=s, digits=d) for v, (s, d) in of.items()] for of in (BEFORE, AFTER)
            )
            rows.append((name, str(t), percent(at["density"].mean), *before, percent(at["ratio"].mean), *after))
    titles = ("method", "T", "weights", "accuracy", "PQ Index", "cut", "accuracy then", "PQ Index then")
    return [
        table(titles, rows, words=2),
        prose(
            "Weights that remain; test accuracy in percent and index (p = 0.5, q = 1) of the trained network; the "
            "share of what is left that is cut; accuracy and index after that, before it is trained again.",
            "One Shot cuts the weights of the first training, so these two are of them."
            * (ONE_SHOT in present(f)),
        ),
    ]
