"""The first words and points of the pages of scopes and settings."""

from __future__ import annotations

import math

from scipy import stats

from palmette.studies.paper import GAMMAS, rounds_of
from results import ablation_turns
from results.ablation_claims import FEW, OTHERS, SAPS, best, claims, gaps, in_scopes, inside, title
from results.ablation_runs import CNN, FASHION, Ablation, settings_of
from results.answers import DENSITIES, LEVEL, LT, METHODS, SAP, SAP2, SHORT, Spread, holm
from results.readings import Reading
from results.study import EPOCHS, difference, listed, percent, signed, spread, true

HEAVY = f"{SAP}, gamma=5"
"""Its first cut is as large as β allows."""


def reading(a: Ablation) -> Reading:
    """Of a study."""
    return Reading(*(_fashion(a) if a == FASHION else _one_seed(a)), claims=claims(a))


def _fashion(a: Ablation) -> tuple[str, list[str], str]:
    end = a.ends.groupby(["name", "scope"])
    kept, lasts, accuracy = (end[value].mean() for value in ("density", "round", "test_accuracy"))
    dead = end["dead_neurons"].mean()[SAP]
    heavy = [f"{SAP}, eta=1", *(f"{SAP}, gamma={g:g}" for g in GAMMAS[1:])]
    behind = a.gap((LT, "neuron"), (LT, "global"), 0.02)
    scopes = a.judged({f"{n} {s}": ((n, s), (n, "global")) for n in SAPS for s in OTHERS})
    layer = {name: spread(Spread.of(a.accuracy(name, "layer", 0.002))) for name in (SAP2, LT)}
    wins = [key for key, (_, verdict) in a.judged(inside(LT)).items() if verdict]
    ahead = a.gap((HEAVY, "global"), (LT, "global"), 0.1)
    cnn = CNN.gap((HEAVY, "global"), (LT, "global"), 0.1).mean
    return (
        "Figure 19 of the paper, and the panels of its Figures 28 and 31, which it has for CIFAR10, by the full "
        f"protocol with {len(a.seeds)} seeds. Lines in global scope at the usual settings are seeds 0 to 3 of "
        f"[the study of the four methods](../{a.base.name}/README.md).",
        [
            ablation_turns.point(a),
            true(
                not any(verdict > 0 for _, verdict in scopes.values()),
                "**Neuron scope is not the best for SAP here.** At equal density no scope is better than global "
                "beyond the noise of four seeds. ",
            )
            + true(
                kept[SAP, "neuron"] > 2 * kept[SAP, "layer"] > 2 * kept[SAP, "global"],
                f"It prunes least: after 30 rounds SAP (0.5, 1) has {in_scopes(kept[SAP])}. ",
            )
            + true(
                dead["neuron"] < 1 < dead["layer"] < dead["global"],
                "The index of a neuron is the same when all of its weights shrink, so one that is not needed "
                f"stays: no neuron has lost all weights; in layer scope {dead['layer']:.0f} have, in global scope "
                f"{dead['global']:.0f}. ",
            )
            + true(
                behind.sign < 0,
                f"Where few remain it is behind, for Lottery Ticket by {difference(behind)} points at 2 %.",
            ),
            true(
                wins == [(title("layer", SAP2, LT), 0.005)],
                "**In layer scope SAP (1, 2) stands where Lottery Ticket falls apart:** at 0.5 % it is "
                f"{difference(a.gap((SAP2, 'layer'), (LT, 'layer'), 0.005))} points ahead, at 0.2 % it has "
                f"{layer[SAP2]} % and Lottery Ticket {layer[LT]} %. No other difference of SAP to Lottery Ticket "
                "in the same scope holds. ",
            )
            + across(a),
            speeds(a),
            true(
                max(accuracy[n, "global"] for n in heavy) < 0.2 and max(lasts[n, "global"] for n in heavy) < 12,
                "**η_r = 1 and γ ≥ 3 leave nothing:** their runs end at chance level, after at most "
                f"{max(end['round'].max()[n, 'global'] for n in heavy):.0f} rounds. ",
            )
            + true(
                abs(a.gap((f"{SAP}, eta=0.01", "global"), (SAP, "global"), 0.02).mean) < 0.002,
                "η_r up to 0.01 changes the speed a little, and not the accuracy at equal density.",
            ),
            true(
                ahead.sign > 0 > CNN.clear((HEAVY, "global"), (LT, "global"), 0.1),
                "**One large cut is better here than many small ones, and worse in the CNN:** "
                f"{at_once(a)}. In [one run](../{CNN.study.name}/README.md) of the CNN on CIFAR10 it is "
                f"{signed(cnn)}. Nobody had asked for this comparison before the runs.",
            ),
        ],
        "The paper's words are about the CNN on CIFAR10 (Figures 4 to 6); for the MLP on FashionMNIST it has "
        "Figure 19 and no words. So a *no* here says that a sentence does not hold for this network, not that it "
        "does not for the other.",
    )


