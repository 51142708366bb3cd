"""Runs that a figure of the paper is drawn from, its caption, and how their protocol differs from the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from palmette.errors import RunDamaged
from palmette.reports.comparison import name_of
from palmette.reports.tables import Run
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.paper import FIGURES, MODEL_NAMES, SEEDS, PaperFigure, rounds_of
from palmette.studies.record import experiment_of, records_of
from palmette.studies.settings import slug
from palmette.studies.spec import OF_METHOD
from palmette.words import counted

VARIED = ("method", *OF_METHOD, "scope")
"""Settings that figures vary. A run belongs to a figure with its data, model and one of its variants."""
# The first three end a run and change nothing before its end; compiling changes rounding alone.
_INDIFFERENT = ("seed", "rounds", "stop", "compile")
_SHARED = tuple(f.name for f in fields(Experiment) if f.name not in ("data", "model", *VARIED, *_INDIFFERENT))
_FLAGS = ("epochs", "precision")
_CLIPPED = {
    "all": "Gradients are clipped over all weights, as in the authors' code.",
    "kept": "Gradients are clipped over kept weights, in the authors' code over all.",
}
_CONTRASTS = {
    "p and q": ([{"q": 1.0}, {"p": 1.0}], "a second p at q = 1, or q at p = 1"),
    "eta and gamma": ([{"gamma": 1.0}, {"eta": 0.0}], "a second η_r at γ = 1, or γ at η_r = 0"),
}


def variant(experiment: Experiment) -> tuple[Any, ...]:
    """Method, its settings and the scope: what distinguishes the lines of a figure."""
    return tuple(getattr(experiment, name) for name in VARIED)


@dataclass(frozen=True)
class FigureRuns:
    """A figure of the paper and the runs that it is drawn from.

    Args:
        figure: its data set and model may differ from the paper's.
        runs: with the rounds finished so far.
        planned: experiments of the figure, each variant at least once, run or not.
    """

    figure: PaperFigure
    runs: tuple[Run, ...]
    planned: tuple[Experiment, ...]

    @property
    def paper(self) -> PaperFigure:
        """The figure with the paper's data set and model."""
        return FIGURES.get(self.figure.name, self.figure)

    @property
    def seeds(self) -> list[int]:
        """Number of runs of each line that has one, in ascending order."""
        return sorted(len(many) for many in self._lines.values())

    @property
    def last(self) -> int:
        """Last round of any run."""
        return max((len(records) for _, records in self.runs), default=0) - 1

    @property
    def name(self) -> str:
        """File name: the figure, and every difference from the paper, so that no other file is overwritten."""
        figure, paper, first, seeds = self.figure, self.paper, self.runs[0][0], sorted({*self.seeds})
        different = [
            (slug(figure.data), figure.data != paper.data),
            (slug(figure.model), figure.model != paper.model),
            (f"e{first.epochs}", first.epochs != Experiment.epochs),
            (f"t{self._reach}", self._reach != rounds_of(figure.model)),
            ("n" + "-".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))), seeds != [len(SEEDS)]),
            ("clip-kept", first.clip_over == "kept"),
        ]
        return "-".join([figure.name, *(text for text, differs in different if differs), *map(slug, self._others)])

    @property
    def scaled_down(self) -> bool:
        """Whether epochs, rounds or seeds are fewer than the paper's."""
        rounds = self.last < rounds_of(self.paper.model)
        return rounds or self.runs[0][0].epochs < Experiment.epochs or self.seeds[0] < len(SEEDS)

    @property
    def missing(self) -> list[str]:
        """Lines that have no run."""
        absent = {variant(e): e for e in self.planned if variant(e) not in self._lines}
        return [self._line_name(e) for e in absent.values()]

    @property
    def missing_contrast(self) -> str:
        """Contrast of the figure that the runs lack, in words; empty if they have it."""
        if self.figure.kind == "scopes":
            first, *others = {e.scope for e, _ in self.runs}
            return "" if others else f"scopes other than {first}"
        rows, missing = _CONTRASTS.get(self.figure.kind, ([], ""))
        return "" if any(len(self.only(**row)._lines) > 1 for row in rows) else missing

    @property
    def caption(self) -> str:
        """Protocol of these runs and, if it differs, the paper's."""
        figure, paper = self.figure, self.paper
        theirs = f"{Experiment.epochs} epochs in each of rounds 0 to {rounds_of(paper.model)}, {len(SEEDS)} seeds"
        ours = f"{counted(self.runs[0][0].epochs, 'epoch')} in {self._rounds}, {self._seeds}"
        if (figure.data, figure.model) != (paper.data, paper.model):
            ours, theirs = f"{ours} of {_network(figure)}", f"{theirs} of {_network(paper)}"
        ours = ", ".join([ours, *self._others])
        same = ours == theirs and not any(e.stop for e, _ in self.runs)
        lines = [f"The paper's protocol: {ours}." if same else f"Here {ours}; in the paper {theirs}."]
        lines.append(_CLIPPED[self.runs[0][0].clip_over])
        several = self.seeds[-1] > 1
        if figure.kind == "p-q map":
            lines += ["Means over seeds."] if several else []
        else:
            where = " where there are several" if self.seeds[0] == 1 else ""
            bars = f"Lines are means, bars one standard deviation over seeds{where}."
            lines.append(bars if several else "One seed, so no error bars.")
        if uneven := self._uneven:
            lines.append(f"Means go as far as all of their runs: {'; '.join(uneven)}.")
        early = [
            e for e, records in self.runs if records[-1]["stopped"] and len(records) <= min(e.rounds, self.last)
        ]
        if early:
            why = "had nothing left to cut" + (" or were stopped" if any(e.stop for e in early) else "")
            lines.append(f"Runs that end early {why}.")
        if self.missing:
            lines.append(f"Not run: {'; '.join(self.missing)}.")
        return " ".join(lines)

    def truncated(self) -> FigureRuns:
        """Cut the runs of each line to the shortest: a mean over fewer runs would jump."""
        reach = {key: min(len(records) for _, records in many) for key, many in self._lines.items()}
        return replace(self, runs=tuple((e, records[: reach[variant(e)]]) for e, records in self.runs))

    def only(self, **settings: object) -> FigureRuns:
        """Part with these settings."""

        def fits(experiment: Experiment) -> bool:
            return all(getattr(experiment, name) == value for name, value in settings.items())

        runs, planned = (run for run in self.runs if fits(run[0])), filter(fits, self.planned)
        return replace(self, runs=tuple(runs), planned=tuple(planned))

    @property
    def _lines(self) -> dict[Any, list[Run]]:
        """Runs of each line that has some, in the order of the paper."""
        found: dict[Any, list[Run]] = {variant(e): [] for e in self.planned}
        for run in self.runs:
            found.setdefault(variant(run[0]), []).append(run)
        return {key: many for key, many in found.items() if many}

    def _line_name(self, experiment: Experiment) -> str:
        scopes = len({e.scope for e in self.planned}) > 1
        return name_of(experiment) + (f", {experiment.scope} scope" if scopes else "")

    @property
    def _seeds(self) -> str:
        """Seeds of most lines and, by line or scope, of those that have more or fewer."""
        lines = [(many[0][0], len(many)) for many in self._lines.values()]
        scopes = {f"{e.scope} scope": count for e, count in lines}
        by_scope = len({(e.scope, count) for e, count in lines}) == len(scopes) > 1
        counts = scopes if by_scope else {self._line_name(e): count for e, count in lines}
        most = max(self.seeds, key=self.seeds.count)
        others = sorted({count for count in counts.values() if count != most})
        texts = [f"{n} of {'; '.join(name for name in counts if counts[name] == n)}" for n in others]
        return counted(most, "seed") + (f" ({'; '.join(texts)})" if texts else "")

    @property
    def _uneven(self) -> list[str]:
        """Lines whose runs end in different rounds, with the first and the last of these."""
        found = []
        for many in self._lines.values():
            ends = sorted(len(records) - 1 for _, records in many)
            if ends[0] < ends[-1]:
                found.append(f"{self._line_name(many[0][0])} to round {ends[0]} (others to {ends[-1]})")
        return found

    @property
    def _planned_rounds(self) -> int:
        return max(e.rounds for e in self.planned)

    @property
    def _reach(self) -> int:
        """Last planned round; while runs are in progress, their last finished round."""
        return min(self.last, self._planned_rounds) if self._in_progress else self._planned_rounds

    @property
    def _in_progress(self) -> list[int]:
        """Last rounds of the runs that have not ended; one truncated at the planned rounds has."""
        reached = (len(records) - 1 for _, records in self.runs if records[-1]["stopped"] is None)
        return [t for t in reached if t < self._planned_rounds]

    @property
    def _rounds(self) -> str:
        """Rounds of the longest runs, and how far the shorter ones got."""
        in_progress, last = self._in_progress, self._reach
        shorter = [len(records) - 1 for e, records in self.runs if len(records) - 1 == e.rounds]
        notes = [f"of {self._planned_rounds}"] if last < self._planned_rounds else []
        if behind := sorted(t for t in (*in_progress, *shorter) if t < last):
            each = f"{behind[0]}–{behind[-1]}" if behind[0] != behind[-1] else str(behind[0])
            notes.append(f"{len(behind)} of {len(self.runs)} runs up to {each}")
        notes += ["not all at their end"] if notes and in_progress else []
        return (f"each of rounds 0 to {last}" if last else "round 0") + (f" ({', '.join(notes)})" if notes else "")

    @property
    def _others(self) -> list[str]:
        """Shared settings that differ from the paper's, other than those that a caption always has."""
        first, usual = self.runs[0][0], self.figure.experiments()[0]
        values = {name: getattr(first, name) for name in _SHARED if name not in ("epochs", "clip_over")}
        return [f"{name.replace('_', ' ')} {v}" for name, v in values.items() if v != getattr(usual, name)]


