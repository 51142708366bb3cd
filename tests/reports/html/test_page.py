"""HTML report: numbers, grouping, verdict and notices."""

from __future__ import annotations

import re
import shutil
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from report_runs import embedded, made_of, rows_of, run_of, small_runs
from torch import nn

import palmette as pm
from palmette.cli import main
from palmette.cli.report import report
from palmette.errors import RunDamaged
from palmette.reports.figures import LINES
from palmette.reports.html.document import bundled
from palmette.reports.html.page import _library, page
from palmette.reports.html.series import curves, settings, studies
from palmette.reports.html.summary import judged_on, outcome, sentence, verdict
from palmette.reports.html.theme import ARROW, LAYER_COLOURS, LOOKS, STAR
from palmette.reports.phases import phases, phases_of_mean, turns
from palmette.reports.tables import last_kept
from palmette.studies.experiment import Experiment, OwnExperiment
from palmette.studies.folder import find_runs

DENSE, CUT, GONE = 0.9, 0.895, 0.2


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    return small_runs(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="module")
def made(runs_folder, tmp_path_factory):
    return made_of(runs_folder, tmp_path_factory.mktemp("page") / "report.html")


def five_digits(value):
    return float(f"{value:.5g}")


@pytest.mark.parametrize(
    ("accuracy", "index", "counts"),
    [
        ([DENSE] * 5, [5, 4, 3, 2, 1], (5, 0, 0)),
        ([DENSE] * 5, [5, 4, 3, 4, 5], (3, 2, 0)),
        ([DENSE] * 5, [5, 4, 3, 2, 3], (5, 0, 0)),  # one round after the lowest may be noise
        ([DENSE] * 5, [5, 3, 3, 4, 5], (3, 2, 0)),  # the last of equals
        ([DENSE] * 5, [1, 2, 3, 4, 5], (1, 4, 0)),
        ([DENSE] * 6, [5, 2, 3, 4, 1, 0], (6, 0, 0)),  # it fell below its first low again
        ([DENSE] * 4 + [GONE] * 2, [5, 3, 4, 5, 1, 0], (2, 2, 2)),  # what falls after the collapse is no low
        ([DENSE, CUT, GONE, DENSE, GONE], [5, 4, 3, 2, 1], (4, 0, 1)),  # an accuracy that recovers
        ([DENSE, DENSE, 0.86, 0.85, 0.849], [5, 4, 3, 2, 1], (4, 0, 1)),  # five points are not more than five
        ([DENSE] * 4, [None, 1, 2, 3], (2, 2, 0)),
        ([DENSE] * 2, [None, None], (2, 0, 0)),
        ([DENSE], [1], (1, 0, 0)),
        ([], [], (0, 0, 0)),
    ],
)
def test_phases_follow_the_rule(accuracy, index, counts):
    found = phases(accuracy, index)
    assert tuple(found.count(name) for name in ("falling", "rising", "collapsed")) == counts
    assert found == sorted(found, key=["falling", "rising", "collapsed"].index)


def test_phases_refuse_sequences_of_different_length():
    with pytest.raises(ValueError, match="got 2 and 1"):
        phases([0.9, 0.9], [0.1])


def test_turns_are_the_lowest_index_and_the_start_of_the_collapse():
    assert turns(["falling", "rising", "collapsed", "collapsed"]) == {"turned_up": 0, "collapsed": 2}
    assert turns(["falling"]) == {"turned_up": None, "collapsed": None}


def test_page_has_the_numbers_of_the_records(made, runs_folder):
    (study,) = embedded(made.read_text())["studies"]
    table = pm.read_runs(runs_folder)
    rows = {(row["run"], row["round"]): row for row in rows_of(study["tables"]["rounds"])}
    assert len(rows) == len(table) == 16
    for _, own in table.iterrows():
        row = rows[own["id"], own["round"]]
        assert row["accuracy"] == own["test_accuracy"]
        assert [row[n] for n in ("density", "kept", "pq_index", "gini_index")] == [
            own[n] for n in ("density", "kept", "pq_index", "gini_index")
        ]


