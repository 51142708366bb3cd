"""The five questions, asked of all studies of four methods."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from results import ablation_claims, ablation_runs
from results.answers import (
    DENSITIES,
    LEVEL,
    LT,
    METHODS,
    ONE_SHOT,
    SAP,
    SAP2,
    SHORT,
    Shape,
    Spread,
    between,
    column,
    equal_density,
    falls_again,
    rebounds,
    shape,
    turned,
)
from results.four_methods import CIFAR_CNN, CIFAR_CNN_20, CIFAR_MLP, LINEAR, MLP
from results.readings_cifar10 import collapse_at_length, late_rise, match_at_length
from results.study import (
    Study,
    bold,
    difference,
    listed,
    paragraphs,
    percent,
    prose,
    ranged,
    signed,
    spread,
    table,
    true,
)
from results.tables import OTHERS, gap, holds, mean_density, rounds

if TYPE_CHECKING:
    import pandas as pd

STUDIES = (MLP, LINEAR, CIFAR_MLP, CIFAR_CNN_20)
CIFAR = (CIFAR_MLP, CIFAR_CNN_20)
SPOKEN = {
    MLP: "the MLP on FashionMNIST",
    LINEAR: "the linear model",
    CIFAR_MLP: "the MLP on CIFAR10",
    CIFAR_CNN_20: "the CNN",
}


@functools.cache
def shapes(study: Study) -> dict[str, Shape]:
    """Of all methods."""
    return {name: shape(study.frame, name) for name in METHODS}


@functools.cache
def equal(study: Study) -> pd.DataFrame:
    """At equal density, beside Lottery Ticket."""
    return equal_density(study.frame)


def first() -> str:
    """Does the index fall, rise and fall?"""
    rows = []
    for study in STUDIES:
        for name, s in shapes(study).items():
            collapse = turned(study.frame, name)["collapsed"]
            low = f"{rounds(s.lowest)}, {percent(s.density[1])}: {percent(s.accuracy[1])}"
            high = f"{rounds(s.highest)}, {percent(s.density[2])}: {percent(s.accuracy[2])}"
            risen = s.rise.sign > 0
            lost = (
                f"T = {round(collapse['round'].mean, 1):g}, {percent(collapse['density'].mean)}"
                if collapse
                else "never"
            )
            again = "yes" if risen and s.fall_again.sign < 0 else "no"
            rows.append(
                (study.network, name, low if s.fall.sign < 0 else "no", high if risen else "no", again, lost)
            )
    one, own = {study: shapes(study)[ONE_SHOT] for study in STUDIES}, rebounds(CIFAR_MLP.frame, ONE_SHOT)
    up = {study: turned(study.frame, ONE_SHOT) for study in STUDIES}
    percents = {when: [found[when]["density"].mean for found in up.values()] for when in ("turned_up", "kept")}
    _, lows, highs, ends = (ranged(values) for values in zip(*own, strict=True))
    return paragraphs(
        "### 1. Does the index fall, rise and fall again?",
        prose(
            true(
                all(one[study].as_said for study in (MLP, LINEAR, CIFAR_CNN_20)) and len(own) == 4,
                "**For One Shot, yes, in three of four networks by the test**, and in the MLP on CIFAR10 run by "
                f"run (to {lows}, {highs} and {ends}; four that peak in different rounds are too few for it).",
            ),
            true(
                [study for study in STUDIES if shapes(study)[SAP2].as_said] == [MLP, CIFAR_CNN_20],
                "**For SAP (1, 2), in two of four**: plainly in the CNN, where the index rises by "
                f"{_rise(CIFAR_CNN_20, SAP2)}, and in the MLP on FashionMNIST, where that is small and noisy, "
                f"{_rise(MLP, SAP2)}, and [to be doubted](#how-sure-is-this).",
            ),
            f"In the MLP on CIFAR10 it rises in each run, {late_rise(CIFAR_MLP)}.",
            true(
                [study for study in STUDIES if shapes(study)[LT].rise.sign > 0] == [MLP, CIFAR_CNN_20]
                and not any(shapes(study)[LT].as_said for study in STUDIES),
                "**Lottery Ticket's has come to its rise** in these two, and to its second fall in none; in the "
                "linear model and in the MLP on CIFAR10 it falls, and announces nothing while accuracy is lost.",
            ),
            true(
                not any(shapes(study)[SAP].rise.sign > 0 for study in STUDIES),
                "**That of SAP (0.5, 1) does not rise in any.**",
            ),
            _at_length(),
            "Are the turns where the hypothesis has them? The rise is said to mark the beginning of underfitting: "
            "for One Shot on CIFAR10 it does, within three rounds, on FashionMNIST it comes long before.",
            true(
                all(one[s].density[1] > 2 * up[s]["kept"]["density"].mean for s in (MLP, LINEAR))
                and all(abs(up[s]["kept"]["round"].mean - up[s]["turned_up"]["round"].mean) < 3 for s in CIFAR),
                f"Run by run, One Shot's index turns up at {_in_turn(percents['turned_up'])} of the weights ("
                + listed([SPOKEN[s] for s in up])
                + f"), and accuracy is within a point of dense down to {_in_turn(percents['kept'])}.",
            ),
            true(
                all(s.accuracy[2] < 0.5 for s in one.values()),
                "The second fall begins long after the collapse, when accuracy is down to "
                + f"{_in_turn([s.accuracy[2] for s in one.values()])} in turn.",
            ),
        ),
        table(
            (
                "network",
                "method",
                "lowest index, after a fall",
                "highest, after a rise",
                "falls again",
                "collapsed from",
            ),
            rows,
            words=6,
        ),
        prose(
            "Round, share of the weights, and accuracy. Each half of the seeds says which rounds these are for "
            "the other half; *no* where the change is not beyond the noise (nor that of One Shot in the MLP on "
            "CIFAR10, see above). Collapsed: more than five points below the dense network, to the end."
        ),
    )


def _at_length() -> str:
    """What the turns are in the one run of the CNN with all of the paper's epochs."""
    found = shapes(CIFAR_CNN)
    return true(
        all(falls_again(found[name].index) for name in (SAP2, ONE_SHOT))
        and found[SAP].index[2] > found[SAP].index[0],
        f"In [one run]({CIFAR_CNN.name}/README.md#the-hypothesis) of the CNN with the paper's epochs it does, "
        f"from {found[SAP].index[1]:.2f} ({percent(found[SAP].accuracy[1])} accuracy) to "
        f"{found[SAP].index[2]:.2f} ({percent(found[SAP].accuracy[2])}), and those of One Shot and SAP "
        "(1, 2) fall, rise and fall.",
    )


