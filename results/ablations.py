"""The pages of scopes, p and q, η_r and γ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from palmette.reports.paper import draw
from palmette.studies.paper import FIGURES
from results import readings_ablations
from results.ablation_runs import FASHION, SCOPES, Ablation, settings_of
from results.answers import DENSITIES, LEVEL, LT, METHODS, SAP, SAP2, SHORT, Difference, Spread, adjusted
from results.pictures import floor, trade_offs
from results.readings_ablations import CLEAR, SAPS
from results.study import (
    bold,
    difference,
    page,
    percent,
    points,
    prose,
    ranged,
    save,
    shelf,
    spread,
    table,
    write_page,
)

Pair = tuple[tuple[str, str], tuple[str, str]]


def write(a: Ablation) -> None:
    """Figures and page."""
    both = shelf([a.base, a.study])
    for name in a.figures if a.varied else a.figures[:1]:
        figure = replace(FIGURES[name], data=a.base.frame["data"].iloc[0])
        picture = both.picture(figure, seeds=a.seeds, rounds=a.last)
        assert picture is not None
        save(draw(picture), a.study.folder / f"{name}.png")
    scopes = {name: {f"{scope} scope": a.many(name, scope) for scope in SCOPES} for name in METHODS}
    settings = {
        _math(title): {_math(words): a.many(name) for words, name in row.items()}
        for title, row in settings_of().items()
    }
    n = len(a.seeds)
    what = f"Mean and one standard deviation over {n} seeds" if n > 1 else "One seed"
    for name, lines in (("scopes", scopes), *([("settings", settings)] if a.varied else [])):
        caption = f"{what}; what is below {floor(lines)} % is not shown."
        save(trade_offs(lines, caption=caption, legends=name == "settings"), a.study.folder / f"{name}.png")
    write_page(a.study, text(a))


def _math(words: str) -> str:
    """For a picture."""
    return words.replace("η_r", r"$\eta_r$")


def gap_table(a: Ablation, columns: Mapping[str, Pair]) -> tuple[str, dict[tuple[str, float], int]]:
    """Differences between two methods in their scopes at equal density, as a table and as verdicts.

    Bold, and a verdict of 1 or -1, is what holds when all of the table is judged together; of one seed nothing is.
    Where nothing can be compared there is no table.
    """
    enough, pairs = min(3, len(a.seeds)), {}
    for title, (one, other) in columns.items():
        for d in DENSITIES:
            values = (a.accuracy(*one, d) - a.accuracy(*other, d)).dropna().tolist()
            if len(values) >= enough:
                pairs[title, d] = values
    sure = {key for key, p in adjusted(pairs).items() if p < LEVEL}
    found = {key: Difference.of(values) for key, values in pairs.items()}
    rows = []
    for d in DENSITIES:
        cells = []
        for title in columns:
            shown = difference(found[title, d]) if (title, d) in found else ""
            cells.append(bold(shown, (title, d) in sure))
        if any(cells):
            rows.append((percent(d), *cells))
    verdicts = {key: (1 if found[key].mean > 0 else -1) if key in sure else 0 for key in found}
    return table(("weights", *columns), rows, words=0) if rows else "", verdicts


def text(a: Ablation) -> bytes:
    """The page."""
    scopes, scope_verdicts = gap_table(
        a,
        {
            f"{SHORT[name]}: {scope} − global": ((name, scope), (name, "global"))
            for name in SAPS
            for scope in SCOPES[:2]
        },
    )
    inside, inside_verdicts = gap_table(
        a, {f"{scope}: {SHORT[name]} − {LT}": ((name, scope), (LT, scope)) for scope in SCOPES for name in SAPS}
    )
    if a == FASHION:
        reading = readings_ablations.fashion(a, scope_verdicts, inside_verdicts)
    else:
        reading = readings_ablations.by_rule(a)
    several = len(a.seeds) > 1
    few_pairs = (
        "As above. Four pairs see only large differences; the sixteen of the [page of the four "
        f"methods](../{a.base.name}/README.md) see small ones."
    )
    over = "mean ± standard deviation over four seeds" if several else "one run of each"
    short = "not all got so far" if several else "it did not get so far"
    return page(
        f"# {a.study.about['title']}",
        *filter(None, [a.study.so_far]),
        prose(reading.opening),
        points(*reading.points),
        "## Scopes",
        "![Accuracy by density, a panel for each method, a line for each scope](scopes.png)",
        *scope_table(a, f"Test accuracy in percent at a share of the weights, {over}; empty where {short}."),
        *([scopes, prose(note(a))] if scopes else []),
        *(["Against Lottery Ticket in the same scope:", inside] if inside else []),
        *([prose(few_pairs)] if several else []),
        f"![{FIGURES[a.figures[0]].number} of the paper: accuracy by remaining weights, and remaining weights and "
        f"index of the layers]({a.figures[0]}.png)",
        *(settings(a, f"{over}. Empty where {short}") if a.varied else []),
        "## Beside the paper",
        prose(reading.beside),
        table(("the paper says", "here"), reading.claims, words=2),
        "## How it was made",
        a.study.made(),
    )


def settings(a: Ablation, over: str) -> list[str]:
    """The section about the settings of SAP."""
    end = ("in the last round so far", "then") if a.study.so_far else ("at the end", "at the end")
    p_and_q, eta_and_gamma = a.figures[1:]
    return [
        "## p and q, η_r and γ",
        "![Accuracy by density for values of p, q, η_r and γ](settings.png)",
        settings_table(a),
        prose(
            f"SAP in global scope. Share of the weights that remain after 1, 5 and 10 rounds and {end[0]}; "
            f"accuracy {end[1]} and, in percent and interpolated, at a share of the weights: {over}. Where a run "
            "cuts much at once (η_r = 1, γ ≥ 5) accuracy is interpolated over wide gaps."
        ),
        f"![The panels of {FIGURES[p_and_q].number}: p and q]({p_and_q}.png)",
        f"![The panels of {FIGURES[eta_and_gamma].number}: η_r and γ]({eta_and_gamma}.png)",
    ]


def note(a: Ablation) -> str:
    """What the tables of differences are."""
    if len(a.seeds) > 1:
        return (
            "Points of accuracy, mean over four pairs of equal seed and Student's 95 % interval; **bold** is what "
            "holds when the whole table is judged together (paired t-tests, Holm's correction, 5 %); empty with "
            "fewer than three pairs."
        )
    noise = 100 * a.noise[[SAP, SAP2, LT]]
    many = noise.index.get_level_values("density") >= 0.01
    return (
        "Points of accuracy between two runs of equal seed. **From one seed no interval and no test can be had.** "
        f"How much seeds differ is known in global scope: the {a.base.frame['seed'].nunique()} of [the study of "
        f"the four methods](../{a.base.name}/README.md) have standard deviations of {ranged(noise[many])} points "
        f"from 50 % down to 1 % of the weights, and {ranged(noise[~many])} below. A difference of less "
        f"than {CLEAR} times that is not called one."
    )


def scope_table(a: Ablation, note: str) -> list[str]:
    """Accuracy at equal density of each method in each scope, and what that is; nothing while there is none."""
    cells = {(n, s): {d: a.shown(n, s, d) for d in DENSITIES} for n in METHODS for s in SCOPES}
    reached = [d for d in DENSITIES if any(row[d] for row in cells.values())]
    rows = [
        (SHORT.get(name, name), scope, *(row[d] for d in reached))
        for (name, scope), row in cells.items()
        if any(row.values())
    ]
    return [table(("method", "scope", *map(percent, reached)), rows, words=2), note] if rows else []


def settings_table(a: Ablation) -> str:
    """What each setting of SAP does."""
    end = a.ends[a.ends["scope"] == "global"]
    at = (0.1, 0.05, 0.02, 0.01)
    rows = []
    for title, settings in settings_of().items():
        for words, name in settings.items():
            last = end[end["name"] == name]
            if last.empty:
                continue
            cells = [a.remaining(name, t) for t in (1, 5, 10)]
            rows.append(
                (
                    f"{words}, {title.split(', ')[1]}",
                    *("" if math.isnan(c) else percent(c) for c in cells),
                    percent(last["density"].mean()),
                    spread(Spread.of(last["round"]), scale=1, digits=0).partition(" ± 0")[0],
                    spread(Spread.of(last["test_accuracy"]), digits=1),
                    *(a.shown(name, "global", d) for d in at),
                )
            )
    last_words = (
        ("so far", "at T", "accuracy then") if a.study.so_far else ("end", "ends at T", "accuracy at the end")
    )
    titles = ("setting", "T = 1", "T = 5", "T = 10", *last_words)
    return table((*titles, *(f"at {percent(d)}" for d in at)), rows)
