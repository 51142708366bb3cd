"""What was written about the studies on CIFAR10."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from palmette.reports.paper.published import published
from palmette.studies.paper import FIGURES
from palmette.studies.record import read_runs
from results import few_rounds
from results.answers import (
    DENSITIES,
    LT,
    METHODS,
    ONE_SHOT,
    SAP,
    SAP2,
    Shape,
    Spread,
    between,
    column,
    falls_again,
    present,
    rebounds,
    turned,
)
from results.claims import CLOSE
from results.clipping import clipped_first
from results.epochs import names_in_file
from results.readings import APPENDIX, Reading, Shapes, inflection, unfinished, unread
from results.study import EPOCHS, Study, difference, listed, percent, prose, ranged, signed, spread, true
from results.tables import gap, holds, largest_gap, mean_density, rounds

if TYPE_CHECKING:
    import pandas as pd

WITH_FIGURE_4 = APPENDIX + " The last two rows are its words about Figure 4, which has this network."


def mlp(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """The MLP on CIFAR10."""
    f = study.frame
    match, sooner = (between(f, (SAP2, t), (LT, 25)) for t in (10, 8))
    lost, ahead = between(f, (SAP, 30), (SAP, 0)), between(f, (SAP, 30), (LT, 30))
    one, late = rebounds(f, ONE_SHOT), column(f, LT, 30, "pq_index")
    _, lows, highs, ends = (ranged(values) for values in zip(*one, strict=True))
    lt, kept, up = shapes[LT], turned(f, ONE_SHOT)["kept"], turned(f, ONE_SHOT)["turned_up"]
    few = f[(f["name"] == SAP2) & (f["round"] == 20)]["kept"]
    return Reading(
        f"{{figure}} of the paper by its full protocol, with four seeds as in the paper: an MLP of "
        f"{f['total'].iloc[0]:,} weights (3072–128–256–10; Table 3 has 428.9 K, with biases), pruned globally. It "
        f"learns CIFAR10 poorly, {spread(Spread.of(column(f, LT, 0, 'test_accuracy')))} % when dense.",
        [
            true(
                not any(holds(equal, name, d) for name in (SAP, SAP2) for d in DENSITIES),
                "**At equal density no difference between SAP and Lottery Ticket holds**: "
                f"{largest_gap(equal)}, so few that differences of one or two points would be missed.",
            ),
            true(
                match.sign < 0 < sooner.sign,
                f"**SAP (1, 2) at T = 10 is behind Lottery Ticket at T = 25**, by {difference(match)} points, "
                f"since it has fewer weights ({percent(mean_density(f, SAP2, 10))} and "
                f"{percent(mean_density(f, LT, 25))}): the index of this network is larger, and SAP is faster. "
                f"Eight rounds are {difference(sooner)} ahead, so the two cross in the ninth.",
            ),
            true(
                lost.high < -0.05 and ahead.sign > 0,
                "**SAP (0.5, 1) does not avoid the decline, it only slows it**: it changes by "
                f"{difference(lost)} points in 30 rounds, and is then {difference(ahead)} from Lottery Ticket, "
                f"with {percent(mean_density(f, SAP, 30))} of the weights in place of "
                f"{percent(mean_density(f, LT, 30))}. The index does not fall fast enough for SAP to stop in "
                "time.",
            ),
            true(
                len(one) == 4
                and all(high > 2 * start for start, _, high, _ in one)
                and not any(shapes[name].rise.sign > 0 for name in (SAP, SAP2, LT))
                and not turned(f, SAP2)["turned_up"],
                f"**One Shot's index falls, rises and falls in each run**, to {lows}, {highs} and {ends}. That "
                f"of SAP (1, 2) rises in each run as well, {late_rise(study)}. So but for One "
                f"Shot's they announce nothing: Lottery Ticket's is {lt.index[1]:.3f} where accuracy is "
                f"{percent(lt.accuracy[1])}, and {late.mean():.3f} ± {late.std():.3f} at the end, with "
                f"{percent(lt.accuracy[3])}.",
            ),
            "Scopes were not varied here; [on FashionMNIST](../fashionmnist-mlp-ablations/README.md#scopes) they "
            "were.",
        ],
        after=[
            prose(
                true(
                    not any(s.rise.sign > 0 for s in shapes.values()),
                    "By the test no index rises beyond the noise. For One Shot that is a weakness of the test "
                    f"with four seeds: the runs peak in different rounds ({rounds(shapes[ONE_SHOT].highest)} in "
                    "the means of the halves), and one has collapsed where another is highest; run by run the "
                    "rise is plain.",
                ),
                "It is also where the hypothesis has it: "
                + true(
                    abs(up["density"].mean - kept["density"].mean) < 0.05,
                    f"the index turns up at {percent(up['density'].mean)} of the weights, and accuracy is within "
                    f"a point of dense down to {percent(kept['density'].mean)}.",
                ),
                true(
                    few.max() < 100,
                    f"What SAP (1, 2) does late is noise: at T = 20 a network has {few.min()} to {few.max()} "
                    "weights.",
                ),
                inflection(shapes),
            )
        ],
    )


def late_rise(study: Study) -> str:
    """When the index of SAP (1, 2) rises in the MLP on CIFAR10."""
    before, after = (column(study.frame, SAP2, t, "pq_index") for t in (4, 12))
    collapse = turned(study.frame, SAP2)["collapsed"]["round"].mean
    return true(
        len(before) == 4 and ((after - before) > 0.05).all() and 4 < collapse < 7,
        f"from {ranged(before)} at T = 4 to {ranged(after)} at T = 12, but only after the collapse (T = "
        f"{collapse:.0f})",
    )


def cnn(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """The CNN on CIFAR10, trained for a tenth of the paper's epochs."""
    f = study.frame
    match = between(f, (SAP2, 10), (LT, 25))
    lost, ahead = between(f, (SAP, 30), (SAP, 0)), between(f, (SAP, 30), (LT, 30))
    best = between(f, (SAP, 10), (SAP, 0))
    behind = equal[(equal["method"] == SAP2) & (equal["pairs"] > 0)]
    one, two, lt = shapes[ONE_SHOT], shapes[SAP2], shapes[LT]
    moments = {name: turned(f, name) for name in (SAP2, LT, ONE_SHOT)}
    return Reading(
        f"{{figure}} of the paper with {f['epochs'].iloc[0]} epochs a round in place of {EPOCHS}, and four seeds "
        f"as in the paper: a CNN of {f['total'].iloc[0]:,} weights, pruned globally. **This shows the shape of "
        "the curves and not the published numbers**: the index of trained weights grows with the epochs, because "
        f"weight decay goes on shrinking what is not needed. Here it is {column(f, LT, 0, 'pq_index').mean():.3f} "
        f"for the dense network; {_longer(study)}",
        [
            true(
                not any(holds(equal, name, d) for name in (SAP, SAP2) for d in DENSITIES)
                and (behind["difference"] < 0).all(),
                f"**At equal density no difference between SAP and Lottery Ticket holds**: {largest_gap(equal)}. "
                f"But SAP (1, 2) is behind at all {len(behind)} densities, as the paper says it may be in global "
                "scope; more seeds would tell.",
            ),
            true(
                match.sign == 0,
                f"**SAP (1, 2) at T = 10 is where Lottery Ticket is at T = 25**, as far as four seeds can tell: "
                f"{difference(match)} points.",
            ),
            true(
                lost.low > -0.01 and ahead.low > 0.1,
                "**With so few epochs SAP (0.5, 1) avoids the late collapse**: after 30 rounds it has changed by "
                f"{difference(lost)} points, and is {difference(ahead)} ahead of Lottery Ticket. It brakes, and "
                f"keeps {percent(mean_density(f, SAP, 30))} of the weights, Lottery Ticket "
                f"{percent(mean_density(f, LT, 30))}. {collapse_at_length('../')}",
            ),
            true(
                one.as_said and two.as_said and lt.rise.sign > 0,
                "**The index falls, rises and falls for One Shot and SAP (1, 2)**, and has come to its rise for "
                "Lottery Ticket: of the networks on record the hypothesis fits this one best.",
            ),
            true(
                best.sign > 0,
                f"**At first pruning helps**: {difference(best)} points after ten rounds of SAP (0.5, 1), at "
                f"{percent(mean_density(f, SAP, 10))} of the weights. Networks that are trained briefly may gain "
                "more from it than the paper's.",
            ),
            "Scopes, of which the paper speaks for this network, were not varied in this study; "
            "[another](../cifar10-cnn-ablations/README.md#scopes) has them.",
        ],
        WITH_FIGURE_4,
        claims=_figure_4(study, equal),
        after=[
            prose(
                true(
                    all(abs(m["turned_up"]["round"].mean - m["kept"]["round"].mean) < 3 for m in moments.values()),
                    "And the rise begins about where the hypothesis has it: for "
                    + listed(list(moments))
                    + " the index turns up after round "
                    + listed([f"{m['turned_up']['round'].mean:.0f}" for m in moments.values()])
                    + ", and accuracy is within a point of dense until round "
                    + listed([f"{m['kept']['round'].mean:.0f}" for m in moments.values()])
                    + " (below its best, which is above dense, it is sooner).",
                ),
                unfinished(shapes),
                true(
                    one.accuracy[2] < 0.5 and two.accuracy[2] < 0.5,
                    f"The second fall comes late, at {percent(one.accuracy[2])} for One Shot and "
                    f"{percent(two.accuracy[2])} for SAP (1, 2), as in the other studies.",
                ),
                inflection(shapes),
            )
        ],
    )


