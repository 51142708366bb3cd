"""The sensitivity curve as a picture."""

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.reports.figures import as_file
from palmette.reports.html.checkpoint_page import page
from palmette.reports.sensitivity import draw


@pytest.fixture(scope="module")
def report():
    model = nn.Linear(10, 1, bias=False)
    model.weight.data = torch.arange(1.0, 11.0)[None]
    return pm.how_compressible(model, evaluate=lambda m: m.weight.sum() / 55, tolerance=0.2)


def test_each_scope_is_a_curve_with_two_marks(report):
    axis = draw(report.headroom, title="ten weights", score="share of 55").axes[0]
    lines = axis.get_lines()
    curve, largest, suggested = (line.get_xydata().tolist() for line in lines[:3])
    assert [x for x, _ in curve] == pytest.approx([100, 80, 70, 60, 50])
    assert largest == [[pytest.approx(60), pytest.approx(45 / 55)]]
    assert suggested == [[100.0, 1.0]]
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts[0] == "scope neuron: 40% can go, 0% suggested"
    assert len(texts) == 4
    assert axis.xaxis_inverted()
    assert (axis.get_title(loc="left"), axis.get_ylabel()) == ("ten weights", "share of 55")


def test_losses_are_shaded_above_the_tolerance(report):
    model = nn.Linear(10, 1, bias=False)
    model.weight.data = torch.arange(1.0, 11.0)[None]
    found = pm.how_compressible(
        model, evaluate=lambda m: 100 - m.weight.sum(), tolerance=5, maximize=False, scopes=["global"]
    ).headroom
    axis = draw(found).axes[0]
    low, high = axis.get_ylim()
    assert low < 45 < 50 < high
    assert axis.patches[0].get_y() == pytest.approx(50)


def test_png_of_the_curve_is_deterministic(report):
    first, second = (as_file(draw(report.headroom), "png") for _ in range(2))
    assert first == second


def test_no_curve_is_refused():
    with pytest.raises(ValueError, match=r"headroom must hold at least one scope, got none; it comes from"):
        draw(())


def test_page_of_a_checkpoint_lists_every_cut_that_was_tried(report):
    text = page(report)
    assert "<h2>Without retraining</h2>" in text
    assert text.count("<td>largest</td>") == text.count("<td>suggested</td>") == 3
    assert text.count('<tr><td class="name">global</td>') == len(report.headroom[2].curve) + 1
