"""`palmette paper`: list, run and draw the figures and tables of the paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import click
from click.core import ParameterSource

from palmette.cli.display.printing import console_of_stdout, fitted, plain_table, print_text, say
from palmette.cli.options import RememberingCommand, device_named, place_options
from palmette.cli.paper_list import list_as_json, list_figures, print_list
from palmette.cli.sweep import Sweep
from palmette.files import write_whole
from palmette.reports.figures import as_file, check_matplotlib
from palmette.reports.paper.drawing import draw, is_logarithmic
from palmette.reports.paper.layout import Sheet
from palmette.reports.paper.published import published
from palmette.reports.paper.runs import FigureRuns, MixedRuns, RunCollection, in_folder
from palmette.reports.tables import Run
from palmette.studies.experiment import Experiment
from palmette.studies.paper import FIGURES, PaperFigure, chosen
from palmette.studies.settings import seeds as read_seeds
from palmette.words import counted

if TYPE_CHECKING:
    from palmette.studies.cost import Clock

Suffix = Literal["png", "svg", "pdf"]


@click.command(cls=RememberingCommand)
@click.argument("names", nargs=-1, metavar="[FIGURE]...")
@click.option("--epochs", type=int, metavar="N", help="Epochs per round. [default: 200, as in the paper]")
@click.option("--rounds", type=int, metavar="N", help="Rounds of pruning. [default: 30 or 15, as in the paper]")
@click.option(
    "--seeds",
    metavar="TEXT",
    help="Seeds, such as 0..3,7 (numbers, not a count). [default: 0..3, as in the paper]",
)
@click.option("--models", metavar="NAME,…", help="Models instead of the paper's; one figure for each.")
@click.option("--data", metavar="NAME", help="Data set instead of the paper's, such as digits.")
@click.option("--from", "sources", multiple=True, metavar="FOLDER", help="Draw existing runs; train nothing.")
@click.option(
    "--log/--linear",
    default=None,
    help="Axes of remaining weights. [default: logarithmic for scopes, else linear, as in the paper]",
)
@click.option("--width", type=float, metavar="INCHES", help="Width of figures, such as 5.5. [default: 12.8]")
@click.option("--bare", is_flag=True, help="Leave out title and caption, for a document with its own.")
@place_options
@click.option("--precision", metavar="TEXT", help="float32, tf32 or bfloat16. [default: float32]")
@click.option("--compile", is_flag=True, help="Use torch.compile; pays off after minutes of training.")
@click.pass_context
def paper(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    sources: tuple[str, ...],
    log: bool | None,
    width: float | None,
    bare: bool,
    place: dict[str, Any],
    **scaled: Any,
) -> None:
    """Reproduce the paper's figures and tables, in full or scaled down.

    The paper is Diao et al. 2023. Without a name: list all figures and how much of them is done; with --dry-run,
    also how long they take on this machine.

    \b
      palmette paper
      palmette paper fig2 --dry-run
      palmette paper fig2 fig11 --epochs 10 --rounds 12 --seeds 0
      palmette paper fig3 --models mlp --data digits --epochs 15
      palmette paper all --from runs --epochs 10 --out pictures
      palmette paper fig2 --from runs --width 5.5 --bare
      palmette paper table3

    Missing runs are trained, unfinished ones are resumed, and a run that fails does not stop the others; figures
    share runs. Each figure is written as PNG, SVG and PDF, each table as Markdown, CSV and LaTeX. Captions state
    every difference from the paper's protocol.
    """
    figures = chosen(names) if names else list(FIGURES.values())
    if all(figure.kind == "table" for figure in figures):
        _refuse_for_tables(ctx)
    style = _Style(log, Sheet(**({} if width is None else {"width": width}), bare=bare))
    settings, models, data = _scaling(**scaled)
    figures = [one for figure in figures for one in figure.scaled(data, models)]
    if sources:
        if not names:
            raise ValueError("--from needs the names of figures to draw, such as fig2 fig3, or all")
        if place["dry_run"]:
            raise ValueError("--from trains nothing, so --dry-run has nothing to show: leave one of them out")
        _draw_existing(sources, figures, settings, style, place["out"], everything="all" in names)
        return
    if place["dry_run"] or not names:
        clock = _clock(place) if place["dry_run"] else None
        entries = list_figures(figures, settings, place["out"], clock)
        if place["as_json"]:
            click.echo(json.dumps(list_as_json(entries, clock), indent=1))
        else:
            print_list(entries, bool(models or data or settings.keys() & {"epochs", "rounds", "seeds"}), clock)
        return
    planned = [(figure, figure.experiments(**settings)) for figure in figures if figure.kind != "table"]
    experiments = list(dict.fromkeys(e for _, many in planned for e in many))
    tables = [figure.name for figure in figures if figure.kind == "table"]
    place["device"] = device_named(place["device"])
    command = PaperSweep(experiments, **place, stem="paper", figures=planned, style=style, tables=tables)
    if experiments:
        check_matplotlib()
        command.start()
    command.print_tables()


def _clock(place: Mapping[str, Any]) -> Clock:
    from palmette.studies.cost import Clock

    return Clock(device_named(place["device"]), place["fleet"], place["data_dir"], rough=True)


def _refuse_for_tables(ctx: click.Context) -> None:
    """Raise if flags are given that have no effect on tables."""
    given = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name not in ("names", "out", "dry_run", "as_json")
        and ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise ValueError(
            f"the paper's tables describe models and settings, not runs, so {', '.join(given)} would change "
            "nothing: leave that out, or name a figure too"
        )


def _scaling(**given: Any) -> tuple[dict[str, Any], list[str], str]:
    """Settings, models and data set that replace the paper's."""
    settings = {name: value for name, value in given.items() if value is not None}
    if (epochs := settings.get("epochs", 1)) < 1:
        raise ValueError(f"--epochs must be at least 1, got {epochs}: the paper's figures show trained networks")
    models, seeds, data = (settings.pop(name, None) for name in ("models", "seeds", "data"))
    named = list(dict.fromkeys(m.strip() for m in models.split(","))) if models is not None else []
    for model in named or ("mlp",):  # refuses bad settings early, and normalises the name of the data set
        first = Experiment(model=model, **settings, **({} if data is None else {"data": data}))
    settings |= {} if seeds is None else {"seeds": read_seeds(seeds)}
    return settings, named, "" if data is None else first.data


