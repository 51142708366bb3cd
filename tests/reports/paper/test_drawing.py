"""Figures of the paper: panels, lines and bars equal the records of real runs."""

from __future__ import annotations

import copy
import itertools
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from palmette.reports.figures import LINES, as_file
from palmette.reports.paper.drawing import PRUNED, RETRAINED, SCOPES, draw
from palmette.reports.paper.layout import Sheet
from palmette.reports.paper.published import FIGURE_3, as_drawn, published, single_rounds
from palmette.reports.paper.runs import FigureRuns, RunCollection, in_folder, variant
from palmette.studies import sweep
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.paper import FIGURES, PaperFigure
from palmette.studies.running import run

KINDS = ("hypothesis", "rounds", "scopes", "p and q", "eta and gamma", "p-q map")
MODEL = "tiny_models:five_layers"
LAYERS = [f"{number}.weight" for number in (1, 3, 5, 7, 9)]
SEEDS = (0, 1)
SCALE = {"seeds": SEEDS, "epochs": 1, "rounds": 2}
DONE = {"stopped": "all rounds are done"}
METHODS = ["SAP (p=0.5, q=1)", "SAP (p=1, q=2)", "Lottery Ticket", "One Shot"]


def figure_of(kind):
    return PaperFigure(f"fig of {kind}", kind, "digits", MODEL)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All runs of all kinds of figures, of a small network, deep in a folder; two seeds where that is drawn."""
    folder = tmp_path_factory.mktemp("results")
    planned = figure_of("rounds").experiments(**SCALE)
    planned += [e for kind in KINDS for e in figure_of(kind).experiments(**SCALE | {"seeds": (0,)})]
    outcomes = sweep.run(planned, folder / "a" / "runs", device="cpu")
    assert set(outcomes.values()) == {"2 rounds are done"}
    return folder


@pytest.fixture(scope="module")
def collection(runs):
    return RunCollection.below([runs], warn=pytest.fail)


def runs_of(collection, kind, **asked):
    return collection.select(figure_of(kind), **asked)


def moments(picture, value, **settings):
    """Mean and deviation over seeds, round by round, of the runs with these settings."""
    many = [records for _, records in picture.only(**settings).runs]
    values = [[value(records[t]) for records in many] for t in range(3)]
    deviations = [statistics.stdev(v) for v in values] if len(many) > 1 else None
    return [statistics.fmean(v) for v in values], deviations


def lines_of(axis):
    """x, y of each line by its name, those of layers without one left out."""
    drawn = {line.get_label(): line.get_xydata().T.tolist() for line in axis.get_lines()}
    return {name: xy for name, xy in drawn.items() if not name.startswith("_")}


def bars_of(axis):
    """Half the length of each error bar, line by line."""
    return [[(high[1] - low[1]) / 2 for low, high in bars.get_segments()] for bars in axis.collections]


SETTINGS = [{"p": 0.5, "q": 1.0}, {"p": 1.0, "q": 2.0}, {"method": "lottery-ticket"}, {"method": "one-shot"}]
PANELS = {
    "Accuracy, %": lambda r: 100 * r["test"]["accuracy"],
    "Remaining weights, %": lambda r: 100 * r["retrained"]["density"],
    "PQ Index": lambda r: r["retrained"]["pq_index"],
    "Gini Index": lambda r: r["retrained"]["gini_index"],
}
AFTER = {
    "Accuracy, %": lambda r: 100 * r["pruned"]["test"]["accuracy"],
    "Accuracy, retrained − pruned, points": lambda r: -100 * r["pruned"]["accuracy_difference"],
    "PQ Index": lambda r: r["pruned"]["pq_index"],
    "PQ Index, retrained − pruned": lambda r: -r["pruned"]["pq_index_difference"],
}


def test_rounds_figure_has_eight_panels_that_equal_the_records(collection):
    picture = runs_of(collection, "rounds")
    axes = draw(picture).axes
    assert [axis.get_title(loc="left") for axis in axes] == [*PANELS, *AFTER]
    for axis, value in zip(axes, [*PANELS.values(), *AFTER.values()], strict=True):
        drawn = lines_of(axis)
        assert list(drawn) == METHODS
        spread = []
        for name, settings in zip(METHODS, SETTINGS, strict=True):
            own = {"method": "sap"} | settings
            mean, deviation = moments(picture, value, **own)
            assert drawn[name] == [[0, 1, 2], pytest.approx(mean)]
            spread += [pytest.approx(deviation)] if any(deviation) else []
        assert bars_of(axis) == spread


def test_panel_titles_do_not_overlap(collection):
    figure = draw(runs_of(collection, "rounds"))
    renderer = FigureCanvasAgg(figure).get_renderer()
    titles = [axis._left_title.get_window_extent(renderer) for axis in figure.axes]
    for left, right in (*itertools.pairwise(titles[:4]), *itertools.pairwise(titles[4:])):
        assert left.x1 + 10 < right.x0


def test_difference_is_retrained_minus_pruned(collection):
    _, records = runs_of(collection, "rounds").only(method="lottery-ticket").runs[0]
    for record in records:
        lost = record["retrained"]["pq_index"] - record["pruned"]["pq_index"]
        assert AFTER["PQ Index, retrained − pruned"](record) == pytest.approx(lost)


def test_scopes_figure_has_trade_off_and_layers_in_three_columns(collection):
    picture = runs_of(collection, "scopes")
    axes = draw(picture).axes
    assert [axis.get_title(loc="left") for axis in axes] == 3 * list(SCOPES.values())
    for row, axis in enumerate(axes):
        scope = list(SCOPES)[row % 3]
        drawn = lines_of(axis)
        if row < 3:
            assert list(drawn) == METHODS
            for name, settings in zip(METHODS, SETTINGS, strict=True):
                own = {"method": "sap", "scope": scope} | settings
                density, _ = moments(picture, PANELS["Remaining weights, %"], **own)
                accuracy, _ = moments(picture, PANELS["Accuracy, %"], **own)
                assert drawn[name] == [pytest.approx(density), pytest.approx(accuracy)]
            continue
        what, scale = ("density", 100) if row < 6 else ("pq_index", 1)
        for name, key in (("first (1)", LAYERS[0]), ("middle (5)", LAYERS[2]), ("last (9)", LAYERS[4])):
            value = lambda r, key=key: scale * r["retrained"]["layers"][key][what]  # noqa: B023, E731
            mean, _ = moments(picture, value, scope=scope, method="sap", p=0.5, q=1.0)
            assert drawn.pop(name) == [[0, 1, 2], pytest.approx(mean)]
        assert drawn == {}
        faint = [line for line in axis.get_lines() if line.get_label().startswith("_")]
        assert len(faint) == 2  # the other layers


def test_two_layers_are_first_and_last(collection):
    picture = runs_of(collection, "scopes")
    runs = [(experiment, copy.deepcopy(records)) for experiment, records in picture.runs]
    for record in (record for _, records in runs for record in records):
        record["retrained"]["layers"] = {name: record["retrained"]["layers"][name] for name in LAYERS[:2]}
    assert list(lines_of(draw(replace(picture, runs=tuple(runs))).axes[3])) == ["first (1)", "last (3)"]


def test_remaining_weights_of_scopes_are_on_logarithmic_axes_unless_asked_otherwise(collection):
    picture = runs_of(collection, "scopes")
    plain, log = draw(picture, log=False).axes, draw(picture).axes
    assert {axis.get_yscale() for axis in draw(runs_of(collection, "rounds")).axes} == {"linear"}
    assert {(axis.get_xscale(), axis.get_yscale()) for axis in plain} == {("linear", "linear")}
    scales = [(axis.get_xscale(), axis.get_yscale(), axis.xaxis_inverted()) for axis in log]
    wanted = [("log", "linear", True), ("linear", "log", False), ("linear", "linear", False)]
    assert scales == [row for row in wanted for _ in SCOPES]
    assert [lines_of(axis) for axis in log] == [lines_of(axis) for axis in plain]


def test_inverted_log_axis_has_ticks_at_powers_of_ten(collection):
    picture = runs_of(collection, "scopes")
    runs = [(experiment, copy.deepcopy(records)) for experiment, records in picture.runs]
    for _, records in runs:
        for record, density in zip(records, (1, 0.1, 0.001), strict=True):
            record["retrained"]["density"] = density
    for axis in draw(replace(picture, runs=tuple(runs)), log=True).axes[:3]:
        low, high = sorted(axis.get_xlim())
        assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [0.1, 1, 10, 100]


def test_columns_of_missing_scopes_say_not_run(collection):
    whole = runs_of(collection, "scopes")
    axes = draw(replace(whole, runs=whole.only(scope="global").runs)).axes
    assert [len(axis.get_lines()) for axis in axes] == [0, 0, 4, 0, 0, 5, 0, 0, 5]
    said = [[text.get_text() for text in axis.texts] for axis in axes]
    assert said == 3 * [["not run"], ["not run"], []]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("p and q", [("p", [0.2, 0.4, 0.5, 0.6, 0.8], {"q": 1.0}), ("q", [1.2, 1.4, 1.6, 1.8, 2], {"p": 1.0})]),
        (
            "eta and gamma",
            [("eta", [0, 0.001, 0.01, 0.1, 1], {"gamma": 1}), ("gamma", [1, 3, 5, 7, 9], {"eta": 0})],
        ),
    ],
)
def test_ablations_vary_one_setting_per_row(collection, kind, rows):
    picture = runs_of(collection, kind)
    axes = draw(picture).axes
    assert [axis.get_title(loc="left") for axis in axes] == 2 * list(PANELS)
    for row, (name, values, fixed) in enumerate(rows):
        for axis, value in zip(axes[4 * row :], PANELS.values(), strict=False):
            drawn = lines_of(axis)
            assert [float(text.split("= ")[1]) for text in drawn] == values
            for setting, xy in zip(values, drawn.values(), strict=True):
                mean, _ = moments(picture, value, **{name: setting}, **fixed)
                assert xy == [[0, 1, 2], pytest.approx(mean)]


def test_map_has_a_row_per_method_and_a_column_per_round(collection):
    picture = runs_of(collection, "p-q map")
    maps = [axis for axis in draw(picture).axes if axis.get_images()]
    assert [axis.get_title(loc="left") for axis in maps] == 4 * [f"$t = {t}$" for t in range(3)]
    for number, axis in enumerate(maps):
        settings, t = {"method": "sap"} | SETTINGS[number // 3], number % 3
        many = [records[t]["index_map"]["pq_index"] for _, records in picture.only(**settings).runs]
        wanted = np.array(many, dtype=float).mean(0)
        drawn = np.ma.filled(axis.get_images()[0].get_array(), np.nan)
        np.testing.assert_allclose(drawn, wanted)
        assert np.argwhere(np.isnan(drawn)).tolist() == [[9, 0]]  # p = q = 1


def test_map_has_no_row_for_a_method_that_was_not_run(collection):
    whole = runs_of(collection, "p-q map")
    part = replace(whole, runs=whole.only(method="lottery-ticket").runs)
    figure = draw(part)
    assert [row.get_suptitle() for row in figure.subfigs] == ["(c) Lottery Ticket"]
    assert [len(axis.get_images()) for axis in figure.axes[:3]] == [1, 1, 1]


def with_curve(picture, accuracies, indices):
    """The one run of a picture, as if it had had these accuracies and indices."""
    experiment, (record, *_) = picture.runs[0]
    records = []
    for t, (accuracy, index) in enumerate(zip(accuracies, indices, strict=True)):
        one = copy.deepcopy(record) | {"round": t}
        one["test"]["accuracy"], one["retrained"]["pq_index"] = accuracy, index
        records.append(one)
    records[-1]["stopped"] = "done"
    return replace(picture, runs=((experiment, records),))


def test_hypothesis_figure_shows_the_phases_found(collection):
    picture = runs_of(collection, "hypothesis")
    top, bottom = draw(picture).axes
    for axis, value in ((top, PANELS["Accuracy, %"]), (bottom, PANELS["PQ Index"])):
        assert lines_of(axis) == {"One Shot": [[0, 1, 2], pytest.approx(moments(picture, value)[0])]}
    curve = with_curve(picture, [0.9, 0.9, 0.9, 0.88, 0.3, 0.1], [0.3, 0.1, 0.2, 0.3, 0.2, 0.1])
    top, _ = draw(curve).axes
    assert [text.get_text().split("\n")[0] for text in top.texts] == ["regularized", "compressed", "collapsed"]
    spans = [(round(p.get_x(), 6), round(p.get_x() + p.get_width(), 6)) for p in top.patches]
    assert spans == [(0, 1.5), (1.5, 3.5), (3.5, 5)]


def test_searches_are_left_out_of_figures(tmp_path):
    run(Experiment(model="linear", epochs=1, rounds=1, tolerance=0.1), tmp_path)
    said = []
    assert RunCollection.below([tmp_path], warn=said.append).runs == {}
    assert said == ["left out: 1 run with a tolerance, whose rounds are those of a search"]


def said_below(figure):
    return " ".join(figure.get_supxlabel().split())


@pytest.mark.parametrize(
    ("accuracies", "indices", "words", "verdict"),
    [
        ([0.9] * 4, [0.4, 0.3, 0.2, 0.1], ["regularized\nindex falls"], "no rise, no collapse"),
        (
            [0.9, 0.9, 0.5, 0.4],
            [0.4, 0.3, 0.2, 0.1],
            ["regularized\nindex falls", "collapsed\naccuracy is lost"],
            "no rise, a collapse from round 2 on",
        ),
        (
            [0.9] * 3,
            [0.1, 0.2, 0.3],
            ["regularized\nindex does not fall", "compressed\nindex rises"],
            "a rise from round 1 on, no collapse",
        ),
    ],
)
def test_hypothesis_figure_claims_no_phase_that_was_not_measured(collection, accuracies, indices, words, verdict):
    figure = draw(with_curve(runs_of(collection, "hypothesis"), accuracies, indices))
    assert [text.get_text() for text in figure.axes[0].texts] == words
    assert said_below(figure).endswith(f"Found: {verdict}.")
    assert " ".join(figure.get_suptitle().split()).endswith("the hypothesis, measured, scaled down")


def test_single_round_has_no_phase(collection):
    figure = draw(runs_of(collection, "hypothesis", rounds=0))
    assert (list(figure.axes[0].texts), list(figure.axes[0].patches)) == ([], [])
    assert said_below(figure).endswith("One round shows neither.")


@pytest.mark.parametrize(("end", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figure_files_are_deterministic(collection, end, begin):
    first, second = (as_file(draw(runs_of(collection, "hypothesis")), end) for _ in range(2))
    assert first == second
    assert first.startswith(begin)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_as_large_png_svg_and_pdf(collection, kind, tmp_path):
    figure = draw(runs_of(collection, kind))
    for end in ("png", "svg", "pdf"):
        (tmp_path / f"figure.{end}").write_bytes(as_file(figure, end))
    height, width, _ = matplotlib.image.imread(tmp_path / "figure.png").shape
    assert min(height, width) > 800


@pytest.mark.parametrize("kind", ["scopes", "p and q"])
def test_lines_differ_in_marker_or_dash(collection, kind):
    for axis in draw(runs_of(collection, kind)).axes:
        named = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
        looks = {(str(line._unscaled_dash_pattern), line.get_marker()) for line in named}
        assert len(looks) == len(named) >= 3


def test_long_caption_stays_within_the_figure(collection):
    whole = runs_of(collection, "eta and gamma")
    part = replace(whole, runs=whole.only(eta=0, gamma=1).runs)
    assert len(part.missing) == 8
    figure = draw(part)
    (caption,) = [text for text in figure.texts if "Not run" in text.get_text()]
    assert caption.get_window_extent(FigureCanvasAgg(figure).get_renderer()).x1 < figure.bbox.width


@pytest.mark.parametrize("kind", KINDS)
def test_title_of_a_narrow_figure_stays_within_it(collection, kind):
    figure = draw(runs_of(collection, kind, rounds=0))
    (title,) = [text for text in figure.texts if text.get_text().startswith("Figure")]
    assert title.get_window_extent(FigureCanvasAgg(figure).get_renderer()).x1 < figure.bbox.width


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_bare_figure_is_as_wide_as_asked_and_has_no_title_or_caption(collection, kind):
    figure = draw(runs_of(collection, kind), sheet=Sheet(width=5.5, bare=True))
    assert figure.get_figwidth() <= 5.5
    assert figure.get_suptitle() == figure.get_supxlabel() == ""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axis in figure.axes:
        for text in (axis.title, axis._left_title):
            box = text.get_window_extent(canvas.get_renderer())
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.width + 1


def test_title_says_that_a_figure_is_scaled_down(collection):
    picture = runs_of(collection, "rounds")
    assert draw(picture).get_suptitle().replace("\n", " ").endswith(", scaled down")
    whole = [
        (replace(e, epochs=200, seed=seed), [records[0]] * 31)
        for e, records in picture.only(seed=0).runs
        for seed in range(4)
    ]
    assert "scaled" not in draw(replace(picture, runs=tuple(whole))).get_suptitle()


@pytest.mark.parametrize(("mean", "deviation", "ends"), [(98, 5, (93, 100)), (1, 3, (0, 4)), (50, 1, (49, 51))])
def test_bars_do_not_leave_the_possible_values(mean, deviation, ends):
    assert RETRAINED["retrained/accuracy"].spread(mean, deviation) == ends


def test_missing_lines_are_named_and_others_keep_their_looks(collection):
    whole = runs_of(collection, "rounds")
    part = replace(whole, runs=tuple(run for run in whole.runs if run[0].method != "sap"))
    assert "Not run: SAP (p=0.5, q=1); SAP (p=1, q=2)." in part.caption
    assert "Not run" not in whole.caption
    axis = draw(part).axes[0]
    assert [line.get_color() for line in axis.get_lines()] == [look["color"] for look in LINES[2:4]]


@pytest.mark.parametrize(
    ("kind", "settings", "missing"),
    [
        ("scopes", {"scope": "global"}, "scopes other than global"),
        ("p and q", {"p": 0.5}, "a second p at q = 1, or q at p = 1"),
        ("eta and gamma", {"eta": 0, "gamma": 1}, "a second η_r at γ = 1, or γ at η_r = 0"),
        ("p and q", {"q": 1}, ""),
        ("eta and gamma", {"eta": 0}, ""),
        ("rounds", {"method": "one-shot"}, ""),
    ],
)
def test_missing_contrast_of_figures_with_one_value(collection, kind, settings, missing):
    whole = runs_of(collection, kind)
    assert whole.missing_contrast == ""
    assert replace(whole, runs=whole.only(**settings).runs).missing_contrast == missing


def test_one_value_per_row_is_no_contrast(collection):
    whole = runs_of(collection, "p and q")
    runs = (*whole.only(p=0.5, q=1.0).runs, *whole.only(p=1.0, q=2.0).runs)  # those that Figure 2 has too
    assert replace(whole, runs=runs).missing_contrast == "a second p at q = 1, or q at p = 1"


def test_unfinished_run_is_drawn_as_far_as_it_goes(collection):
    whole = runs_of(collection, "rounds")
    runs = [(e, records[: 1 + (e.label == METHODS[0])]) for e, records in whole.runs]
    part = replace(whole, runs=tuple(runs))
    assert [len(xy[0]) for xy in lines_of(draw(part).axes[0]).values()] == [2, 1, 1, 1]
    assert "rounds 0 to 1 (of 2, 6 of 8 runs up to 0, not all at their end)" in part.caption


def test_caption_counts_runs_that_are_behind(collection):
    whole = runs_of(collection, "rounds")
    (first, records), (second, more), *others = whole.runs
    late = replace(whole, runs=((first, records[:1]), (second, more[:2]), *others))
    assert "in each of rounds 0 to 2 (2 of 8 runs up to 0–1, not all at their end), 2 seeds" in late.caption
    short = replace(whole, runs=((replace(first, rounds=1), [records[0], records[1] | DONE]), *whole.runs[1:]))
    assert "in each of rounds 0 to 2 (1 of 8 runs up to 1), 2 seeds" in short.caption
    assert "nothing left" not in short.caption
    begun = runs_of(collection, "rounds", rounds=1)  # of runs that went on to round 2
    short = replace(begun, runs=((replace(first, rounds=0), [records[0] | DONE]), *begun.runs[1:]))
    assert "in each of rounds 0 to 1 (1 of 8 runs up to 0), 2 seeds" in short.caption
    assert "in round 0, 2 seeds" in runs_of(collection, "rounds", rounds=0).caption


def test_unfinished_runs_do_not_claim_the_papers_protocol(collection):
    figure = FIGURES["fig2"]
    _, records = runs_of(collection, "rounds").runs[0]
    planned = tuple(figure.experiments())
    ended = [records[0]] * 30 + [records[0] | DONE]
    picture = FigureRuns(figure, tuple((e, ended) for e in planned), planned)
    assert picture.caption.startswith("The paper's protocol: 200 epochs in each of rounds 0 to 30, 4 seeds.")
    stopped = replace(picture, runs=(*picture.runs[:-1], (replace(planned[-1], stop="small-cut:0.01"), ended)))
    assert stopped.caption.startswith("Here 200 epochs")
    late = replace(picture, runs=(*picture.runs[:-1], (planned[-1], [records[0]] * 4)))
    assert late.caption.startswith(
        "Here 200 epochs in each of rounds 0 to 30 (1 of 16 runs up to 3, not all at their end), 4"
    )


def test_line_ends_with_its_shortest_run(collection):
    whole = runs_of(collection, "rounds")
    (first, records), *others = whole.runs
    early = [records[0], records[1] | {"stopped": "the last step cut nothing"}]
    part = replace(whole, runs=((first, early), *others))
    uneven = f"Means go as far as all of their runs: {first.label} to round 1 (others to 2)."
    assert f"{uneven} Runs that end early had nothing left to cut." in part.caption
    stopped = replace(part, runs=((replace(first, stop="small-cut:0.01"), early), *others))
    assert "Runs that end early had nothing left to cut or were stopped." in stopped.caption
    assert re.findall("Means go|end early", whole.caption) == []
    figure = draw(part)
    assert uneven in said_below(figure)
    for axis in figure.axes:
        assert {name: len(xy[0]) for name, xy in lines_of(axis).items()} == {
            name: 2 if name == first.label else 3 for name in METHODS
        }
    maps = draw(replace(part, figure=figure_of("p-q map"))).axes
    said = [text.get_text() for axis in maps for text in axis.texts if text.get_text() != "×"]
    assert said == ["not reached\nby all runs"]


def test_figure_without_runs_is_refused(collection):
    with pytest.raises(ValueError, match="no run with a finished round"):
        draw(replace(runs_of(collection, "rounds"), runs=()))


# captions and names


def test_caption_and_name_state_the_scaling(collection):
    picture = runs_of(collection, "rounds")
    assert picture.caption.startswith(
        "Here 1 epoch in each of rounds 0 to 2, 2 seeds; in the paper 200 epochs in each of rounds 0 to "
        "15, 4 seeds. Gradients are clipped over all weights, as in the authors' code. Lines are means, bars one "
        "standard deviation"
    )
    assert picture.name == "fig of rounds-e1-t2-n2"
    kept = replace(picture, runs=tuple((replace(e, clip_over="kept"), found) for e, found in picture.runs))
    assert "Gradients are clipped over kept weights, in the authors' code over all." in kept.caption
    assert kept.name == "fig of rounds-e1-t2-n2-clip-kept"
    other = replace(picture, figure=replace(picture.figure, name="fig3"))
    assert f"2 seeds of {MODEL} on digits; in the paper 200 epochs in each of rounds 0 to 15, " in other.caption
    assert "4 seeds of ResNet18 on CIFAR10." in other.caption
    assert other.name == "fig3-digits-tiny_models-five_layers-e1-t2-n2"
    assert "One seed, so no error bars" in runs_of(collection, "rounds", seeds=[1]).caption


def test_caption_names_lines_with_other_numbers_of_seeds(collection):
    whole = runs_of(collection, "rounds")
    part = replace(whole, runs=tuple(r for r in whole.runs if r[0].method != "one-shot" or not r[0].seed))
    assert part.caption.startswith("Here 1 epoch in each of rounds 0 to 2, 2 seeds (1 of One Shot); in the paper")
    assert "bars one standard deviation over seeds where there are several." in part.caption
    assert part.name == "fig of rounds-e1-t2-n1-2"
    assert "several" not in whole.caption
    scopes = runs_of(collection, "scopes")  # two seeds of what Figure 2 has too
    assert ", 1 seed (2 of global scope);" in scopes.caption
    assert scopes.name == "fig of scopes-e1-t2-n1-2"


def test_name_has_the_last_finished_round(collection):
    planned = tuple(replace(e, rounds=4) for e in figure_of("rounds").experiments(**SCALE))
    under_way = [
        (e, [r | {"stopped": None} for r in records]) for e, records in runs_of(collection, "rounds").runs
    ]
    begun = FigureRuns(figure_of("rounds"), tuple(under_way), planned)
    assert begun.name == "fig of rounds-e1-t2-n2"
    assert "rounds 0 to 2 (of 4, not all at their end)" in begun.caption
    ended = [(e, [*records[:-1], records[-1] | DONE]) for e, records in under_way]  # with nothing left to cut
    assert replace(begun, runs=tuple(ended)).name == "fig of rounds-e1-t4-n2"


def test_caption_of_the_papers_protocol(collection):
    figure = FIGURES["fig2"]
    _, records = runs_of(collection, "rounds").runs[0]
    planned = tuple(figure.experiments())
    picture = FigureRuns(figure, tuple((e, records) for e in planned), planned)
    assert picture.name == "fig2"
    assert picture.caption.startswith("The paper's protocol: 200 epochs in each of rounds 0 to 30, 4 seeds.")
    rounded = tuple((replace(e, precision="tf32"), records) for e in planned)
    assert "4 seeds, precision tf32; in the paper" in replace(picture, runs=rounded).caption
    assert replace(picture, runs=rounded).name == "fig2-precision-tf32"
    slower = tuple((replace(e, learning_rate=0.05), records) for e in planned)
    assert replace(picture, runs=slower).name == "fig2-learning-rate-0-05"


# runs of a folder


def test_runs_are_found_at_any_depth_and_the_longest_copy_is_taken(runs, collection, tmp_path):
    picture = runs_of(collection, "rounds")
    assert len(picture.runs) == 8
    longer = replace(picture.runs[0][0], rounds=3)
    assert variant(longer) == variant(picture.runs[0][0])
    sweep.run([longer], tmp_path / "other", device="cpu")
    both = RunCollection.below([runs, tmp_path], warn=pytest.fail)
    lengths = [len(records) for _, records in runs_of(both, "rounds").runs]
    assert sorted(lengths) == [3] * 7 + [4]
    cut = runs_of(both, "rounds", rounds=1)
    assert {len(records) for _, records in cut.runs} == {2}
    assert "rounds 0 to 1, 2 seeds" in cut.caption
    assert runs_of(collection, "rounds", seeds=[5]) is None
    assert collection.select(FIGURES["fig2"]) is None


def test_differently_trained_runs_are_not_mixed(runs, tmp_path):
    other = Experiment(model=MODEL, method="lottery-ticket", epochs=2, rounds=0)
    sweep.run([other], tmp_path, device="cpu")
    both = RunCollection.below([runs, tmp_path], warn=pytest.fail)
    with pytest.raises(ValueError, match=r"differ in epochs \(1, 2\).*choose with --epochs"):
        runs_of(both, "rounds")
    assert len(runs_of(both, "rounds", epochs=1).runs) == 8
    (run,) = runs_of(both, "rounds", epochs=2).runs
    assert run[0] == other


@pytest.mark.parametrize("content", ["{}\n", "no record\n"])
def test_damaged_run_is_reported_and_left_out(tmp_path, content):
    experiment = Experiment(model=MODEL, method="one-shot", epochs=1, rounds=0)
    rundir = RunDir(tmp_path / experiment.id)
    sweep.run([experiment], tmp_path, device="cpu")
    rundir.records_file.write_text(content)
    said = []
    assert runs_of(RunCollection.below([tmp_path], warn=said.append), "rounds") is None
    assert [str(rundir.records_file) in text for text in said] == [True]
    rundir.experiment.write_text("p = 7\n")
    assert RunCollection.below([tmp_path], warn=said.append).runs == {}
    assert len(said) == 2
    assert in_folder(figure_of("rounds"), [experiment], tmp_path).runs == ()


# published values


def marks_of(axis):
    return [line.get_xydata().tolist() for line in axis.get_lines() if line.get_linestyle() == "None"]


def test_figure_3_has_published_values(collection):
    values = published(FIGURES["fig3"])
    axes = draw(runs_of(collection, "rounds"), published=values).axes
    assert [1.0, 69.8] in marks_of(axes[1])[0]  # SAP (.5, 1) keeps 69.8 % after one round
    assert marks_of(axes[1])[1][:2] == [[1.0, 29.7], [2.0, 12.0]]
    for axis, key in zip(axes, ("accuracy", "remaining", "pq_index", "gini_index"), strict=False):
        names = ("sap_p0.5_q1", "sap_p1_q2", "lottery_ticket", "one_shot")
        wanted = [values.get((f"retrained/{key}", name), []) for name in names]
        assert marks_of(axis) == [[list(point) for point in points] for points in wanted if points]
    (legend,) = (part.legends[0] for part in axes[0].get_figure(root=True).subfigs if part.legends)
    assert legend.get_texts()[-1].get_text() == "published (Diao et al. 2023)"
    assert published(FIGURES["fig2"]) == {}


def test_panels_of_a_row_share_the_x_axis(collection):
    whole = runs_of(collection, "rounds")
    part = replace(whole, runs=whole.only(method="sap", p=1, q=2).runs)  # four published densities, 16 accuracies
    axes = draw(part, published=published(FIGURES["fig3"])).axes
    assert [len({axis.get_xlim() for axis in row}) for row in (axes[:4], axes[4:])] == [1, 1]


def test_every_published_value_has_a_panel():
    assert {panel for panel, _ in published(FIGURES["fig3"])} <= {*RETRAINED, *PRUNED}


def test_bundled_values_are_those_of_the_paper():
    values = published(FIGURES["fig3"])
    folder = Path(__file__).parents[3] / "src/palmette/reports/paper/published_values"
    assert [file.name for file in folder.iterdir()] == [FIGURE_3]
    assert dict(values["retrained/pq_index", "sap_p1_q2"])[9] == pytest.approx(0.68, abs=0.01)
    assert json.dumps(values["retrained/remaining", "one_shot"][:2]) == "[[0.0, 100.0], [1.0, 80.0]]"


COLLAPSED = [
    ("retrained/accuracy", "sap_p1_q2"),
    ("pruned/accuracy", "sap_p1_q2"),
    ("pruned/accuracy", "one_shot"),
]


@pytest.mark.parametrize(("panel", "method"), COLLAPSED)
def test_published_accuracies_of_collapsed_networks_convert_to_chance(panel, method):
    late = [accuracy for t, accuracy in published(FIGURES["fig3"])[panel, method] if t >= 10]
    assert len(late) >= 4
    assert all(accuracy == pytest.approx(10, abs=1.5) for accuracy in late)


def test_running_means_convert_to_single_rounds():
    retrained, pruned = [90.0, 91.0, 70.0, 10.0], [88.0, 60.0, 10.0, 10.0]

    def so_far(accuracies):
        return [(t, sum(accuracies[: t + 1]) / (t + 1)) for t in range(len(accuracies))]

    means = {
        ("retrained/accuracy", "sap"): so_far(retrained),
        ("pruned/accuracy", "sap"): so_far(pruned),
        ("pruned/accuracy", "one_shot"): so_far(pruned),
        ("pruned/accuracy_difference", "sap"): so_far([a - b for a, b in zip(retrained, pruned, strict=True)]),
        # As the authors' code has it: One Shot's is to what was left of the same network a round before.
        ("pruned/accuracy_difference", "one_shot"): [
            (t, before - now)
            for (t, now), before in zip(
                so_far(pruned), [retrained[0], *dict(so_far(pruned)).values()], strict=False
            )
        ],
        ("retrained/pq_index", "sap"): [(0, 0.3), (1, 0.2)],
    }
    apart = single_rounds(means)
    values = {key: [value for _, value in line] for key, line in apart.items()}
    assert values["retrained/accuracy", "sap"] == pytest.approx(retrained)
    assert values["pruned/accuracy", "sap"] == pytest.approx(pruned)
    assert values["pruned/accuracy_difference", "sap"] == pytest.approx([2, 31, 60, 0])
    assert values["pruned/accuracy_difference", "one_shot"] == pytest.approx([2, 28, 50, 0])
    assert apart["retrained/pq_index", "sap"] == [(0, 0.3), (1, 0.2)]


def test_documented_accuracies_of_figure_3_match_the_bundled_values():
    text = (Path(__file__).parents[3] / "docs" / "differences.md").read_text()
    rows = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 12
    }
    rounds, drawn, apart, index = (
        rows[name] for name in ("round", "accuracy as drawn, %", "accuracy of the round, %", "PQ Index")
    )
    values = published(FIGURES["fig3"])

    def sap(found, *panels):
        return [dict(found[panel, "sap_p1_q2"]) for panel in panels]

    for t, mean, accuracy, pq in zip(map(int, rounds), drawn, apart, index, strict=True):
        for found, shown in ((as_drawn(), mean), (values, accuracy)):
            line, cut, apart_by = sap(found, "retrained/accuracy", "pruned/accuracy", "pruned/accuracy_difference")
            value = line[t] if t in line else cut[t] + apart_by[t]  # what is hidden is the sum of two others
            # In round 6 the page takes apart one mean that is read and one that is such a sum.
            assert float(shown) == pytest.approx(value, abs=0.06 if t != 6 else 0.5)
        (line,) = sap(values, "retrained/pq_index")
        assert pq == (f"{line[t]:.3f}" if t in line else "")
