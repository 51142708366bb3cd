"""Comparison of methods: numbers that can be checked in the head, then properties."""

from __future__ import annotations

import itertools
import math
import re
import shutil
from copy import deepcopy
from dataclasses import asdict

import pandas as pd
import pytest
import torch
from earlier_folders import back_to

import palmette as pm
from palmette.reports import comparison
from palmette.reports.comparison import as_latex, as_markdown, compare, name_of, resolve_baseline
from palmette.reports.statistics import Difference
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir

SAP, TICKET = {"method": "sap"}, {"method": "lottery-ticket"}


def table(*runs):
    """A table as of `read_runs`, from settings, densities and accuracies of each run."""
    rows = []
    for settings, densities, accuracies in runs:
        e = Experiment(**settings)
        for t, (d, a) in enumerate(zip(densities, accuracies, strict=True)):
            rows.append({"id": e.id, **asdict(e), "round": t, "density": d, "test_accuracy": a})
    return pd.DataFrame(rows)


HALVING = [1.0, 0.5, 0.25]


# Means, and differences at equal density


def test_mean_and_deviation_of_two_seeds():
    found = compare(
        table(({**SAP, "seed": 0}, HALVING, [0.5, 0.25, 0]), ({**SAP, "seed": 1}, HALVING, [1, 0.75, 0]))
    )
    assert found["round"].tolist() == [0, 1, 2]
    assert found["n"].tolist() == [2, 2, 2]
    assert found["accuracy"].tolist() == [0.75, 0.5, 0]
    assert found["sd"].tolist() == pytest.approx([0.5**0.5 / 2, 0.5**0.5 / 2, 0])
    assert found["density"].tolist() == HALVING
    assert "difference" not in found


def test_a_run_that_ends_early_counts_in_the_rounds_it_has():
    found = compare(table((SAP, HALVING, [1, 1, 1]), ({**SAP, "seed": 1}, HALVING[:2], [0, 0])))
    assert found["n"].tolist() == [2, 2, 1]
    assert math.isnan(found["sd"].iloc[2])


def test_methods_of_different_ratios_meet_at_one_density():
    slow = ({**TICKET, "ratio": 0.5}, HALVING, [1.0, 0.75, 0.5])
    fast = ({**TICKET, "ratio": 0.75}, [1.0, 0.25], [1.0, 0.5])
    found = compare(table(slow, fast), at=[0.5, 0.25, 0.1])
    assert found["density"].tolist() == [0.5, 0.5, 0.25, 0.25, 0.1, 0.1]
    assert found["accuracy"].tolist()[:4] == pytest.approx([0.75, math.nan, 0.5, 0.5], nan_ok=True)
    assert found["n"].tolist() == [1, 0, 1, 1, 0, 0]
    assert set(found["method"]) == {"Lottery Ticket, ratio=0.5", "Lottery Ticket, ratio=0.75"}


def test_differences_are_between_the_means_of_methods_whatever_their_seeds():
    runs = [({**SAP, "seed": s}, [1.0], [a]) for s, a in enumerate([0.5, 0.25, 0.75])]
    runs += [({**TICKET, "seed": s}, [1.0], [a]) for s, a in enumerate([0.25, 0.0])]
    sap, ticket = compare(table(*runs), baseline="lottery-ticket").to_dict("records")
    expected = Difference.between([0.5, 0.25, 0.75], [0.25, 0.0])
    assert (sap["n"], sap["difference"], sap["low"], sap["high"]) == (3, 0.375, expected.low, expected.high)
    assert sap["baseline"] == "Lottery Ticket"
    assert math.isnan(ticket["difference"])


def test_a_round_is_compared_at_its_density_not_with_the_same_round():
    runs = [(SAP, [1.0, 0.64], [1.0, 0.75]), (TICKET, [1.0, 0.8, 0.64], [1.0, 0.875, 0.5])]
    found = compare(table(*runs), baseline="lottery-ticket")
    assert found[found["method"] == "SAP (p=0.5, q=1)"]["difference"].tolist() == [0, 0.25]


def test_one_run_each_has_a_difference_and_no_interval():
    found = compare(table((SAP, [1.0], [0.75]), (TICKET, [1.0], [0.5])), baseline="Lottery ticket")
    sap = found.to_dict("records")[0]
    assert sap["difference"] == 0.25
    assert math.isnan(sap["low"])
    assert math.isnan(sap["high"])


