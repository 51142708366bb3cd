"""How far: a sentence for each method, in `palmette run`, `show` and the report."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from palmette.cli import main
from palmette.reports.figures import draw
from palmette.reports.html.bracket import brackets
from palmette.reports.html.series import studies
from palmette.reports.limits import answer, how_far, limit_of
from palmette.studies.experiment import Experiment

DENSITIES = {0: 1000, 1: 250, 2: 60, 3: 120, 4: 110, 5: 120, 6: 110}


def searched(
    seed=0, *, scores=(0.95, 0.95, 0.90, 0.945, 0.93, 0.946, 0.931), rounds=6, stopped="the bracket is closed"
):
    """Run of a search that ends with 12% of 1,000 weights good and 11% bad."""
    records = []
    for t, score in enumerate(scores[: rounds + 1]):
        kept = DENSITIES[t]
        search = {"score": score, "error": None, "start": max(0, t - 1) if t else None}
        search |= {"repeats": {5: 3, 6: 4}.get(t), "answer": 5, "good_density": 0.12, "bad_density": 0.11}
        numbers = {"total": 1000, "kept": kept, "density": kept / 1000, "pq_index": 0.1, "gini_index": 0.3}
        records.append(
            {
                "round": t,
                "train": {"loss": 0.1, "accuracy": 0.9},
                "test": {"loss": 0.1, "accuracy": score - 0.01},
                "validation": {"loss": 0.1, "accuracy": score, "error": None},
                "retrained": {**numbers, "dead_neurons": 0, "layers": {"w": {**numbers, "dead_neurons": 0}}},
                "pruned": {"test": {"loss": 0.1, "accuracy": 0.5}, "pq_index": 0.1},
                "cut": {"weights": 1, "layers": {"w": 1}},
                "index_map": {"p": [0.5], "q": [1.0], "pq_index": [[0.1]]},
                "good": score >= 0.94,
                "stopped": stopped if t == rounds else None,
                "search": search,
            }
        )
    return Experiment(method="interpolate", tolerance=0.01, seed=seed), records


def test_one_run_says_how_far_and_how_sure():
    (line,) = how_far([searched()])
    assert line == (
        "Interpolate: within 0.01 of dense down to 12% of the weights; 11% is too few; 6 retrainings "
        "(each end trained twice)"
    )


def test_several_seeds_share_a_sentence_with_their_range():
    (line,) = how_far([searched(0), searched(1)])
    assert line == (
        "Interpolate: within 0.01 of dense down to 12.0% of the weights; 11.0% "
        "is too few; 6.0 retrainings; both ends trained twice in 2 of 2 runs"
    )


def test_a_search_that_ran_out_of_rounds_says_so():
    limit = limit_of(searched(rounds=1, stopped="all retrainings are used"))
    assert str(limit) == (
        "within 0.01 of dense down to 25% of the weights; fewer were not tried; 1 retraining (all retrainings are "
        "used)"
    )


def test_the_picture_has_a_dot_for_each_good_network_and_a_cross_for_each_bad_one():
    (study,) = studies([searched()])
    picture = brackets(study.series[0])
    assert picture.count("<circle") == 4
    assert picture.count("<path") == 3
    assert picture.count("<rect") == 1
    assert "good down to 12%, too few at 11%" in picture


def test_the_figure_of_searches_shows_every_network_and_rings_the_one_found():
    (axis,) = draw([searched(0), searched(1)]).axes
    sizes = [line.get_markersize() for line in axis.lines if len(line.get_xdata())]
    assert sum(size > 10 for size in sizes) == 2
    assert sum(size < 10 for size in sizes) == 14
    assert axis.get_xlim()[0] > axis.get_xlim()[1]


def test_a_run_without_a_search_has_no_picture():
    _, records = searched()
    plain = [{k: v for k, v in record.items() if k not in ("search", "good")} for record in records]
    (study,) = studies([(Experiment(method="lottery-ticket"), plain)])
    assert brackets(study.series[0]) == ""
    assert how_far([(Experiment(method="lottery-ticket"), plain)])[0].startswith("Lottery Ticket: in hindsight")


def ran(method, accuracies, seed=0):
    records = [
        {
            "round": t, "test": {"accuracy": a}, "validation": None, "stopped": None,
            "retrained": {"density": 0.5**t, "pq_index": 0.1},
        }
        for t, a in enumerate(accuracies)
    ]  # fmt: skip
    return Experiment(method=method, seed=seed), records


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([ran("one-shot", [0.9])], "No cut was trained."),
        ([ran("one-shot", [0.9, 0.8])], "No cut stays within 0.01 of dense (in hindsight)."),
        (
            [ran("one-shot", [0.9, 0.9]), ran("lottery-ticket", [0.9, 0.9, 0.9])],
            "No limit was reached: both runs ended within 0.01 of dense (in hindsight), Lottery Ticket at a "
            "density of 25.0%.",
        ),
        (
            [ran("one-shot", [0.9, 0.9, 0.7]), ran("lottery-ticket", [0.9, 0.9, 0.9, 0.7])],
            "Lottery Ticket goes furthest within 0.01 of dense (in hindsight): a density of 25.0%; next is One "
            "Shot at 50.0%.",
        ),
        (
            [ran("one-shot", [0.9, 0.9, 0.7]), ran("lottery-ticket", [0.9, 0.9, 0.7])],
            "One Shot goes furthest within 0.01 of dense (in hindsight): a density of 50.0%, a tie with Lottery "
            "Ticket at 50.0%.",
        ),
        (
            [ran("one-shot", [0.9, 0.9, 0.7]), ran("one-shot", [0.9, 0.9], seed=1)],
            "One Shot: in hindsight within 0.01 of dense down to 50.0% of the weights; 1 of 2 runs ended there",
        ),
        (
            [ran("one-shot", [0.9, 0.9, 0.7]), ran("lottery-ticket", [0.9, 0.9, 0.9])],
            "Lottery Ticket goes furthest within 0.01 of dense (in hindsight): a density of 25.0%; next is One "
            "Shot at 50.0%; the run ended there, so it may go further.",
        ),
    ],
)
def test_the_answer_is_one_sentence_that_claims_no_more_than_the_runs_show(runs, said):
    assert answer(runs) == said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A search of `palmette run`, small and real."""
    out = tmp_path_factory.mktemp("search")
    flags = [
        "--model",
        "linear",
        "--epochs",
        "1",
        "--rounds",
        "3",
        "--seeds",
        "0",
        "--method",
        "interpolate",
        "--json",
    ]
    result = CliRunner().invoke(
        main, ["run", *flags, "--tolerance", "0.05", "--out", str(out)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return out, json.loads(result.output.splitlines()[-1])


def test_run_ends_with_how_far(folder):
    _, last = folder
    (line,) = last["how_far"]
    line = line.removesuffix("; too few held-out data to measure such a loss")
    assert re.fullmatch(
        r"Interpolate: within 0\.05 of dense down to .* of the weights; .*retrainings? \(.*\)", line
    )


def test_show_prints_the_limit_and_each_verdict(folder):
    out, _ = folder
    (run,) = [path for path in out.iterdir() if path.is_dir()]
    text = CliRunner().invoke(main, ["show", str(run)], catch_exceptions=False).output
    assert re.search("how far +within 0.05 of dense", text)
    assert re.search("held-out +verdict", text)
    found = json.loads(CliRunner().invoke(main, ["show", str(run), "--json"], catch_exceptions=False).output)
    assert found["how_far"].startswith("within 0.05 of dense")


def test_the_report_leads_with_how_far(folder, tmp_path):
    file = tmp_path / "a.html"
    CliRunner().invoke(main, ["report", str(folder[0]), "-o", str(file)], catch_exceptions=False)
    text = file.read_text()
    assert re.search(
        r'<div class="verdict">\s*<p>About \d+% of the weights can go within 0\.05 of the dense',
        text.replace("&nbsp;", " "),
    )
    assert 'aria-label="Networks tried by density' in text
