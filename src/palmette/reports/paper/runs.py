"""Which runs a figure of the paper is drawn from, and how they differ from the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from palmette.errors import RunDamaged
from palmette.reports.comparison import name_of
from palmette.reports.tables import Run
from palmette.reports.words import counted
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.paper import FIGURES, MODEL_NAMES, SEEDS, PaperFigure, rounds_of
from palmette.studies.record import experiment_of, records_of
from palmette.studies.settings import slug
from palmette.studies.spec import OF_METHOD

VARIED = ("method", *OF_METHOD, "scope")
"""What figures vary. A run belongs to a figure whose data, model and variant it has."""

# These end a run and change nothing before its end; whether it is compiled changes rounding alone.
_INDIFFERENT = ("seed", "rounds", "stop", "compile")
_OWN = ("data", "model", *VARIED)
_SHARED = tuple(f.name for f in fields(Experiment) if f.name not in (*_OWN, *_INDIFFERENT))
_FLAGS = {"epochs": "--epochs", "precision": "--precision"}


def variant(experiment: Experiment) -> tuple[Any, ...]:
    """What tells the lines of a figure apart: the method, its settings and the scope."""
    return tuple(getattr(experiment, name) for name in VARIED)


@dataclass(frozen=True)
class Picture:
    """A figure of the paper, and the runs it is drawn from.

    Args:
        figure: what is drawn; its data set and model may be others than the paper's.
        runs: with the rounds that are there.
        planned: all that it takes, each variant at least once, there or not.
    """

    figure: PaperFigure
    runs: tuple[Run, ...]
    planned: tuple[Experiment, ...]

    @property
    def paper(self) -> PaperFigure:
        """The figure as the paper has it."""
        return FIGURES.get(self.figure.name, self.figure)

    @property
    def seeds(self) -> list[int]:
        """How many runs there are of each variant that has one, from the fewest to the most."""
        return sorted(len(many) for many in self._lines.values())

    @property
    def last(self) -> int:
        """The last round that a run has."""
        return max((len(records) for _, records in self.runs), default=0) - 1

    @property
    def name(self) -> str:
        """Of its files: that of the figure, and what the paper has otherwise, so that no other is overwritten."""
        first, seeds = self.runs[0][0], sorted({*self.seeds})
        parts = [self.figure.name]
        parts += [slug(self.figure.data)] if self.figure.data != self.paper.data else []
        parts += [slug(self.figure.model)] if self.figure.model != self.paper.model else []
        parts += [f"e{first.epochs}"] if first.epochs != Experiment.epochs else []
        parts += [f"t{self._reach}"] if self._reach != rounds_of(self.figure.model) else []
        parts += ["n" + "-".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))] if seeds != [len(SEEDS)] else []
        return "-".join([*parts, *map(slug, self._others)])

    @property
    def missing(self) -> list[str]:
        """The lines that no run is there for."""
        there = {variant(e) for e, _ in self.runs}
        absent = {variant(e): e for e in self.planned if variant(e) not in there}
        return [self._said(e) for e in absent.values()]

    @property
    def without_subject(self) -> str:
        """What is missing where its runs have a single value of each setting whose effects it shows."""
        if self.figure.kind == "scopes":
            first, *others = {e.scope for e, _ in self.runs}
            return "" if others else f"scopes beside {first}"
        if self.figure.kind == "p and q":
            rows, missing = [{"q": 1.0}, {"p": 1.0}], "a second p at q = 1, or q at p = 1"
        elif self.figure.kind == "eta and gamma":
            rows, missing = [{"gamma": 1.0}, {"eta": 0.0}], "a second η_r at γ = 1, or γ at η_r = 0"
        else:
            return ""
        return "" if any(len(self.only(**row)._lines) > 1 for row in rows) else missing

    @property
    def caption(self) -> str:
        """The protocol of the paper and, where it is another, that of these runs."""
        rounds = rounds_of(self.paper.model)
        theirs = f"{Experiment.epochs} epochs in each of rounds 0 to {rounds}, {len(SEEDS)} seeds"
        other = (self.figure.data, self.figure.model) != (self.paper.data, self.paper.model)
        ours = self._protocol(f" of {_network(self.figure)}" if other else "")
        theirs += f" of {_network(self.paper)}" if other else ""
        same = ours == theirs and not any(e.stop for e, _ in self.runs)
        lines = [f"The paper's protocol: {ours}." if same else f"Here {ours}; in the paper {theirs}."]
        if self.figure.kind == "p-q map":
            lines.append("Means over seeds." if self.seeds[-1] > 1 else "")
        else:
            lines.append(
                "Lines are means, bars one standard deviation over seeds"
                + (" where there are several." if self.seeds[0] == 1 else ".")
                if self.seeds[-1] > 1
                else "One seed, so no error bars."
            )
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
        return " ".join(line for line in lines if line)

    def in_step(self) -> Picture:
        """The same with the runs of a line as far as all of them go: a mean over fewer would jump."""
        reach = {key: min(len(records) for _, records in many) for key, many in self._lines.items()}
        return replace(self, runs=tuple((e, records[: reach[variant(e)]]) for e, records in self.runs))

    def only(self, **settings: object) -> Picture:
        """The part of it with these settings of an experiment."""

        def fits(experiment: Experiment) -> bool:
            return all(getattr(experiment, name) == value for name, value in settings.items())

        runs, planned = (run for run in self.runs if fits(run[0])), (e for e in self.planned if fits(e))
        return replace(self, runs=tuple(runs), planned=tuple(planned))

    def _protocol(self, network: str) -> str:
        epochs = counted(self.runs[0][0].epochs, "epoch")
        return ", ".join([f"{epochs} in {self._rounds}, {self._seeds}{network}", *self._others])

    @property
    def _lines(self) -> dict[Any, list[Run]]:
        """The runs of each line that has some, in the order of the paper."""
        found: dict[Any, list[Run]] = {variant(e): [] for e in self.planned}
        for run in self.runs:
            found.setdefault(variant(run[0]), []).append(run)
        return {key: many for key, many in found.items() if many}

    def _said(self, experiment: Experiment) -> str:
        """The name of its line."""
        scopes = len({e.scope for e in self.planned}) > 1
        return name_of(experiment) + (f", {experiment.scope} scope" if scopes else "")

    @property
    def _seeds(self) -> str:
        """How many most lines have and, with their names or scopes, those that have more or fewer."""
        lines = [(many[0][0], len(many)) for many in self._lines.values()]
        scopes = {f"{e.scope} scope": count for e, count in lines}
        telling = len({(e.scope, count) for e, count in lines}) == len(scopes) > 1
        counts = scopes if telling else {self._said(e): count for e, count in lines}
        most = max(self.seeds, key=self.seeds.count)
        others = sorted({count for count in counts.values() if count != most})
        said = [f"{n} of {'; '.join(name for name in counts if counts[name] == n)}" for n in others]
        return counted(most, "seed") + (f" ({'; '.join(said)})" if said else "")

    @property
    def _uneven(self) -> list[str]:
        """The lines whose runs do not end in one round, with the rounds of the first and the last end."""
        found = []
        for many in self._lines.values():
            ends = sorted(len(records) - 1 for _, records in many)
            if ends[0] < ends[-1]:
                found.append(f"{self._said(many[0][0])} to round {ends[0]} (others to {ends[-1]})")
        return found

    @property
    def _reach(self) -> int:
        """The last round asked for; while runs are under way, the last that is there."""
        rounds = max(e.rounds for e in self.planned)
        return min(self.last, rounds) if self._under_way else rounds

    @property
    def _under_way(self) -> list[int]:
        """The last rounds of the runs that are not at their end."""
        # One that was cut off at the rounds asked for is not under way.
        rounds = max(e.rounds for e in self.planned)
        reached = (len(records) - 1 for _, records in self.runs if records[-1]["stopped"] is None)
        return [t for t in reached if t < rounds]

    @property
    def _rounds(self) -> str:
        """Those of the runs that go furthest, and how far others have come that are not at their end."""
        rounds = max(e.rounds for e in self.planned)
        under_way, last = self._under_way, self._reach
        shorter = [len(records) - 1 for e, records in self.runs if len(records) - 1 == e.rounds]
        said = [f"of {rounds}"] if last < rounds else []
        if behind := sorted(t for t in (*under_way, *shorter) if t < last):
            each = f"{behind[0]}–{behind[-1]}" if behind[0] != behind[-1] else str(behind[0])
            said.append(f"{len(behind)} of {len(self.runs)} runs up to {each}")
        said += ["not all at their end"] if said and under_way else []
        return (f"each of rounds 0 to {last}" if last else "round 0") + (f" ({', '.join(said)})" if said else "")

    @property
    def _others(self) -> list[str]:
        """The settings, but for epochs, that all its runs share and the paper's do not have."""
        first, usual = self.runs[0][0], self.figure.experiments()[0]
        others = {name: getattr(first, name) for name in _SHARED if name != "epochs"}
        return [f"{name.replace('_', ' ')} {v}" for name, v in others.items() if v != getattr(usual, name)]