def _in_turn(values: Sequence[float]) -> str:
    return listed([percent(value) for value in values])


def _rise(study: Study, name: str) -> str:
    return difference(shapes(study)[name].rise, scale=1, digits=3)


def second() -> str:
    """Is SAP (1, 2) in ten rounds where Lottery Ticket is in 25?"""
    rows = []
    for study in STUDIES:
        f = study.frame
        for t, u in ((9, 24), (10, 25), (11, 26)):
            found = between(f, (SAP2, t), (LT, u))
            weights = (percent(mean_density(f, SAP2, t)), percent(mean_density(f, LT, u)))
            values = (spread(Spread.of(column(f, n, r, "test_accuracy"))) for n, r in ((SAP2, t), (LT, u)))
            rows.append((study.network, f"{t} and {u}", *values, *weights, difference(found)))
    at = {study: between(study.frame, (SAP2, 10), (LT, 25)) for study in STUDIES}
    return paragraphs(
        "### 2. Does SAP (1, 2) at T ≈ 10 match Lottery Ticket at T ≈ 25?",
        prose(
            true(
                at[MLP].sign == 0
                and max(abs(at[MLP].low), abs(at[MLP].high)) < 0.01
                and at[CIFAR_CNN_20].sign == 0,
                f"**In the MLP on FashionMNIST, of which it was said, yes**: {difference(at[MLP])} points. **In "
                f"the CNN with 20 epochs a round too, as far as four seeds can tell**: "
                f"{difference(at[CIFAR_CNN_20])}. Each pair has nearly the same density.",
            ),
            true(
                between(MLP.frame, (SAP2, 9), (LT, 24)).sign > 0 > between(MLP.frame, (SAP2, 11), (LT, 26)).sign,
                "SAP (1, 2) cuts faster, so the two cross: in the MLP it is ahead a round earlier, and behind a "
                "round later.",
            ),
            true(
                at[LINEAR].sign > 0 > at[CIFAR_MLP].sign,
                "**In the other two, no**: in the MLP on CIFAR10 it is further by then, and "
                f"{difference(at[CIFAR_MLP])} points behind; in the linear model it cuts far less, and is "
                f"{difference(at[LINEAR])} ahead. Where they cross depends on the network, and on the epochs: "
                f"with the paper's in [one run]({CIFAR_CNN.name}/README.md) of the CNN, {match_at_length()}",
            ),
        ),
        table(
            ("network", "rounds", "SAP (1, 2)", "Lottery Ticket", "weights", "weights", "difference"),
            rows,
            words=2,
        ),
        "Accuracy in percent, mean ± standard deviation over all seeds; paired difference in points with its 95 "
        "% interval.",
    )


def _index(study: Study, round: int) -> float:
    return float(column(study.frame, SAP, round, "pq_index").mean())


