"""The study of the index as a penalty: its script runs, and its page says what its file says."""

import math
import re
from pathlib import Path

import make_penalty as study
import pytest
from make_penalty import Row

FILE = Path("results/penalty/runs.csv")
ROWS = study.read(FILE)
PAGE = FILE.with_name("README.md").read_text(encoding="utf-8")


def ladder(*points):
    return [
        Row("d", "m", "none", 0.0, 0, t, density, score, score, 0.1, 0.5)
        for t, (density, score) in enumerate(points)
    ]


def test_a_limit_is_interpolated_where_the_score_falls_for_good():
    assert math.exp(study.limit(ladder((1, 0.9), (0.1, 0.9), (0.01, 0.88)), 0.89, "test")) == pytest.approx(
        0.1**1.5
    )
    assert math.exp(study.limit(ladder((1, 0.9), (0.5, 0.8), (0.25, 0.9)), 0.89, "test")) == pytest.approx(0.25)
    assert study.limit(ladder((1, 0.8), (0.5, 0.7)), 0.89, "test") == 0


def test_a_run_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "ARMS", {"none": (0.0,), "l1": (1e-4,), "PQ Index": (0.1,)})
    monkeypatch.setattr(study, "ROUNDS", 1)
    command = [
        "--data",
        "digits",
        "--model",
        "linear",
        "--epochs",
        "1",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "runs.csv"),
    ]
    study.main(command)
    rows = study.read(tmp_path / "runs.csv")
    assert [(row.penalty, row.round) for row in rows] == [
        (p, t) for p in ("none", "l1", "PQ Index") for t in (0, 1)
    ]
    assert [row.density for row in rows[:2]] == [1, pytest.approx(0.7)]
    study.main(command)
    assert study.read(tmp_path / "runs.csv") == rows


def test_the_page_has_the_table_of_the_file():
    assert study.table(ROWS) in PAGE
    seeds = {
        key: {arm: len(runs) for arm, runs in ladders.items()} for key, ladders in study.ladders_of(ROWS).items()
    }
    arms = {(p, s) for p, strengths in study.ARMS.items() for s in strengths}
    assert seeds == {f"{data} mlp": dict.fromkeys(arms, 4) for data in ("FashionMNIST", "CIFAR10")}


def test_the_page_counts_the_intervals_below_1():
    ratios = re.findall(r"\| [\d.]+ \(([\d.]+) to ([\d.]+)\) \|", PAGE)
    assert len(ratios) == 6
    below = sum(float(high) < 1 for _, high in ratios)
    text = " ".join(PAGE.split())
    assert f"below 1 in {below} of 6" in text
    found = re.findall(r"\| CIFAR10 mlp \| ([\w ]+) \|.*\| ([\d.]+ %) \|[^|]*\|\n", PAGE)
    none, decay, l1, _ = (value for _, value in found)
    assert f"is {none} without a penalty, {decay} with weight decay and {l1} with $\\ell_1$" in text