def _one_seed(a: Ablation) -> tuple[str, list[str], str]:
    """By rule, of a network that the paper speaks of, and perhaps not all runs yet."""
    epochs, usual = a.study.frame["epochs"].iloc[0], rounds_of(a.study.frame["model"].iloc[0])
    said = {1: "better than", 0: "not clearly other than", -1: "worse than"}
    points = [f"**Is neuron scope the best for SAP?** {best(a)}."]
    if won := [key for key, (_, verdict) in a.judged(inside(LT)).items() if verdict > 0 and key[1] <= FEW]:
        scopes = [scope for scope in OTHERS if any(title.startswith(scope) for title, _ in won)]
        points.append(
            f"**SAP beats Lottery Ticket inside {listed([f'{s} scope' for s in scopes])}:** "
            f"{gaps(a, LT, *OTHERS)}. {across(a)}"
        )
    if a.varied:
        one = a.clear((HEAVY, "global"), (LT, "global"), 0.1)
        points = [ablation_turns.point(a), *points, speeds(a)]
        points.append(
            f"**One large cut is {said[one]} many small ones:** {at_once(a)}. The question came from "
            f"[FashionMNIST](../{FASHION.study.name}/README.md)."
        )
    return (
        f"Figures 4 to 6 of the paper with {epochs} epochs a round in place of its {EPOCHS} and one seed in place "
        f"of its four{f', rounds 0 to {a.last} of its {usual}' if a.last < usual else ''}. **Fewer epochs show "
        "the shape of the curves and not the published numbers**, as the index of trained weights depends on the "
        "epochs; **and one seed has no interval and no test**, so what follows says what was seen in one run of "
        "each. Lines in global scope at the usual settings are the same seed of [the study of the four methods]"
        f"(../{a.base.name}/README.md).",
        [words for words in points if words],
        "The paper's words about Figures 4 to 6, which have this network; *yes* and *no* say what one run of "
        "each did.",
    )


def across(a: Ablation) -> str:
    """What SAP in the other scopes is to Lottery Ticket in global scope where few weights remain, and for which
    methods global scope is the best there."""
    pairs = {f"{n}, {s}": ((n, s), (LT, "global")) for n in SAPS for s in OTHERS}
    found = {key: value for key, value in a.judged(pairs).items() if key[1] <= FEW}
    if not found or any(verdict > 0 for _, verdict in found.values()):
        return ""
    reaches = "reaches" if all(gap.mean < 0 for gap, _ in found.values()) else "is clearly ahead of"
    at = next(d for d in (0.01, *DENSITIES) if a.shown(LT, "global", d) and any(key[1] == d for key in found))
    here = [f"{shown} % in {s} scope" for s in OTHERS if (shown := a.shown(SAP2, s, at))]
    best = [SHORT.get(name, name) for name in METHODS if _global_best(a, name)]
    return (
        f"**But no SAP there {reaches} Lottery Ticket in global scope:** at {percent(at)} SAP (1, 2) has "
        f"{listed(here)}, Lottery Ticket in global scope {a.shown(LT, 'global', at)} %."
        + (f" Global scope is the best for {listed(best)} at {percent(FEW)} and below." if best else "")
    )


def _global_best(a: Ablation, name: str) -> bool:
    """Clearly ahead of the other scopes at every density where few weights remain and it can be compared."""
    few = [(scope, d) for scope in OTHERS for d in DENSITIES if d <= FEW]
    known = [(scope, d) for scope, d in few if a.gap((name, "global"), (name, scope), d).pairs]
    return bool(known) and all(a.clear((name, "global"), (name, scope), d) == 1 for scope, d in known)


def speeds(a: Ablation) -> str:
    """Whether values of p and q differ in accuracy at equal density: Tukey's test of the range of their means.

    The standard deviation is that of the seeds of the four methods.
    """
    names = [name for row in list(settings_of().values())[:2] for name in row.values()]
    seeds, rows = a.base.frame["seed"].nunique(), {}
    for d in (0.1, 0.05, 0.02, 0.01):
        found = [a.accuracy(name, "global", d) for name in names]
        means = [float(values.mean()) for values in found if len(values) == len(a.seeds)]
        noise = [a.noise[name, d] ** 2 for name in (*SAPS, LT) if (name, d) in a.noise]
        if len(means) > 1:
            error = math.sqrt(sum(noise) / len(noise) / len(a.seeds))
            width = max(means) - min(means)
            p = stats.studentized_range.sf(width / error, len(means), len(noise) * (seeds - 1))
            rows[d] = min(means), max(means), len(means), float(p)
    if not rows:
        return ""
    sure = [percent(d) for d, p in zip(rows, holm([row[3] for row in rows.values()]), strict=True) if p < LEVEL]
    widest = max(high - low for low, high, *_ in rows.values())
    spans = [f"{100 * low:.2f}–{100 * high:.2f} % at {percent(d)}" for d, (low, high, *_) in rows.items()]
    verdict = "**p and q decide how fast; whether also how good cannot be told.** "
    if sure:
        verdict = (
            f"**p and q decide how fast, and how good by less than {math.ceil(200 * widest) / 2:g} points.** "
        )
    elif len(a.seeds) > 1:
        verdict = "**p and q decide how fast, not how good.** "
    test = f"beyond the noise at {listed(sure)} of the weights alone" if sure else "nowhere beyond the noise"
    return (
        f"{verdict}At equal density they give {listed(spans)}. That is {test} (Tukey's test of the range, with "
        "the standard deviation of seeds of the four methods; Holm's correction over the densities)."
    )


def at_once(a: Ablation) -> str:
    """What one cut to a tenth is to many small ones."""
    found = difference(a.gap((HEAVY, "global"), (LT, "global"), 0.1))
    return (
        f"γ ≥ 5 takes 90 % at once, and then has {a.shown(HEAVY, 'global', 0.1)} %; Lottery Ticket has "
        f"{a.shown(LT, 'global', 0.1)} % at 10 % of the weights, and the difference is {found} points"
    )
