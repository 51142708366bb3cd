"""The pages of studies that lay four methods, or some of them, side by side in global scope."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from palmette.reports.figures import draw as draw_overview
from palmette.reports.paper.drawing import draw
from palmette.reports.paper.published import Published, published
from palmette.studies.paper import FIGURES, PaperFigure
from results import clipping, epochs, few_rounds, readings, readings_cifar10
from results.answers import Shape, equal_density, present, shape
from results.claims import UNSAID, claims
from results.epochs import rounds_figure
from results.study import Study, page, points, prose, save, shelf, table, write_page
from results.tables import density_tables, hypothesis, rounds_table

if TYPE_CHECKING:
    import pandas as pd

MLP, LINEAR = Study("fashionmnist-mlp"), Study("fashionmnist-linear")
CIFAR_MLP, CIFAR_CNN, CIFAR_CNN_20 = Study("cifar10-mlp"), Study("cifar10-cnn"), Study("cifar10-cnn-20")
RESNET18, RESNET18_20 = Study("cifar10-resnet18"), Study("cifar10-resnet18-20")
READ = {
    MLP: readings.fashion_mlp,
    LINEAR: readings.fashion_linear,
    CIFAR_MLP: readings_cifar10.mlp,
    CIFAR_CNN: readings_cifar10.cnn_at_length,
    CIFAR_CNN_20: readings_cifar10.cnn,
    RESNET18: readings_cifar10.resnet18_first_rounds,
    RESNET18_20: readings_cifar10.resnet18,
}
"""What was written about each; the page of another study has its tables and claims."""
MORE_FIGURES = {MLP: ("fig1", "fig7")}
FEW_UNSAID = 2
"""More answers than so many that are none are counted and not shown."""


def write(study: Study) -> None:
    """Figures and page."""
    for figure in (rounds_figure(study), *(FIGURES[name] for name in MORE_FIGURES.get(study, ()))):
        picture = shelf([study]).select(figure, rounds=study.about.get("until"))
        assert picture is not None
        save(draw(picture, published=_beside(study, figure)), study.folder / f"{figure.name}.png")
    epochs.write(study)
    clipping.write(study)
    seeds, first = study.frame["seed"].nunique(), study.frame.iloc[0]
    mean = f"{seeds} seeds: mean and a band of one standard deviation, as far as all runs of a method go"
    caption = f"{mean if seeds > 1 else 'one seed'}; {first['epochs']} epochs a round, {first['precision']}"
    if not few_rounds.few(study):
        runs = [run for name in present(study.frame) for run in study.of(name)]
        save(draw_overview(runs, caption=caption), study.folder / "overview.png")
    write_page(study, text(study))


def _beside(study: Study, figure: PaperFigure) -> Published | None:
    """What was published; of a study of few rounds those rounds, which would be squeezed among the others."""
    values = published(figure)
    if values is None or not few_rounds.few(study):
        return values
    last = int(study.frame["round"].max())
    first = {key: [(t, value) for t, value in line if t <= last] for key, line in values.values.items()}
    return replace(values, values=first)


def text(study: Study) -> bytes:
    """The page of a study."""
    figure, f = rounds_figure(study), study.frame
    few, seeds = few_rounds.few(study), f["seed"].nunique()
    interval = " with a 95 % interval" * (seeds > 1)
    equal, shapes = equal_density(f), {name: shape(f, name) for name in present(f)}
    reading = READ.get(study, few_rounds.reading if few else readings.unread)(study, equal, shapes)
    asked = claims(f, equal, shapes)
    said = [claim for claim in asked if not claim[1].startswith(UNSAID)]
    if len(asked) - len(said) <= FEW_UNSAID:
        said = asked
    return page(
        f"# {study.about['title']}",
        *filter(None, [study.so_far]),
        prose(reading.opening.format(figure=figure.number)),
        points(*reading.points),
        f"![{figure.number} of the paper: accuracy, remaining weights, PQ Index and Gini Index of retrained and "
        f"pruned models]({figure.name}.png)",
        *epochs.section(study),
        *clipping.section(study),
        "## Round by round",
        *(few_rounds.every_round(f) if few else _all_rounds(f, equal, shapes, reading)),
        "## Beside the paper",
        prose(
            reading.beside,
            *([f"Differences are in points of accuracy{interval}, over pairs of equal seed."] if not few else []),
            f"The same rules give the verdicts of all studies{', here of one run of each method' * (seeds == 1)}.",
        ),
        table(("the paper says", "here"), [*said, *reading.claims], words=2),
        *([_unsaid(len(asked) - len(said))] if len(said) < len(asked) else []),
        "## How it was made",
        study.made(),
    )


def _all_rounds(
    f: pd.DataFrame, equal: pd.DataFrame, shapes: dict[str, Shape], reading: readings.Reading
) -> list[str]:
    return [
        rounds_table(f),
        "## At equal density",
        "![Accuracy, index and density by round, and accuracy by density](overview.png)",
        *density_tables(equal),
        "## The hypothesis",
        *reading.before,
        *hypothesis(f, shapes),
        *reading.after,
    ]


def _unsaid(count: int) -> str:
    return prose(
        f"Nothing can be said here of [{count} more](../{MLP.name}/README.md#beside-the-paper) that longer "
        "studies are asked: they take rounds or methods that there are not."
    )
