"""The figure of `palmette run`: curves, and styles that differ without colour."""

from __future__ import annotations

import io
import sys

import matplotlib.image
import pytest

from palmette.reports.figures import LINES, PANELS, as_file, draw
from palmette.studies.experiment import Experiment

METHODS = [Experiment(), Experiment(p=1, q=2), Experiment(method="lottery-ticket"), Experiment(method="one-shot")]


def records(accuracies, index=0.1):
    return [
        {"round": t, "test": {"accuracy": a}, "retrained": {"density": 0.5**t, "pq_index": index}}
        for t, a in enumerate(accuracies)
    ]


def test_a_line_is_the_mean_to_the_end_of_the_shortest_run():
    runs = [(Experiment(seed=0), records([0.9, 0.5])), (Experiment(seed=1), records([0.7]))]
    axis = draw(runs).axes[0]
    assert axis.get_lines()[0].get_xydata().tolist() == [[0.0, pytest.approx(80.0)]]
    assert len(axis.get_lines()) == 1


def test_a_missing_index_leaves_a_gap():
    runs = [(Experiment(), records([0.9, 0.8], index=None))]
    assert draw(runs).axes[1].get_lines() == []


def test_scores_of_any_kind_are_drawn_as_they_are():
    perplexities = records([None, None])
    for record, score in zip(perplexities, (30.0, 31.0), strict=True):
        record["test"]["score"] = score
    axis = draw([(Experiment(), perplexities)]).axes[0]
    assert axis.get_lines()[0].get_ydata().tolist() == [30.0, 31.0]
    assert axis.get_title(loc="left") == "Test score by round"


def test_each_method_has_its_own_colour_line_and_marker():
    figure = draw([(e, records([0.9, 0.8, 0.7])) for e in METHODS])
    assert len(figure.axes) == len(PANELS)
    for axis in figure.axes:
        drawn = axis.get_lines()
        assert len({(line.get_marker(), line.get_color()) for line in drawn}) == len(METHODS)
    assert len({str(line["linestyle"]) for line in LINES[:4]}) == 4
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["SAP (p=0.5, q=1)", "SAP (p=1, q=2)", "Lottery Ticket", "One Shot"]


def test_pruning_proceeds_to_the_right():
    figure = draw([(Experiment(), records([0.9, 0.8, 0.7]))])
    assert [axis.xaxis_inverted() for axis in figure.axes] == [panel.falling for panel in PANELS]


def test_png_is_deterministic():
    runs = [(e, records([0.9, 0.8, 0.7])) for e in METHODS]
    first, second = (as_file(draw(runs, caption="small"), "png") for _ in range(2))
    assert first == second
    height, width, _ = matplotlib.image.imread(io.BytesIO(first)).shape
    assert min(height, width) > 500


def test_a_single_round_has_an_integer_tick():
    figure = draw([(Experiment(), records([0.9]))])
    assert as_file(figure, "png").startswith(b"\x89PNG")
    left, right = figure.axes[0].get_xlim()
    assert [tick for tick in figure.axes[0].get_xticks() if left <= tick <= right] == [0]


def test_networks_without_weights_are_left_out_on_a_logarithmic_axis():
    found = records([0.9, 0.8, 0.1])
    found[2]["retrained"]["density"] = 0.0
    panels = draw([(Experiment(), found)]).axes
    assert [len(axis.get_lines()[0].get_xdata()) for axis in panels] == [3, 3, 2, 2]


def test_missing_matplotlib_error_has_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'palmette\[report\]'"):
        draw([])
