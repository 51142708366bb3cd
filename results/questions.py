"""The five questions, asked of the studies on FashionMNIST."""

from __future__ import annotations

import functools

from results import ablation_runs, ablations
from results.answers import (
    LT,
    METHODS,
    ONE_SHOT,
    SAP,
    SAP2,
    Shape,
    Spread,
    between,
    column,
    equal_density,
    shape,
    turned,
)
from results.four_methods import LINEAR, MLP
from results.study import Study, difference, paragraphs, percent, prose, spread, table, true
from results.tables import gap, holds, mean_density, rounds

NAMES = {MLP.name: "MLP", LINEAR.name: "Linear"}


@functools.cache
def shapes(study: Study) -> dict[str, Shape]:
    """Of all methods."""
    return {name: shape(study.frame, name) for name in METHODS}


def first() -> str:
    """Does the index fall, rise and fall?"""
    rows = []
    for study in (MLP, LINEAR):
        for name, s in shapes(study).items():
            moments = turned(study.frame, name)
            low = (
                f"{rounds(s.lowest)}, {percent(s.density[1])}: {percent(s.accuracy[1])}"
                if s.fall.sign < 0
                else "no"
            )
            risen = s.rise.sign > 0
            high = f"{rounds(s.highest)}, {percent(s.density[2])}: {percent(s.accuracy[2])}" if risen else "no"
            again = "yes" if risen and s.fall_again.sign < 0 else "no"
            collapse = moments["collapsed"]
            lost = (
                f"T = {collapse['round'].mean:.0f}, {percent(collapse['density'].mean)}" if collapse else "never"
            )
            rows.append((NAMES[study.name], name, low, high, again, lost))
    one = shapes(MLP)[ONE_SHOT]
    kept = turned(MLP.frame, ONE_SHOT)["kept"]
    return paragraphs(
        "### 1. Does the index fall, rise and fall again?",
        prose(
            true(
                all(shapes(study)[ONE_SHOT].as_said for study in (MLP, LINEAR)),
                "**For One Shot, yes, in both networks.**",
            ),
            true(
                shapes(MLP)[SAP2].as_said and not any(shapes(LINEAR)[n].as_said for n in (SAP, SAP2, LT)),
                "For SAP (1, 2) in the MLP too, though the rise is small and noisy, "
                f"{difference(shapes(MLP)[SAP2].rise, scale=1, digits=3)}. For the others, no:",
            ),
            true(
                shapes(MLP)[LT].fall_again.sign == 0 and shapes(LINEAR)[LT].rise.sign < 1,
                "Lottery Ticket's index has not come to its second fall in the MLP, and in the linear model it "
                "falls all the way while accuracy is lost, so that it announces nothing.",
            ),
            "Nor are the turns where the hypothesis has them. "
            + true(
                one.accuracy[1] > one.accuracy[0] - 0.01 and kept["density"].mean < one.density[1] / 2,
                "The rise, said to mark the beginning of underfitting, begins for One Shot at "
                f"{percent(one.density[1])} of the weights, where the MLP has {percent(one.accuracy[1])} of "
                f"{percent(one.accuracy[0])}; it stays within a point of that down to "
                f"{percent(kept['density'].mean)}.",
            ),
            true(
                one.accuracy[2] < 0.4,
                f"The second fall begins when accuracy is down to {percent(one.accuracy[2])}, long after the "
                "collapse.",
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
            "the other half; *no* where the change is not beyond the noise. Collapsed: more than five points "
            "below the dense network, to the end."
        ),
    )


def second() -> str:
    """Is SAP (1, 2) in ten rounds where Lottery Ticket is in 25?"""
    rows = []
    for study in (MLP, LINEAR):
        f = study.frame
        for t, u in ((9, 24), (10, 25), (11, 26)):
            found = between(f, (SAP2, t), (LT, u))
            at = (percent(mean_density(f, SAP2, t)), percent(mean_density(f, LT, u)))
            values = (spread(Spread.of(column(f, n, r, "test_accuracy"))) for n, r in ((SAP2, t), (LT, u)))
            rows.append((NAMES[study.name], f"{t} and {u}", *values, *at, difference(found)))
    mlp, linear = (between(study.frame, (SAP2, 10), (LT, 25)) for study in (MLP, LINEAR))
    return paragraphs(
        "### 2. Does SAP (1, 2) at T ≈ 10 match Lottery Ticket at T ≈ 25?",
        prose(
            true(
                mlp.sign == 0 and max(abs(mlp.low), abs(mlp.high)) < 0.01,
                f"**In the MLP, yes**: {difference(mlp)} points, at nearly the same density.",
            ),
            true(
                between(MLP.frame, (SAP2, 9), (LT, 24)).sign > 0 > between(MLP.frame, (SAP2, 11), (LT, 26)).sign,
                "SAP (1, 2) cuts faster, so the two cross there: a round earlier it is ahead, a round later "
                "behind.",
            ),
            true(
                linear.sign > 0,
                "In the linear model SAP (1, 2) cuts far less, and they cannot be compared round by round.",
            ),
        ),
        table(
            ("network", "rounds", "SAP (1, 2)", "Lottery Ticket", "weights", "weights", "difference"),
            rows,
            words=2,
        ),
        "Accuracy in percent, mean ± standard deviation over 16 seeds; paired difference in points with its 95 "
        "% interval.",
    )


def third() -> str:
    """Does SAP (0.5, 1) avoid the collapse?"""
    f = MLP.frame
    equal = equal_density(f, LT)
    by_round = between(f, (SAP, 30), (LT, 30))
    lost = between(f, (LT, 30), (LT, 25))
    kept = between(f, (SAP, 30), (SAP, 25))
    linear = between(LINEAR.frame, (SAP, 30), (LT, 30))
    return paragraphs(
        "### 3. Does SAP (0.5, 1) avoid Lottery Ticket's late collapse?",
        prose(
            true(
                by_round.sign > 0 and lost.high < -0.05 and kept.low > -0.01,
                f"**Yes, round by round.** From T = 25 to 30 Lottery Ticket changes by {difference(lost)} points "
                f"in the MLP, SAP (0.5, 1) by {difference(kept)}; at T = 30 it is {difference(by_round)} points "
                f"ahead, and {difference(linear)} in the linear model.",
            ),
            true(
                holds(equal, SAP, 0.02) == 0,
                "**But that is because it prunes less, not because it prunes better**: it then has "
                f"{percent(mean_density(f, SAP, 30))} of the weights, Lottery Ticket "
                f"{percent(mean_density(f, LT, 30))}. At 2 %, where both have been, the difference is "
                f"{gap(equal, SAP, 0.02)} points. What SAP offers is a brake, not a better network.",
            ),
        ),
    )


def fourth() -> str:
    """Is neuron scope the best for SAP?"""
    cells = []
    for name, label in ((SAP, "SAP (0.5, 1)"), (SAP2, "SAP (1, 2)"), (LT, LT)):
        for scope in ablation_runs.SCOPES:
            values = [Spread.of(ablation_runs.accuracy(name, scope, d)) for d in (0.2, 0.1, 0.05, 0.02)]
            cells.append((label, scope, *(spread(v) if v.n == 4 else "" for v in values)))
    others = {(n, s): ((n, "neuron"), (n, s)) for n in (SAP, SAP2) for s in ("layer", "global")}
    _, verdicts = ablations.gap_table({f"{n}, {s}": pair for (n, s), pair in others.items()})
    f = ablation_runs.everything()
    ends = (
        f.sort_values("round")
        .groupby(["name", "scope", "seed"])
        .last()["density"]
        .groupby(["name", "scope"])
        .mean()
    )
    return paragraphs(
        "### 4. Is neuron scope the best for SAP?",
        prose(
            true(
                not any(verdict > 0 for verdict in verdicts.values())
                and ends[SAP, "neuron"] > max(ends[SAP, "layer"], ends[SAP, "global"]),
                "**Not in the MLP.** It cuts least (after 30 rounds SAP (0.5, 1) keeps "
                + ", ".join(f"{percent(ends[SAP, s])} in {s} scope" for s in ablation_runs.SCOPES)
                + "), and at equal density it is never ahead beyond the noise.",
            ),
            f"[All of it]({ablation_runs.STUDY.name}/README.md#scopes), with differences. The paper's claim is "
            "about a CNN.",
        ),
        table(("method", "scope", "20 %", "10 %", "5 %", "2 %"), cells, words=2),
        "Accuracy in percent at a share of the weights, mean ± standard deviation over 4 seeds; empty where not "
        "all got so far.",
    )


def fifth() -> str:
    """Which method wins at equal density?"""
    m, li = (equal_density(study.frame, LT) for study in (MLP, LINEAR))
    saps = [
        (row.difference, row.method)
        for equal in (m, li)
        for row in equal.itertuples()
        if row.method in (SAP, SAP2) and row.adjusted < 0.05
    ]
    biggest = max(abs(d) for d, _ in saps)
    return paragraphs(
        "### 5. Which method wins at equal density, and is that more than the noise of 16 seeds?",
        prose(
            true(
                biggest < 0.005,
                "**None of SAP and Lottery Ticket does.** Where a difference is beyond the noise it is less "
                "than half a point, and goes both ways:",
            ),
            true(
                holds(m, SAP2, 0.05) > 0 > holds(m, SAP2, 0.005),
                f"SAP (1, 2) is {gap(m, SAP2, 0.05)} points ahead in the MLP at 5 % of the weights, and "
                f"{gap(m, SAP2, 0.01)} and {gap(m, SAP2, 0.005)} behind at 1 % and 0.5 % (at 0.2 % the interval, "
                f"{gap(m, SAP2, 0.002)}, does not hold after correction);",
            ),
            true(holds(li, SAP2, 0.5) > 0, f"in the linear model it is {gap(li, SAP2, 0.5)} ahead at 50 %."),
            true(
                not any(holds(e, SAP, d) for e, d in ((m, 0.5), (m, 0.1), (m, 0.02), (li, 0.5))),
                "SAP (0.5, 1) never differs.",
            ),
            true(
                holds(m, ONE_SHOT, 0.1) > 0 > holds(m, ONE_SHOT, 0.02) and holds(li, ONE_SHOT, 0.2) < 0,
                f"**One Shot loses where few weights remain**: {gap(m, ONE_SHOT, 0.02)} at 2 % in the MLP, "
                f"{gap(li, ONE_SHOT, 0.1)} at 10 % in the linear model. **But it wins in between**: "
                f"{gap(m, ONE_SHOT, 0.1)} at 10 % in the MLP, where the paper has Lottery Ticket ahead.",
            ),
            f"All densities: [MLP]({MLP.name}/README.md#at-equal-density), "
            f"[Linear]({LINEAR.name}/README.md#at-equal-density).",
        ),
    )
