"""One network trained for 200 epochs a round and for 20, in one picture, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from palmette.reports.figures import PANELS
from palmette.reports.paper.drawing import PRUNED, RETRAINED
from palmette.reports.paper.published import Published, name_in_file, published
from palmette.studies.paper import FIGURES, PaperFigure
from results.answers import LT, METHODS, Spread, column, last_round, present
from results.pictures import in_one
from results.study import Study, bold, listed, percent, prose, save, signed, spread, table
from results.tables import mean_density, shown_rounds

if TYPE_CHECKING:
    import pandas as pd

PICTURE, HEADING = "epochs.png", "Beside the published values"
SHORT = "-20"
"""How the name of a study with fewer epochs ends."""
WORSE = 5
"""In fewer rounds than that nothing is said of more epochs that make a network worse."""
# Of a value that is read off: its panel, the column of a record, the factor, and how far a ruler is trusted.
READ_OFF = {
    "accuracy": ("retrained/accuracy", "test_accuracy", 100, 1.0),
    "accuracy after the cut": ("pruned/accuracy", "pruned_test_accuracy", 100, 1.0),
    "PQ Index": ("retrained/pq_index", "pq_index", 1, 0.01),
    "PQ Index after the cut": ("pruned/pq_index", "pruned_pq_index", 1, 0.01),
    "weights that remain, %": ("retrained/remaining", "density", 100, 0.15),  # as One Shot's, which are known
}


PAPER = RETRAINED | {"retrained/remaining": replace(RETRAINED["retrained/remaining"], log_y=True)} | PRUNED
ROWS = "Upper row: retrained; lower row: pruned, before retraining."


def rounds_figure(study: Study) -> PaperFigure:
    """The figure of the paper that shows the methods of a study round by round."""
    data, model = study.frame["data"].iloc[0], study.frame["model"].iloc[0]
    return next(f for f in FIGURES.values() if (f.kind, f.data, f.model) == ("rounds", data, model))


def together(study: Study) -> list[Study]:
    """The studies of one network that are on record, the one with the paper's epochs first."""
    name = study.name.removesuffix(SHORT)
    both = (study if study.name == of else Study(of) for of in (name, name + SHORT))  # what it has read is kept
    return [found for found in both if found.on_record]


def write(study: Study) -> None:
    """The picture of both, in the folder of the first."""
    both, values = together(study), published(rounds_figure(study))
    if len(both) == 1 and values is None:
        return
    panels = {panel.title: panel for panel in PANELS} if values is None else PAPER
    seeds = [f"{_epochs(s)} epochs a round, n = {s.frame['seed'].nunique()}" for s in both]
    lines = {
        words: {name: [records for _, records in s.of(name)] for name in present(s.frame)}
        for words, s in zip(seeds, both, strict=True)
    }
    beside, caption = {}, "Means over seeds where there are several."
    if values is not None:
        rounds = range(int(max(t for line in values.values.values() for t, _ in line)) + 1)
        beside = {name: marks(values, of, rounds) for name, of in names_in_file(both).items()}
        caption = f"{ROWS} Open marks: {values.note}."
    dashed = [words for words, s in zip(seeds, both, strict=True) if s.name.endswith(SHORT)]
    save(in_one(panels, lines, dashed=dashed, marks=beside, caption=caption), both[0].folder / PICTURE)


def _epochs(study: Study) -> int:
    return int(study.frame["epochs"].iloc[0])


def names_in_file(studies: Sequence[Study]) -> dict[str, str]:
    """The methods that have a run, and what a file of published values calls them."""
    ids = {e.id: name_in_file(e) for study in studies for e, _ in study.runs}
    found = {n: ids[i] for s in studies for n, i in zip(s.frame["name"], s.frame["id"], strict=True)}
    return {name: found[name] for name in METHODS if name in found}


def marks(values: Published, name: str, rounds: range) -> dict[str, list[tuple[float, float]]]:
    """What was published for a method, by panel."""
    found = {panel: [(float(t), read_off(values, panel, name, t)[0]) for t in rounds] for panel in PAPER}
    return {panel: [(t, value) for t, value in line if not math.isnan(value)] for panel, line in found.items()}