def third() -> str:
    """Does SAP (0.5, 1) avoid the collapse?"""
    rows, ahead, lost = [], {}, {}
    for study in STUDIES:
        f = study.frame
        ahead[study], lost[study] = between(f, (SAP, 30), (LT, 30)), between(f, (SAP, 30), (SAP, 0))
        fall, weights = between(f, (LT, 30), (LT, 0)), (percent(mean_density(f, n, 30)) for n in (SAP, LT))
        rows.append((study.network, *map(difference, (lost[study], fall, ahead[study])), *weights))
    return paragraphs(
        "### 3. Does SAP (0.5, 1) avoid Lottery Ticket's late collapse?",
        prose(
            true(
                all(lost[study].low > -0.025 for study in (MLP, LINEAR, CIFAR_CNN_20))
                and all(found.sign > 0 for found in ahead.values())
                and all(between(study.frame, (LT, 30), (LT, 0)).high < -0.1 for study in STUDIES),
                "**Yes, round by round, in three of four networks**: after 30 rounds it has lost less than three "
                "points, where Lottery Ticket has lost more than ten. The CNN is one of them with 20 epochs a "
                f"round. {collapse_at_length('')}",
            ),
            true(
                lost[CIFAR_MLP].high < -0.1
                and all(_index(CIFAR_MLP, t) > _index(s, t) for s in (MLP, CIFAR_CNN_20) for t in (0, 10, 20, 30)),
                "**Not in the MLP on CIFAR10**, whose index is larger all along: there it declines as well, only "
                "more slowly.",
            ),
            true(
                all(holds(equal(study), SAP, 0.02) == 0 for study in (MLP, *CIFAR)),
                "**And where it does, that is because it prunes less, not because it prunes better.** At 2 % of "
                "the weights the difference is "
                + " and ".join(
                    f"{gap(equal(study), SAP, 0.02)} points in {SPOKEN[study]}" for study in (MLP, CIFAR_CNN_20)
                )
                + f"; in the linear model it never gets there, and in the MLP on CIFAR10 it is "
                f"{gap(equal(CIFAR_MLP), SAP, 0.02)}. What SAP offers is a brake, not a better network.",
            ),
        ),
        table(
            (
                "network",
                "SAP (0.5, 1): T = 30 − T = 0",
                "Lottery Ticket: T = 30 − T = 0",
                "SAP − Lottery Ticket, T = 30",
                "weights",
                "weights",
            ),
            rows,
        ),
        "Points of accuracy with a 95 % interval; shares of the weights that remain at T = 30.",
    )


def fourth() -> str:
    """Is neuron scope the best for SAP?"""
    a, cnn = ablation_runs.FASHION, ablation_runs.CNN
    cells = [
        (
            SHORT.get(name, name),
            scope,
            *(a.shown(name, scope, d) for d in (0.2, 0.1, 0.05, 0.02)),
        )
        for name in (SAP, SAP2, LT)
        for scope in ablation_runs.SCOPES
    ]
    others = {f"{n}, {s}": ((n, "neuron"), (n, s)) for n in (SAP, SAP2) for s in ("layer", "global")}
    ends = a.ends.groupby(["name", "scope"])["density"].mean()
    return paragraphs(
        "### 4. Is neuron scope the best for SAP?",
        prose(
            true(
                not any(verdict > 0 for _, verdict in a.judged(others).values())
                and ends[SAP, "neuron"] > max(ends[SAP, "layer"], ends[SAP, "global"]),
                "**Not in the MLP on FashionMNIST.** It cuts least (after 30 rounds SAP (0.5, 1) keeps "
                + ", ".join(f"{percent(ends[SAP, s])} in {s} scope" for s in ablation_runs.SCOPES)
                + "), and at equal density it is never ahead beyond the noise.",
            ),
            f"[All of it]({a.study.name}/README.md#scopes), with differences. The paper's claim is about the CNN "
            f"on CIFAR10, where there is [one seed]({cnn.study.name}/README.md#scopes), so no test, with "
            f"{cnn.study.frame['epochs'].iloc[0]} epochs a round. {ablation_claims.best(cnn)}.",
        ),
        table(("method", "scope", "20 %", "10 %", "5 %", "2 %"), cells, words=2),
        prose(
            "Accuracy of the MLP on FashionMNIST in percent at a share of the weights, mean ± standard deviation "
            "over 4 seeds; empty where not all got so far."
        ),
    )


