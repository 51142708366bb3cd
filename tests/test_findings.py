"""Every number in results/FINDINGS.md, and in the results of the front page, is computed from the records.

A finding ends with its id, `<!-- id -->`. `FINDINGS` lists for each id the numbers of its text in their order,
`VERDICTS` what its words claim. A changed number fails, and so does one that is not listed.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from on_record import (
    ABLATION,
    CIFAR_MLP,
    CLIPPED,
    CNN,
    CNN200,
    CNN_ABLATION,
    FLOAT32,
    LARGE,
    LINEAR,
    MLP,
    NETWORKS,
    RESNET,
    RESNET20,
    WIDE,
    accuracy,
    as_said,
    at_turn,
    between_scopes,
    change,
    counts,
    cuts_of_paper,
    density,
    first_cut,
    first_layer,
    fixed,
    gap,
    heavy,
    in_scopes,
    index,
    ladders,
    large,
    largest_drop,
    line,
    listed,
    lowered,
    means,
    met_after_the_first_cut,
    met_by_resnet18,
    moment,
    p_and_q,
    precisions,
    ratio,
    rebounds,
    shape,
    shares,
    signs,
    so_far,
    span,
    stability,
    steps,
    stop_rule,
    to_one_shot,
    tukey,
    turns_of,
    widest,
    worse,
)  # fmt: skip
from results.figures import SETTINGS
from results.make import FRONT, difference, mean, percent, spread
from results.records import DENSITIES, HERE, LT, METHODS, ONE_SHOT, SAP, SAP2, SCOPES
from scipy import stats

from palmette.pruning.stopping import IndexTurnsUp, ScoreDrops
from palmette.reports.statistics import Difference, MeanSd, beyond_noise
from palmette.reports.words import signed

NAMES = re.compile(
    r"SAP \((0\.5, 1|1, 2)\)|CIFAR100?\b|W?ResNet\d+(x\d+)?|bfloat16|float32|Figure \d+|et al\. 2023|\]\([^)]*\)"
)
HEAVY = f"{SAP}, gamma=5"
COUNT = ("none", "one", "two", "three", "four")


# fmt: off
FINDINGS = {
    "names": lambda: ["p = 0.5", "q = 1", "p = 1", "q = 2", "p = 0.5", "q = 1", "T = 0"],
    "networks": lambda: [f"{MLP.seeds} seeds", f"{CNN.own['epochs'].max()} epochs", f"{CNN.seeds} seeds"],
    "differences": lambda: ["95 %"],
    "alike": lambda: ["2 %", difference(gap(MLP, SAP2, 0.05)), "5 %", difference(gap(LINEAR, SAP2, 0.5)), "50 %"],
    "behind": lambda: [
        "1 %", span([-v for of in NETWORKS for d, v in means(of, SAP2).items() if d <= 0.01], by=" to "),
        f"{MLP.seeds} seeds", difference(gap(MLP, SAP2, 0.01)), "1 %", difference(gap(MLP, SAP2, 0.005)), "0.5 %",
        f"{CNN.seeds} seeds"],
    "cnn-behind": lambda: [
        f"all {sum(v < 0 for v in means(CNN, SAP2).values())} densities", "200 epochs",
        signed(gap(CNN200, SAP2, 0.1).mean), "10 %", signed(gap(CNN200, SAP2, 0.002).mean), "0.2 %"],
    "one-shot": lambda: [
        "2 %", span([-means(of, ONE_SHOT)[0.02] for of in NETWORKS], 1, " to "), "20 %", "1 %", "5 %", "2 %",
        "10 %", difference(gap(MLP, ONE_SHOT, 0.1))],
    "turns-one-shot": lambda: [
        f"{COUNT[sum(as_said(of, ONE_SHOT) for of in NETWORKS)]} of four",
        listed(*map(span, rebounds(CIFAR_MLP, ONE_SHOT)))],
    "turns-sap2": lambda: [
        f"{COUNT[sum(as_said(of, SAP2) for of in NETWORKS)]} of four",
        *(difference(steps(of, SAP2)[1], scale=1, digits=3) for of in (CNN, MLP)),
        *(f"{span(CIFAR_MLP.at(SAP2, t, 'pq_index').values())} at T = {t}" for t in (4, 12)),
        f"T = {np.mean(moment(CIFAR_MLP, SAP2, 'collapsed', 'round')):.0f}"],
    "turns-lt": lambda: [
        "30 rounds", *(difference(steps(of, LT)[1], scale=1, digits=3) for of in (CNN, MLP)),
        f"{index(LINEAR, LT, 0):.3f} to {index(LINEAR, LT, 30):.3f}",
        f"{-100 * change(LINEAR, (LT, 30), (LT, 0)).mean:.1f} points",
        fixed(at_turn(CIFAR_MLP, LT, 1, "pq_index")), shares(at_turn(CIFAR_MLP, LT, 1, "test_accuracy")),
        fixed(index(CIFAR_MLP, LT, 30)), shares(accuracy(CIFAR_MLP, LT, 30))],
    "turns-sap": lambda: [
        "200 epochs",
        *(f"{at_turn(CNN200, SAP, i, 'pq_index'):.2f} ({percent(at_turn(CNN200, SAP, i, 'test_accuracy'))}"
          for i in (1, 2)),
        *(", ".join(f"{at_turn(CNN200, n, i, 'pq_index'):.2f}" for i in range(4)) for n in (ONE_SHOT, SAP2))],
    "where-one-shot": lambda: [
        shares(*(np.mean(moment(of, ONE_SHOT, "turned_up", "density")) for of in NETWORKS)),
        shares(*(np.mean(moment(of, ONE_SHOT, "kept", "density")) for of in NETWORKS)),
        shares(*(at_turn(of, ONE_SHOT, 2, "test_accuracy") for of in NETWORKS))],
    "where-cnn": lambda: [
        fixed(*(np.mean(moment(CNN, n, "turned_up", "round")) for n in METHODS[1:]), digits=0),
        fixed(*(np.mean(moment(CNN, n, "kept", "round")) for n in METHODS[1:]), digits=0),
        "200 epochs", listed(*(str(turns_of(CNN200.each(n)[0])[0][1]) for n in METHODS)),
        fixed(*(100 * (accuracy(CNN200, n, 0) - at_turn(CNN200, n, 1, "test_accuracy")) for n in METHODS),
              digits=1)],
    "turns-settings": lambda: [
        counts(CNN_ABLATION, once=False)[0], counts(ABLATION, once=True)[0],
        counts(CNN_ABLATION, once=False)[1], counts(ABLATION, once=True)[1]],
    "gini": lambda: [
        span([g["pq_index"].corr(g["gini_index"], method="spearman")
              for of in (*NETWORKS, CNN200, RESNET20) for _, g in of.own.groupby("name")], 3, " to ")],
    "lowered": lambda: [shares(lowered(LINEAR, ONE_SHOT)), shares(lowered(CNN, ONE_SHOT))],
    "match": lambda: [
        "T = 10", "T = 25", difference(change(MLP, (SAP2, 10), (LT, 25))),
        shares(density(MLP, SAP2, 10), density(MLP, LT, 25)), f"{CNN.seeds} seeds",
        *(difference(change(of, (SAP2, 10), (LT, 25))) for of in (CNN, CIFAR_MLP, LINEAR))],
    "match-epochs": lambda: [
        "200 per round", "5 rounds", "25", shares(accuracy(CNN200, SAP2, 5), accuracy(CNN200, LT, 25)),
        shares(density(CNN200, SAP2, 5), density(CNN200, LT, 25)), "10 rounds",
        shares(accuracy(CNN200, SAP2, 10))],
    "aggressive": lambda: [
        "T = 5", *(shares(density(of, SAP2, 5), density(of, SAP, 5)) for of in NETWORKS),
        f"all {len(MLP.at(SAP2, -1))} MLPs", f"{span(MLP.at(SAP2, -1, 'round').values(), 0)} rounds"],
    "brake": lambda: [
        "T = 0", "T = 30",
        *(difference(change(of, (n, 30), (n, 0))) for n in (SAP, LT) for of in (MLP, LINEAR, CNN)),
        *(difference(change(CIFAR_MLP, (n, 30), (n, 0))) for n in (SAP, LT))],
    "brake-density": lambda: [
        "T = 30", *(shares(*(density(of, n, 30) for of in (MLP, LINEAR, CNN, CIFAR_MLP))) for n in (SAP, LT)),
        "2 %", *(difference(gap(of, SAP, 0.02)) for of in (MLP, CNN, CIFAR_MLP))],
    "brake-epochs": lambda: [
        "200 epochs", "5 points", f"T = {moment(CNN200, SAP, 'collapsed', 'round')[0]}",
        shares(moment(CNN200, SAP, "collapsed", "density")[0]),
        *(shares(value(CNN200, name, 30)) for name in (SAP, LT) for value in (accuracy, density))],
    "ratios": lambda: [
        "20 %", "T = 10", f"{percent(ratio(MLP, SAP, 0))} at T = 0", f"{percent(ratio(MLP, SAP, 9))} at T = 9",
        *(shares(ratio(of, SAP, 0), ratio(of, SAP, 9)) for of in (CIFAR_MLP, CNN, LINEAR))],
    "without-retraining": lambda: [
        span([largest_drop(of, name) for of in NETWORKS], 1, " to ") for name in (SAP, SAP2, LT)],
    "so-far": lambda: [
        "T = 10", difference(so_far(MLP, (SAP2, 10), (LT, 25))), "T = 25",
        difference(so_far(MLP, (LT, 30), (LT, 0))), "T = 30"],
    "scope-mlp": lambda: [
        f"{ABLATION.seeds} seeds", "30 rounds",
        *(shares(mean(ABLATION.at(SAP, -1, "density", s))) for s in SCOPES),
        *(f"{mean(ABLATION.at(SAP, -1, 'dead_neurons', s)):.0f}" for s in SCOPES[1:])],
    "scope-cnn": lambda: [
        text for name, d in ((SAP, 0.1), (SAP2, 0.01)) for text in (
            *(signed(gap(CNN_ABLATION, name, d, "neuron", base=name, base_scope=s).mean) for s in SCOPES[1:]),
            percent(d), f"{100 * MeanSd.of(CNN.at_density(name, d).values()).sd:.2f}")],
    "scope-beats": lambda: [
        *(signed(gap(CNN_ABLATION, SAP2, 0.01, s).mean) for s in SCOPES[:2]), "1 %",
        difference(gap(ABLATION, SAP2, 0.005, "layer")), "0.5 %", "0.2 %",
        *(f"{spread(ABLATION.at_density(n, 0.002, 'layer'))} %" for n in (SAP2, LT))],
    "scope-one-shot": lambda: ["5 %", *(to_one_shot(CNN_ABLATION, scope) for scope in SCOPES)],
    "scope-global": lambda: [
        "1 %", f"{spread(CNN_ABLATION.at_density(LT, 0.01))} %",
        *(f"{spread(CNN_ABLATION.at_density(SAP2, 0.01, s))} %" for s in SCOPES[:2]),
        f"{spread(ABLATION.at_density(LT, 0.01))} %", f"{spread(ABLATION.at_density(SAP2, 0.01, 'layer'))} %",
        difference(gap(ABLATION, LT, 0.02, "neuron", base_scope="global")), "2 %"],
    "first-layer": lambda: [
        f"{percent(first_layer(CNN_ABLATION, 'global', 10))} of it at T = 10",
        f"{percent(first_layer(CNN_ABLATION, 'global', 30))} at T = 30",
        shares(*(density(CNN_ABLATION, SAP, t) for t in (10, 30))),
        "T = 5", *(shares(first_layer(CNN_ABLATION, scope, 5)) for scope in ("global", "neuron")),
        *(f"{percent(first_layer(CNN_ABLATION, 'neuron', t))} at T = {t}" for t in (10, 30)),
        f"{percent(first_layer(ABLATION, 'global', 10))} at T = 10", shares(density(ABLATION, SAP, 10)),
        "T = 5", *(shares(first_layer(ABLATION, scope, 5)) for scope in ("global", "neuron"))],
    "stable": lambda: [
        "30 rounds", *(f"{value:.3f}" for value in stability(ABLATION)[0]),
        *(fixed(*values) for values in stability(CNN_ABLATION))],
    "p-and-q": lambda: [
        "T = 5", "p = 0.2 to 0.8", *(first_cut(of, 0, 5) for of in (ABLATION, CNN_ABLATION)),
        "q = 1.2 to 2", *(first_cut(of, 1, 5) for of in (ABLATION, CNN_ABLATION)), "q = 1", "p = 1"],
    "p-and-q-accuracy": lambda: [
        "0.5 points", *(f"{span(p_and_q(ABLATION, d))} % at {percent(d)}" for d in (0.1, 0.05, 0.02, 0.01)),
        f"at {listed(*map(percent, tukey(ABLATION)))} alone"],
    "eta-and-gamma": lambda: [
        "η_r > 0", "γ > 1", "T = 5",
        shares(*(density(ABLATION, name, 5) for name in list(SETTINGS.values())[2].values())),
        "η_r = 0, 0.001, 0.01, 0.1 and 1", percent(density(ABLATION, f"{SAP}, gamma=3", 5)), "γ = 3", "η_r = 1",
        "γ ≥ 3", f"{max(max(ABLATION.at(n, -1, 'round').values()) for n in heavy()):.0f} rounds",
        "γ = 5, 7 and 9", "β = 0.9"],
    "one-cut": lambda: [
        "γ = 5", "90 %", *(f"{spread(ABLATION.at_density(name, 0.1))} %" for name in (HEAVY, LT)),
        "10 %", difference(gap(ABLATION, HEAVY, 0.1)), signed(gap(CNN_ABLATION, HEAVY, 0.1).mean)],
    "epochs": lambda: [
        f"{index(CNN, LT, 0):.3f} after 20", f"{index(CNN200, LT, 0):.3f} after 200",
        f"{index(RESNET20, LT, 0):.3f} to {index(RESNET, LT, 0):.3f}",
        *(shares(density(a, SAP, 1), density(b, SAP, 1)) for a, b in ((CNN, CNN200), (RESNET20, RESNET)))],
    "epochs-sparse": lambda: [
        f"{spread(CNN.at(LT, 0))} % with 20", f"{spread(CNN200.at(LT, 0))} % with 200", "200",
        f"each of {CNN.seeds}", "20", f"{len(worse())} rounds", f"T = {worse()[0]} to {worse()[-1]}", "T = 20",
        f"{spread(CNN200.at(LT, 20))} and {spread(CNN.at(LT, 20))} %",
        fixed(*(mean(of.at(LT, 20, "dead_neurons")) for of in (CNN200, CNN)), digits=0)],
    "gain": lambda: [difference(change(CNN, (SAP, 10), (SAP, 0))), "10 rounds", shares(density(CNN, SAP, 10))],
    "bfloat16": lambda: [
        f"Of {len(precisions())} differences", "rounds 0 to 8", f"{FLOAT32.seeds} seeds",
        f"{min(stats.ttest_1samp(values, 0.0).pvalue for values in precisions()):.2f}",
        f"{widest(precisions()[:9])} points"],
    "resnet18": lambda: [
        "200 epochs", f"{RESNET.own['round'].max()} rounds", shares(*(ratio(RESNET, SAP, t) for t in range(4))),
        shares(*cuts_of_paper("sap_p0.5_q1")), f"Of {len(met_by_resnet18())} published",
        f"{sum(met_by_resnet18())} are met", "T = 3", f"{spread(RESNET.at(SAP, 3))} %",
        f"{spread(RESNET.at(SAP, 0))} %", signed(change(RESNET, (SAP, 3), (LT, 3)).mean),
        percent(density(RESNET, SAP, 3)).removesuffix(" %"), percent(density(RESNET, LT, 3))],
    "clipping": lambda: [
        "T = 1, 2 and 3", fixed(*(index(CLIPPED, SAP2, t) for t in (1, 2, 3))),
        fixed(*(line("retrained/pq_index", "sap_p1_q2")[t] for t in (1, 2, 3))),
        fixed(*(index(RESNET, SAP2, t) for t in (1, 2, 3))),
        f"{sum(met_after_the_first_cut(CLIPPED))} of {len(met_after_the_first_cut(CLIPPED))}",
        f"{sum(met_after_the_first_cut(RESNET))}", shares(*(density(CLIPPED, SAP2, t) for t in (1, 2, 3))),
        fixed(*(line("retrained/remaining", "sap_p1_q2")[t] for t in (1, 2, 3)), digits=1, unit=" %"),
        shares(*(density(RESNET, SAP2, t) for t in (1, 2, 3)))],
    "resnet18-20": lambda: [
        "20 epochs",
        fixed(*(100 * mean(RESNET20.at(ONE_SHOT, t, "pruned_test_accuracy")) for t in range(4, 8)),
              digits=0, unit=" %"),
        "T = 4 to 7", fixed(*(line("pruned/accuracy", "one_shot")[t] for t in range(4, 8)), digits=0, unit=" %"),
        f"{percent(density(RESNET20, SAP, 10))} after 10",
        f"{line('retrained/remaining', 'sap_p0.5_q1')[10]:.1f} %",
        "T = 15", signed(change(RESNET20, (SAP, 15), (LT, 15)).mean),
        percent(density(RESNET20, SAP, 15)).removesuffix(" %"), percent(density(RESNET20, LT, 15))],
    "two-rounds": lambda: [
        f"{WIDE.own['epochs'].max()} epochs", *large(WIDE)[:2], "T = 2", *large(WIDE)[2:],
        f"{LARGE.own['epochs'].max()} epochs", *large(LARGE),
        f"{sum(int((of.own['pruned_pq_index_difference'] < 0).sum()) for of in (WIDE, LARGE))} cuts"],
    "stop-rules": lambda: [
        f"All {len(ladders())} runs", "1.25 points", "1 point",
        *stop_rule(IndexTurnsUp(2), 2)[:1], "5 points", stop_rule(IndexTurnsUp(2), 2)[1],
        stop_rule(IndexTurnsUp(1), 1)[0], "2 points", stop_rule(ScoreDrops(), 1)[0], "5",
        "1 point", stop_rule(ScoreDrops(), 1, score="test")[0]],
    "stop-density": lambda: ["10 %", stop_rule(lambda history: history[-1].density < 0.0999, 1)[0]],
    "doubt": lambda: ["includes 0"],
    "intervals": lambda: [f"{MLP.seeds} seeds"],
    "clear": lambda: ["3 standard deviations"],
    "front-table": lambda: [
        f"{MLP.seeds} seeds", spread(MLP.at(LT, 0)),
        f"{MLP.own['id'].nunique()} runs of up to {MLP.own['round'].max() + 1} × {MLP.own['epochs'].max()} epochs",
        f"{sum(part['seconds'] for part in MLP.about['commands'])} s",
        MLP.about["hardware"], MLP.about["versions"], MLP.about["date"]],
    "front-mlp": lambda: ["0.5 %", "10 rounds", "25"],
}

VERDICTS = {
    "alike": lambda: {(of.name, *key) for of in NETWORKS for key, sign in signs(of).items()
                      if sign and key[0] in (SAP, SAP2) and key[1] >= 0.02}
    == {("fashionmnist-mlp", SAP2, 0.05), ("fashionmnist-linear", SAP2, 0.5)}
    and not any(signs(of)[SAP, d] for of in NETWORKS for d in DENSITIES),
    "behind": lambda: max(v for of in NETWORKS for d, v in means(of, SAP2).items() if d <= 0.01) < 0
    and signs(MLP)[SAP2, 0.01] == signs(MLP)[SAP2, 0.005] == -1,
    "cnn-behind": lambda: not any(signs(CNN)[SAP2, d] for d in DENSITIES) and len(means(CNN, SAP2)) == 8,
    "one-shot": lambda: signs(MLP)[ONE_SHOT, 0.1] == 1 and all(
        [d for d in DENSITIES if signs(of)[ONE_SHOT, d] < 0] == [d for d in DENSITIES if d <= first and d != but]
        for of, first, but in ((LINEAR, 0.2, 0), (CNN, 0.2, 0.01), (CIFAR_MLP, 0.05, 0), (MLP, 0.02, 0))),
    "turns-one-shot": lambda: not as_said(CIFAR_MLP, ONE_SHOT),
    "turns-sap2": lambda: as_said(CNN, SAP2) and as_said(MLP, SAP2),
    "turns-lt": lambda: [of for of in NETWORKS if steps(of, LT)[1].sign > 0] == [MLP, CNN]
    and not any(as_said(of, LT) for of in NETWORKS),
    "turns-sap": lambda: not any(steps(of, SAP)[1].sign > 0 for of in NETWORKS),
    "lowered": lambda: all(lowered(of, n) == 1 for of in NETWORKS for n in (SAP, SAP2, LT))
    and lowered(MLP, ONE_SHOT) == lowered(CIFAR_MLP, ONE_SHOT) == 1,
    "stop-rules": lambda: stop_rule(ScoreDrops(), 1)[1] == "0 %",
    "stop-density": lambda: MLP.own["id"].nunique() + ABLATION.own["id"].nunique() > len(ladders()) / 2,
    "brake-density": lambda: not any(signs(of)[SAP, 0.02] for of in NETWORKS),
    "scope-mlp": lambda: max(ABLATION.at(SAP, -1, "dead_neurons", "neuron").values()) < 1
    and max(between_scopes(ABLATION).values()) == 0,
    "scope-beats": lambda: {key for key, sign in in_scopes(ABLATION).items() if sign} == {(SAP2, "layer", 0.005)},
    "eta-and-gamma": lambda: max(mean(ABLATION.at(n, -1)) for n in heavy()) < 0.2
    and len({tuple(ABLATION.own[ABLATION.own["name"] == f"{SAP}, gamma={g}"]["kept"]) for g in (5, 7, 9)}) == 1,
    "epochs-sparse": lambda: worse() == list(range(11, 30))
    and max(worse(), key=lambda t: accuracy(CNN, LT, t) - accuracy(CNN200, LT, t)) == 20,
    "bfloat16": lambda: not any(beyond_noise(dict(enumerate(precisions()))).values()),
    "two-rounds": lambda: all((of.own["pruned_pq_index_difference"] < 0).all() for of in (WIDE, LARGE)),
    "doubt": lambda: not any(  # turns chosen on even seeds, measured on odd ones
        Difference.of([v[2, 0] - v[1, 0] for s, v in shape(MLP, n).items() if s % 2]).sign for n in (SAP2, LT)),
    "front-mlp": lambda: max(abs(v) for n in (SAP, SAP2) for d, v in means(MLP, n).items() if d >= 0.005) < 0.5
    and change(MLP, (SAP2, 10), (LT, 25)).sign == 0 < change(MLP, (SAP, 30), (LT, 30)).sign,
}
# fmt: on


def blocks(text):
    """Paragraphs and list items with their ids; tables and headings are left out."""
    text = re.sub(r"^(#|\||<!-- \w+: |<!-- end).*$", "", text.replace("\u00a0", " "), flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n(?=- )", text):
        words = " ".join(part.split())
        found = re.search(r"<!-- ([\w-]+) -->$", words)
        if words:
            yield (found[1] if found else None), re.sub(r"<!-- [\w-]+ -->$", "", words)


def without(text, numbers):
    """The text without names and without the numbers, in their order; what is missing if one is not there."""
    text, rest = NAMES.sub("", text), ""
    for number in numbers:
        found = re.search(rf"(?<![\d.+−]){re.escape(number)}(?![\d]|\.\d)", text)
        if found is None:
            return f"{number!r} is not in {text!r}"
        rest, text = rest + text[: found.start()], text[found.end() :]
    return rest + text


PAGE = list(blocks((HERE / "FINDINGS.md").read_text()))
PAGE += blocks(FRONT.read_text().partition("<!-- results: begin -->")[2].partition("<!-- results: end -->")[0])


def test_every_finding_with_a_number_has_an_id_and_every_id_a_finding():
    ids = [key for key, _ in PAGE if key]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(FINDINGS) >= set(VERDICTS)
    assert [words for key, words in PAGE if not key and re.search(r"\d", NAMES.sub("", words))] == []


@pytest.mark.parametrize("key", FINDINGS)
def test_numbers_of_a_finding_are_those_of_the_records(key):
    rest = without(dict(PAGE)[key], FINDINGS[key]())
    assert not re.search(r"\d", rest), rest


@pytest.mark.parametrize("key", VERDICTS)
def test_words_of_a_finding_are_those_of_the_records(key):
    assert VERDICTS[key]()


def test_a_changed_and_an_added_number_are_found():
    assert without("At 5 % it is +0.20 points.", ["5 %", "+0.20"]) == "At  it is  points."
    assert "'+0.20' is not in" in without("At 5 % it is +0.21 points.", ["5 %", "+0.20"])
    assert "7" in without("At 5 % it is +0.20 points, 7 times.", ["5 %", "+0.20"])
    assert "is not in" in without("At 15 % it is 10.20.", ["5 %"])
