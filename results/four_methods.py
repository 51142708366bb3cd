"""The pages of FashionMNIST with MLP and with Linear: four methods side by side, global scope."""

from __future__ import annotations

from palmette.reports.figures import draw as draw_overview
from palmette.reports.paper import draw
from palmette.studies.paper import FIGURES, PaperFigure
from palmette.studies.rundir import write_whole
from results.answers import (
    DENSITIES,
    LT,
    METHODS,
    ONE_SHOT,
    SAP,
    SAP2,
    Spread,
    between,
    column,
    equal_density,
    shape,
)
from results.study import Study, difference, page, percent, points, prose, save, shelf, spread, table, true
from results.tables import (
    density_tables,
    gap,
    holds,
    hypothesis,
    largest_drop,
    largest_gap,
    mean_density,
    rounds,
    rounds_table,
)

MLP, LINEAR = Study("fashionmnist-mlp"), Study("fashionmnist-linear")
MORE_FIGURES = {MLP.name: ("fig1", "fig7")}


def write(study: Study) -> None:
    """Figures and page; a study that nothing was written about yet has its tables."""
    for figure in (rounds_figure(study), *(FIGURES[name] for name in MORE_FIGURES.get(study.name, ()))):
        picture = shelf([study]).picture(figure)
        assert picture is not None
        save(draw(picture), study.folder / f"{figure.name}.png")
    order = {name: i for i, name in enumerate(METHODS)}
    runs = sorted(study.runs, key=lambda run: order[_name(study, run[0].id)])
    first = runs[0][0]
    caption = (
        f"{study.frame['seed'].nunique()} seeds: mean and a band of one standard deviation, over the runs that "
        f"have reached a round; {first.epochs} epochs a round, {first.precision}"
    )
    save(draw_overview(runs, caption=caption), study.folder / "overview.png")
    text = {MLP.name: mlp, LINEAR.name: linear}.get(study.name, tables_only)
    write_whole(study.folder / "README.md", text(study))


def rounds_figure(study: Study) -> PaperFigure:
    """The figure of the paper that shows these four methods round by round."""
    data, model = study.frame["data"].iloc[0], study.frame["model"].iloc[0]
    return next(f for f in FIGURES.values() if (f.kind, f.data, f.model) == ("rounds", data, model))


def tables_only(study: Study) -> bytes:
    """The page of a study before anybody has read it."""
    figure, f = rounds_figure(study), study.frame
    equal = equal_density(f, LT)
    return page(
        f"# {study.about['title']}",
        prose(
            f"{figure.number} of the paper. Figures and tables as they come from the records:",
            largest_gap(equal) + ".",
        ),
        f"![{figure.number} of the paper]({figure.name}.png)",
        "## Round by round",
        rounds_table(f),
        "## At equal density",
        "![Accuracy, index and density by round, and accuracy by density](overview.png)",
        *density_tables(equal),
        "## The hypothesis",
        *hypothesis(f, {name: shape(f, name) for name in METHODS}),
        "## How it was made",
        study.made(),
    )


def _name(study: Study, run: str) -> str:
    return str(study.frame.loc[study.frame["id"] == run, "name"].iloc[0])


