"""One study: what was written down when it was run, its records, and how numbers stand on a page."""

from __future__ import annotations

import functools
import io
import math
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.files import write_whole
from palmette.reports.comparison import name_of, named, read
from palmette.reports.figures import as_file
from palmette.reports.paper.runs import RunCollection
from palmette.reports.tables import Run
from palmette.reports.words import in_percent
from palmette.studies.folder import find_runs
from palmette.studies.record import experiment_of
from palmette.studies.sweep import read as read_grid
from results.answers import Difference, Spread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from palmette.studies.experiment import Experiment

HERE = Path(__file__).parent
EPOCHS, BATCH = 200, 250
"""Of a round in the paper, and of all networks in its Table 3."""
MANY = 4
"""More runs than that are counted and not named."""
WIDTH = 124
"""Of a line of prose on a page."""


@dataclass(frozen=True)
class Study:
    """The study in results/`name`: `study.toml` has what records do not say, `runs.tar.xz` the records."""

    name: str

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return HERE / self.name

    @property
    def on_record(self) -> bool:
        """Whether there is something to write a page of."""
        return (self.folder / "runs.tar.xz").exists()

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Title, commands with their times, hardware, versions and date."""
        return tomllib.loads((self.folder / "study.toml").read_text(encoding="utf-8"))

    @functools.cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each run and round, with the name of the method."""
        return named(read([self.folder]))

    @functools.cached_property
    def runs(self) -> list[Run]:
        """Settings and records of each run that has a round."""
        found = ((experiment_of(rundir), rundir.records()) for rundir in find_runs(self.folder))
        return [(experiment, records) for experiment, records in found if records]

    @functools.cached_property
    def planned(self) -> list[Experiment]:
        """The runs that its grid asks for."""
        return read_grid(self.folder / "grid.toml")

    @functools.cached_property
    def rounds(self) -> int:
        """How far its runs are to go: as its grid says, unless they were ended before."""
        return int(self.about.get("until", self.planned[0].rounds))

    def of(self, name: str) -> list[Run]:
        """The runs of a method, as far as all of them go: means over fewer would jump."""
        ids = set(self.frame.loc[self.frame["name"] == name, "id"])
        runs = [run for run in self.runs if run[0].id in ids]
        reached = min(len(records) for _, records in runs)
        return [(experiment, records[:reached]) for experiment, records in runs]

    @functools.cached_property
    def so_far(self) -> str:
        """What of the grid is there, in words; empty where all of it is."""
        there = {_variant(experiment): (experiment, records) for experiment, records in self.runs}
        varied = [len({getattr(e, name) for e in self.planned}) > 1 for name in ("scope", "seed")]
        waiting, under_way, places = [], [], []
        for e in self.planned:
            words = name_of(e) + f", {e.scope} scope" * varied[0] + f", seed {e.seed}" * varied[1]
            if _variant(e) not in there:
                waiting.append(words)
            elif (records := there[_variant(e)][1])[-1]["stopped"] is None and len(records) <= self.rounds:
                places.append(len(records) - 1)
                under_way.append(f"{words}: T = {places[-1]} of {self.rounds}")
        if not waiting and not under_way:
            return ""
        count = len(self.planned)
        done = count - len(waiting) - len(under_way)
        if len(under_way) > MANY:
            under_way = [f"{len(under_way)} runs, at T = {ranged(places, digits=0)} of {self.rounds}"]
        if len(waiting) > MANY:
            waiting = [f"{len(waiting)} runs"]
        return prose(
            f"**This study is not complete:** {done} of its {count} runs {'is' if done == 1 else 'are'}.",
            *([f"Under way, in what follows as far as they go: {'; '.join(under_way)}."] if under_way else []),
            *([f"Not begun: {'; '.join(waiting)}."] if waiting else []),
            "No verdict here is the last one.",
        )

    @property
    def seconds(self) -> int:
        """Of all of its commands."""
        return sum(part["seconds"] for part in self.about["commands"] if "seconds" in part)

    @property
    def network(self) -> str:
        """Data and model, and the epochs where they are not the paper's."""
        epochs = self.frame["epochs"].iloc[0]
        return str(self.about["title"]).partition(":")[0] + (f", E = {epochs}" if epochs != EPOCHS else "")

    def under(self) -> str:
        """Hardware, versions and date in a line."""
        return f"{self.about['hardware']}; {self.about['versions']}; {self.about['date']}"

    def made(self) -> str:
        """How it was made: commands, times, settings that all runs share."""
        commands = "\n".join(f"{part['command']}  # {_time(part)}" for part in self.about["commands"])
        first = self.frame.iloc[0]
        whole = "Times are of whole commands, Python's start included. " if self.seconds else ""
        fewer = "" if first["epochs"] == EPOCHS else f" in place of {EPOCHS}"
        batch = "" if first["batch"] == BATCH else f" in place of {BATCH} (the authors' code has it for this data)"
        return f"```sh\n{commands}\n```\n\n" + prose(
            f"{self.under()}. {whole}Training and pruning alone, of {self.frame['id'].nunique()} runs, took "
            f"{self.frame['seconds'].sum():.0f} s. Settings are the paper's Table 3: {first['epochs']} epochs a "
            f"round{fewer}, batch {first['batch']}{batch}, SGD, learning rate {first['learning_rate']:g} with "
            f"cosine annealing, momentum {first['momentum']:g} (Nesterov), weight decay "
            f"{first['weight_decay']:g}; gradients clipped to norm {first['clip']:g}; every round begins at the "
            f"initial weights; precision {first['precision']}. The last epoch of a round counts, and no epoch, "
            "cut or stop is chosen by looking at test data. The records are in [runs.tar.xz](runs.tar.xz): "
            "`palmette table`, `palmette report`, `palmette paper --from` and `read_runs` read the folder as it "
            "is. This page is written from them by `python -m results.make`."
        )


