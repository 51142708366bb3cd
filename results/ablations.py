"""The pages of scopes, p and q, η_r and γ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from palmette.reports.figures import points as points_of
from palmette.reports.paper.drawing import draw
from palmette.studies.paper import FIGURES
from results import ablation_points, ablation_turns
from results.ablation_claims import SAPS, inside
from results.ablation_runs import CLEAR, SCOPES, Ablation, Pair, settings_of
from results.answers import DENSITIES, LT, METHODS, SAP, SAP2, SHORT, Difference, Spread
from results.pictures import TRADE_OFF, Many, best, trade_offs
from results.study import (
    bold,
    difference,
    listed,
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


def write(a: Ablation) -> None:
    """Figures and page."""
    both = shelf([a.base, a.study])
    for name in a.figures if a.varied else a.figures[:1]:
        figure = replace(FIGURES[name], data=a.base.frame["data"].iloc[0])
        picture = both.select(figure, seeds=a.seeds, rounds=a.last)
        assert picture is not None
        save(draw(picture), a.study.folder / f"{name}.png")
    scopes = {name: {f"{scope} scope": a.many(name, scope) for scope in SCOPES} for name in METHODS}
    settings = {
        _math(title): {_math(words): a.many(name) for words, name in row.items()}
        for title, row in settings_of().items()
    }
    n = len(a.seeds)
    what = f"Mean and one standard deviation over {n} seeds" if n > 1 else "One seed"
    lowest = lowest_compared(a)
    by_scope = trade_offs(scopes, lowest, caption=f"{what}; what is below {lowest} % is not shown.")
    save(by_scope, a.study.folder / "scopes.png")
    if a.varied:
        lowest = best(settings) - 11
        same = "".join(f" {words}." for lines in settings.values() for words in one_line(lines, lowest))
        caption = f"{what}; what is below {lowest} % is not shown.{same}"
        save(trade_offs(settings, lowest, caption=caption, legends=True), a.study.folder / "settings.png")
    write_page(a.study, text(a))


def _math(words: str) -> str:
    """For a picture."""
    return words.replace("η_r", r"$\eta_r$")


def lowest_compared(a: Ablation) -> int:
    """The accuracy, in tens of percent, that no SAP or Lottery Ticket is below where it is compared in a scope."""
    found = [float(a.accuracy(n, s, d).mean()) for n in (*SAPS, LT) for s in SCOPES for d in DENSITIES]
    return 10 * math.floor(10 * min(value for value in found if not math.isnan(value)))


def one_line(lines: Mapping[str, Many], lowest: float) -> list[str]:
    """Which lines of a panel lie on each other as far as they are shown."""
    same: dict[tuple[tuple[float, ...], ...], list[str]] = {}
    for name, many in lines.items():
        found = points_of(TRADE_OFF, many)
        shown = next((i for i, (_, accuracy, _) in enumerate(found) if accuracy < lowest), len(found)) + 1
        same.setdefault(tuple(tuple(point[:2]) for point in found[:shown]), []).append(name)
    return [f"{listed(names)} are one line" for at, names in same.items() if at and len(names) > 1]


def gap_table(a: Ablation, columns: Mapping[str, Pair]) -> str:
    """Differences between two methods in their scopes at equal density.

    Bold is what holds when all of the table is judged together; of one seed nothing is. Where nothing can be
    compared there is no table.
    """
    found, several, rows = a.judged(columns), len(a.seeds) > 1, []
    for d in DENSITIES:
        cells = []
        for title in columns:
            gap, verdict = found.get((title, d), (Difference.of([]), 0))
            cells.append(bold(difference(gap), verdict and several))
        if any(cells):
            rows.append((percent(d), *cells))
    return table(("weights", *columns), rows, words=0) if rows else ""


def text(a: Ablation) -> bytes:
    """The page."""
    of_scopes = {
        f"{SHORT[name]}: {scope} − global": ((name, scope), (name, "global"))
        for name in SAPS
        for scope in SCOPES[:2]
    }
    scopes, to_lottery = (gap_table(a, columns) for columns in (of_scopes, inside(LT)))
    reading = ablation_points.reading(a)
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
        *(["Against Lottery Ticket in the same scope:", to_lottery] if to_lottery else []),
        *([prose(few_pairs)] if several else []),
        f"![{FIGURES[a.figures[0]].number} of the paper: accuracy by remaining weights, and remaining weights and "
        f"index of the layers]({a.figures[0]}.png)",
        *([*settings(a, f"{over}. Empty where {short}"), *ablation_turns.section(a)] if a.varied else []),
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
            f"accuracy {end[1]} and, in percent and interpolated, at a share of the weights: {over}, or where "
            "a cut leaves less than a quarter (η_r = 1, γ ≥ 5)."
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
        f"from 50 % down to 1 % of the weights, and {ranged(noise[~many])} below. A difference of less than "
        f"{CLEAR} times that is not called one. This is a rule of thumb: two runs differ by √2 standard "
        "deviations anyway, and in the other scopes they may differ more."
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
