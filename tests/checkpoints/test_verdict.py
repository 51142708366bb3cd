"""Verdicts and warnings of a report."""

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.checkpoints.verdict import gaussian_index


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
    return pm.how_compressible(model).warnings


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
        "25% of the weights are zero already. They count as weights here and go first, so that a cut takes less "
        "than it says.",
        "10 of 40 neurons have no weight but zeros.",
    )
    assert "b.weight: nothing but zeros." in warned(a=torch.randn(4, 4), b=torch.zeros(4, 4))


def test_quantised_weights_are_named():
    levels = torch.randn(100, 100).mul(10).round().div(10)
    assert any("no more than 256 different magnitudes" in text for text in warned(w=levels))
    assert not warned(w=torch.randn(100, 100).half().float())