def fifth() -> str:
    """Which method wins at equal density?"""
    m, li, cm, cc = (equal(study) for study in (MLP, LINEAR, *CIFAR))
    sure = [row for study in STUDIES for row in equal(study).itertuples() if row.adjusted < LEVEL]
    early = [row for row in sure if row.method in (SAP, SAP2) and row.density >= 0.02]
    last = [
        row.difference
        for study in STUDIES
        for row in equal(study).itertuples()
        if row.method == SAP2 and row.density <= 0.01 and row.pairs
    ]
    scopes, cnn = ablation_runs.FASHION, ablation_runs.CNN
    layer = scopes.gap((SAP2, "layer"), (LT, "layer"), 0.005)
    full = equal(CIFAR_CNN).query("method == @SAP2 and pairs > 0").set_index("density")["difference"]
    in_scope = {s: cnn.gap((SAP2, s), (LT, s), 0.01).mean for s in ("neuron", "layer")}
    accuracies = {s: float(cnn.accuracy(SAP2, s, 0.01).mean()) for s in in_scope}
    best = float(cnn.accuracy(LT, "global", 0.01).mean())
    few = [equal(s).query("method == @ONE_SHOT and density == 0.02")["difference"].iloc[0] for s in STUDIES]
    rows = []
    for study in STUDIES:
        for d in (0.1, 0.02, 0.005):
            cells = []
            for name in OTHERS:
                cells.append(bold(gap(equal(study), name, d), holds(equal(study), name, d)))
            rows.append((study.network, percent(d), *cells))
    return paragraphs(
        "### 5. Which method wins at equal density, and is that more than the noise?",
        prose(
            true(
                all(abs(row.difference) < 0.005 and row.difference > 0 for row in early)
                and {(row.method, row.density) for row in early} == {(SAP2, 0.05), (SAP2, 0.5)}
                and holds(m, SAP2, 0.05) > 0
                and holds(li, SAP2, 0.5) > 0,
                "**Down to 2 % of the weights neither SAP nor Lottery Ticket does in global scope.** Two "
                f"differences are beyond the noise, and small: SAP (1, 2) is {gap(m, SAP2, 0.05)} points ahead in "
                f"the MLP on FashionMNIST at 5 %, and {gap(li, SAP2, 0.5)} in the linear model at 50 %.",
            ),
            true(
                len(last) == 9
                and max(last) < 0
                and all(holds(m, SAP2, d) < 0 for d in (0.01, 0.005))
                and not any(holds(e, SAP2, d) for e in (cm, cc) for d in DENSITIES),
                "**At 1 % and below SAP (1, 2) is behind Lottery Ticket** in all three networks that got there, "
                f"by {-100 * max(last):.2f} to {-100 * min(last):.2f} points: with 16 seeds that is beyond the "
                f"noise ({gap(m, SAP2, 0.01)} at 1 %, {gap(m, SAP2, 0.005)} at 0.5 %); the four of CIFAR10 cannot "
                "tell differences of less than one or two points.",
            ),
            true(
                (cc[(cc["method"] == SAP2) & (cc["pairs"] > 0)]["difference"] < 0).all()
                and full.max() > -full.min() > 0,
                "In the CNN it is behind at every density; with the paper's epochs [one "
                f"run]({CIFAR_CNN.name}/README.md#at-equal-density) goes both ways, from {signed(full.min())} "
                f"({percent(full.idxmin())}) to {signed(full.max())} ({percent(full.idxmax())}).",
            ),
            true(not any(row.method == SAP for row in sure), "SAP (0.5, 1) never differs beyond the noise."),
            true(
                layer.sign > 0 and all(cnn.clear((SAP2, s), (LT, s), 0.01) > 0 for s in in_scope),
                "**In neuron and layer scope SAP (1, 2) wins where few weights remain**: by "
                f"{difference(layer)} points in layer scope at 0.5 % in the MLP on FashionMNIST ([four "
                f"seeds]({scopes.study.name}/README.md#scopes)), and in the CNN at 1 % by "
                + listed([f"{signed(value)} in {scope} scope" for scope, value in in_scope.items()])
                + f" ([one run]({cnn.study.name}/README.md#scopes)).",
            ),
            true(
                best > max(accuracies.values()) + 0.04,
                f"But Lottery Ticket in global scope is better than either: {percent(best)} there, and SAP (1, 2) "
                + listed([f"{percent(value)} in {scope} scope" for scope, value in accuracies.items()])
                + ".",
            ),
            true(
                holds(m, ONE_SHOT, 0.1) > 0 and all(holds(equal(s), ONE_SHOT, 0.02) < 0 for s in STUDIES),
                "**One Shot loses where few weights remain, in all four networks**: at 2 % by "
                f"{-100 * max(few):.1f} to {-100 * min(few):.1f} points. **But it wins in between** in one: "
                f"{gap(m, ONE_SHOT, 0.1)} at 10 % in the MLP on FashionMNIST, where the paper has Lottery Ticket "
                "ahead.",
            ),
        ),
        table(("network", "weights", *(f"{name} − {LT}" for name in OTHERS)), rows),
        prose(
            "Points of accuracy with a 95 % interval; **bold** is what holds after Holm's correction over all "
            "densities of a network; empty where not reached. All densities: "
            + ", ".join(f"[{study.network}]({study.name}/README.md#at-equal-density)" for study in STUDIES)
            + "."
        ),
    )