def in_folder(figure: PaperFigure, planned: Sequence[Experiment], folder: Path) -> Picture:
    """The figure from the runs of `folder` / id, as far as they have got; what is damaged is left out."""
    runs: list[Run] = []
    for experiment in planned:
        with suppress(RunDamaged):  # which whoever ran it has been told
            if records := records_of(RunDir(folder / experiment.id)):
                runs.append((experiment, records))
    return Picture(figure, tuple(runs), tuple(planned))


@dataclass(frozen=True)
class Shelf:
    """All runs below some folders, at any depth; what is in them is read when it is asked for."""

    runs: Mapping[Path, Experiment]
    say: Callable[[str], None]

    @staticmethod
    def of(folders: Iterable[str | Path], *, say: Callable[[str], None]) -> Shelf:
        """The runs below `folders`; `say` is told of those that cannot be read, and are left out."""
        found: dict[Path, Experiment] = {}
        for path in [run.path.resolve() for run in find_runs(*folders)]:
            try:
                found[path] = experiment_of(RunDir(path))
            except RunDamaged as error:
                say(f"left out: {error}")
        return Shelf(found, say)

    def picture(
        self,
        figure: PaperFigure,
        *,
        seeds: Sequence[int] | None = None,
        rounds: int | None = None,
        epochs: int | None = None,
        precision: str | None = None,
    ) -> Picture | None:
        """The figure from the runs that have its data, model and variants, whatever else they share.

        What is None is not asked for. None if there is no such run. Where one run is there twice, or several that
        differ in what ends them only, the one with the most rounds counts. Runs that were trained differently do
        not belong into one picture, and are refused.
        """
        wanted = {variant(e) for e in figure.experiments()}
        asked = {"epochs": epochs, "precision": precision}
        fits = {
            path: e
            for path, e in self.runs.items()
            if (e.data, e.model) == (figure.data, figure.model)
            and variant(e) in wanted
            and (seeds is None or e.seed in seeds)
            and all(value is None or getattr(e, name) == value for name, value in asked.items())
        }
        best: dict[Any, Run] = {}
        for path, e in fits.items():
            try:
                records = records_of(RunDir(path))[: None if rounds is None else rounds + 1]
            except RunDamaged as error:
                self.say(f"left out: {error}")
                continue
            key = (variant(e), e.seed, *(getattr(e, name) for name in _SHARED))
            if records and len(records) > len(best.get(key, (e, ()))[1]):
                best[key] = (e, records)
        runs = sorted(best.values(), key=lambda run: run[0].seed)
        _check_alike(figure, [e for e, _ in runs])
        if not runs:
            return None
        most = max(e.rounds for e, _ in runs) if rounds is None else rounds
        planned = figure.experiments(seeds=[0], epochs=runs[0][0].epochs, rounds=most)
        return Picture(figure, tuple(runs), tuple(planned))


def _network(figure: PaperFigure) -> str:
    return f"{MODEL_NAMES.get(figure.model, figure.model)} on {figure.data}"


class NotAlike(ValueError):
    """The runs for some figures do not belong into one picture."""

    def __init__(self, figures: Sequence[str], why: str) -> None:
        super().__init__(f"the runs for {', '.join(figures)} {why}")
        self.why = why


def _check_alike(figure: PaperFigure, experiments: Sequence[Experiment]) -> None:
    for name in _SHARED:
        values = sorted({str(getattr(e, name)) for e in experiments})
        if len(values) > 1:
            how = f"choose with {_FLAGS[name]}" if name in _FLAGS else "give the folder of one of them"
            raise NotAlike(
                [figure.name],
                f"differ in {name} ({', '.join(values)}) and do not belong into one picture; {how}",
            )