def test_curve_is_mean_and_deviation_over_seeds(made, runs_folder):
    (study,) = embedded(made.read_text())["studies"]
    table = pm.read_runs(runs_folder)
    names = {"SAP (p=0.5, q=1)": "sap", "Lottery Ticket": "lottery-ticket"}
    for row in rows_of(study["tables"]["curves"]):
        own = table[(table["method"] == names[row["series"]]) & (table["round"] == row["round"])]
        assert row["n"] == len(own) == 2
        for name, column in (("accuracy", "test_accuracy"), ("density", "density"), ("pq_index", "pq_index")):
            assert row[name] == statistics.fmean(own[column].tolist())
            assert row[f"{name}_sd"] == statistics.stdev(own[column].tolist())


def test_layers_cuts_and_maps_are_means_over_seeds(made, runs_folder):
    (study,) = embedded(made.read_text())["studies"]
    records = {run.path.name: run.records() for run in find_runs(runs_folder)}
    tickets = [own for name, own in records.items() if "lottery" in name]
    for row in rows_of(study["tables"]["layers"]):
        if row["series"] == "Lottery Ticket":
            at = [own[row["round"]] for own in tickets]
            assert row["cut"] == statistics.fmean(one["cut"]["layers"][row["layer"]] for one in at)
            of = [one["retrained"]["layers"][row["layer"]] for one in at]
            assert row["density"] == five_digits(statistics.fmean(one["density"] for one in of))
            assert row["pq_index"] == five_digits(statistics.fmean(one["pq_index"] for one in of))
    maps = [row for row in rows_of(study["tables"]["maps"]) if row["series"] == "Lottery Ticket"]
    assert [row["round"] for row in maps] == [0, 1, 2, 3]
    of = [own[2]["index_map"]["pq_index"] for own in tickets]
    assert maps[2]["pq_index"][11 * 4 + 1] == five_digits(statistics.fmean(one[4][1] for one in of))
    assert maps[2]["pq_index"][11 * 9] is None  # p = q = 1


def test_page_is_deterministic_and_self_contained(made, runs_folder, tmp_path):
    again = tmp_path / "again.html"
    CliRunner().invoke(report, [str(runs_folder), str(runs_folder), "-o", str(again)], catch_exceptions=False)
    text = made.read_text()
    assert again.read_text() == text
    page_itself = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "http:" not in page_itself
    assert "https:" not in page_itself
    assert "default-src 'none'" in page_itself


def test_page_of_sixteen_long_runs_is_below_3_mb():
    layers = [f"layer{number}.weight" for number in range(20)]
    runs = [
        run_of(
            Experiment(seed=seed, **method),
            [1 / (t + 1.1 + seed) for t in range(31)],
            [1 / (t + 3.3 + seed) for t in range(31)],
            layers=layers,
        )
        for method in ({}, {"p": 1, "q": 2}, {"method": "lottery-ticket"}, {"method": "one-shot"})
        for seed in range(4)
    ]
    assert len(page(runs).encode()) < 3_000_000


