"""The paper's figures as lists of experiments."""

import pytest

from palmette.studies.experiment import Experiment
from palmette.studies.paper import FIGURES, model_epochs
from palmette.studies.running import fleets


def test_every_figure_of_the_paper_is_listed():
    kinds = [figure.kind for figure in FIGURES.values()]
    counts = {
        "rounds": 10,
        "scopes": 9,
        "p and q": 4,
        "eta and gamma": 4,
        "p-q map": 4,
        "table": 3,
        "hypothesis": 1,
    }
    assert {kind: kinds.count(kind) for kind in set(kinds)} == counts
    assert [n for n in FIGURES if n.startswith("fig")] == [f"fig{number}" for number in range(1, 33)]
    at = {name: (f.kind, f.data, f.model) for name, f in FIGURES.items()}
    assert at["fig3"] == ("rounds", "CIFAR10", "resnet18")
    assert at["fig10"] == ("p-q map", "TinyImageNet", "resnet50")
    assert at["fig11"] == ("rounds", "FashionMNIST", "linear")
    assert at["fig18"] == ("rounds", "TinyImageNet", "resnet50")
    assert at["fig24"] == ("scopes", "CIFAR10", "resnet18")
    assert at["fig27"] == ("p and q", "CIFAR10", "linear")
    assert at["fig32"] == ("eta and gamma", "CIFAR10", "resnet18")


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("fig")])
def test_a_figure_is_made_of_different_runs_with_the_papers_settings(name):
    figure = FIGURES[name]
    runs = figure.experiments()
    assert len({e.id for e in runs}) == len(runs) > 0
    assert {(e.data, e.model) for e in runs} == {(figure.data, figure.model)}
    batch = 500 if figure.data == "TinyImageNet" else 250
    assert {(e.epochs, e.batch, e.learning_rate, e.seed) for e in runs} == {(200, batch, 0.1, s) for s in range(4)}
    assert {e.rounds for e in runs} == {30 if figure.model in ("linear", "mlp", "cnn") else 15}
    assert len(fleets(runs)) == 1


def test_the_settings_of_the_ablations():
    norms = [(e.p, e.q) for e in FIGURES["fig5"].experiments(seeds=[0])]
    assert norms == [
        (0.2, 1),
        (0.4, 1),
        (0.5, 1),
        (0.6, 1),
        (0.8, 1),
        (1, 1.2),
        (1, 1.4),
        (1, 1.6),
        (1, 1.8),
        (1, 2),
    ]
    runs = FIGURES["fig6"].experiments(seeds=[0])
    assert len(runs) == 9  # eta = 0 and gamma = 1 is one and the same run
    assert {e.eta for e in runs} == {0, 0.001, 0.01, 0.1, 1}
    assert {e.gamma for e in runs} == {1, 3, 5, 7, 9}
    assert all(e.eta == 0 or e.gamma == 1 for e in runs)


def test_scaled_down_it_costs_less_and_a_shared_run_is_one_run():
    whole = FIGURES["fig2"].experiments()
    assert model_epochs(whole) == 4 * 4 * 31 * 200
    assert model_epochs(FIGURES["fig2"].experiments(seeds=[0], epochs=10, rounds=5)) == 4 * 6 * 10
    assert model_epochs([Experiment(epochs=15, rounds=2, rewind="epoch:5")]) == 15 + 10 + 10
    assert set(FIGURES["fig7"].experiments()) == set(whole)
    assert set(FIGURES["fig1"].experiments()) < set(whole)
    scopes = FIGURES["fig19"].experiments()
    assert set(whole) < set(scopes)
    assert len(scopes) == 48
