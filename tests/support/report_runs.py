"""Runs made up for tests of the HTML report, and what a page holds."""

from __future__ import annotations

import json
import re

from click.testing import CliRunner

import palmette as pm
from palmette.cli.report import report
from palmette.studies.experiment import Experiment


def small_runs(folder):
    """Two methods and two seeds, at some depth below the folder."""
    for method in ("sap", "lottery-ticket"):
        for seed in (0, 1):
            experiment = Experiment(method=method, epochs=1, rounds=3, seed=seed)
            pm.run(experiment, folder / "deep" / experiment.id)
    return folder


def made_of(folder, file):
    result = CliRunner().invoke(report, [str(folder), "-o", str(file)], catch_exceptions=False)
    assert result.output.startswith(f"{file}: 4 runs, ")
    return file


def record(t, accuracy, index=0.1, density=None, *, layers=("a.weight",), stopped=None):
    numbers = {"total": 100, "kept": 100, "pq_index": index, "gini_index": 0.5, "dead_neurons": 0}
    numbers["density"] = 0.5**t if density is None else density
    return {
        "round": t,
        "train": {"loss": 1.0, "accuracy": accuracy},
        "test": {"loss": 1.0, "accuracy": accuracy},
        "validation": None,
        "retrained": numbers | {"layers": dict.fromkeys(layers, numbers)},
        "pruned": numbers | {"test": {"loss": 1.0, "accuracy": accuracy}},
        "cut": {"weights": 8, "layers": dict.fromkeys(layers, 8)},
        "index_map": {"p": [0.5], "q": [1.0], "pq_index": [[index] * 11] * 10},
        "stopped": stopped,
    }


def run_of(experiment, accuracies, indices=None, **kind):
    indices = indices or [0.1] * len(accuracies)
    last = len(accuracies) - 1
    both = enumerate(zip(accuracies, indices, strict=True))
    return experiment, [record(t, a, i, stopped="done" if t == last else None, **kind) for t, (a, i) in both]


def embedded(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def rows_of(table):
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