@dataclass(frozen=True)
class _Style:
    """How figures are drawn: logarithmic axes (None: as usual for the figure), and the sheet."""

    log: bool | None = None
    sheet: Sheet = field(default_factory=Sheet)


@dataclass
class PaperSweep(Sweep):
    """One call of `palmette paper`: a sweep, and the figures and tables made from it."""

    word: ClassVar = "paper"
    figures: Sequence[tuple[PaperFigure, Sequence[Experiment]]] = ()
    style: _Style = field(default_factory=_Style)
    tables: Sequence[str] = ()

    def files(
        self, rows: Sequence[dict[str, Any]], runs: Sequence[Run], far: Sequence[str]
    ) -> dict[str, Path | None]:
        """Write all tables and all figures, also from unfinished runs."""
        found: dict[str, Path | None] = {"table": self._write_table(rows, runs, far)}
        for figure, planned in self.figures:
            source = in_folder(figure, planned, self.out)
            key = figure.name if figure.model == source.paper.model else f"{figure.name}-{figure.model}"
            found[key] = _write_figure(source, self.style, self.out) if source.runs else None
        return found | {name: _write_table(name, self.out) for name in self.tables}

    def print_tables(self) -> None:
        """Print and write tables alone, which need no runs."""
        from palmette.reports.paper.model_tables import table

        console = console_of_stdout()
        for name, found in {name: table(name) for name in self.tables}.items():
            file = _write_table(name, self.out)
            if self.as_json:
                click.echo(
                    json.dumps(
                        {"table": name, "rows": [dict(zip(found.columns, r, strict=True)) for r in found.rows]}
                    )
                )
                continue
            cells = dict(zip(found.columns, zip(*found.texts, strict=True), strict=True))
            shown = fitted(cells, console.width, [found.spare])
            console.print(found.title, style="bold")
            console.print(plain_table(*shown, words=found.words, rows=zip(*shown.values(), strict=True)))
            print_text(console, f"\n{found.note}\n", "dim")
            console.print(f"{name}  {file}, .csv, .tex\n", soft_wrap=True)


