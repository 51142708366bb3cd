"""ResNet18 with gradients that are clipped before they are masked, as in the authors' code, and as here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from palmette.reports.comparison import named, read
from palmette.reports.paper.published import Published, published
from palmette.studies.folder import find_runs
from results.answers import SAP2, column
from results.epochs import PAPER, READ_OFF, ROWS, by_ruler, marks, names_in_file, read_off, rounds_figure
from results.pictures import Many, in_one
from results.study import Study, bold, prose, save, table, true

if TYPE_CHECKING:
    import pandas as pd

RUN, PICTURE, HEADING = "clipped-first.tar.xz", "clipped-first.png", "Clipped before masked"
WAYS = ("masked first, as here", "clipped first, as the authors' code does")


def clipped_first(study: Study) -> pd.DataFrame:
    """The rounds of the run of SAP (1, 2) that counts gradients of pruned weights."""
    return named(read([study.folder / RUN]))


def _theirs(study: Study) -> tuple[Published, str]:
    """The values that were published, and what their file calls SAP (1, 2)."""
    found = published(rounds_figure(study))
    assert found is not None
    return found, names_in_file([study])[SAP2]


def write(study: Study) -> None:
    """Both ways in a picture, beside the published values."""
    if not (study.folder / RUN).exists():
        return
    theirs, in_file = _theirs(study)
    (run,) = find_runs(study.folder / RUN)
    both: list[Many] = [[records for _, records in study.of(SAP2)], [run.records()]]
    lines = {way: {SAP2: many} for way, many in zip(WAYS, both, strict=True)}
    beside = {SAP2: marks(theirs, in_file, range(len(both[1][0])))}
    picture = in_one(PAPER, lines, dashed=WAYS[1:], marks=beside, caption=f"{ROWS} One run each.")
    save(picture, study.folder / PICTURE)


def section(study: Study) -> list[str]:
    """Both ways beside the published values; nothing where only one was tried."""
    if not (study.folder / RUN).exists():
        return []
    theirs, in_file = _theirs(study)
    frames = study.frame, clipped_first(study)
    rounds = range(int(frames[1]["round"].max()) + 1)
    rows, met, count = [], [0, 0], 0
    for title, (panel, value, scale, sure) in READ_OFF.items():
        digits = 3 if scale == 1 else 1
        found = {t: read_off(theirs, panel, in_file, t) for t in rounds}
        for i, (way, frame) in enumerate(zip(WAYS, frames, strict=True)):
            cells = []
            for t, (there, mark) in found.items():
                here = scale * float(column(frame, SAP2, t, value).mean())
                far = by_ruler(here, there, mark, sure) > 1
                cells.append("" if math.isnan(here) else bold(f"{here:.{digits}f}", far))
                met[i] += _counts(study, t, there) and not far
            rows.append((title, way, *cells))
        rows.append((title, "published", *(_shown(there, digits, mark) for there, mark in found.values())))
        count += sum(_counts(study, t, there) for t, (there, _) in found.items())
    return [
        f"## {HEADING}",
        prose(
            true(
                met[0] < met[1],
                f"**Of {count} published values of SAP (1, 2) after its first cut, to T = "
                f"{study.frame['round'].max()}, {met[1]} are met by clipping first and {met[0]} as it is done "
                "here.**",
            ),
            "Each is one run, of the same seed. The values hang together: who has the index has the next density. "
            "Other methods were not tried so, nor were the [other differences](../../docs/differences.md) from "
            "the authors' code, by which the rest may come: less accuracy was published after the late cuts.",
        ),
        f"![SAP (1, 2) with gradients masked first and clipped first, and the published values]({PICTURE})",
        table(("", "gradients", *(f"T = {t}" for t in rounds)), rows, words=2),
        prose(
            "**Bold** and marks as above. Accuracies are of networks that do not have the same weights left. "
            f"The [records]({RUN}) are of {study.about['clipped_first']}."
        ),
    ]


def _counts(study: Study, t: int, there: float) -> bool:
    """Whether both ways have this round, something was cut before, and it was published."""
    return 0 < t <= study.frame["round"].max() and not math.isnan(there)


def _shown(there: float, digits: int, mark: str) -> str:
    return "" if math.isnan(there) else f"{there:.{digits}f}{mark}"
