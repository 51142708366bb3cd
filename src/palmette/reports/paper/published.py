"""Published values of Figure 3, to compare runs with."""

from __future__ import annotations

import csv
import itertools
from importlib import resources
from typing import TypeAlias

from palmette.studies.experiment import Experiment
from palmette.studies.paper import PaperFigure

Line: TypeAlias = list[tuple[float, float]]  # rounds and values
Values: TypeAlias = dict[tuple[str, str], Line]  # by panel and method
NAME = "published (Diao et al. 2023)"
"""For the legend."""
NOTE = (
    "Figure 3 of the paper, read off where lines are visible; accuracies are converted from its running means to "
    "single rounds"
)
"""For the caption."""
FIGURE_3 = "cifar10-resnet18-global.csv"


def published(figure: PaperFigure) -> Values:
    """Values bundled for a figure, with accuracies of single rounds; empty if there are none.

    >>> from palmette.studies.paper import FIGURES
    >>> published(FIGURES["fig3"])["retrained/remaining", "sap_p1_q2"][0]
    (1.0, 29.7)
    """
    is_figure_3 = (figure.kind, figure.data, figure.model) == ("rounds", "CIFAR10", "resnet18")
    return single_rounds(as_drawn()) if is_figure_3 else {}


def as_drawn() -> Values:
    """Values of Figure 3 as the paper draws them; accuracies and remaining weights are in percent."""
    file = resources.files("palmette.reports.paper") / "published_values" / FIGURE_3
    lines = file.read_text(encoding="utf-8").splitlines()
    values: Values = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        point = (float(row["iteration"]), float(row["value"]))
        values.setdefault((row["panel"], row["method"]), []).append(point)
    return {key: sorted(points) for key, points in values.items()}


def single_rounds(values: Values) -> Values:
    r"""Accuracy of each round, from lines that show the mean over all rounds so far, as the paper's do.

    .. math:: a_t = (t + 1) m_t - t m_{t-1} \quad\text{where}\quad m_t = (a_0 + \dots + a_t) / (t + 1)

    A line starts one round later where its first rounds could not be read, and reading errors grow with t. The
    difference of two such lines is converted in the same way, except One Shot's: it is the difference of one line
    in consecutive rounds, :math:`m_{t-1} - m_t`, and is computed from that line.

    >>> single_rounds({("retrained/accuracy", "one_shot"): [(0, 90), (1, 80), (3, 60), (4, 50)]})
    {('retrained/accuracy', 'one_shot'): [(0, 90), (1, 70), (4, 10)]}

    Evidence that the paper's lines are such means: the counter in ``test_classifier.py`` of the authors' code is
    not reset between rounds, and the lines of collapsed networks convert to 10 %, chance for ten classes.
    """
    converted = {key: _single(line) if "accuracy" in key[0] else line for key, line in values.items()}
    if (key := ("pruned/accuracy_difference", "one_shot")) in converted:
        steps = itertools.pairwise(converted.get(("pruned/accuracy", "one_shot"), []))
        first = [(t, value) for t, value in converted[key] if t == 0]
        converted[key] = first + [(t, before - now) for (s, before), (t, now) in steps if t == s + 1]
    return converted


def _single(line: Line) -> Line:
    means = dict(line)
    return [(t, (t + 1) * m - t * means.get(t - 1, 0)) for t, m in line if t == 0 or t - 1 in means]


def name_in_file(experiment: Experiment) -> str:
    """Name of the method among the published values.

    >>> name_in_file(Experiment(p=1, q=2)), name_in_file(Experiment(method="one-shot"))
    ('sap_p1_q2', 'one_shot')
    """
    shown = [f"{name}{getattr(experiment, name):g}" for name in experiment.in_label]
    return "_".join([experiment.method.replace("-", "_"), *shown])
