"""List of the paper's figures: runs, cost on this machine, and how much is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.cli.display.printing import console_of_stdout, plain_table, print_text
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.paper import MODEL_NAMES, PaperFigure, model_epochs
from palmette.studies.status import Standing, standing_or_damage

if TYPE_CHECKING:
    from palmette.studies.cost import Clock

_SHOWS = {
    "hypothesis": "hypothesis",
    "rounds": "retrained, pruned",
    "scopes": "scopes",
    "p and q": "p and q",
    "eta and gamma": "η_r and γ",
    "p-q map": "p–q map",
    "table1": "layers of the MLP",
    "table2": "layers of the CNN",
    "table3": "models, settings",
}


@dataclass(frozen=True)
class ListEntry:
    """A figure with the state of its runs, and the seconds left if they were estimated."""

    figure: PaperFigure
    standings: tuple[Standing, ...]
    seconds: float | None = None

    @property
    def done(self) -> int:
        """Number of finished runs."""
        return sum(s.state == "finished" for s in self.standings)


def list_figures(
    figures: Sequence[PaperFigure], settings: Mapping[str, Any], out: Path, clock: Clock | None
) -> list[ListEntry]:
    """One entry per figure and table, and a last one for all, in which shared runs count once."""
    from rich.console import Console

    entries: list[ListEntry] = []
    everyone: dict[Experiment, Standing] = {}
    with Console(stderr=True).status("timing a few networks …" if clock else "reading the runs …"):
        for figure in figures:
            planned = figure.experiments(**settings)
            found = {e: everyone.get(e) or standing_or_damage(RunDir(e.folder_in(out)), e) for e in planned}
            everyone |= found
            seconds = clock.seconds(found.values()) if clock else None
            entries.append(ListEntry(figure, tuple(found.values()), seconds))
        together = PaperFigure("all", "table", said="each run once")
        seconds = clock.seconds(everyone.values()) if clock else None
        entries.append(ListEntry(together, tuple(everyone.values()), seconds))
    return entries


def list_as_json(entries: Sequence[ListEntry], clock: Clock | None) -> dict[str, Any]:
    """The entries as JSON; the states of all runs come from the last entry."""
    *single, whole = entries
    return {
        "figures": [
            {"name": e.figure.name, "title": e.figure.title, "data": e.figure.data, "model": e.figure.model}
            | {"runs": [s.experiment.id for s in e.standings], "finished": e.done, "seconds": e.seconds}
            | {"model_epochs": model_epochs(s.experiment for s in e.standings)}
            for e in single
        ],
        "device": clock.device if clock else None,
        "runs": {s.experiment.id: s.state for s in whole.standings},
        "model_epochs": sum(s.epochs_left for s in whole.standings),
        "seconds": whole.seconds,
    }


def print_list(entries: Sequence[ListEntry], scaled: bool, clock: Clock | None) -> None:
    """Print the entries as a table, with times if they were estimated."""
    console, times = console_of_stdout(), ("time",) if clock else ()
    words = ("", "shows", "data set", "model")
    table = plain_table(*words, "runs", "epochs", *times, "done", words=words)
    for entry in entries if len(entries) > 2 else entries[:1]:
        figure, count = entry.figure, len(entry.standings)
        shows = _SHOWS.get(figure.kind) or _SHOWS.get(figure.name) or figure.said
        what = (shows, figure.data, MODEL_NAMES.get(figure.model, figure.model))
        epochs = f"{model_epochs(s.experiment for s in entry.standings):,}"
        took = () if entry.seconds is None else (_roughly(entry.seconds),)
        table.add_row(figure.name, *what, *((f"{count}", epochs, *took, f"{entry.done}/{count}") if count else ()))
    console.print(table)
    protocol = "Scaled as given; the paper's protocol is the default." if scaled else "The paper's protocol."
    if clock:
        how = f"time: of unfinished runs on {clock.device}, estimated from a few steps of small networks."
    else:
        how = "--dry-run estimates times."
    print_text(console, f"\n{protocol} epochs: sum over all networks. Figures share runs. {how}", "dim")
    print_text(console, "palmette paper fig2 --epochs 10 --seeds 0 draws one figure, scaled down.", "dim")


def _roughly(seconds: float) -> str:
    """Approximate duration with one unit.

    >>> _roughly(0), _roughly(8), _roughly(200), _roughly(5400), _roughly(90 * 3600), _roughly(1e8)
    ('0 s', '8 s', '3 min', '1.5 h', '3.8 d', '3.2 y')
    """
    for unit, size in {"y": 365.25 * 86400, "d": 86400, "h": 3600, "min": 60}.items():
        if seconds >= size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
    return f"{seconds:.0f} s"
