"""Published values of a figure, bundled or from a CSV file, to compare runs with."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from palmette.reports.paper.runs import FigureRuns
from palmette.reports.words import counted
from palmette.studies.experiment import Experiment
from palmette.studies.paper import PaperFigure
from palmette.studies.spec import PARAMETERS

Line: TypeAlias = list[tuple[float, float]]  # rounds and values
Values: TypeAlias = dict[tuple[str, str], Line]  # by panel and method
COLUMNS = ("panel", "method", "iteration", "value")
RANGES = {
    "retrained/accuracy": (0, 100),
    "retrained/remaining": (0, 100),
    "retrained/pq_index": (0, 1),
    "retrained/gini_index": (0, 1),
    "pruned/accuracy": (0, 100),
    "pruned/accuracy_difference": (-100, 100),
    "pruned/pq_index": (0, 1),
    "pruned/pq_index_difference": (-1, 1),
}
"""Panels by their names in a file, with the smallest and largest value each can have."""
_RETRAINED = tuple(panel for panel in RANGES if panel.startswith("retrained/"))
_PANELS = {
    "hypothesis": ("retrained/accuracy", "retrained/pq_index"),
    "rounds": tuple(RANGES),
    "p and q": _RETRAINED,
    "eta and gamma": _RETRAINED,
}
_FILES = {("rounds", "CIFAR10", "resnet18"): "cifar10-resnet18-global.csv"}


@dataclass(frozen=True)
class Published:
    """Values by panel, method and round of the file `source`; `name` for the legend, `note` for the caption."""

    source: str
    name: str
    note: str
    values: Values

    def of(self, panel: str, method: str) -> Line:
        """Rounds and values of a line; empty if there are none.

        >>> from palmette.studies.paper import FIGURES
        >>> published(FIGURES["fig3"]).of("retrained/remaining", "sap_p1_q2")[0]
        (1.0, 29.7)
        """
        return self.values.get((panel, method), [])

    def fits(self, source: FigureRuns) -> bool:
        """Whether the figure can show at least one of the lines."""
        panels, methods = _PANELS.get(source.figure.kind, ()), _methods(source)
        return any(panel in panels and method in methods for panel, method in self.values)


def check_published(values: Published, sources: Iterable[FigureRuns]) -> None:
    """Raise, with the row and the allowed values, unless each value fits one of the figures.

    A figure without runs has its planned lines.
    """
    figures = [source for source in sources if source.figure.kind in _PANELS]
    if not figures:
        raise ValueError(
            "--beside works for figures 1, 2, 3, 5, 6, 11 to 18 and 27 to 32, none of which is asked for: "
            "name one of them, or leave --beside out"
        )
    rows = [(*key, *point) for key, line in values.values.items() for point in line]
    wrong = [(row, why) for row in rows if (why := _why_not(*row, figures))]
    if wrong:
        ((panel, method, t, value), why), count = wrong[0], len(wrong) - 1
        more = f" ({counted(count, 'other row')} cannot be shown either)" if count else ""
        names = ", ".join(dict.fromkeys(source.figure.name for source in figures))
        raise ValueError(
            f"{values.source}: the row {panel},{method},{t:.10g},{value:.10g} cannot be shown in {names}, where "
            f"{why}; correct the row or take it out{more}"
        )


def _why_not(panel: str, method: str, t: float, value: float, sources: Iterable[FigureRuns]) -> str:
    """Allowed values where this one fits no figure; empty where it fits."""
    panels = {name: None for source in sources for name in _PANELS[source.figure.kind]}
    if panel not in panels:
        return f"panels are {', '.join(panels)}"
    having = [source for source in sources if panel in _PANELS[source.figure.kind]]
    methods = {name: None for source in having for name in _methods(source)}
    if method not in methods:
        return f"methods are {', '.join(methods)}"
    last = max(e.rounds for source in having if method in _methods(source) for e in source.planned)
    if not 0 <= t <= last:
        return f"iterations are from 0 to {last}"
    low, high = RANGES[panel]
    return "" if low <= value <= high else f"values of {panel} are from {low} to {high}"


def _methods(source: FigureRuns) -> dict[str, None]:
    """Lines of a figure by their names in a file, in order."""
    return dict.fromkeys(name_in_file(e) for e in [e for e, _ in source.runs] or source.planned)


def published(figure: PaperFigure) -> Published | None:
    """Values bundled for a figure; None if there are none."""
    name = _FILES.get((figure.kind, figure.data, figure.model))
    if name is None:
        return None
    text = (resources.files("palmette.reports.paper") / "published_values" / name).read_text(encoding="utf-8")
    note = (
        f"{figure.number} of the paper, read off with a ruler where lines are not hidden; accuracies of single "
        "rounds, from the means over all rounds so far that it shows"
    )
    return Published(name, "published (Diao et al. 2023)", note, single_rounds(_parse(text, name)))


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


def read(file: str | Path) -> Published:
    """Read a CSV file with the columns `COLUMNS`; lines that begin with # are comments.

    Panels are the keys of `RANGES`, methods as in `name_in_file`. Accuracy and remaining weights: percent.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no file of published values at {str(path)!r}: CSV with {', '.join(COLUMNS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8; save it in that encoding") from error
    return Published(str(path), path.name, f"values of {path.name}", _parse(text, str(path)))


def name_in_file(experiment: Experiment) -> str:
    """Name of the method in a file of published values.

    >>> [name_in_file(e) for e in (Experiment(p=1, q=2), Experiment(eta=0.1), Experiment(method="one-shot"))]
    ['sap_p1_q2', 'sap_p0.5_q1_eta0.1', 'one_shot']
    """
    changed = experiment.differences()
    shown = [n for n in PARAMETERS if n in experiment.in_label or n in changed]
    return "_".join([experiment.method.replace("-", "_"), *(f"{n}{getattr(experiment, n):g}" for n in shown)])


def _parse(text: str, source: str) -> Values:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    table = csv.DictReader(io.StringIO("\n".join(lines)))
    if table.fieldnames is None or not set(COLUMNS) <= set(table.fieldnames):
        raise ValueError(
            f"{source}: needs the columns {', '.join(COLUMNS)}, got {', '.join(table.fieldnames or ())}"
        )
    values: Values = {}
    for row in table:
        try:
            point = (float(row["iteration"]), float(row["value"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: iteration and value must be numbers, got {dict(row)}") from error
        values.setdefault((row["panel"], row["method"]), []).append(point)
    if not values:
        raise ValueError(f"{source}: has no row below its column names, so there is nothing to show")
    return {key: sorted(points) for key, points in values.items()}