@pytest.mark.parametrize(
    "settings",
    [
        {"scope": "layer"}, {"epochs": 3}, {"model": "linear"}, {"data": "MNIST"}, {"clip": None},
        {"rewind": "fine-tune"}, {"validation": 100}, {"stop": "accuracy-drops:0.01"}, {"precision": "bfloat16"},
    ],
)  # fmt: skip
def test_runs_trained_differently_are_not_compared(settings):
    found = compare(table((SAP, [1.0], [0.5]), ({**TICKET, **settings}, [1.0], [0.5])), baseline="lottery-ticket")
    assert found["difference"].isna().all()


@pytest.mark.parametrize("settings", [{"rounds": 3}, {"stop": "density:0.1"}, {"ratio": 0.5}, {"seed": 1}])
def test_runs_that_differ_in_method_stop_or_seed_are_compared(settings):
    found = compare(table((SAP, [1.0], [0.5]), ({**TICKET, **settings}, [1.0], [0.5])), baseline="lottery-ticket")
    assert found["difference"].notna().sum() == 1


def test_runs_of_one_seed_count_once_and_the_longest_is_the_baseline():
    short = ({**TICKET, "rounds": 1}, [1.0, 0.5], [1.0, 0.5])
    long = ({**TICKET, "rounds": 2}, HALVING, [1.0, 0.75, 0.5])
    for order in ((short, long), (long, short)):
        found = compare(table((SAP, HALVING, [1.0, 1.0, 1.0]), *order), at=HALVING, baseline="lottery-ticket")
        assert found[found["method"] == "SAP (p=0.5, q=1)"]["difference"].tolist() == [0, 0.25, 0.5]


def test_settings_that_vary_are_not_averaged():
    settings = [{"scope": c, "clip": k} for c, k in itertools.product(("layer", "global"), (1.0, None))]
    found = compare(table(*((s, [1.0], [i / 4]) for i, s in enumerate(settings))))
    assert found["accuracy"].tolist() == [0, 0.25, 0.5, 0.75]
    assert found["scope"].tolist() == ["layer", "layer", "global", "global"]
    assert found["clip"].isna().tolist() == [False, True, False, True]
    assert "| layer | none |" in as_markdown(found)


def test_settings_of_a_method_are_sorted():
    etas = [1.0, 0.001, 0.1]
    found = compare(table(*((SAP | {"eta": eta}, HALVING, [0.9, 0.8, 0.7]) for eta in etas)), at=[0.5])
    assert found["method"].tolist() == [f"SAP (p=0.5, q=1), eta={eta:g}" for eta in sorted(etas)]


def test_a_name_has_every_setting_that_is_not_default():
    assert (
        name_of(Experiment(p=1, q=2, eta=0.1, gamma=1.5, beta=0.5))
        == "SAP (p=1, q=2), eta=0.1, gamma=1.5, beta=0.5"
    )
    assert name_of(Experiment(method="one-shot", scope="layer", epochs=3)) == "One Shot"


def test_a_baseline_is_one_method():
    names, methods = ["SAP (p=0.5, q=1)", "SAP (p=1, q=2)", "One Shot"], ["sap", "sap", "one-shot"]
    assert resolve_baseline("sap (p=1, q=2)", names, methods) == "SAP (p=1, q=2)"
    assert resolve_baseline("one-shot", names, methods) == "One Shot"
    with pytest.raises(ValueError, match=r"one of 'SAP \(p=0.5, q=1\)', .* got 'sap', which is 2 of them"):
        resolve_baseline("sap", names, methods)
    with pytest.raises(ValueError, match="got 'lottery-ticket', which is none of them"):
        resolve_baseline("lottery-ticket", names, methods)


# What is written


@pytest.fixture
def frame():
    runs = [({**SAP, "seed": s}, HALVING, [0.5, 0.5, 0.25 + s / 4]) for s in (0, 1)]
    runs += [({**TICKET, "seed": s}, HALVING[:2], [0.5, 0.75]) for s in (0, 1)]
    return compare(table(*runs), at=HALVING, baseline="lottery-ticket")


def test_markdown_is_in_percent_with_notes(frame):
    lines = as_markdown(frame).splitlines()
    assert lines[0] == "| density % | method | n | accuracy % | difference | 95% interval |"
    assert lines[1] == "| ---: | --- | ---: | ---: | ---: | ---: |"
    assert "| 50 | SAP (p=0.5, q=1) | 2 | 50.00 ± 0.00 | −25.00 | −25.00 to −25.00 |" in lines
    assert "| 25 | SAP (p=0.5, q=1) | 2 | 37.50 ± 17.68 |  |  |" in lines
    assert "| 25 | Lottery Ticket | 0 |  |  |  |" in lines
    assert lines[-1].startswith("data digits, model mlp, scope global. Test accuracy, mean ± standard deviation")
    assert "empty where that was not reached, and between rounds more than 1.5 times apart." in lines[-1]
    assert "Differences are in points of accuracy from Lottery Ticket at the same density, interpol" in lines[-1]
    assert lines[-1].endswith(
        "Welch's interval; empty where not all of its runs with the same training reached that density."
    )