def cnn_at_length(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """The CNN on CIFAR10 with all of the paper's epochs and rounds, in one run of each method."""
    f = study.frame
    ratio = f[f["name"] == SAP].set_index("round")["pq_index"]
    accuracy = {name: column(f, name, 30, "test_accuracy").mean() for name in (SAP, LT)}
    lowest = [shapes[name].lowest[0] for name in METHODS]
    kept = [int(turned(f, name)["kept"]["round"].mean) for name in METHODS]
    one, two = shapes[ONE_SHOT], shapes[SAP2]
    lost = {d: gap(equal, ONE_SHOT, d) for d in (0.05, 0.02, 0.01)}
    return Reading(
        f"{{figure}} of the paper by its full protocol, in one run of each method where the paper has four: a CNN "
        f"of {f['total'].iloc[0]:,} weights, pruned globally. Dense it has "
        f"{percent(column(f, LT, 0, 'test_accuracy').mean())} accuracy and a PQ Index of "
        f"{column(f, LT, 0, 'pq_index').mean():.3f}. From one seed no interval and no test can be had: "
        "differences are shown as they are.",
        [
            true(
                equal[equal["method"].isin((SAP, SAP2))]["difference"].abs().max() < 0.01,
                f"**At equal density SAP and Lottery Ticket lie on one line**: {largest_gap(equal)}. One Shot "
                f"leaves it: {listed(list(lost.values()))} points from Lottery Ticket at "
                f"{listed([percent(d) for d in lost])}.",
            ),
            "**SAP (1, 2) is faster than the ten rounds that the paper has for the MLP on FashionMNIST**: "
            + match_at_length(),
            true(
                ratio.min() > 0.2 and accuracy[SAP] < accuracy[LT],
                f"**SAP (0.5, 1) brakes too little, and collapses**: what it cuts is its index, which falls to "
                f"{ratio.min():.3f} (T = {ratio.idxmin()}) and rises, so in every round it cuts more than the 20 "
                f"% of Lottery Ticket. After 30 rounds it has {percent(accuracy[SAP])} accuracy with "
                f"{percent(mean_density(f, SAP, 30))} of the weights, Lottery Ticket {percent(accuracy[LT])} with "
                f"{percent(mean_density(f, LT, 30))}. With [20 epochs a round](../{study.name}-20/README.md) the "
                "index is smaller, and it brakes in time.",
            ),
            true(
                all(falls_again(s.index) for s in (one, two))
                and all(shapes[name].highest == (30, 30) for name in (SAP, LT)),
                f"**The index falls, rises and falls for One Shot** ({_path(one)}) **and SAP (1, 2)** "
                f"({_path(two)}), as the hypothesis says; for the other two thirty rounds end while it rises.",
            ),
            true(
                all(0 < low - last <= 4 for low, last in list(zip(lowest, kept, strict=True))[:3])
                and lowest[3] == kept[3] - 1
                and all(_flat(f, METHODS[i], lowest[i]) == (i < 3) for i in range(4)),
                "**It is lowest about where accuracy begins to fall**: in rounds "
                f"{listed([str(t) for t in lowest])} ({listed(list(METHODS))}; nearly flat there but for One "
                f"Shot), and accuracy is within a point of dense until {listed([str(t) for t in kept])}. Who "
                "stops at the lowest has lost "
                f"{listed([f'{100 * (s.accuracy[0] - s.accuracy[1]):.1f}' for s in shapes.values()])} points.",
            ),
        ],
        WITH_FIGURE_4,
        claims=_figure_4(study, equal),
    )


def _flat(frame: pd.DataFrame, name: str, round: int) -> bool:
    """Whether the index is about the same in the rounds before and after."""
    near = [float(column(frame, name, t, "pq_index").mean()) for t in (round - 1, round, round + 1)]
    return max(near) - min(near) < 0.01


def _path(shape: Shape) -> str:
    return ", ".join(f"{value:.2f}" for value in shape.index)


def collapse_at_length(up: str) -> str:
    """What becomes of SAP (0.5, 1) in the CNN with all of the paper's epochs; `up` is the way to the studies."""
    full, short = Study("cifar10-cnn"), Study("cifar10-cnn-20")
    found = turned(full.frame, SAP)["collapsed"]
    return true(
        len(full.of(SAP)) == 1
        and mean_density(full.frame, SAP, 30) < mean_density(short.frame, SAP, 30) < found["density"].mean
        and found["test_accuracy"].mean < column(short.frame, SAP, 30, "test_accuracy").min(),
        f"With the paper's {EPOCHS} epochs a round it cuts more, and a network as sparse is worse: [one "
        f"run]({up}{full.name}/README.md) is more than five points below dense from T = "
        f"{found['round'].mean:.0f} on, where {percent(found['density'].mean)} of the weights remain.",
    )


def match_at_length() -> str:
    """When SAP (1, 2) in the CNN with all of the paper's epochs is where Lottery Ticket is after 25 rounds."""
    f = Study("cifar10-cnn").frame
    there = mean_density(f, LT, 25)
    t = min(range(11), key=lambda t: abs(math.log(mean_density(f, SAP2, t) / there)))
    then, late, theirs = (column(f, *at, "test_accuracy").mean() for at in ((SAP2, t), (SAP2, 10), (LT, 25)))
    return true(
        abs(then - theirs) < 0.02 and late < 0.11,
        f"after {t} rounds it is where Lottery Ticket is after 25, with {percent(then)} and {percent(theirs)} at "
        f"{percent(mean_density(f, SAP2, t))} and {percent(there)} of the weights; after ten it only guesses.",
    )


def figure_3(panel: str, method: str) -> dict[int, float]:
    """A line of Figure 3 of the paper, as far as it could be read off."""
    theirs = published(FIGURES["fig3"])
    assert theirs is not None
    return {int(t): value for t, value in theirs.of(panel, method)}


def remaining(study: Study, name: str) -> dict[int, tuple[float, float]]:
    """The share of ResNet18's weights that is left after each cut, here and in the paper."""
    kept = figure_3("retrained/remaining", names_in_file([study])[name])
    found = study.frame[study.frame["name"] == name].set_index("round")["pruned_density"]
    return {t + 1: (float(left), kept[t + 1] / 100) for t, left in found.items() if t + 1 in kept}


def resnet18_first_rounds(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """ResNet18 on CIFAR10, the first rounds as long as in the paper."""
    f, by_rule = study.frame, few_rounds.reading(study, equal, shapes)
    (mine, theirs), (fast, their_fast) = (_ratios(remaining(study, name)) for name in (SAP, SAP2))
    own = [float(column(f, SAP2, t, "pq_index").mean()) for t in range(4)]
    index, cut = (figure_3(panel, "sap_p1_q2") for panel in ("retrained/pq_index", "pruned/accuracy"))
    kept = remaining(study, SAP2)
    last, their_last = kept[4]
    clipped = clipped_first(study).set_index("round")
    return replace(
        by_rule,
        points=[
            true(
                all(abs(a - b) < 0.01 for a, b in zip(mine, theirs, strict=True)),
                "**SAP (0.5, 1) goes the paper's way**: it cuts "
                f"{listed([percent(r) for r in mine])} of what is left, in the paper "
                f"{listed([percent(r) for r in theirs])} (from the weights that remain). These ratios are its "
                "index, so that agrees as well, more closely than it can be read off its own panel.",
            ),
            true(
                abs(fast[0] - their_fast[0]) < 0.005
                and all(a < b - 0.02 for a, b in zip(fast[1:], their_fast[1:], strict=True))
                and own[3] < own[2]
                and index[3] > index[2],
                f"**SAP (1, 2) does so at first only**: it cuts {_whole(fast)}, in the "
                f"paper {_whole(their_fast)}, so that {percent(last)} and "
                f"{percent(their_last)} remain after the fourth cut. There the index has turned up by T = 3 "
                f"({index[2]:.3f} to {index[3]:.3f}), here it still falls ({own[2]:.3f} to {own[3]:.3f}); "
                f"and the last cut, which is a larger one of a smaller network there, leaves {cut[3]:.0f} % "
                f"accuracy there and {100 * column(f, SAP2, 3, 'pruned_test_accuracy').mean():.0f} % here.",
            ),
            true(
                all(abs(clipped["pq_index"][t] - index[t]) < 0.01 for t in range(1, 5))
                and all(abs(clipped["density"][t] - kept[t][1]) < 0.003 for t in range(1, 5))
                and all(index[t] - own[t] > abs(index[t] - clipped["pq_index"][t]) for t in range(1, 4))
                and clipped["pq_index"][3] > clipped["pq_index"][2]
                and abs(clipped["pq_index"][0] - own[0]) < 0.001
                and clipped["test_accuracy"][3] < column(f, SAP2, 3, "test_accuracy").mean(),
                "**Most of that is the clipping of gradients, as far as one run tells.** The authors' code [clips "
                "before it masks](../../docs/differences.md): gradients of pruned weights count in the norm, "
                "and so the steps of sparse networks are smaller. [A run that does so "
                f"too](#clipped-before-masked) has an index of {_indices(clipped['pq_index'][1:])} at T = 1 to 4 "
                f"(published {_indices(index[t] for t in range(1, 5))}; here {_indices(own[1:])} to T = 3): it "
                f"turns up where the published one does. {percent(clipped['density'][4])} of the weights remain "
                "at T = 4, nearly as published. At T = 3 it is less accurate than the run here, "
                f"{100 * clipped['test_accuracy'][3]:.2f} and "
                f"{100 * column(f, SAP2, 3, 'test_accuracy').mean():.2f} %, but has fewer weights, "
                f"{percent(clipped['density'][3])} and {percent(kept[3][0])}. Both have the same seed; the one "
                "here was compiled, so that rounding differs, and dense networks, in which nothing is masked, "
                f"have an index of {clipped['pq_index'][0]:.4f} and here {own[0]:.4f}.",
            ),
            *by_rule.points,
        ],
        beside=f"{by_rule.beside} The last row is about this network.",
        claims=_figure_3(study),
    )


def _indices(values: Iterable[float]) -> str:
    return listed([f"{value:.3f}" for value in values])


def _whole(shares: Sequence[float]) -> str:
    return f"{listed([f'{100 * share:.0f}' for share in shares])} %"


def _ratios(left: dict[int, tuple[float, float]]) -> tuple[list[float], list[float]]:
    """How much of what is left each cut takes, here and in the paper."""
    here, there = ([1.0, *(pair[i] for pair in left.values())] for i in (0, 1))
    return [1 - b / a for a, b in itertools.pairwise(here)], [1 - b / a for a, b in itertools.pairwise(there)]


def resnet18(study: Study, equal: pd.DataFrame, shapes: Shapes) -> Reading:
    """ResNet18 on CIFAR10, trained for a tenth of the paper's epochs, to its last round."""
    f, by_rule = study.frame, unread(study, equal, shapes)
    cut, index = (figure_3(panel, "one_shot") for panel in ("pruned/accuracy", "retrained/pq_index"))
    kept, collapse = figure_3("retrained/remaining", "sap_p0.5_q1"), figure_3("retrained/accuracy", "sap_p1_q2")
    falling = (4, 5, 6, 7)
    here = {t: 100 * float(column(f, ONE_SHOT, t, "pruned_test_accuracy").mean()) for t in falling}
    return replace(
        by_rule,
        points=[
            *by_rule.points,
            true(
                all(abs(here[t] - cut[t]) < 15 for t in falling) and here[7] < 20,
                "**One Shot's accuracy after the cut falls in the same rounds as in the paper**, once the paper's "
                "means over all rounds so far are [taken "
                "apart](../../docs/differences.md#accuracies-in-the-papers-figures): at "
                f"T = {listed([str(t) for t in falling])} it is {listed([f'{here[t]:.0f}' for t in falling])} %, "
                f"there {listed([f'{cut[t]:.0f}' for t in falling])} %.",
            ),
            true(
                column(f, SAP, 0, "pq_index").max() < index[0]
                and mean_density(f, SAP, 10) > kept[10] / 100
                and between(f, (SAP2, 15), (SAP2, 0)).mean > -0.05,
                f"**With fewer epochs SAP cuts less**: the dense network has an index of "
                f"{column(f, SAP, 0, 'pq_index').mean():.2f} in place of the paper's {index[0]:.2f}, and after "
                f"ten rounds SAP (0.5, 1) keeps {percent(mean_density(f, SAP, 10))} of the weights, in the paper "
                f"{kept[10]:.1f} %. SAP (1, 2) has not collapsed at T = 15; the paper's is down to "
                f"{collapse[7]:.0f} % at T = 7 and {collapse[10]:.0f} % at T = 10, also taken apart.",
            ),
        ],
        beside=f"{by_rule.beside} The last row is about this network.",
        claims=_figure_3(study),
    )


def _figure_3(study: Study) -> list[tuple[str, str]]:
    """What the paper says about SAP (0.5, 1) with this network."""
    t = study.rounds
    apart = between(study.frame, (SAP, t), (LT, t)).mean
    kept = [mean_density(study.frame, name, t) for name in (SAP, LT)]
    return [
        (
            "SAP (0.5, 1) performs similar to Lottery Ticket but prunes more",
            f"**{'Yes' if abs(apart) < CLOSE and kept[0] < kept[1] else 'No'}.** {signed(apart)} "
            f"points at T = {t}, with {percent(kept[0])} of the weights in place of {percent(kept[1])}",
        )
    ]


def _longer(study: Study) -> str:
    """What the same network is after all of the paper's epochs."""
    full = Study(study.name.rpartition("-")[0])
    name = present(full.frame)[0]
    index, accuracy = (column(full.frame, name, 0, value).mean() for value in ("pq_index", "test_accuracy"))
    return true(
        index > column(study.frame, name, 0, "pq_index").max(),
        f"after {EPOCHS} epochs it is [{index:.3f}, with {percent(accuracy)} accuracy](../{full.name}/README.md).",
    )


def _figure_4(study: Study, equal: pd.DataFrame) -> list[tuple[str, str]]:
    """What the paper says about SAP in global scope with this network."""
    layers = read_runs(study.folder, layers=True)
    layers = layers[(layers["method"] == "sap") & (layers["p"] == 0.5)]
    first = layers[layers["layer"] == layers["layer"].iloc[0]].groupby("round")["density"].mean()
    rows = equal[(equal["method"] == SAP2) & (equal["pairs"] > 0)]
    ones = equal[(equal["method"] == ONE_SHOT) & (equal["density"] == 0.005)]["difference"].item()
    surely = (
        f"; at {int((rows['high'] < 0).sum())} of {len(rows)} densities the interval leaves out 0, and at none "
        "after correction" * (study.frame["seed"].nunique() > 1)
    )
    return [
        (
            "SAP in global scope may be worse than Lottery Ticket and One Shot where few weights remain",
            true(
                ones < -0.5 and not any(holds(equal, SAP2, d) for d in DENSITIES),
                "**Than Lottery Ticket, perhaps; than One Shot, no.**",
            )
            + f" SAP (1, 2) is {gap(equal, SAP2, 0.005)} points from Lottery Ticket at 0.5 % and "
            f"{gap(equal, SAP2, 0.002)} at 0.2 %{surely}. One Shot is {gap(equal, ONE_SHOT, 0.005)} from it at "
            "0.5 %",
        ),
        (
            "There the first layer is not pruned enough",
            true(first[30] > 10 * mean_density(study.frame, SAP, 30), "**It is pruned little:**")
            + f" SAP (0.5, 1) keeps {percent(first[10])} of it at T = 10 and {percent(first[30])} at T = 30, of "
            f"all weights {percent(mean_density(study.frame, SAP, 10))} and "
            f"{percent(mean_density(study.frame, SAP, 30))}",
        ),
    ]