def _draw_existing(
    sources: Sequence[str],
    figures: Sequence[PaperFigure],
    settings: Mapping[str, Any],
    style: _Style,
    out: Path,
    *,
    everything: bool,
) -> None:
    """Draw figures from existing runs; with `everything`, skip those without runs or without a contrast."""
    collection = RunCollection.below(sources, warn=say)
    drawn: list[FigureRuns] = []
    absent: list[str] = []
    mixed: dict[str, list[str]] = {}  # why -> figures
    lacking: dict[str, list[str]] = {}  # what is missing -> figures
    asked = {name: settings[name] for name in ("seeds", "epochs", "precision") if name in settings}
    wanted = [figure for figure in figures if figure.kind != "table"]
    for figure in wanted:
        try:
            found = collection.select(figure, rounds=settings.get("rounds"), **asked)
        except MixedRuns as error:
            if not everything:
                raise
            mixed.setdefault(error.why, []).append(figure.name)
            continue
        if found is None:
            absent.append(f"{figure.name} ({figure.model} on {figure.data})")
        elif everything and (missing := found.missing_contrast):
            lacking.setdefault(missing, []).append(figure.name)
        else:
            drawn.append(found)
    for found in drawn:
        low, high = found.seeds[0], found.seeds[-1]
        runs = f"{counted(len(found.runs), 'run')}, {low if low == high else f'{low} to {high}'} of each line"
        not_run = f"; not run: {counted(len(found.missing), 'line')}" if found.missing else ""
        click.echo(f"{_write_figure(found, style, out)}, .svg, .pdf: {runs}{not_run}")
    for figure in figures:
        if figure.kind == "table":
            click.echo(f"{_write_table(figure.name, out)}, .csv, .tex")
    for missing, names in lacking.items():
        say(f"not drawn: {', '.join(names)}, for which no run has {missing}")
    if absent and (not everything or len(absent) == len(wanted)):
        where = ", ".join(repr(source) for source in sources)
        what = "a figure of the paper" if everything else ", ".join(absent)
        given = ", ".join(f"--{name}" for name in asked)
        raise ValueError(f"no run below {where} is one for {what}" + (f" with the given {given}" if given else ""))
    if mixed:  # after drawing the others
        raise ValueError("\n".join(str(MixedRuns(names, why)) for why, names in mixed.items()))


def _write_table(name: str, out: Path) -> Path:
    """Write one of the paper's tables; returns the Markdown file."""
    from palmette.reports.paper.model_tables import table

    for suffix, text in table(name).files().items():
        write_whole(out / f"{name}{suffix}", text.encode())
    return out / f"{name}.md"


def _write_figure(source: FigureRuns, style: _Style, out: Path) -> Path:
    """Write a figure; returns the PNG file."""
    figure = draw(source, published=published(source.figure), log=style.log, sheet=style.sheet)
    other = style.log is not None and style.log != is_logarithmic(source.figure)
    stem = source.name + (("-log" if style.log else "-linear") if other else "")
    for suffix in get_args(Suffix):
        write_whole(out / f"{stem}.{suffix}", as_file(figure, suffix))
    return out / f"{stem}.png"