def test_rows_and_baselines_are_in_canonical_order():
    runs = [
        ({"method": method, "scope": scope} | ({"eta": eta} if eta else {}), [1.0], [0.5])
        for method, eta in (("one-shot", 0), ("sap", 0.5), ("lottery-ticket", 0), ("sap", 0))
        for scope in ("global", "layer", "neuron")
    ]
    found = compare(table(*runs))
    assert found["scope"].tolist() == [scope for scope in ("neuron", "layer", "global") for _ in range(4)]
    names = ["SAP (p=0.5, q=1)", "SAP (p=0.5, q=1), eta=0.5", "Lottery Ticket", "One Shot"]
    assert found["method"].tolist() == names * 3
    with pytest.raises(ValueError, match=re.escape(f"must be one of {', '.join(map(repr, names))}, got 'x'")):
        compare(table(*runs), baseline="x")


def test_patterns_come_after_other_scopes():
    pattern = {"method": "densities"}
    scopes = {"4:8": "0.5", "2:4": "0.5", "global": "0.5", "1:4": "0.25"}
    found = compare(table(*((pattern | {"scope": s, "densities": d}, [1.0], [0.5]) for s, d in scopes.items())))
    assert found["scope"].tolist() == ["global", "1:4", "2:4", "4:8"]


def test_latex_rows_are_complete_and_escaped():
    odd = {"data": "my_data & 50%#{~^\\$}.npz"}
    text = as_latex(
        compare(
            table((odd, [1.0], [0.5]), (SAP, [1.0], [0.5]), (TICKET, [1.0], [0.75])), baseline="lottery-ticket"
        )
    )
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = re.search(r"\\begin{tabular}{([lr]+)}", text)[1]
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(columns)}
    assert r"my\_data \& 50\%\#\{\textasciitilde{}\textasciicircum{}\textbackslash{}\$\}.npz" in text
    assert not re.findall(r"(?<!\\)[%#_]", text)
    assert "$-$25.00" in text
    assert text.isascii()
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1


def test_markdown_escapes_a_bar_in_a_name():
    found = compare(table(({"data": "a|b.npz"}, [1.0], [0.5]), (SAP, [1.0], [0.5])))
    rows = as_markdown(found).splitlines()[:4]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


# From folders


def test_runs_of_several_folders_count_once(tmp_path):
    two = [Experiment(model="linear", epochs=1, rounds=1, clip=clip) for clip in (1.0, None)]
    for e, name in zip(two, "ab", strict=True):
        pm.run(e, tmp_path / name / e.id)
    found = comparison.read([tmp_path / "a", tmp_path / "b", tmp_path / "a" / two[0].id, tmp_path])
    assert found[["id", "round"]].values.tolist() == [[e.id, t] for e in two for t in (0, 1)]
    assert compare(found)["n"].tolist() == [1] * 4
    pm.run(two[0], tmp_path / "c")
    with pytest.raises(ValueError, match=r"is in '.*' and in '.*'; give one of them"):
        comparison.read([tmp_path])


def own_run(folder, size=8, model=None, **more):
    def train(model):
        torch.nn.init.normal_(model.weight)

    stop = pm.AfterSteps(1)
    pm.prune_and_retrain(model or torch.nn.Linear(size, 4), train, stop=stop, folder=folder, **more)


def test_own_runs_of_one_network_are_seeds_and_a_copy_is_refused(tmp_path):
    for name, size in (("a", 8), ("b", 8), ("c", 9)):
        own_run(tmp_path / name, size, test=lambda model: 0.5)
    found = comparison.read([tmp_path / "a", tmp_path / "b"])
    assert compare(found)["n"].tolist() == [2, 2]
    assert compare(found, at=[0.95])["score"].tolist() == [0.5]
    models = comparison.read([tmp_path])[["model", "seed", "round"]].values.tolist()
    runs = [("own:Linear as in a", 0), ("own:Linear as in a", 1), ("own:Linear as in c", 0)]
    assert models == [[*run, t] for run in runs for t in (0, 1)]
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with pytest.raises(ValueError, match=r"/a' and in '.*/copy'; give one of them"):
        comparison.read([tmp_path / "a", tmp_path / "copy"])