def section(study: Study) -> list[str]:
    """What a page says about the other number of epochs, and about the published values."""
    both, figure = together(study), rounds_figure(study)
    values = published(figure)
    if len(both) == 1 and values is None:
        return []
    here = "" if both[0] == study else f"../{both[0].name}/"
    beside = f", and the values of {figure.number}" if values is not None else ""
    parts = [
        f"## {listed([str(_epochs(s)) for s in both])} epochs a round",
        f"![Curves by round, a line style for each number of epochs{beside}]({here}{PICTURE})",
    ]
    if len(both) == 2:
        parts += [prose(_difference(*both))] if here else [_both(*both), prose(_legend(*both), _difference(*both))]
    if values is not None:
        parts += [f"## {HEADING}", *([_elsewhere(*both)] if here else _published(both, values, figure))]
    return parts


def _both(full: Study, short: Study) -> str:
    rows = []
    shown = shown_rounds(min(int(s.frame["round"].max()) for s in (full, short)))
    for name in present(full.frame):
        rows += [(name, str(_epochs(s)), *(_cell(s.frame, name, t) for t in shown)) for s in (full, short)]
    return table(("method", "epochs", *(f"T = {t}" for t in shown)), rows, words=2)


def _cell(frame: pd.DataFrame, name: str, round: int) -> str:
    accuracy, index = (Spread.of(column(frame, name, round, v)) for v in ("test_accuracy", "pq_index"))
    if not accuracy.n:
        return ""
    weights = percent(mean_density(frame, name, round))
    fewer = f", n = {accuracy.n}" * (accuracy.n < frame["seed"].nunique())
    return f"{spread(index, scale=1, digits=3)}; {spread(accuracy)} at {weights}{fewer}"


def _legend(full: Study, short: Study) -> str:
    n, of_short = (int(s.frame["seed"].nunique()) for s in (full, short))
    over = "; ± is a standard deviation over seeds" if max(n, of_short) > 1 else ""
    return (
        f"PQ Index, and test accuracy in percent at a share of the weights; n = {n} for {_epochs(full)} epochs, "
        f"n = {of_short} for {_epochs(short)}{over}."
    )


def _difference(full: Study, short: Study) -> str:
    """The index and the accuracy of the dense network, and what SAP makes of it."""
    (few, first), (many, second) = ((_epochs(s), s.frame) for s in (short, full))
    name = present(second)[0]
    index, accuracy = (
        [Spread.of(column(f, name, 0, value)) for f in (first, second)] for value in ("pq_index", "test_accuracy")
    )
    kept = [percent(mean_density(f, name, 1)) for f in (first, second)]
    return " ".join(
        (
            "The dense network has an index of "
            f"{' and '.join(spread(s, scale=1, digits=3) for s in index)} after {few} and {many} epochs, and "
            f"{' and '.join(map(spread, accuracy))} % accuracy.",
            "**The index of trained weights grows with the epochs**, as weight decay goes on shrinking what is "
            f"not needed, and SAP goes by it: after the first cut of {name} {' and '.join(kept)} of the weights "
            "remain."
            if index[1].mean > index[0].mean
            else "So the index is not larger after more epochs, though weight decay would have it grow.",
            f"So {few} epochs show the shape of the curves, and not the numbers of {many}, which the paper has; "
            "and SAP, which cuts less, comes to its turns and its collapse later or not at all.",
            *_when_sparse(full, short),
        )
    )


def _when_sparse(full: Study, short: Study) -> list[str]:
    """What more epochs do to Lottery Ticket, which keeps the same share of the weights whatever they are."""
    frames = full.frame, short.frame
    rounds = range(min(last_round(f, LT) for f in frames) + 1)
    pairs = [tuple(column(f, LT, t, "test_accuracy") for f in frames) for t in rounds]
    below = [t for t, (many, few) in enumerate(pairs) if many.max() < few.min()]
    if len(below) < WORSE or pairs[0][0].mean() <= pairs[0][1].mean():
        return []
    t = max(below, key=lambda t: pairs[t][1].mean() - pairs[t][0].mean())
    many, few = (Spread.of(values) for values in pairs[t])
    dead = " and ".join(f"{column(f, LT, t, 'dead_neurons').mean():.0f}" for f in frames)
    return [
        f"**More epochs make the dense network better and a sparse one worse**{', in one run' * (many.n == 1)}: "
        f"Lottery Ticket, which keeps the same share in both, is with {_epochs(full)} epochs a round below "
        f"{f'each of {few.n} runs' if few.n > 1 else 'the run'} with {_epochs(short)} in {len(below)} rounds, "
        f"from T = {below[0]} to {below[-1]}; most so at T = {t} ({percent(mean_density(full.frame, LT, t))} of "
        f"the weights), with {spread(many)} and {spread(few)} %. There {dead} of its neurons have no weight left."
    ]


