"""What was written about scopes and settings on FashionMNIST, and what is said of another network by rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from palmette.studies.paper import ETAS, GAMMAS, PS, QS, rounds_of
from results.ablation_runs import SCOPES, Ablation, settings_of
from results.answers import DENSITIES, LT, SAP, SAP2, SHORT, Spread, equal_density, falling
from results.readings import Reading
from results.study import EPOCHS, difference, percent, signed, spread, true
from results.tables import gap, holds

SAPS = (SAP, SAP2)
FEW = 0.05
"""A share of the weights from which on few remain."""
CLEAR = 3
"""So many standard deviations of seeds are two runs apart, of which it is said that one is ahead."""
Verdicts = Mapping[tuple[str, float], int]


def fashion(a: Ablation, scope_verdicts: Verdicts, inside_verdicts: Verdicts) -> Reading:
    """The MLP on FashionMNIST."""
    f, end = a.everything, a.ends
    sixteen = equal_density(a.base.frame)
    ended = {(n, s): float(g["density"].mean()) for (n, s), g in end.groupby(["name", "scope"])}
    first = {scope: a.layer_mean(scope, "layer1.weight", 5, "density") for scope in SCOPES}
    second = {scope: a.layer_mean(scope, "layer2.weight", 30, "pq_index") for scope in SCOPES}
    p_row, q_row, eta_row, gamma_row = remaining(a)
    capped = [a.records_of(f"{SAP}, gamma={g:g}") for g in GAMMAS[2:]]
    behind = a.gap((LT, "neuron"), (LT, "global"), 0.02)
    last = f[(f["name"] == SAP) & (f["round"] == 30)].groupby("scope")["dead_neurons"].mean()
    heavy = [f"{SAP}, eta=1", *(f"{SAP}, gamma={g:g}" for g in GAMMAS[1:])]
    collapsed = {n: float(end.loc[end["name"] == n, "test_accuracy"].mean()) for n in heavy}
    lasts = {n: float(end.loc[end["name"] == n, "round"].max()) for n in heavy}
    at_once = a.gap((f"{SAP}, gamma=5", "global"), (LT, "global"), 0.1)
    spread_at = {d: settings_spread(a, d) for d in (0.1, 0.02)}
    claims = [
        (
            "SAP in global scope may be worse than Lottery Ticket where few weights remain",
            true(holds(sixteen, SAP2, 0.005) < 0, "**Yes**, SAP (1, 2), [with 16 seeds]")
            + f"(../{a.base.name}/README.md#at-equal-density): {gap(sixteen, SAP2, 0.01)} points at 1 % of the "
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
                a.accuracy(SAP2, "layer", 0.002).mean() > a.accuracy(LT, "layer", 0.002).mean() + 0.1,
                "Lottery Ticket falls apart at 0.2 % of the weights, with "
                f"{spread(Spread.of(a.accuracy(LT, 'layer', 0.002)))} %, and SAP (1, 2) does not, with "
                f"{spread(Spread.of(a.accuracy(SAP2, 'layer', 0.002)))} %",
            )
            + true(
                [d for (title, d), v in inside_verdicts.items() if title.startswith("layer") and v] == [0.005],
                f"; what holds is {difference(a.gap((SAP2, 'layer'), (LT, 'layer'), 0.005))} points at 0.5 %, and "
                "from 1 % upwards nothing",
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
    return Reading(
        "Figure 19 of the paper, and the panels of its Figures 28 and 31, which it has for CIFAR10, by the "
        f"full protocol with {len(a.seeds)} seeds. Lines in global scope at the usual settings are seeds 0 to "
        f"3 of [the study of the four methods](../{a.base.name}/README.md).",
        [
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
                abs(a.accuracy(f"{SAP}, eta=0.01", "global", 0.02).mean() - a.accuracy(SAP, "global", 0.02).mean())
                < 0.002,
                "η_r up to 0.01 changes the speed a little, and not the accuracy at equal density.",
            ),
            "**One large cut is not worse than many small ones**, at first: γ ≥ 5 takes 90 % at once, and has "
            + true(
                at_once.sign > 0,
                f"{spread(Spread.of(a.accuracy(f'{SAP}, gamma=5', 'global', 0.1)))} % at 10 % of the weights, "
                f"{difference(at_once)} points more than Lottery Ticket. Nobody had asked for this comparison, "
                "so it is a question for another study, not an answer.",
            ),
        ],
        "The paper's words are about the CNN on CIFAR10 (Figures 4 to 6); for the MLP on FashionMNIST it "
        "has Figure 19 and no words. So a *no* here says that a sentence does not hold for this network, "
        "not that it does not for the other.",
        claims=claims,
    )


def remaining(a: Ablation) -> list[list[float]]:
    """Of the weights at T = 5, or where a run ended before, for the values of p, q, η_r and γ."""
    return [[a.kept_by(name, 5) for name in row.values()] for row in settings_of().values()]


def by_rule(a: Ablation) -> Reading:
    """One seed of a network that the paper speaks of, and perhaps not all runs yet."""
    p_row, q_row, eta_row, gamma_row = remaining(a)
    names = list(dict.fromkeys(a.layers["layer"]))
    first = {s: a.layer_mean(s, names[0], 5, "density") for s in SCOPES}
    common = a.layers.groupby("scope")["round"].max().min()
    index = (
        a.layers[a.layers["round"] <= common]
        .groupby(["scope", "layer"])["pq_index"]
        .agg(lambda values: values.max() - values.min())
    )
    moved = {s: float(index[s].mean()) if s in index else math.nan for s in SCOPES}
    capped = [a.records_of(f"{SAP}, gamma={g:g}") for g in GAMMAS[2:]]
    same = bool(capped[0]) and all(c == capped[0] for c in capped)
    shares = ", ".join
    claims = [
        (
            "SAP in global scope may be worse than Lottery Ticket where few weights remain",
            f"[More seeds](../{a.base.name}/README.md#beside-the-paper) tell. In one run "
            + (with_few(a, "global")[0] or "not known yet"),
        ),
        (
            "SAP in neuron and layer scope is better than Lottery Ticket there",
            better(a, *SCOPES[:2]),
        ),
        (
            "Neuron scope prunes the first layer more than global scope in early rounds",
            said(
                "Yes" if first["neuron"] < first["global"] else "No",
                first.values(),
                "At T = 5 SAP (0.5, 1) has of it " + shares(f"{percent(first[s])} in {s} scope" for s in SCOPES),
            ),
        ),
        (
            "The index of layers is more stable in neuron scope",
            said(
                "Yes" if moved["neuron"] < min(moved["layer"], moved["global"]) else "No",
                moved.values() if common >= 5 else (math.nan,),
                f"Up to T = {common} the index of a layer has a range, on average over layers, of "
                + shares(f"{moved[s]:.3f} in {s} scope" for s in SCOPES),
            ),
        ),
        (
            "SAP prunes more when p is close to q = 1, and when q is far from p = 1",
            said(
                trend(p_row, q_row),
                [*p_row, *q_row],
                f"At T = 5 there remain, from p = {PS[0]:g} to {PS[-1]:g}, {shares(map(percent, p_row))}; from q "
                f"= {QS[0]:g} to {QS[-1]:g}, {shares(map(percent, q_row))}",
            ),
        ),
        (
            "SAP prunes more when η_r > 0",
            said(
                trend(eta_row),
                eta_row,
                f"{shares(map(percent, eta_row))} remain at T = 5 for η_r = {shares(f'{e:g}' for e in ETAS)}",
            ),
        ),
        (
            "SAP prunes more when γ > 1",
            said(
                trend(gamma_row[:2]),
                gamma_row,
                f"{shares(map(percent, gamma_row))} remain at T = 5 for γ = {shares(f'{g:g}' for g in GAMMAS)}"
                + "; γ = 5, 7 and 9 are the same runs: every cut is the largest that β = 0.9 allows" * same,
            ),
        ),
    ]
    epochs, usual = a.study.frame["epochs"].iloc[0], rounds_of(a.study.frame["model"].iloc[0])
    return Reading(
        f"Figures 4 to 6 of the paper with {epochs} epochs a round in place of its {EPOCHS} and one seed in place "
        f"of its four{f', rounds 0 to {a.last} of its {usual}' if a.last < usual else ''}. **Fewer epochs show "
        "the shape of the curves and not the published numbers**, as the index of trained weights depends on the "
        "epochs; **and one seed has no interval and no test**, so what follows says what was seen in one run of "
        "each. Lines in global scope at the usual settings are the same seed of [the study of the four methods]"
        f"(../{a.base.name}/README.md).",
        [
            f"**Is neuron scope the best for SAP?** {best(a)}.",
            *([f"**p and q** at equal density: {speeds(a)}."] if a.varied else []),
        ],
        "The paper's words about Figures 4 to 6, which have this network; *yes* and *no* say what one run of "
        "each did.",
        claims=claims,
    )


def said(verdict: str, values: Iterable[float], words: str) -> str:
    """A verdict and what it is about, unless a value is missing."""
    if any(math.isnan(value) for value in values):
        return "**Not known yet**"
    return f"**{verdict}.** {words}"


def trend(*rows: Sequence[float]) -> str:
    """Whether values fall from step to step, or at least from the first to the last.

    >>> trend([3, 2, 1]), trend([3, 1, 2]), trend([2, 3])
    ('Yes', 'Mostly', 'No')
    """
    if all(map(falling, rows)):
        return "Yes"
    return "Mostly" if all(row[-1] < row[0] for row in rows) else "No"


def best(a: Ablation) -> str:
    """Whether neuron scope is ahead of the others for SAP at the least density that all reached, and how far they
    get."""
    words = []
    for name in SAPS:
        found = {
            d: [a.gap((name, "neuron"), (name, scope), d).mean for scope in ("layer", "global")] for d in DENSITIES
        }
        known = {d: gaps for d, gaps in found.items() if not any(map(math.isnan, gaps))}
        rounds = a.ends[a.ends["name"] == name].groupby("scope")["round"].min()
        if not known:
            words.append(f"for {SHORT[name]} not known yet")
            continue
        at = min(known)
        sd, least = a.noise[name, at], min(known[at])
        verdict = "yes" if least > CLEAR * sd else "no" if least < -CLEAR * sd else "cannot be told"
        kept = [percent(_density(a, name, scope, rounds.min())) for scope in SCOPES]
        words.append(
            f"for {SHORT[name]} {verdict}, as neuron scope is {signed(known[at][0])} points from layer and "
            f"{signed(known[at][1])} from global scope at {percent(at)} (± {100 * sd:.2f}), and keeps {kept[0]} "
            f"at T = {rounds.min()}, layer scope {kept[1]}, global scope {kept[2]}"
        )
    return (
        "One run of each, at the least density that all scopes reached (± is the standard deviation of seeds in "
        f"global scope): {'; '.join(words)}"
    )


def _density(a: Ablation, name: str, scope: str, round: int) -> float:
    f = a.everything
    return float(f[(f["name"] == name) & (f["scope"] == scope) & (f["round"] == round)]["density"].mean())


def with_few(a: Ablation, scope: str) -> tuple[str, list[float]]:
    """SAP less Lottery Ticket wherever both have come down to few weights in a scope: in words, and in standard
    deviations of seeds."""
    words, found = [], []
    for name in SAPS:
        gaps = {d: a.gap((name, scope), (LT, scope), d).mean for d in DENSITIES if d <= FEW}
        known = {d: gap for d, gap in gaps.items() if not math.isnan(gap)}
        found += [gap / a.noise[LT, d] for d, gap in known.items()]
        if known:
            span = " to ".join(dict.fromkeys(map(signed, (min(known.values()), max(known.values())))))
            at = " to ".join(dict.fromkeys(map(percent, (max(known), min(known)))))
            words.append(f"{SHORT[name]} in {scope} scope {span} points at {at}")
    return "; ".join(words), found


def better(a: Ablation, *scopes: str) -> str:
    """Whether SAP is ahead of Lottery Ticket in some scopes where few weights remain."""
    words, found = zip(*(with_few(a, scope) for scope in scopes), strict=True)
    gaps = [gap for of_scope in found for gap in of_scope]
    ahead, behind = any(gap > CLEAR for gap in gaps), any(gap < -CLEAR for gap in gaps)
    verdict = ("In part" if behind else "Yes") if ahead else "No" if behind else "Cannot be told"
    return said(verdict, [] if gaps else [math.nan], "; ".join(filter(None, words)))


def speeds(a: Ablation) -> str:
    """How much the accuracy at equal density differs between values of p and q."""
    words = []
    for d in (0.1, 0.02):
        low, high, count = settings_spread(a, d)
        if count > 1:
            words.append(
                f"{count} settings lie between {percent2(low)} and {percent2(high)} at {percent(d)} of the weights"
            )
    return " and ".join(words) or "not known yet"


def settings_spread(a: Ablation, density: float) -> tuple[float, float, int]:
    """The least and the largest mean accuracy at a density over the settings of p and q that got there."""
    rows = list(settings_of().values())[:2]
    found = [a.accuracy(name, "global", density) for row in rows for name in row.values()]
    means = [float(values.mean()) for values in found if len(values) == len(a.seeds)]
    return min(means, default=math.nan), max(means, default=math.nan), len(means)


def percent2(value: float) -> str:
    """With two digits."""
    return f"{100 * value:.2f} %"
