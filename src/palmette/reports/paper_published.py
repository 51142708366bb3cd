"""What was published, as numbers read off a figure, to be laid beside one's own."""

from __future__ import annotations

import csv
import io
import itertools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from palmette.studies.config import Experiment
from palmette.studies.paper import PaperFigure

Line: TypeAlias = list[tuple[float, float]]  # rounds and values
Values: TypeAlias = dict[tuple[str, str], Line]  # by panel and method
COLUMNS = ("panel", "method", "iteration", "value")
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


def published(figure: PaperFigure) -> Published | None:
    """What comes along for a figure; None where nothing does."""
    name = _FILES.get((figure.kind, figure.data, figure.model))
    if name is None:
        return None
    text = (resources.files("palmette.reports") / "published_values" / name).read_text(encoding="utf-8")
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

    Panels are called retrained/accuracy, …/remaining, …/pq_index, …/gini_index, pruned/accuracy, …/pq_index,
    …/accuracy_difference and …/pq_index_difference; accuracy and remaining weights are in percent. Methods as
    `name_in_file` has them.
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
    if experiment.method != "sap":
        return experiment.method.replace("-", "_")
    more = {"eta": experiment.eta, "gamma": experiment.gamma}
    named = {n: v for n, v in more.items() if v != getattr(Experiment, n)}
    return "_".join(["sap", *(f"{n}{v:g}" for n, v in ({"p": experiment.p, "q": experiment.q} | named).items())])


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
    return {key: sorted(points) for key, points in values.items()}