def test_early_runs_of_a_pretrained_network_are_seeds(tmp_path):
    model = torch.nn.Linear(8, 4)
    for name in "ab":
        own_run(tmp_path / name, model=deepcopy(model), test=lambda model: 0.5, trained=True)
    back_to(RunDir(tmp_path / "b"), 1)
    assert compare(comparison.read([tmp_path]))["n"].tolist() == [2, 1]
    shutil.copytree(tmp_path / "b", tmp_path / "copy")
    with pytest.raises(ValueError, match=r"/b' and in '.*/copy'; give one of them"):
        comparison.read([tmp_path])


def test_different_networks_in_folders_of_one_name_have_different_names(tmp_path):
    own_run(tmp_path / "x:1" / "run", 8, test=lambda model: 0.5)
    own_run(tmp_path / "y" / "run", 9, test=lambda model: 0.5, budget=pm.FixedRatio(0.2))
    found = comparison.read([tmp_path])
    assert found["model"].unique().tolist() == ["own:Linear as in x-1/run", "own:Linear as in y/run"]
    assert compare(found, baseline="lottery-ticket")["difference"].isna().all()


def test_a_run_inside_the_folder_of_another_is_separate(tmp_path):
    own_run(tmp_path, test=lambda model: 0.5)
    own_run(tmp_path / "again", test=lambda model: 0.5)
    plain = Experiment(model="linear", epochs=0, rounds=1)
    pm.run(plain, tmp_path / "again" / "plain")
    found = comparison.read([tmp_path])
    assert found[["model", "seed", "round"]].values.tolist() == [
        [model, seed, t] for model, seed in (("own:Linear", 0), ("linear", 0), ("own:Linear", 1)) for t in (0, 1)
    ]
    assert compare(found)["n"].tolist() == [1, 1, 2, 2]  # with settings that the others do not have


def test_runs_without_a_test_accuracy_are_refused(tmp_path):
    own_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="no test score; prune_and_retrain takes a function `test`"):
        comparison.read([tmp_path])


@pytest.mark.parametrize("score", [91.5, -0.75, 0.0123])
def test_scores_of_own_functions_are_shown_as_they_are(tmp_path, score):
    own_run(tmp_path, test=lambda model: score)
    found = compare(comparison.read([tmp_path]))
    assert (found["score"].tolist(), "accuracy" in found) == ([score, score], False)
    lines = as_markdown(found).splitlines()
    assert lines[0] == "| round | density % | method | n | score |"
    assert lines[2].endswith(f"| {score:.4f} |")
    assert "Test score, mean" in lines[-1]


def test_scores_and_losses_are_not_averaged(tmp_path):
    own_run(tmp_path / "a", test=lambda model: 0.9)
    own_run(tmp_path / "b", test=lambda model: 31.5, maximize=False)
    found = compare(comparison.read([tmp_path]))
    assert found[["maximize", "round", "n", "score"]].values.tolist() == [
        *([False, 0, 1, 31.5], [False, 1, 1, 31.5]),
        *([True, 0, 1, 0.9], [True, 1, 1, 0.9]),
    ]
    assert as_markdown(found).startswith("| maximize | round |")


def test_search_is_shown_by_its_dense_and_its_found_network():
    spec = Experiment(method="interpolate", tolerance=0.01)
    rows = [
        {"id": spec.id, **asdict(spec), "round": t, "density": d, "test_accuracy": a, "answer": answer}
        for t, (d, a, answer) in enumerate([(1.0, 0.9, 0), (0.1, 0.2, 0), (0.5, 0.75, 2), (0.2, 0.5, 2)])
    ]
    found = compare(pd.DataFrame(rows))
    assert found[["round", "density", "accuracy"]].values.tolist() == [["dense", 1.0, 0.9], ["found", 0.5, 0.75]]
    plain = table((TICKET, HALVING, [0.9, 0.8, 0.7]))
    both = compare(pd.concat([pd.DataFrame(rows), plain]))
    assert both["round"].tolist() == ["0", "1", "2", "dense", "found"]
    assert "Found: the sparsest good network" in as_markdown(both)


def test_a_run_that_is_left_out_gives_a_warning(tmp_path):
    for name in "ab":
        pm.run(Experiment(model="linear", epochs=0, rounds=0, seed=ord(name)), tmp_path / name)
    (tmp_path / "a" / "records.jsonl").write_text("{\n")
    with pytest.warns(UserWarning, match="left out: line 1 of '.*a/records.jsonl' is damaged"):
        assert comparison.read([tmp_path])["seed"].tolist() == [ord("b")]


def test_a_folder_without_a_finished_round_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text("")
    (tmp_path / "run" / "lock").write_text("")
    with pytest.raises(FileNotFoundError, match=r"no run to read in .*; left out, as no round is finished: run"):
        comparison.read([tmp_path])
