"""Every number in results/FINDINGS.md, and in the results of the front page, is computed from the records.

A finding ends with its id, `<!-- id -->`. `FINDINGS` lists for each id the numbers of its text in their order,
`VERDICTS` what its words claim, `TABLES` the rows of tables written by hand. A changed number fails, and so does
one that is not listed.
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
    LINEAR,
    MLP,
    NETWORKS,
    RESNET,
    change,
    clipping_rows,
    cuts_of_paper,
    density,
    first_cut,
    heavy,
    index,
    index_rows,
    ladders,
    largest_drop,
    lowered,
    met,
    moment,
    p_and_q,
    precision,
    precision_rows,
    ratio,
    rounds_apart,
    shape,
    shares,
    so_far,
    span,
    speed_rows,
    stop_rows,
    two_round_rows,
)  # fmt: skip
from results.make import FRONT, difference, mean, percent, spread, there
from results.records import HERE, LT, METHODS, ONE_SHOT, SAP, SAP2, SCOPES

from palmette.reports.statistics import Difference
from palmette.words import signed

NAMES = re.compile(
    r"SAP \((0\.5, 1|1, 2)\)|CIFAR100?\b|W?ResNet\d+(x\d+)?|bfloat16|float32|Figure \d+|et al\. 2023|\]\([^)]*\)"
)
HEAVY = f"{SAP}, gamma=5"


def furthest(found):
    """The end of an interval that is furthest from 0, in points."""
    return f"{100 * max(abs(found.low), abs(found.high)):.2f} points"


def at(of, name, round):
    """Difference of a method from Lottery Ticket at the density of a round of Lottery Ticket."""
    d = density(of, LT, round)
    return Difference.between(there(of, name, d), there(of, LT, d))


# fmt: off
FINDINGS = {
    "names": lambda: [
        "p = 0.5", "q = 1", "p = 1", "q = 2", "p = 0.5", "q = 1", "T = 0", f"E of {MLP.own['epochs'].max()}",
        "95 %"],
    "alike": lambda: [
        "50 to 2 %",
        f"{100 * max(abs(of.apart(n).mean) for of in NETWORKS for n in (SAP, SAP2)):.1f} points", "2 %"],
    "one-shot": lambda: [percent(density(MLP, LT, 10)), difference(at(MLP, ONE_SHOT, 10))],
    "turns-runs": lambda: [f"{CNN200.own['epochs'].max()} epochs"],
    "where-one-shot": lambda: [
        shares(*(np.mean(moment(of, ONE_SHOT, which, "density")) for of in NETWORKS))
        for which in ("turned_up", "kept")],
    "lowered": lambda: [shares(lowered(LINEAR, ONE_SHOT)), shares(lowered(CNN, ONE_SHOT))],
    "doubt": lambda: ["includes 0"],
    "fast": lambda: ["10 rounds", "25"],
    "brake": lambda: ["2 %", *(furthest(of.apart(SAP)) for of in (MLP, CNN))],
    "without-retraining": lambda: [
        span([largest_drop(of, name) for of in NETWORKS], 1, " to ") for name in (SAP, LT, SAP2)],
    "so-far": lambda: [
        difference(Difference.between(so_far(MLP, SAP2, 10), so_far(MLP, LT, 25))),
        difference(Difference.of(np.subtract(so_far(MLP, LT, 30), so_far(MLP, LT, 0)).tolist())), "T = 30"],
    "stop-rules": lambda: [f"{len(ladders())} runs", "1.25 points", "1 point"],
    "scopes": list,
    "scope-beats": lambda: ["2 %"],
    "p-and-q": lambda: [
        "q = 1", "p = 1", "T = 5", first_cut(ABLATION, 0, 5), "p = 0.2 to 0.8", first_cut(ABLATION, 1, 5),
        "q = 1.2 to 2"],
    "p-and-q-accuracy": lambda: [
        f"{len(p_and_q(ABLATION))} settings",
        " to ".join(signed(end(d.mean for d in p_and_q(ABLATION))) for end in (min, max)) + " points"],
    "eta-and-gamma": lambda: [
        "η_r > 0", "γ > 1", "η_r = 1", "γ ≥ 3",
        f"{max(max(ABLATION.at(n, -1, 'round').values()) for n in heavy()):.0f} rounds",
        "γ = 5", "90 %", difference(ABLATION.apart(HEAVY)), signed(CNN_ABLATION.apart(HEAVY).mean)],
    "epochs": lambda: [f"{index(CNN, LT, 0):.3f} after 20", f"{index(CNN200, LT, 0):.3f} after 200", "T = 20"],
    "bfloat16": list,
    "resnet18": lambda: [
        f"{RESNET.own['round'].max()} rounds", shares(*(ratio(RESNET, SAP, t) for t in range(4))),
        shares(*cuts_of_paper("sap_p0.5_q1"))],
    "clipping": lambda: [
        f"{sum(met(CLIPPED, SAP2, (1, 2, 3)).values())} of {len(met(CLIPPED, SAP2, (1, 2, 3)))}",
        f"{sum(met(RESNET, SAP2, (1, 2, 3)).values())}"],
    "seeds": lambda: ["50 to 2 %", "2 %"],
    "front-table": lambda: [
        f"{MLP.seeds} seeds", spread(MLP.at(LT, 0)),
        f"{MLP.own['id'].nunique()} runs of up to {MLP.own['round'].max() + 1} × {MLP.own['epochs'].max()} epochs",
        f"{sum(part['seconds'] for part in MLP.about['commands'])} s",
        MLP.about["hardware"], MLP.about["versions"], MLP.about["date"]],
    "front-mlp": lambda: ["0.5 %", "10 rounds", "25"],
}

VERDICTS = {
    "alike": lambda: all(of.apart(ONE_SHOT).sign < 0 for of in NETWORKS)
    and all(of.apart(SAP2, 0.002, 0.02).mean < 0 for of in (MLP, CIFAR_MLP, CNN, CNN200)),
    "one-shot": lambda: (at(MLP, ONE_SHOT, 10).sign, at(MLP, ONE_SHOT, 25).sign) == (1, -1),
    "turns-runs": lambda: all(
        v[0] > 1.2 * v[low] < v[low:].max() / 2 > v[-1]
        for run in (*CIFAR_MLP.each(ONE_SHOT), *CNN200.each(ONE_SHOT), *CNN200.each(SAP2))
        for v in [run["pq_index"].to_numpy()] for low in [int(v[: v.argmax()].argmin())]),
    "lowered": lambda: all(lowered(of, n) == 1 for of in NETWORKS for n in (SAP, SAP2, LT))
    and lowered(MLP, ONE_SHOT) == lowered(CIFAR_MLP, ONE_SHOT) == 1,
    "brake": lambda: [of for of in (MLP, LINEAR, CIFAR_MLP, CNN200) if change(of, SAP, 0, 30).mean > -0.03]
    == [MLP, LINEAR] and MLP.apart(SAP).sign == CNN.apart(SAP).sign == 0,
    "fast": lambda: rounds_apart(MLP, (SAP2, 10), (LT, 25)).sign == 0,
    "scopes": lambda: all(ABLATION.apart(n, scope=s, base_scope="global").sign == -(s == "neuron" or n == ONE_SHOT)
                          and CNN_ABLATION.apart(n, scope=s, base_scope="global").mean < 0.001
                          for n in METHODS for s in SCOPES[:2]),
    "scope-beats": lambda: ABLATION.apart(SAP2, 0.002, 0.02, scope="layer").sign == 1
    and all(ABLATION.apart(SAP2, scope=s).sign <= 0 < CNN_ABLATION.apart(SAP2, scope=s).mean for s in SCOPES[:2]),
    "p-and-q-accuracy": lambda: not any(d.sign for d in p_and_q(ABLATION)),
    "eta-and-gamma": lambda: max(mean(ABLATION.at(n, -1)) for n in heavy()) < 0.2,
    "epochs": lambda: min(CNN200.at(LT, 0).values()) > max(CNN.at(LT, 0).values())
    and max(CNN200.at(LT, 20).values()) < min(CNN.at(LT, 20).values()),
    "bfloat16": lambda: not precision("test_accuracy").sign and not precision("pq_index").sign,
    "doubt": lambda: not any(  # turns chosen on even seeds, measured on odd ones
        Difference.of([v[2, 0] - v[1, 0] for s, v in shape(MLP, n).items() if s % 2]).sign for n in (SAP2, LT)),
    "front-mlp": lambda: max(abs(MLP.apart(n, low, 0.5).mean) for n, low in ((SAP, 0.02), (SAP2, 0.005))) < 0.005
    and abs(MLP.apart(SAP2, 0.005, 0.01).mean) < 0.005 and rounds_apart(MLP, (SAP2, 10), (LT, 25)).sign == 0,
}

TABLES = {
    ("FINDINGS.md", "turns"): index_rows,
    ("FINDINGS.md", "speed"): speed_rows,
    ("FINDINGS.md", "stop"): stop_rows,
    ("bfloat16/README.md", "precisions"): precision_rows,
    ("cifar10-resnet18/README.md", "orders"): clipping_rows,
    ("two-rounds/README.md", "rounds"): two_round_rows,
}
# fmt: on


def blocks(text):
    """Paragraphs and list items with their ids; tables and headings are left out."""
    skipped = r"^(#|\||<!-- [\w ]+: |<!-- end|</?details|<!-- \w+ table).*$"
    text = re.sub(skipped, "", text.replace("\u00a0", " "), flags=re.MULTILINE)
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


@pytest.mark.parametrize(("page", "name"), TABLES)
def test_rows_of_a_table_are_those_of_the_records(page, name):
    text = (HERE / page).read_text().replace("\u00a0", " ")
    rows = text.partition(f"<!-- {name} table -->\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    assert rows == [f"| {' | '.join(cells)} |" for cells in TABLES[page, name]()]


def test_a_changed_and_an_added_number_are_found():
    assert without("At 5 % it is +0.20 points.", ["5 %", "+0.20"]) == "At  it is  points."
    assert "'+0.20' is not in" in without("At 5 % it is +0.21 points.", ["5 %", "+0.20"])
    assert "7" in without("At 5 % it is +0.20 points, 7 times.", ["5 %", "+0.20"])
    assert "is not in" in without("At 15 % it is 10.20.", ["5 %"])