def _variant(experiment: Experiment) -> tuple[object, ...]:
    return name_of(experiment), experiment.scope, experiment.seed


def _time(part: dict[str, Any]) -> str:
    return f"{part['what']}: {part['seconds']:,} s" if "seconds" in part else str(part["what"])


def shelf(studies: Iterable[Study]) -> RunCollection:
    """The runs of some studies, for the figures of the paper."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    return RunCollection.below([study.folder for study in studies], warn=refuse)


def save(figure: Figure, file: Path) -> None:
    """As PNG with a palette, which is a third of the size."""
    from PIL import Image

    whole = Image.open(io.BytesIO(as_file(figure, "png"))).convert("RGB")
    small = io.BytesIO()
    whole.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    write_whole(file, small.getvalue())


def write_page(study: Study, text: bytes) -> None:
    """Its README; a picture that it does not show any more goes."""
    write_whole(study.folder / "README.md", text)
    for old in study.folder.glob("*.png"):
        if f"({old.name})".encode() not in text:
            old.unlink()


def paragraphs(*parts: str) -> str:
    """Parts of a page below each other."""
    return "\n\n".join(parts)


def page(*parts: str) -> bytes:
    """A page of its parts."""
    return (paragraphs(*parts) + "\n").encode()


def prose(*sentences: str) -> str:
    """A paragraph."""
    text = _joined(" ".join(sentences))  # a line that begins with % would be a comment on the site
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def points(*paragraphs: str) -> str:
    """A list."""
    return "\n".join(textwrap.indent(prose(p), "  ").replace("  ", "- ", 1) for p in paragraphs)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """Markdown, the first columns `words`, the others numbers."""
    marks = ["---" if i < words else "---:" for i in range(len(titles))]
    return _joined("\n".join("| " + " | ".join(line) + " |" for line in [titles, marks, *rows]))


def _joined(text: str) -> str:
    """With every % on the line of its number."""
    return text.replace(" %", "\u00a0%")


def bold(text: str, sure: object) -> str:
    """In bold letters where that is sure."""
    return f"**{text}**" if sure and text else text


def ranged(values: Iterable[float], *, digits: int = 2) -> str:
    """From the least to the largest.

    >>> ranged([0.31, 0.29]), ranged([0.31, 0.312])
    ('0.29–0.31', '0.31')
    """
    shown = [f"{value:.{digits}f}" for value in sorted(values)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]}–{shown[-1]}"


def listed(words: Sequence[str]) -> str:
    """In a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def true(condition: object, sentence: str) -> str:
    """The sentence, if the records still say so: what is written by hand is checked each time."""
    if not condition:
        raise ValueError(f"the records do not say this any more, rewrite it: {sentence}")
    return sentence


def percent(value: float) -> str:
    """A share with as many digits as count.

    >>> percent(0.5), percent(0.0235), percent(0.00126)
    ('50 %', '2.4 %', '0.13 %')

    What does not exist is a dash.
    """
    if math.isnan(value):
        return "–"
    return f"{in_percent(value, value).rstrip('0').rstrip('.')} %"


def spread(found: Spread, *, scale: float = 100, digits: int = 2) -> str:
    """Mean ± standard deviation; empty where there is none."""
    if not found.n:
        return ""
    sd = "" if math.isnan(found.sd) else f" ± {scale * found.sd:.{digits}f}"
    return f"{scale * found.mean:.{digits}f}{sd}"


def signed(value: float, *, scale: float = 100, digits: int = 2) -> str:
    """With its sign.

    >>> signed(-0.0012), signed(0.026, scale=1, digits=3)
    ('−0.12', '+0.026')
    """
    return f"{scale * value:+.{digits}f}".replace("-", "−")


def difference(found: Difference, *, scale: float = 100, digits: int = 2) -> str:
    """Mean and interval; of a single pair, which has no interval, the mean; of none nothing."""
    if not found.pairs:
        return ""
    if found.pairs == 1:
        return signed(found.mean, scale=scale, digits=digits)
    low, high = (signed(v, scale=scale, digits=digits) for v in (found.low, found.high))
    return f"{signed(found.mean, scale=scale, digits=digits)} ({low} to {high})"
