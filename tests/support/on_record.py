"""Numbers of the studies on record, as results/FINDINGS.md writes them."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pandas as pd
from results.figures import SETTINGS
from results.make import FOUR, difference, mean, percent, spread, sure
from results.records import LT, ONE_SHOT, SAP, SAP2, study

from palmette.pruning.stopping import IndexTurnsUp, RoundSummary, ScoreDrops
from palmette.reports.paper.published import published
from palmette.reports.phases import phases, turns
from palmette.reports.statistics import Difference, MeanSd, last_within
from palmette.studies.paper import FIGURES
from palmette.words import signed

MLP, LINEAR, CIFAR_MLP, CNN = NETWORKS = [study(name) for name in FOUR]
CNN200, RESNET, RESNET20 = (study(f"cifar10-{name}") for name in ("cnn", "resnet18", "resnet18-20"))
CLIPPED = study("cifar10-resnet18", "clipped-first.tar.xz")
ABLATION, CNN_ABLATION = study("fashionmnist-mlp-ablations"), study("cifar10-cnn-ablations")
WIDE, LARGE, FLOAT32 = study("cifar100-wresnet28x8"), study("tinyimagenet-resnet50"), study("bfloat16")


# Numbers as they are written


def listed(*words):
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def shares(*values):
    """Densities or accuracies, with one unit for all."""
    return f"{listed(*(percent(value).removesuffix(' %') for value in values))} %"


def fixed(*values, digits=3, unit=""):
    return listed(*(f"{value:.{digits}f}" for value in values)) + unit


def span(values, digits=2, by="–"):
    shown = [f"{value:.{digits}f}" for value in (min(values), max(values))]
    return shown[0] if shown[0] == shown[1] else by.join(shown)


def change(of, name, first, last):
    """Change of accuracy within the runs of a method, from one round to another."""
    start, end = of.at(name, first), of.at(name, last)
    return Difference.of([end[seed] - start[seed] for seed in start])


def rounds_apart(of, one, other):
    """Difference of accuracy between two methods, each in a round of its own."""
    return Difference.between(of.at(*one).values(), of.at(*other).values())


def density(of, name, t):
    return mean(of.at(name, t, "density"))


def accuracy(of, name, t):
    return mean(of.at(name, t))


def index(of, name, t):
    return mean(of.at(name, t, "pq_index"))


# What is computed from the records


def turns_of(run):
    """Rounds of start, lowest index before a collapse, highest after it and end; and that of the collapse."""
    values, accuracies = run["pq_index"].tolist(), run["test_accuracy"].tolist()
    collapsed = turns(phases(accuracies, values))["collapsed"]
    lowest = int(np.argmin(values[:collapsed]))
    return (0, lowest, lowest + int(np.argmax(values[lowest:])), len(values) - 1), collapsed


@functools.cache
def shape(of, name):
    """Index, accuracy and density of each seed at four rounds, chosen by the other half of the seeds."""
    runs = of.each(name)
    halves = [half for p in (0, 1) if (half := [run for run in runs if run["seed"].iloc[0] % 2 == p])]
    chosen = []
    for half in halves:
        curve = pd.concat(half).groupby("round")[["pq_index", "test_accuracy"]].mean().iloc[: min(map(len, half))]
        chosen.append(turns_of(curve)[0][1:3])
    rows = {}
    for half, (low, high) in zip(reversed(halves), chosen, strict=True):
        for run in (run for run in half if len(run) > high):
            at = run.iloc[[0, low, high, -1]]
            rows[run["seed"].iloc[0]] = at[["pq_index", "test_accuracy", "density"]].to_numpy()
    return rows


def steps(of, name, seeds=slice(None)):
    """Fall, rise and second fall of the index."""
    values = np.array(list(shape(of, name).values()))[seeds, :, 0]
    return [Difference.of((values[:, i + 1] - values[:, i]).tolist()) for i in range(3)]


def as_said(of, name):
    return [step.sign for step in steps(of, name)] == [-1, 1, -1]


def moment(of, name, which, value):
    """A value of each run where its index turned up, where it collapsed or where it was last within a point."""
    found = []
    for run in of.each(name):
        accuracies = run["test_accuracy"].tolist()
        rounds = turns(phases(accuracies, run["pq_index"].tolist())) | {"kept": last_within(accuracies)}
        found += [run[value].iloc[rounds[which]]] if rounds[which] is not None else []
    return found


def lowered(of, name):
    """The share of cuts after which the index of the same weights is lower."""
    f = of.own[(of.own["name"] == name) & (of.own["cut_weights"] > 0)]
    return float((f["pruned_pq_index_difference"] < 0).mean())


def largest_drop(of, name):
    """Points that the most harmful cut costs before retraining, mean over seeds."""
    return float(-100 * of.own[of.own["name"] == name].groupby("round")["pruned_accuracy_difference"].mean().min())


def ratio(of, name, t):
    """The share of the remaining weights that a round cuts."""
    return MeanSd.of(
        c / k for c, k in zip(of.at(name, t, "cut_weights").values(), of.at(name, t, "kept").values(), strict=True)
    ).mean


def so_far(of, name, t):
    """Means over all rounds so far, which the paper's figures show."""
    return [run["test_accuracy"].iloc[: t + 1].mean() for run in of.each(name)]


