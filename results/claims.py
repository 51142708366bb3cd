"""What the paper says about the four methods, asked of the records of any study: each verdict is by a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from results.answers import (
    DENSITIES,
    LT,
    ONE_SHOT,
    SAP,
    SAP2,
    Shape,
    between,
    falls_again,
    last_round,
    present,
    rebounds,
)
from results.study import difference, listed, percent, ranged
from results.tables import gap, holds, largest_drop, mean_density, reached

if TYPE_CHECKING:
    import pandas as pd

SIMILAR, CLOSE, AGREE, COLLAPSE = 0.03, 0.01, 0.8, 0.05
"""For ratios, accuracies before and after a cut, rank correlations and losses; the same for all studies."""

UNSAID = "**Cannot be said here:**"
"""How an answer begins that is none."""

Claim = tuple[str, str]


def claims(frame: pd.DataFrame, equal: pd.DataFrame, shapes: dict[str, Shape]) -> list[Claim]:
    """Each of the paper's sentences about its Figure 2, and what is found; or how far runs would have to go."""
    asked: list[tuple[str, dict[str, int], Callable[[], str]]] = [
        (
            "SAP (1, 2) at about T = 10 performs like Lottery Ticket at about T = 25",
            {SAP2: 10, LT: 25},
            lambda: _match(frame),
        ),
        (
            "SAP (0.5, 1) and Lottery Ticket have similar ratios before T = 10",
            {SAP: 10, LT: 10},
            lambda: _ratios(frame),
        ),
        (
            "SAP (0.5, 1) then lowers its ratio and does not deteriorate as Lottery Ticket does after T = 25",
            {SAP: 30, LT: 30},
            lambda: _brake(frame, equal),
        ),
        ("Lottery Ticket outperforms One Shot", {LT: 4, ONE_SHOT: 4}, lambda: _one_shot(equal)),
        ("SAP (1, 2) compresses more aggressively than SAP (0.5, 1)", {SAP: 1, SAP2: 1}, lambda: _faster(frame)),
        (
            "The index falls, rises and falls, as One Shot shows",
            {ONE_SHOT: 15},
            lambda: _hypothesis(frame, shapes),
        ),
        ("PQ Index and Gini Index agree", dict.fromkeys(present(frame), 4), lambda: _gini(frame)),
        (
            "Networks pruned by SAP perform close to retrained ones, before they are retrained",
            {SAP: 0, SAP2: 0, LT: 0},
            lambda: _without_retraining(frame),
        ),
        ("A cut lowers the index of the weights that it is made in", {}, lambda: _lowered(frame)),
    ]
    return [(sentence, _missing(frame, needs) or answer()) for sentence, needs, answer in asked]


def so_far(frame: pd.DataFrame) -> pd.DataFrame:
    """With the mean accuracy over all rounds so far in place of that of a round, which is what the paper shows."""
    ordered = frame.sort_values(["id", "round"])
    means = ordered.groupby("id")["test_accuracy"].expanding().mean().droplevel(0)
    return ordered.assign(test_accuracy=means)


def _missing(frame: pd.DataFrame, needs: dict[str, int]) -> str:
    """What would have to be there to answer; empty where it is."""
    last = {name: last_round(frame, name) for name in needs}
    short = [
        f"{name} at T = {t} ({f'here to T = {last[name]}' if last[name] >= 0 else 'not run'})"
        for name, t in needs.items()
        if last[name] < t
    ]
    return f"{UNSAID} this takes {listed(short)}" if short else ""


def _match(f: pd.DataFrame) -> str:
    found = between(f, (SAP2, 10), (LT, 25))
    narrow = max(abs(found.low), abs(found.high)) < CLOSE
    verdict = "**Yes.**" if narrow else f"**Yes, as far as {found.pairs} seeds can tell.**"
    if found.sign or (found.pairs == 1 and abs(found.mean) > COLLAPSE):
        verdict = f"**No,** it is {'ahead' if found.mean > 0 else 'behind'}."
    elif found.pairs == 1:
        verdict = ""
    weights = (percent(mean_density(f, *at)) for at in ((SAP2, 10), (LT, 25)))
    shown = between(so_far(f), (SAP2, 10), (LT, 25))
    return (
        f"{verdict} {difference(found)} points, at {' and '.join(weights)} of the weights; by means over all "
        f"rounds so far, as the paper has them, {difference(shown)}".lstrip()
    )


def _ratios(f: pd.DataFrame) -> str:
    early = f[(f["name"] == SAP) & (f["round"] < 10)]
    ratio = (early["cut_weights"] / early["kept"]).groupby(early["round"]).mean()
    near = (ratio - 0.2).abs() < SIMILAR
    verdict = "**Yes.**" if near.all() else "**In part.**" if near.mean() >= 0.5 else "**No.**"
    return (
        f"{verdict} SAP cuts {percent(ratio[0])} at T = 0, {percent(ratio[4])} at T = 4, {percent(ratio[9])} at T "
        f"= 9; after ten rounds {percent(mean_density(f, SAP, 10))} and {percent(mean_density(f, LT, 10))} remain"
    )


