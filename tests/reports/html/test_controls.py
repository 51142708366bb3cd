"""Looks of series, and the controls of a large study."""

from __future__ import annotations

from ablation_runs import ablations
from report_runs import run_of

from palmette.reports.html.controls import initial_looks
from palmette.reports.html.page import page
from palmette.reports.html.series import studies
from palmette.studies.experiment import Experiment


def test_large_study_starts_with_the_seven_series_that_go_furthest():
    runs = ablations()
    for experiment, records in runs:
        if experiment.gamma == 10 or experiment.scope == "layer":
            records[1]["retrained"]["density"] = 0.01
    few = [run_of(Experiment(model="linear", method=method), [0.9]) for method in ("sap", "one-shot")]
    sap = "SAP (p=0.5, q=1)"
    first = ["SAP (p=0.2, q=1)", "SAP (p=0.4, q=1)", sap, f"{sap}, gamma=10"]
    first += [f"{sap}, scope=layer", f"{sap}, scope=neuron", "One Shot, scope=layer"]
    small, large = initial_looks(studies(runs + few))
    assert small == {sap: 0, "One Shot": 1}
    assert (sorted(large), sorted(large.values())) == (sorted(first), list(range(7)))
    text = page(runs)
    assert text.count('type="checkbox"') == 17
    assert text.count(" checked data-look=") == 7
    assert text.count('class="card"') == 4
    assert "choose from all 17" in text


def test_method_looks_the_same_in_all_studies():
    runs = [run_of(Experiment(method=method), [0.9]) for method in ("sap", "lottery-ticket", "one-shot")]
    runs.append(run_of(Experiment(model="linear", method="one-shot"), [0.9]))
    assert initial_looks(studies(runs)) == [
        {"One Shot": 2},
        {"SAP (p=0.5, q=1)": 0, "Lottery Ticket": 1, "One Shot": 2},
    ]
