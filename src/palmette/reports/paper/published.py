"""What was published, as numbers read off a figure, to be laid beside one's own."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from palmette.reports.paper.runs import Picture
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
"""Panels as a file calls them, each with the smallest and the largest value that it can have."""
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
    """Values by panel, method and round, from the file `source`; `name` and `note` are for eyes."""

    source: str
    name: str
    note: str
    values: Values

    def of(self, panel: str, method: str) -> Line:
        """Rounds and values of a line, none where there is none.

        >>> from palmette.studies.paper import FIGURES
        >>> published(FIGURES["fig3"]).of("retrained/remaining", "sap_p1_q2")[0]
        (1.0, 29.7)
        """
        return self.values.get((panel, method), [])

    def in_part(self, picture: Picture) -> bool:
        """Whether the picture has a place for one of the lines."""
        panels, methods = _PANELS.get(picture.figure.kind, ()), _methods(picture)
        return any(panel in panels and method in methods for panel, method in self.values)


def check_beside(beside: Published, pictures: Iterable[Picture]) -> None:
    """Raise, with the row and what is allowed, unless each value has a place in one of the pictures.

    A picture that has no runs yet has the lines that are planned.
    """
    having = [picture for picture in pictures if picture.figure.kind in _PANELS]
    if not having:
        raise ValueError(
            "--beside works for figures 1, 2, 3, 5, 6, 11 to 18 and 27 to 32, none of which is asked for: "
            "name one of them, or leave --beside out"
        )
    rows = [(*key, *point) for key, line in beside.values.items() for point in line]
    wrong = [(row, why) for row in rows if (why := _why_not(*row, having))]
    if wrong:
        ((panel, method, t, value), why), count = wrong[0], len(wrong) - 1
        more = f" ({counted(count, 'other row')} cannot be shown either)" if count else ""
        names = ", ".join(dict.fromkeys(picture.figure.name for picture in having))
        raise ValueError(
            f"{beside.source}: the row {panel},{method},{t:.10g},{value:.10g} cannot be shown in {names}, where "
            f"{why}; correct the row or take it out{more}"
        )


def _why_not(panel: str, method: str, t: float, value: float, pictures: Iterable[Picture]) -> str:
    """What is allowed where a value has no place in one of the pictures; empty where it has."""
    panels = {name: None for picture in pictures for name in _PANELS[picture.figure.kind]}
    if panel not in panels:
        return f"panels are {', '.join(panels)}"
    having = [picture for picture in pictures if panel in _PANELS[picture.figure.kind]]
    methods = {name: None for picture in having for name in _methods(picture)}
    if method not in methods:
        return f"methods are {', '.join(methods)}"
    last = max(e.rounds for picture in having if method in _methods(picture) for e in picture.planned)
    if not 0 <= t <= last:
        return f"iterations are from 0 to {last}"
    low, high = RANGES[panel]
    return "" if low <= value <= high else f"values of {panel} are from {low} to {high}"


def _methods(picture: Picture) -> dict[str, None]:
    """The lines of a picture as a file calls them, in their order."""
    return dict.fromkeys(name_in_file(e) for e in [e for e, _ in picture.runs] or picture.planned)


def published(figure: PaperFigure) -> Published | None:
    """What comes along for a figure; None where nothing does."""
    name = _FILES.get((figure.kind, figure.data, figure.model))
    if name is None:
        return None
    text = (resources.files("palmette.reports.paper") / "published_values" / name).read_text(encoding="utf-8")
    note = (
        f"{figure.number} of the paper, read off with a ruler where lines are not hidden; accuracies of single "
        "rounds, from the means over all rounds so far that it shows"
    )
    return Published(name, "published (Diao et al. 2023)", note, of_single_rounds(_parse(text, name)))


def of_single_rounds(values: Values) -> Values:
    r"""The accuracy of each round, from lines that show the mean over all rounds so far, as the paper's do.

    .. math:: a_t = (t + 1) m_t - t m_{t-1} \quad\text{where}\quad m_t = (a_0 + \dots + a_t) / (t + 1)

    So a line begins one round later where its first rounds could not be read, and an error of reading grows with
    t. A difference of two such lines comes apart likewise. One Shot's is that of one line in two rounds in a row,
    :math:`m_{t-1} - m_t`, and is taken from that line.

    >>> of_single_rounds({("retrained/accuracy", "one_shot"): [(0, 90), (1, 80), (3, 60), (4, 50)]})
    {('retrained/accuracy', 'one_shot'): [(0, 90), (1, 70), (4, 10)]}

    That the paper's lines are such means: the counter in ``test_classifier.py`` of its authors' code is not reset
    between rounds; and those of networks that have collapsed come apart into 10 %, chance in ten classes.
    """
    apart = {key: _apart(line) if "accuracy" in key[0] else line for key, line in values.items()}
    if (key := ("pruned/accuracy_difference", "one_shot")) in apart:
        steps = itertools.pairwise(apart.get(("pruned/accuracy", "one_shot"), []))
        first = [(t, value) for t, value in apart[key] if t == 0]
        apart[key] = first + [(t, before - now) for (s, before), (t, now) in steps if t == s + 1]
    return apart


def _apart(line: Line) -> Line:
    means = dict(line)
    return [(t, (t + 1) * m - t * means.get(t - 1, 0)) for t, m in line if t == 0 or t - 1 in means]


def read(file: str | Path) -> Published:
    """A CSV file of one's own with the columns `COLUMNS`; lines that begin with # are comments.

    Panels are those of `RANGES`; accuracy and remaining weights are in percent. Methods are as `name_in_file` has
    them.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no file of published values at {str(path)!r}: CSV with {', '.join(COLUMNS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8") from error
    return Published(str(path), path.name, f"values of {path.name}", _parse(text, str(path)))


def name_in_file(experiment: Experiment) -> str:
    """The method as a file of published values calls it.

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
        raise ValueError(f"{source}: has no row below the names of its columns, so there is nothing to lay beside")
    return {key: sorted(points) for key, points in values.items()}
