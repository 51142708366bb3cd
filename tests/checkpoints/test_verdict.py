"""Verdicts and warnings of a report."""

import re
from pathlib import Path

import make_headroom
import pytest
import torch
from make_headroom import recorded
from torch import nn

import palmette as pm
from palmette.checkpoints.verdict import CALIBRATION, NOT_A_LIMIT, NOT_SAFE, gaussian_index


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (torch.rand(100, 100) + 1, "flatter than Gaussian noise (0.153)"),
        (torch.randn(100, 100), "about that of Gaussian noise (0.153)"),
        (torch.randn(100, 100) ** 3, "more unequal than Gaussian noise (0.153)"),
    ],
)
def test_verdict_compares_the_index_with_noise(weights, words):
    model = nn.Linear(100, 100, bias=False)
    model.weight.data = weights
    report = pm.how_compressible(model)
    assert words in report.verdict[1]
    assert not report.warnings
    assert f"{report.whole.sap_cut['global'] / 10_000:.1%}" in report.verdict[0]


def test_gaussian_index_is_that_of_many_gaussian_numbers():
    w = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    for p, q in ((0.5, 1.0), (1.0, 2.0), (0.3, 1.7)):
        assert gaussian_index(p, q) == pytest.approx(float(pm.pq_index(w, p=p, q=q)), abs=2e-3)


def warned(**weights):
    model = nn.ModuleDict({n: nn.Linear(w.shape[1], w.shape[0], bias=False) for n, w in weights.items()})
    for name, w in weights.items():
        model[name].weight.data = w
    return pm.how_compressible(model, zeros="count").warnings


def test_layer_that_would_lose_everything_is_named():
    said = warned(large=torch.randn(50, 50), tiny=torch.randn(10, 10) * 1e-9)
    assert said == (
        "tiny.weight would lose everything in scope global: nothing would pass; exclude it, or change the scope.",
    )
    nearly = torch.randn(20, 20) * 1e-9
    nearly[0, 0] = 1
    assert "nearly.weight would keep less than 1% in scope global." in warned(
        large=torch.randn(80, 80), nearly=nearly
    )


def test_sparse_and_dead_weights_are_named():
    w = torch.randn(40, 40)
    w[:10] = 0
    assert warned(w=w) == (
        "400 of 1,600 weights are zero already. They count as weights here and go first, so that a cut takes less "
        "than it says.",
        "10 of 40 neurons have only zero weights.",
    )
    assert "b.weight: all zeros." in warned(a=torch.randn(4, 4), b=torch.zeros(4, 4))


def test_quantized_weights_are_named():
    levels = torch.randn(100, 100).mul(10).round().div(10)
    assert any("no more than 256 different magnitudes" in text for text in warned(w=levels))
    sparse = torch.randn(100, 100) * (torch.rand(100, 100) < 0.02)  # about 200 numbers cannot have more magnitudes
    assert not any("magnitudes" in text for text in warned(w=sparse))
    assert not warned(w=torch.randn(100, 100).half().float())


def test_verdict_calls_the_cut_a_first_one_and_never_a_limit():
    report = pm.how_compressible(nn.Linear(100, 100))
    assert report.verdict[0].startswith("A first cut before retraining: ")
    assert report.verdict[2:] == (NOT_A_LIMIT, CALIBRATION)
    assert "may go at most" not in " ".join(report.verdict)


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        (pm.Sap(p=1, q=2), ""),
        (pm.Sap(gamma=3), "Cuts at p=0.5, q=1, eta=0, gamma=3 were not tested without retraining. "),
        (pm.Sap(p=1, q=1.5), "Cuts at p=1, q=1.5, eta=0, gamma=1 were not tested without retraining. "),
    ],
)
def test_cuts_that_are_not_calibrated_are_warned_about_unless_they_were_scored(budget, named):
    model = nn.Linear(100, 100)
    report = pm.how_compressible(model, budget=budget)
    assert report.warnings == (named + NOT_SAFE,)
    assert report.verdict[2:] == (NOT_A_LIMIT,)
    scored = pm.how_compressible(model, budget=budget, evaluate=lambda m: (m.weight != 0).double().mean())
    assert scored.warnings == ()
    assert scored.verdict[2].startswith("Without retraining, ")
    assert ", which costs " in scored.verdict[2]
    assert not pm.how_compressible(model, budget=pm.Sap(gamma=0.5, beta=0.1)).warnings


def test_verdict_quotes_the_numbers_on_record():
    lines = [line for line in recorded() if line.scope == "global"]
    mild, strong = ([line for line in lines if (line.p, line.q) == pair] for pair in ((0.5, 1), (1, 2)))
    good = [line for line in mild if line.within]
    numbers = [f"{min(x.factor for x in good):.1f}", f"{max(x.factor for x in good):.1f}"]
    said = re.findall(r"\d+(?:\.\d+)?", CALIBRATION.replace("MobileNetV2", ""))
    assert said == [str(len(mild)), "0.01", "5", str(len(good)), *numbers]
    assert [line.network for line in mild if not line.within] == ["MobileNetV2 features"]
    bad = [line for line in strong if not line.within]
    points = max(100 * (line.dense - line.score_suggested) for line in bad if "accuracy" in line.score)
    perplexity = next(line for line in bad if "perplexity" in line.score)
    said = re.findall(r"\d+(?:\.\d+)?", NOT_SAFE.partition("global ")[2])
    rises = [f"{perplexity.dense:.0f}", f"{perplexity.score_suggested:.0f}"]
    assert said == [str(len(bad)), str(len(strong)), f"{points:.1f}", *rises]


def test_page_shows_the_numbers_on_record():
    page = (Path(make_headroom.__file__).parent / "without-retraining.md").read_text(encoding="utf-8")
    for table in (make_headroom.network_table, make_headroom.scope_table):
        assert table(recorded()) in page
