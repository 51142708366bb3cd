"""The page of FashionMNIST with the MLP: three scopes, p and q, η_r and γ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scipy import stats

from palmette.reports.paper import draw
from palmette.studies.paper import ETAS, FIGURES, GAMMAS, PS, QS, SEEDS
from palmette.studies.rundir import write_whole
from results.ablation_runs import (
    SCOPES,
    STUDY,
    accuracy,
    everything,
    layer_mean,
    many,
    read_layers,
    records_of,
    remaining,
    settings_of,
)
from results.answers import (
    DENSITIES,
    LEVEL,
    LT,
    METHODS,
    SAP,
    SAP2,
    Difference,
    Spread,
    equal_density,
    holm,
)
from results.four_methods import MLP
from results.pictures import trade_offs
from results.study import difference, page, percent, points, prose, save, shelf, spread, table, true
from results.tables import gap, holds

if TYPE_CHECKING:
    import pandas as pd

SAPS = (SAP, SAP2)
SHORT = {SAP: "SAP (0.5, 1)", SAP2: "SAP (1, 2)"}


def write() -> None:
    """Figures and page."""
    both = shelf([MLP, STUDY])
    fashion = {name: replace(FIGURES[name], data="FashionMNIST") for name in ("fig19", "fig28", "fig31")}
    for name, figure in fashion.items():
        picture = both.picture(figure, seeds=SEEDS)
        assert picture is not None
        save(draw(picture), STUDY.folder / f"{name}.png")
    caption = f"Mean and one standard deviation over {len(SEEDS)} seeds; what is below 78 % is not shown."
    scopes = {name: {f"{scope} scope": many(name, scope) for scope in SCOPES} for name in METHODS}
    save(trade_offs(scopes, caption=caption), STUDY.folder / "scopes.png")
    lines = {
        title: {words: many(name) for words, name in settings.items()} for title, settings in settings_of().items()
    }
    save(trade_offs(lines, caption=caption, legends=True), STUDY.folder / "settings.png")
    write_whole(STUDY.folder / "README.md", text())


def gap_table(
    columns: Mapping[str, tuple[tuple[str, str], tuple[str, str]]],
) -> tuple[str, dict[tuple[str, float], int]]:
    """Differences between two methods in their scopes at equal density, as a table and as verdicts.

    Bold, and a verdict of 1 or -1, is what holds when all of the table is judged together.
    """
    pairs = {}
    for title, (one, other) in columns.items():
        for d in DENSITIES:
            values = (accuracy(*one, d) - accuracy(*other, d)).dropna().tolist()
            if len(values) > 2:
                pairs[title, d] = values
    tests = [float(stats.ttest_1samp(values, 0.0).pvalue) for values in pairs.values()]
    sure = {key: p < LEVEL for key, p in zip(pairs, holm(tests), strict=True)}
    found = {key: Difference.of(values) for key, values in pairs.items()}
    rows = []
    for d in DENSITIES:
        cells = []
        for title in columns:
            mark = "**" if sure.get((title, d)) else ""
            cells.append(f"{mark}{difference(found[title, d])}{mark}" if (title, d) in found else "")
        rows.append((percent(d), *cells))
    verdicts = {key: (1 if found[key].mean > 0 else -1) if sure[key] else 0 for key in found}
    return table(("weights", *columns), rows, words=0), verdicts


def text() -> bytes:
    """The page."""
    f = everything()
    sixteen = equal_density(MLP.frame, LT)
    scopes, scope_verdicts = gap_table(
        {
            f"{SHORT[name]}: {scope} − global": ((name, scope), (name, "global"))
            for name in SAPS
            for scope in SCOPES[:2]
        }
    )
    inside, inside_verdicts = gap_table(
        {f"{scope}: {SHORT[name]} − {LT}": ((name, scope), (LT, scope)) for scope in SCOPES for name in SAPS}
    )
    end = f.sort_values("round").groupby(["name", "scope", "seed"]).last().reset_index()
    ended = {(n, s): float(g["density"].mean()) for (n, s), g in end.groupby(["name", "scope"])}
    layers = read_layers()
    first = {scope: layer_mean(layers, scope, "layer1.weight", 5, "density") for scope in SCOPES}
    second = {scope: layer_mean(layers, scope, "layer2.weight", 30, "pq_index") for scope in SCOPES}
    kept = {name: remaining(f, name, 5) for row in settings_of().values() for name in row.values()}
    capped = [records_of(f, f"{SAP}, gamma={g:g}") for g in GAMMAS[2:]]
    p_row, q_row, eta_row, gamma_row = ([kept[n] for n in row.values()] for row in settings_of().values())
    behind = Difference.of((accuracy(LT, "neuron", 0.02) - accuracy(LT, "global", 0.02)).tolist())
    last = f[(f["name"] == SAP) & (f["round"] == 30)].groupby("scope")["dead_neurons"].mean()
    heavy = [f"{SAP}, eta=1", *(f"{SAP}, gamma={g:g}" for g in GAMMAS[1:])]
    collapsed = {n: float(end.loc[end["name"] == n, "test_accuracy"].mean()) for n in heavy}
    lasts = {n: float(end.loc[end["name"] == n, "round"].max()) for n in heavy}
    once = accuracy(f"{SAP}, gamma=5", "global", 0.1) - accuracy(LT, "global", 0.1)
    at_once = Difference.of(once.tolist())
    spread_at = {d: settings_spread(d) for d in (0.1, 0.02)}
    claims = [
        (
            "SAP in global scope may be worse than Lottery Ticket where few weights remain",
            true(holds(sixteen, SAP2, 0.005) < 0, "**Yes**, SAP (1, 2), [with 16 seeds]")
            + f"(../{MLP.name}/README.md#at-equal-density): {gap(sixteen, SAP2, 0.01)} points at 1 % of the "
            f"weights, {gap(sixteen, SAP2, 0.005)} at 0.5 %",
        ),
        (
            "SAP in neuron and layer scope is better than Lottery Ticket there",
            true(
                not any(v for (title, _), v in inside_verdicts.items() if title.startswith("neuron")),
                "**Not in neuron scope:** no difference holds.",
            )
            + " In layer scope "
            + true(
                accuracy(SAP2, "layer", 0.002).mean() > accuracy(LT, "layer", 0.002).mean() + 0.1,
                "Lottery Ticket falls apart at 0.2 % of the weights, with "
                f"{spread(Spread.of(accuracy(LT, 'layer', 0.002)))} %, and SAP (1, 2) does not, with "
                f"{spread(Spread.of(accuracy(SAP2, 'layer', 0.002)))} %",
            )
            + true(
                not any(v for (title, d), v in inside_verdicts.items() if title.startswith("layer") and d >= 0.01),
                "; from 1 % upwards no difference holds",
            ),
        ),
        (
            "Neuron scope prunes the first layer more than global scope in early rounds",
            true(first["neuron"] > first["global"], "**No:**")
            + f" at T = 5 it has kept {percent(first['neuron'])} of it, global scope {percent(first['global'])}",
        ),
        (
            "The index of layers is more stable in neuron scope",
            true(second["neuron"] > 0.5 > second["global"] + 0.2, "**No:**")
            + f" that of the second layer is {second['neuron']:.2f} at T = 30, where layer and global scope have "
            f"{second['layer']:.2f} and {second['global']:.2f}. "
            + true(
                last["neuron"] < last["layer"] < last["global"],
                "The index of a neuron is the same when all of its weights shrink, so one that is not needed "
                f"stays: {last['neuron']:.0f} neurons have lost all weights, {last['layer']:.0f} in layer scope "
                f"and {last['global']:.0f} in global scope",
            ),
        ),
        (
            "SAP prunes more when p is close to q = 1, and when q is far from p = 1",
            true(falling(p_row) and falling(q_row), "**Yes:**")
            + f" at T = 5, from p = {PS[0]:g} to {PS[-1]:g}, {', '.join(map(percent, p_row))} remain, and from q "
            f"= {QS[0]:g} to {QS[-1]:g} {', '.join(map(percent, q_row))}",
        ),
        (
            "SAP prunes more when η_r > 0",
            true(falling(eta_row), "**Yes:**")
            + f" {', '.join(map(percent, eta_row))} remain at T = 5 for η_r = {', '.join(f'{e:g}' for e in ETAS)}",
        ),
        (
            "SAP prunes more when γ > 1",
            true(gamma_row[0] > gamma_row[1] > gamma_row[2], "**Yes**")
            + true(
                all(c == capped[0] for c in capped),
                ", but γ = 5, 7 and 9 are the same runs: every cut is the largest that β = 0.9 allows, whatever "
                "the index says",
            ),
        ),
    ]
    return page(
        f"# {STUDY.about['title']}",
        prose(
            "Figure 19 of the paper, and the panels of its Figures 28 and 31, which it has for CIFAR10, by the "
            f"full protocol with {len(SEEDS)} seeds. Lines in global scope at the usual settings are seeds 0 to "
            f"3 of [the study of the four methods](../{MLP.name}/README.md)."
        ),
        points(
            "**Neuron scope is not the best for SAP here.** "
            + true(
                not any(v > 0 for v in scope_verdicts.values()),
                "At equal density no scope is better than global beyond the noise of four seeds. ",
            )
            + true(
                ended[SAP, "neuron"] > 2 * ended[SAP, "layer"] > 2 * ended[SAP, "global"],
                "It prunes least: after 30 rounds SAP (0.5, 1) has "
                + ", ".join(f"{percent(ended[SAP, s])} in {s} scope" for s in SCOPES)
                + ". ",
            )
            + true(
                behind.sign < 0,
                f"Where few weights remain it is behind, for Lottery Ticket by {difference(behind)} points at 2 "
                "%.",
            ),
            f"**p and q decide how fast, not how good:** at equal density the means of {spread_at[0.1][2]} "
            f"settings lie between {percent2(spread_at[0.1][0])} and {percent2(spread_at[0.1][1])} at 10 % of "
            f"the weights, and of {spread_at[0.02][2]} between {percent2(spread_at[0.02][0])} and "
            f"{percent2(spread_at[0.02][1])} at 2 %.",
            true(
                all(collapsed[n] < 0.2 for n in collapsed) and max(lasts.values()) < 12,
                "**η_r = 1 and γ ≥ 3 leave nothing:** their runs end at chance level, after at most "
                f"{max(lasts.values()):.0f} rounds. ",
            )
            + true(
                abs(accuracy(f"{SAP}, eta=0.01", "global", 0.02).mean() - accuracy(SAP, "global", 0.02).mean())
                < 0.002,
                "η_r up to 0.01 changes the speed a little, and not the accuracy at equal density.",
            ),
            "**One large cut is not worse than many small ones**, at first: γ ≥ 5 takes 90 % at once, and has "
            + true(
                at_once.sign > 0,
                f"{spread(Spread.of(accuracy(f'{SAP}, gamma=5', 'global', 0.1)))} % at 10 % of the weights, "
                f"{difference(at_once)} points more than Lottery Ticket. Nobody had asked for this comparison, "
                "so it is a question for another study, not an answer.",
            ),
        ),
        "## Scopes",
        "![Accuracy by density, a panel for each method, a line for each scope](scopes.png)",
        scope_table(),
        "Test accuracy in percent at a share of the weights, mean ± standard deviation over four seeds; empty "
        "where not all got so far.",
        scopes,
        prose(note()),
        "Against Lottery Ticket in the same scope:",
        inside,
        prose(
            "As above. Four pairs see only large differences; the sixteen of the [page of the four "
            f"methods](../{MLP.name}/README.md) see small ones."
        ),
        "![Figure 19 of the paper: accuracy by remaining weights, and remaining weights and index of the "
        "layers](fig19.png)",
        "## p and q, η_r and γ",
        "![Accuracy by density for values of p, q, η_r and γ](settings.png)",
        settings_table(f),
        prose(
            "SAP in global scope. Share of the weights that remain after 1, 5 and 10 rounds and at the end; "
            "accuracy at the end and, in percent and interpolated, at a share of the weights: mean ± standard "
            "deviation over four seeds. Empty where not all runs got so far, or where a run went past it in one "
            "cut from a denser round (η_r = 1 and γ ≥ 5 are interpolated over wide gaps)."
        ),
        "![The panels of Figure 28: p and q](fig28.png)",
        "![The panels of Figure 31: η_r and γ](fig31.png)",
        "## Beside the paper",
        prose(
            "The paper's words are about the CNN on CIFAR10 (Figures 4 to 6); for the MLP on FashionMNIST it "
            "has Figure 19 and no words. So a *no* here says that a sentence does not hold for this network, "
            "not that it does not for the other."
        ),
        table(("the paper says", "here"), claims, words=2),
        "## How it was made",
        STUDY.made(),
    )


def note() -> str:
    """What the tables of differences are."""
    return (
        "Points of accuracy, mean over four pairs of equal seed and Student's 95 % interval (the bootstrap of "
        "`palmette table` is too narrow for four); **bold** is what holds when the whole table is judged "
        "together (paired t-tests, Holm's correction, 5 %); empty with fewer than three pairs."
    )


def scope_table() -> str:
    """Accuracy at equal density of each method in each scope."""
    rows = []
    for name in METHODS:
        for scope in SCOPES:
            found = [Spread.of(accuracy(name, scope, d)) for d in DENSITIES]
            rows.append((SHORT.get(name, name), scope, *(spread(s) if s.n == len(SEEDS) else "" for s in found)))
    return table(("method", "scope", *map(percent, DENSITIES)), rows, words=2)


def settings_table(frame: pd.DataFrame) -> str:
    """What each setting of SAP does."""
    end = frame[frame["scope"] == "global"].sort_values("round").groupby(["name", "seed"]).last().reset_index()
    at = (0.1, 0.05, 0.02, 0.01)
    rows = []
    for title, settings in settings_of().items():
        for words, name in settings.items():
            last = end[end["name"] == name]
            cells = [remaining(frame, name, t) for t in (1, 5, 10)]
            found = [Spread.of(accuracy(name, "global", d)) for d in at]
            rows.append(
                (
                    f"{words}, {title.split(', ')[1]}",
                    *("" if math.isnan(c) else percent(c) for c in cells),
                    percent(last["density"].mean()),
                    spread(Spread.of(last["round"]), scale=1, digits=0).partition(" ± 0")[0],
                    spread(Spread.of(last["test_accuracy"]), digits=1),
                    *(spread(s) if s.n == len(SEEDS) else "" for s in found),
                )
            )
    titles = ("setting", "T = 1", "T = 5", "T = 10", "end", "ends at T", "accuracy at the end")
    return table((*titles, *(f"at {percent(d)}" for d in at)), rows)


def settings_spread(density: float) -> tuple[float, float, int]:
    """The least and the largest mean accuracy at a density over the settings of p and q that got there."""
    rows = list(settings_of().values())[:2]
    found = [accuracy(name, "global", density) for row in rows for name in row.values()]
    means = [float(values.mean()) for values in found if len(values) == len(SEEDS)]
    return min(means), max(means), len(means)


def percent2(value: float) -> str:
    """With two digits."""
    return f"{100 * value:.2f} %"


def falling(values: Sequence[float]) -> bool:
    """Each smaller than the one before."""
    return all(a > b for a, b in itertools.pairwise(values))
