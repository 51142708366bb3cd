"""`palmette paper`: the figures and tables of the paper, listed, run and drawn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.core import ParameterSource

from palmette.cli.options import RememberingCommand, device_named, place_options
from palmette.cli.paper_list import Asked, as_json, listed, print_list
from palmette.cli.sweep import Sweep
from palmette.reports.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.reports.paper.published import Published
    from palmette.reports.paper.runs import Picture
    from palmette.reports.tables import Run
    from palmette.studies.experiment import Experiment
    from palmette.studies.paper import PaperFigure

    Looks = tuple[Published | None, bool]
    """What is laid beside a figure, and whether its axes are logarithmic."""

ENDS = ("png", "svg", "pdf")


@click.command(cls=RememberingCommand)
@click.argument("names", nargs=-1, metavar="[FIGURE]...")
@click.option("--epochs", type=int, metavar="N", help="Of each round. [default: the paper's 200]")
@click.option("--rounds", type=int, metavar="N", help="How often to prune. [default: the paper's 30 or 15]")
@click.option("--seeds", metavar="TEXT", help="As 0..3,7: their numbers. [default: as many as the paper's, 0..3]")
@click.option("--models", metavar="NAME,…", help="In place of the paper's; a picture for each.")
@click.option("--data", metavar="NAME", help="A data set in place of the paper's, such as digits.")
@click.option("--from", "sources", multiple=True, metavar="FOLDER", help="Draw what is there; run nothing.")
@click.option("--beside", metavar="FILE.csv", help="Published values to lay beside ours. Figure 3 has its own.")
@click.option("--log", is_flag=True, help="Remaining weights on logarithmic axes; the paper's are linear.")
@place_options
@click.option("--precision", metavar="TEXT", help="float32, tf32 or bfloat16. [default: float32]")
@click.option("--compile", is_flag=True, help="torch.compile, which pays from minutes of training on.")
@click.option("--dry-run", is_flag=True, help="Say what would be run and how long it takes; write nothing.")
@click.option("--json", "for_program", is_flag=True, help="Print the list for a program.")
@click.pass_context
def paper(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    sources: tuple[str, ...],
    beside: str | None,
    log: bool,
    out: Path,
    data_dir: str | None,
    device: str | None,
    fleet: int | None,
    dry_run: bool,
    for_program: bool,
    **scaled: Any,
) -> None:
    """Reproduce the paper's figures and tables, whole or scaled down.

    The paper is Diao et al. 2023. Without a name: a list of all, with what each costs here and how much of it is
    done.

    \b
      palmette paper
      palmette paper fig2 --dry-run
      palmette paper fig2 fig11 --epochs 10 --rounds 12 --seeds 0
      palmette paper fig3 --models mlp --data digits --epochs 15
      palmette paper all --from runs --epochs 10 --out pictures
      palmette paper table3

    What is missing is run, what was begun goes on, and a run that fails does not stop the others; figures share
    runs. Each figure is written as PNG, SVG and PDF, a table as Markdown, CSV and LaTeX. A figure that is not made
    by the paper's protocol says so below.
    """
    from palmette.reports.figures import check_matplotlib
    from palmette.reports.paper.published import check_beside, read
    from palmette.reports.paper.runs import Picture
    from palmette.studies.paper import FIGURES, chosen
    from palmette.studies.paper_cost import Clock

    figures = chosen(names) if names else list(FIGURES.values())
    if all(figure.kind == "table" for figure in figures):
        _refuse_for_tables(ctx)
    asked = _asked(**scaled)
    published = None if beside is None else read(beside)
    if sources:
        if not names:
            raise ValueError("--from needs the names of figures to draw, such as fig2 fig3, or all")
        if dry_run:
            raise ValueError("--from runs nothing, so --dry-run has nothing to tell: leave one of them out")
        _draw_from(sources, figures, asked, (published, log), out, everything="all" in names)
        return
    pictures = [(figure, asked.experiments(figure)) for figure in asked.variants(figures)]
    if published is not None:
        check_beside(published, [Picture(figure, (), tuple(planned)) for figure, planned in pictures])
    where = device_named(device)
    if not names or dry_run:
        sys.path.insert(0, os.getcwd())  # for a model of one's own
        entries = listed(figures, asked, out, Clock(where, fleet, data_dir))
        if for_program or (names and not sys.stdout.isatty()):
            click.echo(json.dumps(as_json(entries, where), indent=None if names else 1))
        else:
            print_list(entries, where, asked, whole=not names)
        return
    planned = list(dict.fromkeys(e for _, experiments in pictures for e in experiments))
    command = Paper(
        planned, out, data_dir, where, False, fleet, ctx.meta["palmette.arguments"],
        stem="paper", pictures=pictures, looks=(published, log),
        tables=[figure.name for figure in figures if figure.kind == "table"],
    )  # fmt: skip
    if planned:
        check_matplotlib()
        command.check_all()
        ctx.exit(command.run())
    command.print_tables()


def _refuse_for_tables(ctx: click.Context) -> None:
    """Raise if there are flags that nothing is done with where tables alone are asked for."""
    heeded = ("names", "out", "dry_run")
    given = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name not in heeded
        and ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise ValueError(
            f"the paper's tables are of models and settings, not of runs, so {', '.join(given)} would change "
            "nothing: leave that out, or name a figure too"
        )


def _asked(
    epochs: int | None,
    rounds: int | None,
    seeds: str | None,
    models: str | None,
    data: str | None,
    precision: str | None,
    compile: bool,
) -> Asked:
    from palmette.studies.experiment import Experiment
    from palmette.studies.settings import seeds as read_seeds

    if epochs is not None and epochs < 1:
        raise ValueError(f"--epochs must be at least 1, got {epochs}: the paper's figures are of trained networks")
    named = tuple(dict.fromkeys(m.strip() for m in models.split(","))) if models is not None else ()
    given = {"epochs": epochs, "rounds": rounds, "precision": precision, "data": data}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for model in named or ("mlp",):  # whatever cannot be run is said at once, and data have one spelling
        first = Experiment(model=model, **known)
    chosen_seeds = None if seeds is None else tuple(read_seeds(seeds))
    return Asked(epochs, rounds, chosen_seeds, named, first.data if data is not None else None, precision, compile)


@dataclass
class Paper(Sweep):
    """One call of `palmette paper`: as `palmette sweep`, with the figures that the runs are for."""

    word: ClassVar = "paper"
    pictures: Sequence[tuple[PaperFigure, Sequence[Experiment]]] = ()
    looks: Looks = (None, False)
    tables: Sequence[str] = ()

    def files(self, rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> dict[str, Path | None]:
        """All figures, also from runs that are not finished, and all tables."""
        from palmette.reports.paper.runs import in_folder

        found: dict[str, Path | None] = {"table": self._write_table(rows, runs)}
        for figure, planned in self.pictures:
            picture = in_folder(figure, planned, self.out)
            key = figure.name if figure.model == picture.paper.model else f"{figure.name}-{figure.model}"
            found[key] = _write(picture, self.looks, self.out) if picture.runs else None
        for name in self.tables:
            found[name] = write_table(name, self.out)
        return found

    def print_tables(self) -> None:
        """Tables alone, which take no runs."""
        from rich.console import Console

        from palmette.reports.paper.tables import table

        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
        for name in self.tables:
            found = table(name)
            file = write_table(name, self.out)
            console.print(found.as_rich(console.width))
            console.print(f"\n{found.note}\n", style="dim")
            console.print(f"{name}  {file}, .csv, .tex\n", soft_wrap=True)

    def _suggest(self, console: Console) -> None:
        console.print("Each figure is also there as .svg and .pdf.", style="dim")
        super()._suggest(console)


def _draw_from(
    sources: Sequence[str],
    figures: Sequence[PaperFigure],
    asked: Asked,
    looks: Looks,
    out: Path,
    *,
    everything: bool,
) -> None:
    """Figures from runs that are there; of `everything`, what has no run or no subject is passed over."""
    from palmette.reports.paper.published import check_beside
    from palmette.reports.paper.runs import NotAlike, Shelf

    shelf = Shelf.of(sources, say=lambda text: click.echo(f"palmette: {text}", err=True))
    pictures: list[Picture] = []
    absent: list[str] = []
    refused: dict[str, list[str]] = {}  # why, and which figures
    pointless: dict[str, list[str]] = {}  # what is missing, and from which figures
    for figure in asked.variants(figures):
        try:
            picture = shelf.picture(
                figure,
                seeds=asked.seeds,
                rounds=asked.rounds,
                epochs=asked.epochs,
                precision=asked.precision,
            )
        except NotAlike as error:
            if not everything:
                raise
            refused.setdefault(error.why, []).append(figure.name)
            continue
        if picture is None:
            absent.append(f"{figure.name} ({figure.model} on {figure.data})")
        elif everything and (missing := picture.without_subject):
            pointless.setdefault(missing, []).append(figure.name)
        else:
            pictures.append(picture)
    if pictures and looks[0] is not None:
        check_beside(looks[0], pictures)
    for picture in pictures:
        seeds = picture.seeds
        each = f"{seeds[0]} to {seeds[-1]}" if seeds[0] != seeds[-1] else str(seeds[-1])
        file = _write(picture, looks, out)
        runs = f"{counted(len(picture.runs), 'run')}, {each} of each line"
        not_run = f"; not run: {counted(len(picture.missing), 'line')}" if picture.missing else ""
        click.echo(f"{file}, .svg, .pdf: {runs}{not_run}")
    for figure in figures:
        if figure.kind == "table":
            click.echo(f"{write_table(figure.name, out)}, .csv, .tex")
    for missing, those in pointless.items():
        click.echo(f"palmette: not drawn: {', '.join(those)}, for which no run has {missing}", err=True)
    if absent and (not everything or len(absent) == len(list(asked.variants(figures)))):
        where = ", ".join(repr(source) for source in sources)
        wanted = "a figure of the paper" if everything else ", ".join(absent)
        asked_for = {"--seeds": asked.seeds, "--epochs": asked.epochs, "--precision": asked.precision}
        given = ", ".join(flag for flag, value in asked_for.items() if value is not None)
        raise ValueError(
            f"no run below {where} is one for {wanted}" + (f" with the {given} asked for" if given else "")
        )
    if refused:  # after all that could be drawn
        raise ValueError("\n".join(str(NotAlike(those, why)) for why, those in refused.items()))


def write_table(name: str, out: Path) -> Path:
    """One of the paper's tables as files; the one for eyes is named."""
    from palmette.files import write_whole
    from palmette.reports.paper.tables import table

    for end, text in table(name).files().items():
        write_whole(out / f"{name}{end}", text.encode())
    return out / f"{name}.md"


def _write(picture: Picture, looks: Looks, out: Path) -> Path:
    """The picture as files; the PNG is named."""
    from palmette.files import write_whole
    from palmette.reports.figures import as_file
    from palmette.reports.paper.drawing import draw
    from palmette.reports.paper.published import published
    from palmette.studies.settings import slug

    beside, log = looks
    own = beside if beside is not None and beside.in_part(picture) else None
    figure = draw(picture, beside=own or published(picture.figure), log=log)
    names = [f"beside-{slug(Path(own.source).stem)}"] if own else []
    stem = out / "-".join([picture.name, *names, *(["log"] if log else [])])
    for end in ENDS:
        write_whole(stem.with_name(f"{stem.name}.{end}"), as_file(figure, end))  # type: ignore[arg-type]
    return stem.with_name(f"{stem.name}.png")
