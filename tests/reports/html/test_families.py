"""Families and looks of a large study."""

from __future__ import annotations

from ablation_runs import ablations
from report_runs import run_of

from palmette.reports.html.controls import initial_looks
from palmette.reports.html.families import families
from palmette.reports.html.page import page
from palmette.reports.html.series import studies
from palmette.studies.experiment import Experiment


def test_family_differs_in_one_setting():
    (study,) = studies(ablations())
    assert len(study.series) == 17
    found = {name: [study.series[one].name for one in many] for name, many in families(study).items()}
    sap = "SAP (p=0.5, q=1)"
    assert list(found) == [
        "method, with scope=layer · 2",
        "method, with scope=neuron · 2",
        f"gamma, with {sap} · 7 of 10",
        "p, with q=1 · 4",
        f"scope, with {sap} · 3",
        "scope, with One Shot · 2",
        "smallest within one point of dense · 7",
    ]
    assert found["method, with scope=layer · 2"] == [f"{sap}, scope=layer", "One Shot, scope=layer"]
    assert found["p, with q=1 · 4"] == [f"SAP (p={p}, q=1)" for p in (0.2, 0.4, 0.5, 0.6)]
    # Both ends and some between.
    assert found[f"gamma, with {sap} · 7 of 10"] == [sap, *(f"{sap}, gamma={g}" for g in (3, 4, 5, 7, 9, 10))]


def test_too_many_methods_are_reduced_to_those_of_the_paper():
    many = [{"p": p} for p in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)] + [{"p": 1, "q": 2}, {"method": "one-shot"}]
    (study,) = studies([run_of(Experiment(**one), [0.9]) for one in many])
    name, first = next(iter(families(study).items()))
    assert name == "method · 3 of 8"
    assert [study.series[one].name for one in first] == ["SAP (p=0.5, q=1)", "SAP (p=1, q=2)", "One Shot"]


def test_large_study_starts_with_one_family():
    runs = ablations()
    few = [run_of(Experiment(model="linear", method=method), [0.9]) for method in ("sap", "one-shot")]
    assert initial_looks(studies(runs + few)) == [
        {"SAP (p=0.5, q=1)": 0, "One Shot": 1},
        {"SAP (p=0.5, q=1), scope=layer": 0, "One Shot, scope=layer": 1},
    ]
    text = page(runs)
    assert text.count('type="checkbox"') == 17
    assert text.count(" checked data-look=") == 2
    assert text.count('class="card"') == 4
    assert "choose from all 17" in text


def test_method_looks_the_same_in_all_studies():
    runs = [run_of(Experiment(method=method), [0.9]) for method in ("sap", "lottery-ticket", "one-shot")]
    runs.append(run_of(Experiment(model="linear", method="one-shot"), [0.9]))
    assert initial_looks(studies(runs)) == [
        {"One Shot": 2},
        {"SAP (p=0.5, q=1)": 0, "Lottery Ticket": 1, "One Shot": 2},
    ]
    assert len(families(studies(runs)[1])) == 2