def in_folder(figure: PaperFigure, planned: Sequence[Experiment], folder: Path) -> FigureRuns:
    """Read the finished rounds of the planned runs below `folder`; damaged runs are left out."""
    runs: list[Run] = []
    for experiment in planned:
        with suppress(RunDamaged):  # already reported by the sweep
            if records := records_of(RunDir(experiment.folder_in(folder))):
                runs.append((experiment, records))
    return FigureRuns(figure, tuple(runs), tuple(planned))


@dataclass(frozen=True)
class RunCollection:
    """All runs below some folders, at any depth; records are read when needed.

    `warn` receives a sentence about each run that cannot be read and is left out.
    """

    runs: Mapping[Path, Experiment]
    warn: Callable[[str], None]

    @staticmethod
    def below(folders: Iterable[str | Path], *, warn: Callable[[str], None]) -> RunCollection:
        """Find the runs below `folders`."""
        found: dict[Path, Experiment] = {}
        searches = 0
        for path in [run.path.resolve() for run in find_runs(*folders)]:
            try:
                experiment = experiment_of(RunDir(path))
            except RunDamaged as error:
                warn(f"left out: {error}")
                continue
            if isinstance(experiment, Experiment):
                searches += bool(experiment.tolerance)
                found |= {} if experiment.tolerance else {path: experiment}
        if searches:
            warn(f"left out: {counted(searches, 'run')} with a tolerance, whose rounds are those of a search")
        return RunCollection(found, warn)

    def select(
        self,
        figure: PaperFigure,
        *,
        seeds: Sequence[int] | None = None,
        rounds: int | None = None,
        epochs: int | None = None,
        precision: str | None = None,
    ) -> FigureRuns | None:
        """Runs with the data, model and variants of the figure; None if there are none.

        Arguments that are None do not restrict. Of copies of a run, and of runs that differ only in what ends
        them, the one with the most rounds is taken. Runs that were trained differently raise `MixedRuns`.
        """
        wanted = {variant(e) for e in figure.experiments()}
        asked = {"epochs": epochs, "precision": precision}
        best: dict[Any, Run] = {}
        for path, e in self.runs.items():
            if (
                (e.data, e.model) != (figure.data, figure.model)
                or variant(e) not in wanted
                or (seeds is not None and e.seed not in seeds)
                or any(value is not None and getattr(e, name) != value for name, value in asked.items())
            ):
                continue
            try:
                records = records_of(RunDir(path))[: None if rounds is None else rounds + 1]
            except RunDamaged as error:
                self.warn(f"left out: {error}")
                continue
            key = (variant(e), e.seed, *(getattr(e, name) for name in _SHARED))
            if records and len(records) > len(best.get(key, (e, ()))[1]):
                best[key] = (e, records)
        runs = sorted(best.values(), key=lambda run: run[0].seed)
        if not runs:
            return None
        for name in _SHARED:
            values = sorted({str(getattr(e, name)) for e, _ in runs})
            if len(values) > 1:
                how = f"choose with --{name}" if name in _FLAGS else "give the folder of one of them"
                why = f"differ in {name} ({', '.join(values)}) and cannot share a figure; {how}"
                raise MixedRuns([figure.name], why)
        most = max(e.rounds for e, _ in runs) if rounds is None else rounds
        planned = figure.experiments(seeds=[0], epochs=runs[0][0].epochs, rounds=most)
        return FigureRuns(figure, tuple(runs), tuple(planned))


class MixedRuns(ValueError):
    """Runs of a figure that were trained with different settings."""

    def __init__(self, figures: Sequence[str], why: str) -> None:
        super().__init__(f"the runs for {', '.join(figures)} {why}")
        self.why = why


def _network(figure: PaperFigure) -> str:
    return f"{MODEL_NAMES.get(figure.model, figure.model)} on {figure.data}"
