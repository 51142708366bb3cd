"""The page that says what bfloat16 changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palmette.files import write_whole
from results.answers import LEVEL, Difference, Spread, holm
from results.four_methods import MLP
from results.pictures import by_round
from results.study import Study, difference, page, prose, save, spread, table, true

if TYPE_CHECKING:
    import pandas as pd

STUDY = Study("bfloat16")
VALUES = {"test_accuracy": ("test accuracy, points", 100.0, 2), "pq_index": ("PQ Index", 1.0, 4)}


def paired() -> pd.DataFrame:
    """A row for each seed and round that both have."""
    wide = MLP.frame[MLP.frame["method"] == "lottery-ticket"]
    return STUDY.frame.merge(wide, on=["seed", "round"], suffixes=("_float32", "_bfloat16"))


def found() -> dict[str, list[Difference]]:
    """bfloat16 less float32, round by round."""
    both = paired()
    return {
        value: [
            Difference.of((g[f"{value}_bfloat16"] - g[f"{value}_float32"]).tolist())
            for _, g in both.groupby("round")
        ]
        for value in VALUES
    }


def write() -> None:
    """Figure and page."""
    differences, both = found(), paired()
    panels = {f"{title}: bfloat16 − float32": (scale, differences[v]) for v, (title, scale, _) in VALUES.items()}
    save(
        by_round(panels, caption="Mean of paired differences, and Student's 95 % interval."),
        STUDY.folder / "difference.png",
    )
    rows, tests = [], []
    from scipy import stats

    for t, group in both.groupby("round"):
        cells = []
        for value, (_, scale, digits) in VALUES.items():
            change = group[f"{value}_bfloat16"] - group[f"{value}_float32"]
            tests.append(float(stats.ttest_1samp(change, 0.0).pvalue))
            single = Spread.of(group[f"{value}_float32"])
            cells += [
                spread(single, scale=scale, digits=digits),
                difference(differences[value][int(t)], scale=scale, digits=digits),
            ]
        rows.append((str(t), *cells))
    seeds, rounds = both["seed"].nunique(), both["round"].max()
    widest = max(max(abs(d.low), abs(d.high)) for d in differences["test_accuracy"])
    text = page(
        f"# {STUDY.about['title']}",
        prose(
            "The other studies were trained in bfloat16 (weights and optimizer in float32, products in "
            f"bfloat16), the paper in float32. Here are the first {rounds} rounds of Lottery Ticket with the MLP "
            "on FashionMNIST in float32, beside the same seeds of [the study of the four "
            f"methods](../{MLP.name}/README.md).",
            true(
                min(holm(tests)) > LEVEL,
                f"**No difference is seen**: of {len(tests)}, none is beyond the noise of {seeds} seeds, and "
                f"every interval for accuracy lies within {100 * widest:.2f} points.",
            ),
            "Smaller changes cannot be excluded, and larger networks were not tried.",
        ),
        "![Differences between bfloat16 and float32, round by round](difference.png)",
        table(
            ("round", "accuracy in float32, %", "bfloat16 − float32", "PQ Index in float32", "bfloat16 − float32"),
            rows,
            words=0,
        ),
        prose(
            f"Mean ± standard deviation over n = {seeds} seeds; mean of paired differences and Student's 95 % "
            f"interval; judged together by paired t-tests with Holm's correction ({LEVEL:.0%}). The smallest "
            f"p-value before correction is {min(tests):.2f}."
        ),
        "## How it was made",
        STUDY.made(),
    )
    write_whole(STUDY.folder / "README.md", text)