def _elsewhere(full: Study, short: Study) -> str:
    """Why the study with fewer epochs has no differences, and where they are."""
    link = f"../{full.name}/README.md#{HEADING.lower().replace(' ', '-')}"
    return prose(
        f"With {_epochs(short)} epochs a round the shape of the curves can be laid beside those of the paper, as "
        f"in the picture, and not the numbers; [with {_epochs(full)}]({link}) they are."
    )


def _published(studies: Sequence[Study], values: Published, figure: PaperFigure) -> list[str]:
    """Here less published, round by round, for the study with the paper's epochs."""
    study = studies[0]
    f, rows, found = study.frame, [], []
    for name, in_file in names_in_file([study]).items():
        for t in range(last_round(f, name) + 1):
            cells = []
            for title, (panel, value, scale, sure) in READ_OFF.items():
                here, digits = scale * float(column(f, name, t, value).mean()), 3 if scale == 1 else 1
                theirs, mark = read_off(values, panel, in_file, t)
                off = by_ruler(here, theirs, mark, sure)
                shown = "" if math.isnan(theirs) else f" ({theirs:.{digits}f}{mark})"
                cells.append(bold(f"{here:.{digits}f}", off > 1) + shown)
                # Dense networks are the same for all methods, and what Lottery Ticket keeps is no finding.
                again = not t and panel.startswith("retrained/") and name != present(f)[0]
                if shown and not again and not (value == "density" and (not t or name == LT)):
                    apart = signed(here - theirs, scale=1, digits=digits)
                    found.append((off, f"{title.removesuffix(', %')} of {name} at T = {t}, by {apart}"))
            rows.append((name, str(t), *cells))
    n, met = f["seed"].nunique(), sum(off <= 1 for off, _ in found)
    return [
        prose(
            f"**{met} of {len(found)} published values are met as well as a ruler can tell**; the farthest off, "
            f"in units of that: {max(found)[1]}."
            if found
            else "No round with a published value is there yet.",
            "One run does not tell the noise of training, which is in all of these differences." * (n == 1),
        ),
        table(("method", "T", *READ_OFF), rows, words=2),
        prose(
            f"With {_epochs(study)} epochs a round, n = {n}, and in parentheses what was published, where it "
            f"could be read off {figure.number}; **bold** where the two are further apart than a ruler can tell. "
            "The published values are means of four seeds, read off to about 1 in accuracy, 0.01 in an index and "
            "0.15 in the percentage that remains; their accuracies are [taken "
            "apart](../../docs/differences.md#accuracies-in-the-papers-figures) into those of single rounds. "
            "\\* is a sum of two of them (pruned, and retrained less pruned), so twice as rough; † is One Shot's, "
            "whose line hides others: dense networks are the same for all, and Lottery Ticket cuts the same "
            "share, at first in the same network. Dense networks are counted once, and densities that follow by "
            "rule are not."
        ),
    ]


def by_ruler(here: float, theirs: float, mark: str, sure: float) -> float:
    """How far a value is from one that was read off, in units of what a ruler can tell; NaN without the latter."""
    return abs(here - theirs) / (2 * sure if "*" in mark else sure)


def read_off(values: Published, panel: str, method: str, t: int) -> tuple[float, str]:
    """What was published for a round, NaN if nothing, and a mark that says how it was got."""
    for name, mark in ((method, ""), ("one_shot", "†")):
        # Before its first cut a network is the same for all; Lottery Ticket's first cut is One Shot's.
        alike = t == 0 and (panel.startswith("retrained/") or method == "lottery_ticket")
        if mark and not alike and not (panel == "retrained/remaining" and method == "lottery_ticket"):
            break
        if (value := dict(values.of(panel, name)).get(t)) is not None:
            return value, mark
        if panel.startswith("retrained/") and (name != "one_shot" or not t):  # its difference is another
            part, apart = (
                dict(values.of(panel.replace("retrained", "pruned") + more, name)).get(t)
                for more in ("", "_difference")
            )
            if part is not None and apart is not None:
                return part + apart, mark + "\\*"
    return math.nan, ""
