"""The pages of studies that lay four methods side by side in global scope."""

from __future__ import annotations

from palmette.reports.figures import draw as draw_overview
from palmette.reports.paper import draw
from palmette.reports.paper_published import published
from palmette.reports.tables import Run
from palmette.studies.paper import FIGURES
from palmette.studies.rundir import write_whole
from results import epochs, readings, readings_cifar10
from results.answers import LT, equal_density, present, shape
from results.claims import claims
from results.epochs import rounds_figure
from results.study import Study, page, points, prose, save, shelf, table
from results.tables import density_tables, hypothesis, rounds_table

MLP, LINEAR = Study("fashionmnist-mlp"), Study("fashionmnist-linear")
CIFAR_MLP, CIFAR_CNN_20 = Study("cifar10-mlp"), Study("cifar10-cnn-20")
READ = {
    MLP: readings.fashion_mlp,
    LINEAR: readings.fashion_linear,
    CIFAR_MLP: readings_cifar10.mlp,
    CIFAR_CNN_20: readings_cifar10.cnn,
}
"""What was written about each; the page of another study has its tables and claims."""
MORE_FIGURES = {MLP: ("fig1", "fig7")}


def write(study: Study) -> None:
    """Figures and page."""
    for figure in (rounds_figure(study), *(FIGURES[name] for name in MORE_FIGURES.get(study, ()))):
        picture = shelf([study]).picture(figure)
        assert picture is not None
        save(draw(picture, beside=published(figure)), study.folder / f"{figure.name}.png")
    epochs.write(study)
    seeds, first = study.frame["seed"].nunique(), study.frame.iloc[0]
    mean = f"{seeds} seeds: mean and a band of one standard deviation, as far as all runs of a method go"
    caption = f"{mean if seeds > 1 else 'one seed'}; {first['epochs']} epochs a round, {first['precision']}"
    save(draw_overview(runs_in_common(study), caption=caption), study.folder / "overview.png")
    write_whole(study.folder / "README.md", text(study))


def runs_in_common(study: Study) -> list[Run]:
    """Those of each method, down to the last round that all of them have: later means would jump."""
    runs = []
    for name in present(study.frame):
        ids = set(study.frame.loc[study.frame["name"] == name, "id"])
        of_method = [run for run in study.runs if run[0].id in ids]
        reached = min(len(records) for _, records in of_method)
        runs += [(experiment, records[:reached]) for experiment, records in of_method]
    return runs


def text(study: Study) -> bytes:
    """The page of a study."""
    figure, f = rounds_figure(study), study.frame
    seeds = f["seed"].nunique()
    equal, shapes = equal_density(f, LT), {name: shape(f, name) for name in present(f)}
    reading = READ.get(study, readings.unread)(study, equal, shapes)
    return page(
        f"# {study.about['title']}",
        *filter(None, [study.so_far]),
        prose(reading.opening.format(figure=figure.number)),
        points(*reading.points),
        f"![{figure.number} of the paper: accuracy, remaining weights, PQ Index and Gini Index of retrained and "
        f"pruned models]({figure.name}.png)",
        *epochs.section(study),
        "## Round by round",
        rounds_table(f),
        "## At equal density",
        "![Accuracy, index and density by round, and accuracy by density](overview.png)",
        *density_tables(equal),
        "## The hypothesis",
        *reading.before,
        *hypothesis(f, shapes),
        *reading.after,
        "## Beside the paper",
        prose(
            reading.beside,
            "Differences are in points of accuracy"
            + (
                ", over pairs of equal seed; "
                if seeds == 1
                else " with a 95 % interval, over pairs of equal seed; "
            )
            + "the same rules give the verdicts of all studies.",
        ),
        table(("the paper says", "here"), [*claims(f, equal, shapes), *reading.claims], words=2),
        "## How it was made",
        study.made(),
    )