def mlp(study: Study) -> bytes:
    """The page of the MLP."""
    f = study.frame
    match, kept_up = between(f, (SAP2, 10), (LT, 25)), between(f, (SAP, 30), (LT, 30))
    shapes = {name: shape(f, name) for name in METHODS}
    equal = equal_density(f, LT)
    down = f[f["cut_weights"] > 0]
    lowered = {name: float((g["pruned_pq_index"] < g["pq_index"]).mean()) for name, g in down.groupby("name")}
    drop = {name: largest_drop(f, name) for name in METHODS}
    ranks = {name: g["pq_index"].corr(g["gini_index"], method="spearman") for name, g in f.groupby("name")}
    ratio = {t: float((g["cut_weights"] / g["kept"]).mean()) for t, g in f[f["name"] == SAP].groupby("round")}
    one, two, lottery = (mean_density(f, *at) for at in ((SAP, 30), (SAP2, 10), (LT, 25)))
    ends = f[f["name"] == SAP2].groupby("id")["round"].max()
    claims = [
        (
            "SAP (1, 2) at about T = 10 performs like Lottery Ticket at about T = 25",
            true(match.sign == 0 and max(abs(match.low), abs(match.high)) < 0.01, "**Yes.**")
            + f" {difference(match)} points, at {percent(two)} and {percent(lottery)} of the weights",
        ),
        (
            "SAP (0.5, 1) and Lottery Ticket have similar ratios before T = 10",
            true(ratio[0] > 0.2 > ratio[4] and ratio[9] < 0.15, "**In part.**")
            + f" SAP cuts {percent(ratio[0])} at T = 0, {percent(ratio[4])} at T = 4, {percent(ratio[9])} at T = "
            f"9; after ten rounds {percent(mean_density(f, SAP, 10))} and {percent(mean_density(f, LT, 10))} "
            "remain",
        ),
        (
            "SAP (0.5, 1) then lowers its ratio and does not deteriorate as Lottery Ticket does after T = 25",
            true(kept_up.sign == 1, "**Yes, by rounds; no, by weights.**")
            + f" At T = 30 it is {difference(kept_up)} points better, but has {percent(one)} of the weights "
            f"where Lottery Ticket has {percent(mean_density(f, LT, 30))}. At 2 % they are alike: "
            f"{gap(equal, SAP, 0.02)}",
        ),
        (
            "Lottery Ticket outperforms One Shot",
            true(holds(equal, ONE_SHOT, 0.02) < 0 < holds(equal, ONE_SHOT, 0.1), "**Only below 5 %.**")
            + f" {gap(equal, ONE_SHOT, 0.02)} at 2 % of the weights, {gap(equal, ONE_SHOT, 0.01)} at 1 %; but "
            f"One Shot is ahead at 10 %: {gap(equal, ONE_SHOT, 0.1)}",
        ),
        (
            "SAP (1, 2) compresses more aggressively than SAP (0.5, 1)",
            true(mean_density(f, SAP2, 5) < mean_density(f, SAP, 5), "**Yes.**")
            + f" {percent(mean_density(f, SAP2, 5))} and {percent(mean_density(f, SAP, 5))} remain at T = 5. All "
            f"of its runs end by themselves, after {ends.min()} to {ends.max()} rounds, when a step cuts "
            "nothing",
        ),
        (
            "The index moves as the hypothesis says, as One Shot shows",
            true(shapes[ONE_SHOT].as_said, "**Yes**, for One Shot") + "; for the others see above",
        ),
        (
            "PQ Index and Gini Index agree",
            true(min(ranks.values()) > 0.8, "**Yes.**")
            + " Rank correlation over all rounds and runs: "
            + ", ".join(f"{name} {ranks[name]:.3f}" for name in METHODS),
        ),
        (
            "Networks pruned by SAP perform close to retrained ones, before they are retrained",
            true(drop[SAP][1] < 0.01 < 0.1 < drop[SAP2][1], "**Yes for (0.5, 1), no for (1, 2).**")
            + f" The largest mean loss in a round is {100 * drop[SAP][1]:.2f} points for the one, "
            f"{100 * drop[SAP2][1]:.1f} (T = {drop[SAP2][0]}) for the other, {100 * drop[LT][1]:.1f} for "
            "Lottery Ticket",
        ),
        (
            "A cut lowers the index of the weights that it is made in",
            true(all(lowered[name] == 1 for name in (SAP, LT)), "**Yes**")
            + ", in "
            + ", ".join(f"{percent(lowered[name])} of the cuts by {name}" for name in (SAP, SAP2, LT)),
        ),
    ]
    return page(
        f"# {study.about['title']}",
        prose(
            "Figures 1, 2 and 7 of the paper by its full protocol, with sixteen seeds in place of four: an MLP "
            f"of {f['total'].iloc[0]:,} weights (784–128–256–10), pruned globally."
        ),
        points(
            "**At equal density SAP and Lottery Ticket are alike** down to 2 % of the weights: "
            f"{largest_gap(equal)}. "
            + true(
                all(holds(equal, SAP2, d) < 0 for d in (0.01, 0.005)),
                f"Below, SAP (1, 2) is behind, by {gap(equal, SAP2, 0.01)} points at 1 % and "
                f"{gap(equal, SAP2, 0.005)} at 0.5 %.",
            ),
            "**What SAP decides is how fast and how far**, not how good: SAP (1, 2) is in ten rounds where "
            f"Lottery Ticket is in 25 ({difference(match)} points), SAP (0.5, 1) slows down and is still at "
            f"{percent(one)} after 30.",
            "**The index of One Shot falls, rises and falls** as the hypothesis says. "
            + true(
                shapes[ONE_SHOT].accuracy[1] > shapes[ONE_SHOT].accuracy[0] - 0.01
                and shapes[ONE_SHOT].accuracy[2] < 0.4,
                f"But it turns up early, at {percent(shapes[ONE_SHOT].density[1])} of the weights, where next to "
                "nothing is lost, and falls again late, where accuracy is "
                f"{percent(shapes[ONE_SHOT].accuracy[2])}.",
            ),
        ),
        "![Figure 2 of the paper: accuracy, remaining weights, PQ Index and Gini Index of retrained and pruned "
        "models](fig2.png)",
        "## Round by round",
        rounds_table(f),
        "## At equal density",
        "![Accuracy, index and density by round, and accuracy by density](overview.png)",
        *density_tables(equal),
        "## The hypothesis",
        "![Figure 1: accuracy and PQ Index of One Shot, with three phases](fig1.png)",
        *hypothesis(f, shapes),
        prose(
            true(
                shapes[ONE_SHOT].as_said and shapes[SAP2].as_said,
                "One Shot does what the hypothesis says. SAP (1, 2) does too, though its rise is small and "
                f"noisy: {difference(shapes[SAP2].rise, scale=1, digits=3)}.",
            ),
            true(
                shapes[LT].rise.sign == 1 and shapes[LT].fall_again.sign == 0,
                f"Lottery Ticket's index falls, and rises by {difference(shapes[LT].rise, scale=1, digits=3)} "
                "while accuracy is lost; thirty rounds end before it falls again beyond the noise.",
            ),
            true(
                shapes[SAP].rise.sign == 0,
                "That of SAP (0.5, 1) falls and stays where it is; the network does not collapse.",
            ),
            "Of its ablations the paper says that accuracy falls fastest where the index peaks: here that of "
            f"One Shot in round {shapes[ONE_SHOT].steepest} (peak: {rounds(shapes[ONE_SHOT].highest)}), SAP (1, "
            f"2) in round {shapes[SAP2].steepest} (peak: {rounds(shapes[SAP2].highest)}).",
        ),
        "![Figure 7: PQ Index over p and q in rounds 0, 10, 20 and 30](fig7.png)",
        "## Beside the paper",
        prose(
            "The paper shows this study as a figure and in words, without numbers; so shapes and sentences are "
            "compared. Differences are in points of accuracy with a 95 % interval, over 16 pairs of equal seed."
        ),
        table(("the paper says", "here"), claims, words=2),
        "## How it was made",
        study.made(),
    )