def luminance(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(
    "colour", sorted({*(look["colour"] for look in LOOKS), *LAYER_COLOURS} - {"currentColor"})
)
def test_lines_have_a_contrast_of_three_with_light_and_dark_cards(colour):
    cards = re.findall("--(?:card|paper): (#[0-9a-f]{6})", bundled("page.css"))
    assert len(cards) == 4
    for card in cards:
        dark, light = sorted((luminance(colour), luminance(card)))
        assert (light + 0.05) / (dark + 0.05) >= 3


def test_marks_of_a_caption_are_hidden_from_screen_readers_and_no_method_has_them():
    text = page([run_of(Experiment(), [0.9, 0.9])])
    assert text.count('<span aria-hidden="true">↑</span>') == text.count('<span aria-hidden="true">★</span>') == 2
    assert not {ARROW, STAR} & {look["shape"] for look in LOOKS}


def test_words_are_explained_once_below_the_first_answer():
    text = page([run_of(Experiment(model=model), [0.9, 0.9]) for model in ("mlp", "cnn")])
    assert text.count('<dl class="glossary">') == 1
    assert (
        text.index('<div class="verdict">')
        < text.index('<dl class="glossary">')
        < text.index('<div class="cards">')
    )


def test_a_run_that_ended_within_the_tolerance_is_no_limit():
    lead, answered, _ = verdict(studies([run_of(Experiment(), [0.9, 0.9, 0.9])])[0])
    assert lead == "In hindsight, at least 75% of the weights can go within one point of accuracy."
    assert answered.startswith("No limit was reached: the run ended within 0.01 of dense")


def test_methods_have_the_colours_and_dashes_of_the_figures():
    assert [look["colour"] for look in LOOKS[:3]] == [line["color"] for line in LINES[:3]]
    assert LOOKS[6]["colour"] == "currentColor"  # black, which a dark page would hide
    assert LOOKS[0]["dash"] == [1, 0]


def test_looks_differ_without_colour():
    assert len({(tuple(look["dash"]), look["shape"]) for look in LOOKS}) == len(LOOKS) == len(LINES)


def test_runs_are_grouped_by_model_and_settings():
    experiments = [
        Experiment(method="one-shot"),
        Experiment(seed=1, scope="neuron"),
        Experiment(clip=None),
        Experiment(seed=0),
        Experiment(seed=1),
        Experiment(model="linear", seed=3),
    ]
    found = studies([run_of(experiment, [0.9]) for experiment in experiments] + [(Experiment(seed=9), [])])
    assert [study.title for study in found] == ["Linear on digits", "MLP on digits"]
    assert [(series.name, len(series.runs)) for series in found[1].series] == [
        ("SAP (p=0.5, q=1), clip=none", 1),
        ("SAP (p=0.5, q=1)", 2),
        ("SAP (p=0.5, q=1), scope=neuron", 1),
        ("One Shot", 1),
    ]
    common, own = settings(found[1])
    assert common["epochs"] == 200
    assert own["SAP (p=0.5, q=1), scope=neuron"]["scope"] == "neuron"
    assert "ratio" not in own["SAP (p=0.5, q=1), scope=neuron"]


def test_series_are_named_by_settings_that_vary_and_are_not_the_default():
    experiments = [
        Experiment(eta=0.5, epochs=20),
        Experiment(p=0.6, eta=0.5, epochs=20),
        Experiment(method="lottery-ticket", epochs=20, ratio=0.4),
        Experiment(method="lottery-ticket"),
        Experiment(method="one-shot", epochs=20, ratio=0.4),
    ]
    (study,) = studies([run_of(experiment, [0.9]) for experiment in experiments])
    assert [series.name for series in study.series] == [
        "SAP (p=0.5, q=1), epochs=20",  # all that have an eta have this one
        "SAP (p=0.6, q=1), epochs=20",
        "Lottery Ticket, ratio=0.4, epochs=20",
        "Lottery Ticket",
        "One Shot, ratio=0.4, epochs=20",
    ]


@pytest.mark.slow
def test_page_of_several_networks_links_to_its_sections():
    runs = [run_of(Experiment(model=model), [0.9]) for model in ("mlp", "linear", "cnn")]
    text = page([*runs, run_of(Experiment(seed=1), [0.9])])
    assert "<h1>How far can 3 networks be pruned?</h1>" in text
    links = re.findall('<a href="#(.*?)">(.*?)</a>, (.*?)</li>', text)
    assert [link[1:] for link in links] == [
        ("CNN on digits", "1 run"),
        ("Linear on digits", "1 run"),
        ("MLP on digits", "2 runs"),
    ]
    assert re.findall('<section id="(.*?)" aria-label="(.*?)">', text) == [link[:2] for link in links]
    alone = page(runs[:1])
    assert "<h1>How far can it be pruned? MLP on digits</h1>" in alone
    assert "<nav" not in alone


def test_mean_ends_with_the_shortest_run():
    runs = [run_of(Experiment(seed=0), [0.9, 0.5]), run_of(Experiment(seed=1), [0.7])]
    (study,) = studies(runs)
    assert [(row["n"], row["accuracy"]) for row in curves(study)] == [(2, pytest.approx(0.8))]


def test_verdict_names_the_best_method_with_its_deviation():
    tickets = [run_of(Experiment(method="lottery-ticket", seed=s), [0.9, 0.9, 0.9, 0.3]) for s in (0, 1)]
    shots = [run_of(Experiment(method="one-shot", seed=s), [0.9, 0.9, 0.3, 0.3]) for s in (0, 1)]
    (study,) = studies(tickets + shots)
    lead, first, second = verdict(study)
    assert lead == "In hindsight, 75% of the weights can go within one point of accuracy."
    assert first == (
        "Lottery Ticket goes furthest within 0.01 of dense (in hindsight): a density of 25.0%; "
        "next is One Shot at 50.0%, beyond the noise of 2 seeds."
    )
    assert second == "The PQ Index turned up in 0 of 4 runs; 4 collapsed."
    row = outcome(study.series[0])
    assert (row["round"], row["collapsed"], row["reach"].ended) == ([2, 2], [3, 3], 0)


def test_equal_series_are_named_together():
    runs = [run_of(Experiment(gamma=gamma), [0.9, 0.9, 0.3]) for gamma in (5, 7)]
    assert verdict(studies(runs)[0])[1] == (
        "SAP (p=0.5, q=1), gamma=5 goes furthest within 0.01 of dense (in hindsight): a density of 50.0%, a tie "
        "with SAP (p=0.5, q=1), gamma=7 at 50.0%."
    )


def several(densities, **settings):
    """Runs whose accuracy drops after round 1, which has these densities."""
    runs = [run_of(Experiment(seed=seed, **settings), [0.9, 0.9, 0.3]) for seed in range(len(densities))]
    for (_, records), density in zip(runs, densities, strict=True):
        records[1]["retrained"]["density"] = density
    return runs


def test_series_that_differ_within_noise_are_tied():
    sap, ticket = several([0.0186, 0.0188]), several([0.017, 0.021], method="lottery-ticket")
    assert verdict(studies(sap + ticket)[0])[1] == (
        "SAP (p=0.5, q=1) goes furthest within 0.01 of dense (in hindsight): a density of 1.9%, a "
        "tie with Lottery Ticket at 1.9% (1.7 to 2.1)."
    )
    sap = several([0.2, 0.3])
    assert verdict(studies(sap + several([0.3, 0.31], method="one-shot"))[0])[1] == (
        "SAP (p=0.5, q=1) goes furthest within 0.01 of dense (in hindsight): a density of 25.0% (20.0 to 30.0), "
        "a tie with One Shot at 30.5% (30.0 to 31.0)."
    )
    many = [run for gamma in range(2, 8) for run in several([0.2, 0.2 + gamma / 100], gamma=gamma)]
    text = verdict(studies(many)[0])[1]
    assert re.search(r", gamma=2 goes furthest .*: a density of 21.0% \(20.0 to 22.0\), a tie with ", text)
    assert re.search(
        r", gamma=3 at 21.5% .*, .*, gamma=4 at 22.0% .*, .*, gamma=5 at 22.5% .* and 2 others\.$", text
    )


def test_single_run_does_not_lead_where_others_have_several():
    runs = several([0.2, 0.2]) + several([0.3, 0.3], method="lottery-ticket")
    single = several([0.1], method="one-shot") + several([0.4], gamma=3)
    assert verdict(studies(runs + single)[0])[1] == (
        "SAP (p=0.5, q=1) goes furthest of the methods with several runs within 0.01 of dense (in hindsight): a "
        "density of 20.0%; next is Lottery Ticket at 30.0%, beyond the noise of 2 "
        "seeds; the best single run is of One Shot: 10.0%."
    )
    assert "SAP (p=0.5, q=1) goes furthest" in verdict(studies(runs[:2] + single)[0])[1]


def test_verdict_says_that_no_cut_stays_within_one_point():
    runs = [run_of(Experiment(method=method), [0.9, 0.5, 0.4]) for method in ("sap", "lottery-ticket")]
    (study,) = studies(runs)
    assert verdict(study)[0] == "No cut stays within 0.01 of dense (in hindsight)."
    assert sentence(outcome(study.series[0])) == (
        "In hindsight no cut stays within 0.01 of dense. Accuracy 90.0%, dense 90.0% (round 0, n = 1)."
    )
    one_further = studies([*runs, run_of(Experiment(method="one-shot"), [0.9, 0.9, 0.4])])[0]
    assert verdict(one_further)[1].startswith("One Shot goes furthest")


def test_verdict_of_a_dense_run():
    (study,) = studies([run_of(Experiment(), [0.9])])
    assert verdict(study) == [
        "No cut was trained.",
        "The PQ Index turned up in 0 of 1 run; 0 collapsed.",
    ]
    assert "<summary>Id of the run</summary>" in page(study.runs)


def test_verdict_counts_turns_within_one_point_of_dense():
    late = run_of(Experiment(), [0.9, 0.88, 0.88, 0.88, 0.88], [0.5, 0.4, 0.3, 0.4, 0.5])
    early = run_of(Experiment(seed=1), [0.9] * 5, [0.5, 0.4, 0.3, 0.4, 0.5])
    collapsed = run_of(Experiment(seed=2), [0.9] * 4 + [0.1] * 2, [0.4, 0.2, 0.3, 0.35, 0.05, 0.01])
    for runs, turned, in_time, collapses in (
        ([late, early], "2 of 2 runs", 1, 0),
        ([late], "1 of 1 run", 0, 0),
        ([early], "1 of 1 run", 1, 0),
        ([collapsed], "1 of 1 run", 1, 1),
        ([late, early, collapsed], "3 of 3 runs", 2, 1),
    ):
        within = f"({in_time} while accuracy was within one point of dense)"
        said = verdict(studies(runs)[0])[-1]
        assert said == f"The PQ Index turned up in {turned} {within}; {collapses} collapsed."


def test_single_run_leads_where_series_of_several_runs_kept_nothing():
    stays = [run_of(Experiment(seed=seed), [0.9, 0.8]) for seed in (0, 1)]
    alone = run_of(Experiment(method="one-shot"), [0.9, 0.9])
    _, first, *_ = verdict(studies([*stays, alone])[0])
    assert first.startswith("One Shot goes furthest within 0.01 of dense")
    assert "noise" not in first  # which one run of a method does not show


def validated(run, accuracies):
    for record, accuracy in zip(run[1], accuracies, strict=True):
        record["validation"] = {"loss": None, "accuracy": accuracy, "score": accuracy or -1.5}
    return run


def test_run_is_judged_on_one_split_throughout():
    at_test, at_validation = [0.9, 0.9, 0.2], [0.9, 0.2, 0.2]
    judged = validated(run_of(Experiment(), at_test), at_validation)
    assert (last_kept(judged[1]), phases_of_mean([judged[1]])[1]) == (0, "collapsed")
    assert "judged on validation images" in judged_on(studies([judged])[0])
    for unusual in ([None] * 3, [None, 0.2, 0.2], [0.9, 0.2, None]):  # percent may be below 1, and R² below 0
        other = validated(run_of(Experiment(seed=1), at_test), unusual)
        assert (last_kept(other[1]), phases_of_mean([other[1]])[1]) == (1, "falling")
        assert "judged on the test set:" in judged_on(studies([other])[0])
        assert "judged on the test set where a run has no validation" in judged_on(studies([judged, other])[0])


def test_names_are_escaped():
    text = page([run_of(Experiment(), [0.9], layers=["</script><b>"])], title="<i>mine</i>", notices=["a < b"])
    assert "<i>mine" not in text
    assert "&lt;i&gt;mine" in text
    assert '<p class="notice">a &lt; b</p>' in text
    assert "</script><b>" not in text
    assert rows_of(embedded(text)["studies"][0]["tables"]["layers"])[0]["layer"] == "</script><b>"


def test_many_layers_are_drawn_as_a_heat_map():
    many = [f"{number}.weight" for number in range(9)]
    text = page([run_of(Experiment(), [0.9, 0.9], [0.1, None], layers=many)])
    panels = embedded(text)["studies"][0]["panels"]
    assert panels["layer_density"]["specs"][""]["mark"]["type"] == "rect"
    few = embedded(page([run_of(Experiment(), [0.9])]))["studies"][0]["panels"]
    assert few["layer_density"]["specs"][""]["layer"][0]["mark"]["type"] == "line"


def test_unfinished_runs_are_announced():
    experiment, records = run_of(Experiment(), [0.9, 0.9])
    records[-1]["stopped"] = None
    assert "The run is not finished: the rounds so far are shown." in page([(experiment, records)])
    finished = run_of(Experiment(seed=1), [0.9, 0.9])
    assert "1 of 2 runs is not finished: the rounds so far" in page([(experiment, records), finished])
    assert "not finished" not in page([finished])


def test_damaged_run_is_named_and_left_out(runs_folder, tmp_path):
    good, bad, worse = (tmp_path / name for name in ("good", "bad", "worse"))
    source = next(runs_folder.rglob("records.jsonl")).parent
    for folder in (good, bad, worse):
        folder.mkdir()
        for name in ("experiment.toml", "records.jsonl"):
            (folder / name).write_bytes((source / name).read_bytes())
    (bad / "records.jsonl").write_text('{"round": 0}\n')
    (worse / "experiment.toml").write_text("colour = 3\n")
    result = CliRunner().invoke(report, [str(tmp_path), "-o", str(tmp_path / "a.html")], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"{tmp_path / 'a.html'}: 1 run, " in result.output
    with pytest.raises(RunDamaged, match=r"no run to read in '.*bad'; left out: .*not a record"):
        CliRunner().invoke(report, [str(bad), "-o", str(tmp_path / "b.html")], catch_exceptions=False)
    assert result.stderr.count("left out") == (tmp_path / "a.html").read_text().count("left out:") == 2


def test_run_without_a_round_is_named_and_left_out(runs_folder, tmp_path):
    source = next(runs_folder.rglob("records.jsonl")).parent
    for name, records in (("good", (source / "records.jsonl").read_bytes()), ("failed", b"")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_bytes((source / "experiment.toml").read_bytes())
        (tmp_path / name / "records.jsonl").write_bytes(records)
    file = tmp_path / "a.html"
    result = CliRunner().invoke(report, [str(tmp_path), "-o", str(file)], catch_exceptions=False)
    assert result.stderr == "palmette: left out, as no round is finished: failed\n"
    assert "left out, as no round is finished: failed" in file.read_text()


def own_run(folder, width, *, seed=0):
    """Run of `prune_and_retrain` on a small network."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4)).sum().backward()
        optimizer.step()

    pm.prune_and_retrain(model, train, test=lambda model: 0.5, folder=folder, stop=pm.AfterSteps(1))


def test_own_runs_with_the_same_settings_count_as_seeds(tmp_path):
    for seed in (0, 1):
        own_run(tmp_path / f"seed{seed}", 8, seed=seed)
    own_run(tmp_path / "wide", 16)
    result = CliRunner().invoke(report, [str(tmp_path), "-o", str(tmp_path / "a.html")], catch_exceptions=False)
    assert "a.html: 3 runs, " in result.output
    text = (tmp_path / "a.html").read_text()
    assert "<p>3 runs" in text.replace(' class="lead"', "")
    narrow, wide = (rows_of(study["tables"]["curves"]) for study in embedded(text)["studies"])
    assert [row["n"] for row in narrow] == [2, 2]
    assert [(row["n"], row["kept"]) for row in wide] == [(1, 96), (1, wide[1]["kept"])]
    assert re.search("seed0.*, .*seed1.* have the same settings", text)


def test_run_in_two_folders_is_refused_by_report_and_table(runs_folder, tmp_path):
    copy = Path(shutil.copytree(runs_folder, tmp_path / "copy"))
    said = [
        CliRunner().invoke(main, [*command, str(runs_folder), str(copy)])
        for command in (["report", "-o", str(tmp_path / "a.html")], ["table"])
    ]
    assert [result.exit_code for result in said] == [2, 2]
    assert said[0].stderr == said[1].stderr
    assert re.fullmatch("palmette: one run is in '.*' and in '.*'; give one of them\n", said[0].stderr)
    assert not (tmp_path / "a.html").exists()


def test_edited_model_is_another_study(tmp_path, monkeypatch):
    def plain(*, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes))

    def edited(*, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))

    for seed, net in enumerate((plain, edited, plain)):
        monkeypatch.setitem(sys.modules, "edited", SimpleNamespace(net=net))
        pm.run(Experiment(model="edited:net", epochs=0, rounds=0, seed=seed), tmp_path / f"run{seed}")
    CliRunner().invoke(report, [str(tmp_path), "-o", str(tmp_path / "a.html")], catch_exceptions=False)
    text = (tmp_path / "a.html").read_text()
    assert re.findall("<h2>(edited.*)</h2>", text) == [f"edited:net as in run{n} on digits" for n in (0, 1)]
    assert [rows_of(study["tables"]["curves"])[0]["n"] for study in embedded(text)["studies"]] == [2, 1]


def test_own_runs_show_only_their_settings(tmp_path):
    own_run(tmp_path / "mine", 8)
    CliRunner().invoke(report, [str(tmp_path), "-o", str(tmp_path / "a.html")], catch_exceptions=False)
    names = re.findall("<dt>(.*?)</dt>", (tmp_path / "a.html").read_text())
    assert {"data", "model", "p", "scope", "rewind"} <= set(names)
    assert {"epochs", "batch", "optimizer", "learning_rate", "schedule", "validation"}.isdisjoint(names)


def test_output_must_be_an_html_file(runs_folder, tmp_path):
    with pytest.raises(ValueError, match=r"such as report.html, got '.*report.pdf'"):
        CliRunner().invoke(report, [str(runs_folder), "-o", str(tmp_path / "report.pdf")], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_folders_without_a_finished_round_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run to read in"):
        CliRunner().invoke(report, [str(tmp_path)], catch_exceptions=False)
    with pytest.raises(ValueError, match="at least one run with a finished round"):
        page([(Experiment(), [])])


@pytest.mark.parametrize("module", ["altair", "js_lib_vega_embed"])
def test_missing_extra_names_the_install_command(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    _library.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'palmette\[report\]'"):
        page([run_of(Experiment(), [0.9])])


def test_documentation_shows_a_small_screenshot():
    docs = Path(__file__).parents[3] / "docs"
    assert "](report.png)" in (docs / "report.md").read_text(encoding="utf-8")
    picture = (docs / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20], "big") == 1400
    assert len(picture) < 300_000


def test_a_parameter_that_the_label_shows_is_not_repeated():
    runs = [run_of(Experiment(method=method), [0.9, 0.8]) for method in ("sap", "tail-mass")]
    (study,) = studies(runs)
    assert [series.name for series in study.series] == ["SAP (p=0.5, q=1)", "Tail Mass (p=0.5, eta=0.1)"]


def test_searches_of_different_tolerance_are_not_averaged():
    runs = [(OwnExperiment(model="own:Net", run=text, tolerance=text), [{}]) for text in ("5%", "50%")]
    (study,) = studies(runs)
    assert [(s.name, len(s.runs)) for s in study.series] == [
        ("SAP (p=0.5, q=1), tolerance=5%", 1),
        ("SAP (p=0.5, q=1), tolerance=50%", 1),
    ]
