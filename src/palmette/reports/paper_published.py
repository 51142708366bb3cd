"""What was published, as numbers read off a figure, to be laid beside one's own."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from palmette.studies.config import Experiment
from palmette.studies.paper import PaperFigure

COLUMNS = ("panel", "method", "iteration", "value")
_FILES = {("rounds", "CIFAR10", "resnet18"): "cifar10-resnet18-global.csv"}


@dataclass(frozen=True)
class Published:
    """Values by panel, method and round, from the file `source`; `name` and `note` are for eyes."""

    source: str
    name: str
    note: str
    values: dict[tuple[str, str], list[tuple[float, float]]]

    def of(self, panel: str, method: str) -> list[tuple[float, float]]:
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
    note = f"{figure.number} of the paper, read off with a ruler where lines are not hidden"
    return Published(name, "published (Diao et al. 2023)", note, _parse(text, name))


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


def _parse(text: str, source: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    table = csv.DictReader(io.StringIO("\n".join(lines)))
    if table.fieldnames is None or not set(COLUMNS) <= set(table.fieldnames):
        raise ValueError(
            f"{source}: needs the columns {', '.join(COLUMNS)}, got {', '.join(table.fieldnames or ())}"
        )
    values: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in table:
        try:
            point = (float(row["iteration"]), float(row["value"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: iteration and value must be numbers, got {dict(row)}") from error
        values.setdefault((row["panel"], row["method"]), []).append(point)
    return {key: sorted(points) for key, points in values.items()}