def _brake(f: pd.DataFrame, equal: pd.DataFrame) -> str:
    ahead, lost, d = between(f, (SAP, 30), (LT, 30)), between(f, (SAP, 30), (SAP, 0)), reached(equal, SAP)
    falls = [difference(between(of, (LT, 30), (LT, 0))) for of in (f, so_far(f))]
    stands, alike = lost.mean > -COLLAPSE, holds(equal, SAP, d) < 1 < ahead.pairs
    verdict = (
        f"Yes, by rounds{'; no, by weights' if alike else ''}" if stands else "No, it only does so more slowly"
    )
    return (
        f"**{verdict if ahead.mean > 0 else 'No'}.** At T = 30 it has changed by {difference(lost)} points since "
        f"T = 0; beside Lottery Ticket {difference(ahead)}, with {percent(mean_density(f, SAP, 30))} of the "
        f"weights in place of {percent(mean_density(f, LT, 30))}, and at {percent(d)}, where both have been, "
        f"{gap(equal, SAP, d)}. Lottery Ticket has changed by {falls[0]}; by means over all rounds so far, as the "
        f"paper has them, by {falls[1]}"
    )


def _one_shot(equal: pd.DataFrame) -> str:
    lost = [d for d in DENSITIES if holds(equal, ONE_SHOT, d) < 0]
    won = [d for d in DENSITIES if holds(equal, ONE_SHOT, d) > 0]
    least = reached(equal, ONE_SHOT)
    at = [d for d in (0.1, 0.02) if d >= least] or [least]
    shown = "; ".join(f"{gap(equal, ONE_SHOT, d)} at {percent(d)}" for d in lost[:2] or at)
    verdict = "" if equal["pairs"].max() == 1 else "**No.** "
    if lost:
        verdict = f"**{'Only' if won else 'Yes,'} from {percent(lost[0])} of the weights down:** "
    but = "; ".join(f"{gap(equal, ONE_SHOT, d)} at {percent(d)}" for d in won)
    unsure = [percent(d) for d in DENSITIES if lost and least <= d < lost[0] and d not in lost]
    return (
        f"{verdict}One Shot less Lottery Ticket is {shown}"
        + (f"; not beyond the noise at {listed(unsure)}" if unsure else "")
        + (f". One Shot is ahead before: {but}" if won else "")
    )


def _faster(f: pd.DataFrame) -> str:
    t = min(5, last_round(f, SAP), last_round(f, SAP2))
    kept = {name: mean_density(f, name, t) for name in (SAP, SAP2)}
    last = f[f["name"] == SAP2].sort_values("round").groupby("id").last()
    ended = last[last["stopped"].fillna("").str.contains("cut nothing")]["round"]
    end = ""
    if len(ended):
        span = ranged(ended, digits=0)
        which = "The run ends by itself"
        if len(last) > 1:
            which = f"Of {len(last)} runs {len(ended)} end by themselves"
        end = f". {which}, after {span} rounds, when a step cuts nothing"
    return (
        f"**{'Yes' if kept[SAP2] < kept[SAP] else 'No'}.** {percent(kept[SAP2])} and {percent(kept[SAP])} remain "
        f"at T = {t}{end}"
    )


def _hypothesis(f: pd.DataFrame, shapes: dict[str, Shape]) -> str:
    said, found, seeds = [n for n in shapes if shapes[n].as_said], rebounds(f, ONE_SHOT), f["seed"].nunique()
    plain = [ONE_SHOT] if len(found) == seeds and all(map(falls_again, found)) else []
    if seeds == 1:
        plain = [n for n in shapes if falls_again(shapes[n].index)]
    seen = [n for n in shapes if n in said or n in plain]
    verdict = f"**Yes for {listed(seen)}" if seen else "**No"
    others = [name for name in shapes if name not in seen]
    missing = f", no for {listed(others)}.**" if seen and others else ".**"
    doubt = " in every run; the test by halves does not see it, as runs peak in different rounds"
    doubt = "" if seen == said or seeds == 1 else doubt
    path = ""
    if found:
        _, lows, highs, ends = (ranged(values) for values in zip(*found, strict=True))
        path = f" One Shot's index falls to {lows}, rises to {highs} and ends at {ends}"
        fell = sum(high > 2 * end for _, _, high, end in found)
        if 0 < fell < len(found):
            path += f", in {fell} of {len(found)} runs at less than half of its highest"
    return f"{verdict}{missing}{path}{doubt}"


def _gini(f: pd.DataFrame) -> str:
    ranks = {name: g["pq_index"].corr(g["gini_index"], method="spearman") for name, g in f.groupby("name")}
    verdict = "**Yes.**" if min(ranks.values()) > AGREE else "**Not for every method.**"
    return f"{verdict} Rank correlation over all rounds and runs: " + ", ".join(
        f"{name} {ranks[name]:.3f}" for name in present(f)
    )


def _without_retraining(f: pd.DataFrame) -> str:
    drop = {name: largest_drop(f, name) for name in (SAP, SAP2, LT)}
    words = [f"{'yes' if drop[n][1] < CLOSE else 'no'} for {s}" for n, s in ((SAP, "(0.5, 1)"), (SAP2, "(1, 2)"))]
    lost, mean = [f"{100 * loss:.1f} (T = {t})" for t, loss in drop.values()], "mean " * (f["seed"].nunique() > 1)
    return (
        f"**{', '.join(words).capitalize()}.** The largest {mean}loss in a round, in points, is {lost[0]} for the "
        f"one, {lost[1]} for the other, {lost[2]} for Lottery Ticket"
    )


def _lowered(f: pd.DataFrame) -> str:
    cuts = f[f["cut_weights"] > 0]
    lower = cuts["pruned_pq_index_difference"] < 0
    share = {name: float(lower[cuts["name"] == name].mean()) for name in present(cuts)}
    if lower.all():
        return f"**Yes,** in each of {len(cuts)} cuts"
    verdict = "**Yes,**" if min(share.values()) > 0.99 else "**Mostly,**"
    return f"{verdict} in " + ", ".join(f"{percent(part)} of the cuts by {name}" for name, part in share.items())