def linear(study: Study) -> bytes:
    """The page of the linear model."""
    f = study.frame
    shapes = {name: shape(f, name) for name in METHODS}
    equal = equal_density(f, LT)
    by_round = between(f, (SAP2, 10), (LT, 25))
    fall = between(f, (LT, 30), (LT, 0))
    sap2_end, lt_end, sap_end = (column(f, name, 30, "test_accuracy").mean() for name in (SAP2, LT, SAP))
    low = {name: mean_density(f, name, 30) for name in METHODS}
    claims = [
        (
            "SAP (1, 2) at about T = 10 performs like Lottery Ticket at about T = 25 (said of the MLP)",
            true(by_round.sign == 1, "**No:**")
            + f" it is {difference(by_round)} points better, with {percent(mean_density(f, SAP2, 10))} of the "
            f"weights in place of {percent(mean_density(f, LT, 25))}. After the first cut its index falls from "
            f"{column(f, SAP2, 0, 'pq_index').mean():.3f} to {column(f, SAP2, 1, 'pq_index').mean():.3f}, so "
            "SAP cuts little",
        ),
        (
            "SAP (0.5, 1) does not deteriorate as Lottery Ticket does (said of the MLP)",
            true(sap_end > 0.84 > lt_end + 0.3, "**Yes, by rounds.**")
            + f" {percent(sap_end)} and {percent(lt_end)} at T = 30, with {percent(low[SAP])} and "
            f"{percent(low[LT])} of the weights",
        ),
        (
            "Lottery Ticket outperforms One Shot",
            true(all(holds(equal, ONE_SHOT, d) < 0 for d in DENSITIES[1:]), "**Yes**, from 20 % down:")
            + f" {gap(equal, ONE_SHOT, 0.2)} at 20 %, {gap(equal, ONE_SHOT, 0.05)} at 5 %",
        ),
        (
            "The index falls, rises, and falls when the network collapses",
            true(
                shapes[ONE_SHOT].as_said and shapes[LT].rise.sign < 1,
                "**One Shot's does; Lottery Ticket's does not.**",
            )
            + f" It only falls, from {shapes[LT].index[0]:.3f} to {shapes[LT].index[3]:.3f}, while accuracy "
            f"falls by {-100 * fall.mean:.1f} points: a collapse that the index does not announce",
        ),
    ]
    return page(
        f"# {study.about['title']}",
        prose(
            "Figure 11 of the paper by its full protocol, with sixteen seeds in place of four: a linear model "
            f"of {f['total'].iloc[0]:,} weights, pruned globally. Training is a convex problem, so seeds differ "
            "little: the dense networks have an accuracy of "
            f"{spread(Spread.of(column(f, LT, 0, 'test_accuracy')))} %."
        ),
        points(
            f"**SAP slows down before much is lost**: after 30 rounds SAP (0.5, 1) has {percent(low[SAP])} of "
            f"the weights and {percent(sap_end)} accuracy, SAP (1, 2) {percent(low[SAP2])} and "
            f"{percent(sap2_end)}, Lottery Ticket {percent(low[LT])} and {percent(lt_end)}.",
            "**At equal density SAP and Lottery Ticket are alike**: "
            + largest_gap(equal)
            + ". What keeps SAP from harm is that it stops earlier.",
            "**The index does not announce the collapse of Lottery Ticket**: it falls all the way. With One "
            "Shot it falls, rises and falls, as the hypothesis says.",
        ),
        "![Figure 11 of the paper: accuracy, remaining weights, PQ Index and Gini Index of retrained and pruned "
        "models](fig11.png)",
        "## Round by round",
        rounds_table(f),
        "## At equal density",
        "![Accuracy, index and density by round, and accuracy by density](overview.png)",
        *density_tables(equal),
        "## The hypothesis",
        *hypothesis(f, shapes),
        "## Beside the paper",
        prose(
            "The paper shows this study as a figure of the appendix, without words or numbers of its own; what "
            "it says about the MLP is asked here too. Differences are in points of accuracy with a 95 % "
            "interval."
        ),
        table(("the paper says", "here"), claims, words=2),
        "## How it was made",
        study.made(),
    )
