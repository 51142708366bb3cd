"""What the paper says of scopes and settings beside what is here, by the same rules for each study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from palmette.studies.paper import ETAS, GAMMAS, PS, QS
from results import ablation_turns
from results.ablation_runs import CLEAR, SCOPES, Ablation, Pair, settings_of
from results.answers import DENSITIES, LT, ONE_SHOT, SAP, SAP2, SHORT, equal_density, falling
from results.study import listed, percent, signed
from results.tables import gap, holds

if TYPE_CHECKING:
    import pandas as pd

SAPS = (SAP, SAP2)
OTHERS = SCOPES[:2]
FEW = 0.05
"""A share of the weights from which on few remain."""
UNKNOWN = "**Not known yet**"


def claims(a: Ablation) -> list[tuple[str, str]]:
    """What the paper says, and what is here, by the same rules for each study."""
    p_row, q_row, eta_row, gamma_row = ([a.kept_by(n, 5) for n in row.values()] for row in settings_of().values())
    capped = [a.records_of(f"{SAP}, gamma={g:g}") for g in GAMMAS[2:]]
    same = bool(capped[0]) and all(c == capped[0] for c in capped)
    layer = a.layers["layer"].iloc[0]
    first = {t: {s: a.layer_mean(s, layer, t, "density") for s in SCOPES} for t in (5, 10, 30)}
    whole = {t: a.remaining(SAP, t) for t in (10, 30)}
    lost = {s: 1 - first[30][s] / first[10][s] for s in SCOPES}
    shares = ", ".join
    return [
        ("SAP in global scope may be worse than Lottery Ticket and One Shot where few weights remain", worse(a)),
        ("SAP in neuron and layer scope is better than Lottery Ticket there", better(a, LT)),
        ("It is better than One Shot there, too", better(a, ONE_SHOT)),
        (
            "In global scope the first layer is not pruned enough, and not until late rounds",
            said(
                "It is pruned little; whether too little was not tried"
                if first[10]["global"] > 2 * whole[10]
                else "No",
                [first[10]["global"], first[30]["global"], *whole.values()],
                f"SAP (0.5, 1) keeps {percent(first[10]['global'])} of it at T = 10 and "
                f"{percent(first[30]['global'])} at T = 30; of all weights {percent(whole[10])} and "
                f"{percent(whole[30])}",
            ),
        ),
        (
            "Neuron scope prunes the first layer more than global scope in early rounds",
            said(
                "Yes" if first[5]["neuron"] < first[5]["global"] else "No",
                first[5].values(),
                f"At T = 5 SAP (0.5, 1) has of it {in_scopes(first[5])}",
            ),
        ),
        (
            "In late rounds neuron scope does not prune it, and global scope does",
            said(
                "Nearly" if lost["neuron"] < lost["global"] / 2 else "No",
                lost.values(),
                "From T = 10 to 30 it goes "
                + listed(
                    [
                        f"from {percent(first[10][s])} to {percent(first[30][s])} in {s} scope"
                        for s in ("neuron", "global")
                    ]
                ),
            ),
        ),
        ("The index of layers is more stable in neuron scope", stable(a)),
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
        *ablation_turns.claims(a),
    ]


def said(verdict: str, values: Iterable[float], words: str) -> str:
    """A verdict and what it is about, unless a value is missing."""
    return UNKNOWN if any(map(math.isnan, values)) else f"**{verdict}.** {words}"


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
        found = {d: [a.gap((name, "neuron"), (name, s), d).mean for s in ("layer", "global")] for d in DENSITIES}
        known = {d: gaps for d, gaps in found.items() if not any(map(math.isnan, gaps))}
        if not known:
            words.append(f"{SHORT[name]}: not known yet")
            continue
        at = min(known)
        sd, least = a.noise[name, at], min(known[at])
        verdict = "" if least > CLEAR * sd else "not " if least < -CLEAR * sd else "not clearly "
        layer, whole = (f"{100 * abs(v):.2f} {{}}{'above' if v > 0 else 'below'} {{}} scope" for v in known[at])
        last = a.ends[a.ends["name"] == name]["round"].min()
        f = a.everything[(a.everything["name"] == name) & (a.everything["round"] == last)]
        words.append(
            f"{SHORT[name]}, at {percent(at)} of the weights: neuron scope is {layer.format('points ', 'layer')} "
            f"and {whole.format('', 'global')}; seeds differ by {100 * sd:.2f}, so it is {verdict}the best. At T "
            f"= {last} there remain {in_scopes(f.groupby('scope')['density'].mean())}"
        )
    return f"One run of each, at the least density that all scopes reached. {'. '.join(words)}"


def in_scopes(shares: Mapping[str, float] | pd.Series) -> str:
    """A share in each scope."""
    return ", ".join(f"{percent(shares[s])} in {s} scope" for s in SCOPES)


def title(scope: str, name: str, other: str) -> str:
    """Of a column of differences."""
    return f"{scope}: {SHORT[name]} − {other}"


def inside(other: str) -> dict[str, Pair]:
    """SAP and another method in the same scope."""
    return {title(s, name, other): ((name, s), (other, s)) for s in SCOPES for name in SAPS}


def gaps(a: Ablation, other: str, *scopes: str) -> str:
    """SAP less another method in the same scope where few weights remain."""
    found, words = a.judged(inside(other)), []
    for scope in scopes:
        for name in SAPS:
            here = {
                d: found[key] for d in DENSITIES if d <= FEW and (key := (title(scope, name, other), d)) in found
            }
            if not here:
                continue
            means = sorted(gap.mean for gap, _ in here.values())
            span = " to ".join(dict.fromkeys(map(signed, (means[0], means[-1]))))
            at = " to ".join(dict.fromkeys(map(percent, (max(here), min(here)))))
            sure = [percent(d) for d, (_, verdict) in here.items() if verdict]
            doubt = f", beyond the noise at {listed(sure)}" if sure else ", not beyond the noise"
            words.append(f"{SHORT[name]} in {scope} scope {span} points at {at}" + doubt * (len(sure) < len(here)))
    return "; ".join(words)


def better(a: Ablation, other: str) -> str:
    """Whether SAP is ahead of another method in neuron and layer scope where few weights remain."""
    found = {key: verdict for key, (_, verdict) in a.judged(inside(other)).items() if key[1] <= FEW}
    by_scope = [[verdict for (words, _), verdict in found.items() if words.startswith(s)] for s in OTHERS]
    every = [verdict for of_scope in by_scope for verdict in of_scope]
    verdict = "In part" if 1 in every else "No" if -1 in every else "Cannot be told"
    if all(1 in of_scope for of_scope in by_scope) and -1 not in every:
        verdict = "Yes"
    return said(verdict, [] if every else [math.nan], gaps(a, other, *OTHERS))


def worse(a: Ablation) -> str:
    """Whether SAP in global scope is behind where few weights remain: Lottery Ticket by all seeds of the four
    methods."""
    equal, n = equal_density(a.base.frame), a.base.frame["seed"].nunique()
    few = equal[(equal["density"] <= FEW) & equal["method"].isin(SAPS) & (equal["pairs"] > 0)]
    seeds = f"with [{n} seeds](../{a.base.name}/README.md#at-equal-density)"
    if sure := [(r.method, r.density) for r in few.itertuples() if holds(equal, r.method, r.density) < 0]:
        beyond = [f"{SHORT[name]} {gap(equal, name, d)} points at {percent(d)}" for name, d in sure]
        words = f"**Yes, than Lottery Ticket:** {seeds} {listed(beyond)}. "
    else:
        low, high = (signed(value) for value in (few["difference"].min(), few["difference"].max()))
        words = f"**Cannot be told of Lottery Ticket:** {seeds} {low} to {high} points, none beyond the noise. "
    verdicts = [v for (name, d), (_, v) in a.judged(inside(ONE_SHOT)).items() if d <= FEW and "global" in name]
    if not verdicts:
        return words + UNKNOWN + " of One Shot"
    than = "Yes, than" if -1 in verdicts else "Not than" if 1 in verdicts else "Cannot be told of"
    return f"{words}**{than} One Shot:** {gaps(a, ONE_SHOT, 'global')}"


def stable(a: Ablation) -> str:
    """Whether the index of layers moves least in neuron scope, by two measures."""
    common = a.layers.groupby("scope")["round"].max().min()
    index = a.layers[a.layers["round"] <= common].groupby(["scope", "layer", "seed"])["pq_index"]
    measures = {"range": index.max() - index.min(), "standard deviation": index.std()}
    found = {name: values.groupby("scope").mean().reindex(SCOPES) for name, values in measures.items()}
    least = [values["neuron"] < min(values["layer"], values["global"]) for values in found.values()]
    verdict = "Yes" if all(least) else "Cannot be told, as it depends on the measure" if any(least) else "No"
    moved = [f"a {name} of " + ", ".join(f"{v:.3f} ({s})" for s, v in row.items()) for name, row in found.items()]
    known = [v for row in found.values() for v in row] if common >= 5 else [math.nan]
    return said(verdict, known, f"Over rounds 0 to {common} the index of a layer has, on average, {listed(moved)}")
