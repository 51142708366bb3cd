"""results/README.md, the five questions asked of all studies, and the table on the front page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from palmette.files import write_whole
from palmette.studies.paper import FIGURES, MODEL_NAMES
from results import ablation_runs, precision, questions
from results.answers import (
    DENSITIES,
    LT,
    METHODS,
    SAP,
    SAP2,
    Spread,
    between,
    column,
    equal_density,
    last_round,
    present,
)
from results.clipping import HEADING, clipped_first
from results.four_methods import MLP, RESNET18
from results.readings_cifar10 import collapse_at_length, remaining
from results.study import (
    HERE,
    Study,
    difference,
    listed,
    page,
    paragraphs,
    percent,
    points,
    prose,
    spread,
    table,
    true,
)
from results.tables import accuracy_at, holds, mean_density

if TYPE_CHECKING:
    import pandas as pd

FRONT = HERE.parent / "README.md"
WHERE = 0.02
"""The density at which the front page has all networks."""
MARKS = re.compile(r"(<!-- results: begin -->\n).*?(<!-- results: end -->)", re.DOTALL)
ABLATED = tuple(ablation.study.name for ablation in ablation_runs.ABLATIONS)


def studies() -> list[Study]:
    """All that have records."""
    found = (Study(file.parent.name) for file in sorted(HERE.glob("*/study.toml")))
    return [study for study in found if study.on_record]


def write() -> None:
    """The overview, and the part of the front page between the marks."""
    write_whole(HERE / "README.md", text())
    old = FRONT.read_text(encoding="utf-8")
    new, found = MARKS.subn(lambda m: f"{m[1]}\n{front()}\n\n{m[2]}", old)
    if found != 1:
        raise ValueError(f"README.md must have the marks of the results once, found {found}")
    if new != old:
        write_whole(FRONT, new.encode())


def text() -> bytes:
    """The overview."""
    there = studies()
    rows = [
        (
            f"[{study.about['title']}]({study.name}/README.md){', under way' if study.so_far else ''}",
            str(study.frame["id"].nunique()),
            str(study.frame["seed"].nunique()),
            f"{study.rounds}",
            f"{study.frame['epochs'].max()}",
            f"{study.seconds or study.frame['seconds'].sum():,.0f} s",
        )
        for study in there
    ]
    alone = [study for study in there if study.frame["seed"].nunique() == 1]
    dates = sorted({study.about["date"] for study in there} - {MLP.about["date"]})
    return page(
        "# Results on record",
        prose(
            "Studies by the paper's protocol (Diao et al. 2023), on FashionMNIST with 16 seeds in place of its "
            f"four, on CIFAR10 with four{_or_one(alone)}. Where a round has fewer epochs than its 200, a study "
            "shows the shape of curves and not the published numbers: the index of trained weights grows with the "
            "epochs, and SAP, which goes by it, then cuts less, and comes to its turns and its collapse later or "
            "not at all. Each folder has the records (six digits of each number, packed by `python -m "
            "results.keep`), the grid that made them, pictures, tables, and what they say. `python -m "
            "results.make` writes these pages from the records, and a test computes some of the numbers again."
        ),
        table(("study", "runs", "seeds", "T, from 0 to", "epochs a round", "time"), rows),
        prose(
            f"On one {MLP.under()}{''.join(f', {date}' for date in dates)}. The time is that of the commands; of "
            "*bfloat16*, of training and pruning alone."
        ),
        "![MLP on FashionMNIST: accuracy, index and density by round, and accuracy by "
        "density](fashionmnist-mlp/overview.png)",
        "## Five questions",
        questions.first(),
        questions.second(),
        questions.third(),
        questions.fourth(),
        questions.fifth(),
        *single(alone),
        "## How sure is this?",
        points(
            "Differences are taken in pairs of runs that share the seed, so the initial weights and the order "
            "of images; intervals are 95 %: Student's with four or eight seeds; with 16 a percentile bootstrap, "
            "which is about a tenth narrower than Student's would be (bold is by t-tests).",
            "Densities (50, 20, 10, … 0.2 %) were set once for all pages, and all are shown. Where a table has "
            "many comparisons, what is bold in it holds after Holm's correction.",
            "How the turns of the index are tested (question 1) was settled only after results had been seen. "
            "If turns are chosen on the even seeds and measured on the odd ones alone, Student's interval "
            "includes 0 for the rises of SAP (1, 2) and Lottery Ticket in the MLP on FashionMNIST, a bootstrap's "
            "does not for SAP (1, 2). So those two are to be doubted until other seeds show them; in the CNN on "
            "CIFAR10, run later, both are plain. One Shot's verdict is the same in all three. With four seeds, "
            "two in each half, the test is weak, above all where runs collapse in different rounds.",
            "Seeds vary initial weights and the order of images. There is one training set, one test set of "
            "10,000 images and one recipe, so this is the noise of training and not that of other data: with "
            "other images accuracies would all move by some tenths of a point together, and differences by less.",
            "Learning rate and weight decay are the paper's for all densities and methods; nothing was tuned "
            "here.",
            "Accuracies in the paper's figures are [means over all rounds so "
            "far](../docs/differences.md#accuracies-in-the-papers-figures), which lag behind a collapse; here "
            "they are of the round. Two of the paper's sentences are about late rounds, and the pages answer them "
            "both ways.",
            "Gradients of pruned weights do not count in the norm that gradients are clipped to; in the authors' "
            "code they do. In ResNet18 that is [most of what parts SAP (1, 2) from the published values"
            "](cifar10-resnet18/README.md#clipped-before-masked), as far as one run tells; other methods and "
            "networks were not tried so.",
            "Verdicts in the tables *Beside the paper* are given by rules, the same for all networks: "
            "[claims.py](claims.py) and [ablation_claims.py](ablation_claims.py) have them.",
            "Training is in bfloat16, the paper's in float32: [no difference is "
            f"seen]({precision.STUDY.name}/README.md) in the MLP on FashionMNIST, where both were tried.",
        ),
        *_unseen(there),
    )


def _network(data: str, model: str) -> str:
    return f"{MODEL_NAMES[model]} on {data}"


def _or_one(alone: Sequence[Study]) -> str:
    """Where there is one seed."""
    data = {study.frame["data"].iloc[0] for study in alone}
    others = sorted(data - {"CIFAR10"})
    return " or one" * ("CIFAR10" in data) + (f", on {listed(others)} with one and a few rounds" if others else "")


def _unseen(there: Sequence[Study]) -> list[str]:
    """The networks of the paper that no study has."""
    seen = {(study.frame["data"].iloc[0], study.frame["model"].iloc[0]) for study in there}
    left = [
        _network(f.data, f.model) for f in FIGURES.values() if f.kind == "rounds" and (f.data, f.model) not in seen
    ]
    if not left:
        return []
    return [prose(f"The paper has {listed(left)} too; nothing on this page says anything about them.")]


def single(there: Sequence[Study]) -> list[str]:
    """What is seen in studies with one seed, which the five questions leave out."""
    rows = []
    for study in there:
        f = study.frame
        for name in present(f) if study.name not in ABLATED else ():
            t = last_round(f, name)
            (index, accuracy), (index_then, then) = (
                [column(f, name, u, value).mean() for value in ("pq_index", "test_accuracy")] for u in (0, t)
            )
            start, end = f"{index:.3f}, {percent(accuracy)}", f"{index_then:.3f}, {percent(then)}"
            link = f"[{study.network}]({study.name}/README.md)"
            rows.append((link, name, start, str(t), percent(mean_density(f, name, t)), end))
    return [
        "## One seed",
        prose(
            "These studies have one seed, so no interval and no test: the five questions are answered without "
            "them, or mention *one run*; their pages say what was seen."
        ),
        table(
            ("network", "method", "dense: index, accuracy", "last round", "weights", "index, accuracy"),
            rows,
            words=2,
        ),
    ]


def front() -> str:
    """The tables of the front page: accuracy at equal density, for the MLP and for all networks."""
    at = (0.1, 0.05, 0.02, 0.01, 0.005)
    equal = equal_density(MLP.frame, at)
    dense = Spread.of(column(MLP.frame, LT, 0, "test_accuracy"))
    rows, networks = [], []
    for name in METHODS:
        end = MLP.frame[MLP.frame["name"] == name].sort_values("round").groupby("seed").last()
        rows.append((name, *(accuracy_at(equal, name, d, dense.n) for d in at), percent(end["density"].mean())))
    for study in questions.STUDIES:
        start = Spread.of(column(study.frame, LT, 0, "test_accuracy"))
        cells = (accuracy_at(questions.equal(study), name, WHERE, start.n) for name in METHODS)
        link = f"[{study.network}]({HERE.name}/{study.name}/README.md)"
        networks.append((link, str(start.n), spread(start), *cells))
    command = MLP.about["commands"][-1]["command"]
    cifar = [questions.equal(study) for study in questions.CIFAR]
    behind = [row.difference for row in cifar[1].itertuples() if row.method == SAP2 and row.pairs]
    later = [between(study.frame, (SAP, 30), (SAP, 0)) for study in questions.CIFAR]
    fast, late = between(MLP.frame, (SAP2, 10), (LT, 25)), between(MLP.frame, (SAP, 30), (LT, 30))
    return paragraphs(
        table(("method", *(f"at {percent(d)}" for d in at), "ends at"), rows),
        prose(
            f"Test accuracy in percent at equal density, mean ± sd, n = {dense.n} seeds; dense: {spread(dense)}. "
            f"Empty: not reached; (n): reached by so many. `{command}`: {MLP.frame['id'].nunique()} runs of up to "
            f"{MLP.frame['rounds'].max() + 1} × {MLP.frame['epochs'].max()} epochs in {MLP.seconds} s; "
            f"{MLP.under()}; {MLP.frame['precision'].iloc[0]}."
        ),
        prose(
            true(
                max(abs(row.difference) for row in equal.itertuples() if row.method in (SAP, SAP2) and row.pairs)
                < 0.005,
                f"Down to {percent(at[-1])} of the weights SAP and Lottery Ticket are alike at equal density, "
                "within half a point.",
            ),
            true(
                fast.sign == 0 and late.sign == 1,
                "What SAP adds is that the index says how much to cut: SAP (1, 2) is in ten rounds where "
                "Lottery Ticket is in 25, and SAP (0.5, 1) brakes where Lottery Ticket collapses.",
            ),
        ),
        prose(
            true(
                not any(holds(e, n, d) for e in cifar for n in (SAP, SAP2) for d in DENSITIES),
                "On CIFAR10, with four seeds, no single difference between SAP and Lottery Ticket is beyond the "
                "noise; so few cannot tell less than one or two points.",
            ),
            true(
                max(behind) < 0,
                f"In the CNN, with 20 epochs a round, SAP (1, 2) is a little behind at all {len(behind)} "
                f"densities, by {-100 * max(behind):.1f} to {-100 * min(behind):.1f} points.",
            ),
            true(
                later[0].high < -0.1 and later[1].low > -0.01,
                "After 30 rounds SAP (0.5, 1) has lost much of its accuracy in the MLP "
                f"({difference(later[0])} points), where it brakes too late, and little in this CNN "
                f"({difference(later[1])}). " + collapse_at_length(f"{HERE.name}/"),
            ),
            f"At {percent(WHERE)} of the weights:",
        ),
        table(("network", "n", "dense", *METHODS), networks),
        prose("As above; E = 20: twenty epochs a round."),
        *_resnet18(),
        prose("[All results](results/README.md) lie beside the paper's claims, the misses too."),
    )


def _resnet18() -> list[str]:
    """The network whose values could be read off the paper's figure, beside them."""
    f, cuts = RESNET18.frame, range(1, RESNET18.rounds + 1)
    rows = [(name, *(_beside_paper(remaining(RESNET18, name)[t], name, t) for t in cuts)) for name in (SAP, SAP2)]
    page = f"{HERE.name}/{RESNET18.name}/README.md"
    otherwise = clipped_first(RESNET18).set_index("round")["density"]
    return [
        prose(
            f"[ResNet18 on CIFAR10]({page}) with the paper's "
            f"{f['epochs'].iloc[0]} epochs a round, one seed. How many percent of the weights remain, in "
            f"parentheses how many in the paper, and the accuracy; dense: {_accuracy(f, SAP, 0)}."
        ),
        table(("method", *(f"after cut {t}" for t in cuts)), rows),
        prose(
            "The authors' code clips gradients before it masks them, palmette after; [a run of SAP (1, 2) that "
            f"does as theirs]({page}#{HEADING.lower().replace(' ', '-')}) has "
            f"{listed([f'{100 * otherwise[t]:.1f}' for t in cuts])} % left."
        ),
    ]


def _beside_paper(shares: tuple[float, float], name: str, round: int) -> str:
    here, there = (f"{100 * share:.1f}" for share in shares)
    return f"{here} ({there}): {_accuracy(RESNET18.frame, name, round)}"


def _accuracy(frame: pd.DataFrame, name: str, round: int) -> str:
    return spread(Spread.of(column(frame, name, round, "test_accuracy")))