def first_cut(of, row, t):
    """Density in a round from the first to the last value of p or q."""
    first, *_, last = list(SETTINGS.values())[row].values()
    return f"{percent(density(of, first, t)).removesuffix(' %')} to {percent(density(of, last, t))}"


def p_and_q(of):
    """Differences of each p and q from Lottery Ticket."""
    return [of.apart(name) for row in list(SETTINGS.values())[:2] for name in row.values()]


def precision(value):
    """bfloat16 minus float32, mean over rounds 0 to 8 of each run."""
    return Difference.between(*([r[r["round"] <= 8][value].mean() for r in of.each(LT)] for of in (MLP, FLOAT32)))


# Values read off the paper's Figure 3

READ_OFF = {  # panel: column of a record, factor, and how far a reading is trusted
    "retrained/accuracy": ("test_accuracy", 100, 1.0),
    "pruned/accuracy": ("pruned_test_accuracy", 100, 1.0),
    "retrained/pq_index": ("pq_index", 1, 0.01),
    "pruned/pq_index": ("pruned_pq_index", 1, 0.01),
    "retrained/remaining": ("density", 100, 0.15),
}
IN_FILE = {SAP: "sap_p0.5_q1", SAP2: "sap_p1_q2", LT: "lottery_ticket"}


def line(panel, method):
    return dict(published(FIGURES["fig3"]).get((panel, method), []))


def read_off(panel, method, t):
    """What Figure 3 shows for a round, and how far a reading is trusted; None where lines hide it."""
    sure = READ_OFF[panel][2]
    for name in (method, "one_shot"):
        # One Shot hides others: dense networks are the same for all, and Lottery Ticket's first cut is its own.
        alike = t == 0 and (panel.startswith("retrained/") or method == "lottery_ticket")
        if name != method and not alike and not (panel == "retrained/remaining" and method == "lottery_ticket"):
            return None
        if (value := line(panel, name).get(t)) is not None:
            return value, sure
        if panel.startswith("retrained/") and (name != "one_shot" or not t):
            pruned = panel.replace("retrained", "pruned")
            parts = [line(pruned + more, name).get(t) for more in ("", "_difference")]
            if None not in parts:
                return sum(parts), 2 * sure
    return None


def met(of, name, rounds):
    """For each published value, whether it is met as well as a reading can tell, by panel and round."""
    found = {}
    for panel, (value, scale, _) in READ_OFF.items():
        for t in rounds:
            if (there := read_off(panel, IN_FILE[name], t)) is not None:
                found[panel, t] = abs(scale * mean(of.at(name, t, value)) - there[0]) <= there[1]
    return found


def cuts_of_paper(method):
    left = [100.0, *(line("retrained/remaining", method)[t] for t in (1, 2, 3, 4))]
    return [1 - b / a for a, b in pairwise(left)]


def heavy():
    return [f"{SAP}, eta=1", *(f"{SAP}, gamma={g}" for g in (3, 5, 7, 9))]


# Stop rules, replayed on every run


@functools.cache
def ladders():
    """Density, index, training and test accuracy by round, of each run on record."""
    of = (*NETWORKS, CNN200, RESNET, RESNET20, ABLATION, CNN_ABLATION, WIDE, LARGE, FLOAT32)
    columns = ["density", "pq_index", "train_accuracy", "test_accuracy"]
    runs = [run.sort_values("round") for one in of for _, run in one.own.groupby("id")]
    return [run[columns].astype(float).to_numpy() for run in runs]


