"""What was written about the studies of four methods, those on FashionMNIST here; what the records do not say any
more is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from palmette.reports.paper.published import published
from palmette.studies.paper import rounds_of
from results.answers import LT, METHODS, ONE_SHOT, SAP, SAP2, Shape, Spread, between, column, last_round, present
from results.epochs import rounds_figure
from results.study import EPOCHS, Study, difference, listed, percent, prose, spread, true
from results.tables import gap, holds, largest_gap, mean_density, rounds

if TYPE_CHECKING:
    import pandas as pd

Shapes = dict[str, Shape]
APPENDIX = (
    "The paper shows this study as a figure of the appendix, without words or numbers of its own, and its curves "
    "cannot be read to a point; what it says about the MLP on FashionMNIST is asked here too."
)


@dataclass(frozen=True)
class Reading:
    """The words of a page: its opening and first points, what stands around the hypothesis, and more claims."""

    opening: str
    points: Sequence[str]
    beside: str = APPENDIX
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    claims: Sequence[tuple[str, str]] = ()


MAIN_TEXT = (
    "The paper shows this study as a figure, of which some values could be read off, see "
    "[above](#beside-the-published-values). What it says about the MLP on FashionMNIST is asked here too."
)


def unread(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """By rule alone: of a study that nobody has written about yet."""
    f, n, epochs = study.frame, study.frame["seed"].nunique(), study.frame["epochs"].iloc[0]
    first, most = f.iloc[0], f["round"].max()
    names = present(f)
    dense, index = (Spread.of(column(f, names[0], 0, v)) for v in ("test_accuracy", "pq_index"))
    at_end = [_at_end(f, name) for name in names]
    protocol = "the paper's" if epochs == EPOCHS else f"in place of {EPOCHS}"
    usual = rounds_of(first["model"])
    shape_only = "**This shows the shape of the curves at most, and not the published numbers.** "
    span = f"rounds 0 to {most}" if most else "round 0"
    return Reading(
        f"{{figure}} of the paper with {epochs} epochs a round ({protocol}), {span}"
        + (f" (the paper has {usual})" if most != usual else "")
        + f" and {'one seed' if n == 1 else f'{n} seeds'}: {first['total']:,} weights, pruned globally"
        + (f" by {listed(names)}. " if len(names) < len(METHODS) else ". ")
        + (shape_only if epochs != EPOCHS else "")
        + (
            "From one seed no interval and no test can be had: differences are shown as they are."
            if n == 1
            else ""
        ),
        [
            f"The dense network has an accuracy of {spread(dense)} % and a PQ Index of "
            f"{spread(index, scale=1, digits=3)}.",
            f"SAP less Lottery Ticket at equal density: {largest_gap(equal)}.",
            f"{'So far' if study.so_far else 'At the end'}: {'; '.join(at_end)}.",
        ],
        APPENDIX if published(rounds_figure(study)) is None else MAIN_TEXT,
    )


def _at_end(f: pd.DataFrame, name: str) -> str:
    """Where the runs of a method are last, and what that has cost."""
    t = last_round(f, name)
    lost = between(f, (name, t), (name, 0))
    weights = percent(mean_density(f, name, t))
    return f"{name} at T = {t}, {weights} of the weights, {difference(lost)} points since T = 0"


def fashion_mlp(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """The MLP on FashionMNIST, of which the paper speaks."""
    f = study.frame
    match, one = between(f, (SAP2, 10), (LT, 25)), shapes[ONE_SHOT]
    return Reading(
        "Figures 1, 2 and 7 of the paper by its full protocol, with sixteen seeds in place of four: an MLP of "
        f"{f['total'].iloc[0]:,} weights (784–128–256–10), pruned globally.",
        [
            "**At equal density SAP and Lottery Ticket are alike** down to 2 % of the weights: "
            f"{largest_gap(equal, 0.02)}. "
            + true(
                all(holds(equal, SAP2, d) < 0 for d in (0.01, 0.005)),
                f"Below, SAP (1, 2) is behind, by {gap(equal, SAP2, 0.01)} points at 1 % and "
                f"{gap(equal, SAP2, 0.005)} at 0.5 %.",
            ),
            "**What SAP decides is how fast and how far**, not how good: SAP (1, 2) is in ten rounds where "
            f"Lottery Ticket is in 25 ({difference(match)} points), SAP (0.5, 1) slows down and is still at "
            f"{percent(mean_density(f, SAP, 30))} after 30.",
            "**The index of One Shot falls, rises and falls** as the hypothesis says. "
            + true(
                one.accuracy[1] > one.accuracy[0] - 0.01 and one.accuracy[2] < 0.4,
                f"But it turns up early, at {percent(one.density[1])} of the weights, where next to nothing is "
                f"lost, and falls again late, where accuracy is {percent(one.accuracy[2])}.",
            ),
        ],
        "The paper shows this study as a figure and in words, without numbers; so shapes and sentences are "
        "compared.",
        before=["![Figure 1: accuracy and PQ Index of One Shot, with three phases](fig1.png)"],
        after=[
            prose(
                true(
                    one.as_said and shapes[SAP2].as_said,
                    "One Shot does what the hypothesis says. SAP (1, 2) does too, though its rise is small and "
                    f"noisy: {difference(shapes[SAP2].rise, scale=1, digits=3)}.",
                ),
                unfinished(shapes),
                true(
                    shapes[SAP].rise.sign == 0,
                    "That of SAP (0.5, 1) falls and stays where it is; the network does not collapse.",
                ),
                inflection(shapes),
            ),
            "![Figure 7: PQ Index over p and q in rounds 0, 10, 20 and 30](fig7.png)",
        ],
    )


def fashion_linear(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """The linear model on FashionMNIST."""
    f = study.frame
    end = {name: column(f, name, 30, "test_accuracy").mean() for name in (SAP, SAP2, LT)}
    low = {name: mean_density(f, name, 30) for name in end}
    fall = between(f, (LT, 30), (LT, 0))
    return Reading(
        "{figure} of the paper by its full protocol, with sixteen seeds in place of four: a linear model of "
        f"{f['total'].iloc[0]:,} weights, pruned globally. Training is a convex problem, so seeds differ little: "
        f"the dense networks have an accuracy of {spread(Spread.of(column(f, LT, 0, 'test_accuracy')))} %.",
        [
            f"**SAP slows down before much is lost**: after 30 rounds SAP (0.5, 1) has {percent(low[SAP])} of the "
            f"weights and {percent(end[SAP])} accuracy, SAP (1, 2) {percent(low[SAP2])} and {percent(end[SAP2])}, "
            f"Lottery Ticket {percent(low[LT])} and {percent(end[LT])}. After its first cut the index of SAP (1, "
            f"2) falls from {column(f, SAP2, 0, 'pq_index').mean():.3f} to "
            f"{column(f, SAP2, 1, 'pq_index').mean():.3f}, so that it cuts little.",
            "**At equal density SAP and Lottery Ticket are alike**: "
            + largest_gap(equal)
            + ". What keeps SAP from harm is that it stops earlier.",
            true(
                shapes[ONE_SHOT].as_said and shapes[LT].rise.sign < 1,
                "**The index does not announce the collapse of Lottery Ticket**: it falls all the way, from "
                f"{shapes[LT].index[0]:.3f} to {shapes[LT].index[3]:.3f}, while accuracy falls by "
                f"{-100 * fall.mean:.1f} points. With One Shot it falls, rises and falls, as the hypothesis says.",
            ),
        ],
    )


def unfinished(shapes: Shapes) -> str:
    """An index that has come to its rise, and not to its second fall."""
    return true(
        shapes[LT].rise.sign == 1 and shapes[LT].fall_again.sign == 0,
        f"Lottery Ticket's index falls, and rises by {difference(shapes[LT].rise, scale=1, digits=3)} while "
        "accuracy is lost; thirty rounds end before it falls again beyond the noise.",
    )


def inflection(shapes: Shapes) -> str:
    """Whether accuracy falls fastest where the index peaks."""
    one, two = shapes[ONE_SHOT], shapes[SAP2]
    return (
        "Of its ablations the paper says that accuracy falls fastest where the index peaks: here that of One Shot "
        f"in round {one.steepest} (peak: {rounds(one.highest)}), SAP (1, 2) in round {two.steepest} (peak: "
        f"{rounds(two.highest)})."
    )