def stop_rule(rule, back, *, score="train"):
    """Share of runs that a rule ends in the right place, and share that lose more than 5 points.

    The network is that of `back` rounds before the rule objects. Right is a loss of at most 1.25 points at no more
    than twice the smallest density of any round that lost at most 1 point.
    """
    right, far = [], []
    for run in ladders():
        lost, history, last = run[0, 3] - run[:, 3], [], len(run) - 1
        for t, (density, index, train, test) in enumerate(run):
            known = {"train": train} if score == "train" else {"validation": test}
            history.append(RoundSummary(round=t, density=density, index=index, **known))
            if rule(history):
                last = max(t - back, 0)
                break
        least = run[lost <= 0.01 + 1e-9, 0].min()
        right.append(lost[last] <= 0.0125 + 1e-9 and run[last, 0] <= 2 * least + 1e-9)
        far.append(lost[last] > 0.05)
    return [f"{100 * np.mean(values):.0f} %" for values in (right, far)]


# Tables


def index_rows():
    """Whether the index falls, rises and falls, by network and method."""
    rows = []
    for of in NETWORKS:
        cells = []
        for name in (ONE_SHOT, SAP2, LT, SAP):
            rise = steps(of, name)[1]
            words = "yes" if as_said(of, name) else "rises" if rise.sign > 0 else "no"
            cells.append(f"{words}, {difference(rise, scale=1, digits=3)}" if rise.sign > 0 else words)
        rows.append([of.network, *cells])
    return rows


def speed_rows():
    """SAP (1, 2) after 10 rounds and Lottery Ticket after 25; both SAP and Lottery Ticket after 30."""
    rows = []
    for of in (*NETWORKS, CNN200):
        cells = [sure(rounds_apart(of, (SAP2, 10), (LT, 25))), shares(density(of, SAP2, 10), density(of, LT, 25))]
        cells += [signed(change(of, n, 0, 30).mean) for n in (SAP, LT)]
        cells += [shares(density(of, SAP, 30), density(of, LT, 30))]
        rows.append([of.network, *cells])
    return rows


def stop_rows():
    """How often each rule is right, and loses more than 5 points."""
    rules = {
        "PQ Index has risen twice in a row": (IndexTurnsUp(2), 2),
        "PQ Index has risen once": (IndexTurnsUp(1), 1),
        "density is below 10 %": (lambda history: history[-1].density < 0.0999, 1),
        "training accuracy is 2 points below dense": (ScoreDrops(), 1),
    }
    rows = [[words, *stop_rule(*rule)] for words, rule in rules.items()]
    return [*rows, ["test accuracy is 1 point below dense", *stop_rule(ScoreDrops(), 1, score="test")]]


def precision_rows():
    """Mean of rounds 0 to 8 in both precisions."""
    rows = []
    for words, value, scale, digits in (("accuracy, %", "test_accuracy", 100, 2), ("PQ Index", "pq_index", 1, 4)):
        means = ([run[run["round"] <= 8][value].mean() for run in of.each(LT)] for of in (MLP, FLOAT32))
        texts = (spread(dict(enumerate(values)), scale=scale, digits=digits) for values in means)
        rows.append([words, *texts, difference(precision(value), scale=scale, digits=digits)])
    return rows


def clipping_rows():
    """Density of SAP (1, 2) in both orders of clipping and masking, and as published."""
    rows = []
    for t in (1, 2, 3):
        left = [percent(density(of, SAP2, t)) for of in (RESNET, CLIPPED)]
        rows.append([str(t), *left, f"{line('retrained/remaining', 'sap_p1_q2')[t]:.1f} %"])
    return rows


def two_round_rows():
    """Accuracy, density and index of networks that were pruned twice."""
    rows = []
    for of in (WIDE, LARGE):
        for name in of.methods:
            values = [[value(of, name, t) for t in range(3)] for value in (accuracy, density, index)]
            texts = [fixed(*(100 * v for v in values[0]), digits=2), shares(*values[1]), fixed(*values[2])]
            rows.append([of.network, name, *texts])
    return rows
