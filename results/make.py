"""`python -m results.make`: tables and figures of the studies, and the tables of the front page, from the records.

A table stands between `<!-- NAME: written by results/make.py -->` and `<!-- end of NAME -->`; all else is by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from palmette.files import write_whole
from palmette.reports.statistics import Difference, MeanSd, beyond_noise
from palmette.reports.words import in_percent, mean_and_sd, signed
from results import figures
from results.records import BASES, DENSITIES, HERE, LT, METHODS, SCOPES, BySeed, Study, studies, study

FRONT = HERE.parent / "README.md"
FOUR = ("fashionmnist-mlp", "fashionmnist-linear", "cifar10-mlp", "cifar10-cnn-20")
"""Studies of four methods with several seeds."""


def percent(value: float) -> str:
    """A share with as many digits as count.

    >>> percent(0.5), percent(0.0235), percent(0.00126)
    ('50 %', '2.4 %', '0.13 %')
    """
    return f"{in_percent(value, value).rstrip('0').rstrip('.')} %"


def mean(values: BySeed) -> float:
    """Mean over seeds."""
    return MeanSd.of(values.values()).mean


def spread(values: BySeed, *, scale: float = 100, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds; empty without a value."""
    found = MeanSd.of(values.values())
    return mean_and_sd(found.mean, found.sd, scale=scale, digits=digits)


def difference(found: Difference, *, scale: float = 100, digits: int = 2) -> str:
    """Mean and interval, the mean alone of a single pair; empty without a pair."""
    mean, low, high = (signed(v, scale=scale, digits=digits) for v in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})" if low else mean


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """Markdown table whose first columns are words and the others numbers."""
    marks = ["---" if i < words else "---:" for i in range(len(titles))]
    lines = ("| " + " | ".join(line) + " |" for line in [titles, marks, *rows])
    return "\n".join(lines).replace(" %", "\u00a0%")  # a percent sign stays with its number


def at_density(of: Study, name: str, density: float, scope: str = "global") -> str:
    """Accuracy at a density, and how many runs got there if not all."""
    found = of.at_density(name, density, scope)
    return spread(found) + (f" (n = {len(found)})" if 0 < len(found) < of.seeds else "")


def equal_density(of: Study) -> str:
    """Accuracy of each method at equal density, and differences from Lottery Ticket; bold beyond the noise."""
    others = [name for name in of.methods if name != LT]
    both = {(n, d): (of.at_density(n, d), of.at_density(LT, d)) for n in others for d in DENSITIES}
    sure = beyond_noise({key: [a[s] - b[s] for s in a if s in b] for key, (a, b) in both.items()})
    rows = []
    for d in DENSITIES:
        apart = {name: difference(Difference.between(*both[name, d])) for name in others}
        cells = (f"**{text}**" if sure[name, d] else text for name, text in apart.items())
        rows.append((percent(d), *(at_density(of, name, d) for name in of.methods), *cells))
    titles = ("density", *of.methods, *(f"{name} − {LT}" for name in others))
    return table(titles, (row for row in rows if any(row[1:])), words=0)


def every_round(*variants: Study) -> str:
    """Density, accuracy and index of each round, before and after its cut."""
    rows = []
    for of in variants:
        for name in of.methods:
            for t in range(len(of.each(name)[0])):
                accuracy, after = (mean(of.at(name, t, v)) for v in ("test_accuracy", "pruned_test_accuracy"))
                index, then = (mean(of.at(name, t, v)) for v in ("pq_index", "pruned_pq_index"))
                density, cut, kept = (mean(of.at(name, t, v)) for v in ("density", "cut_weights", "kept"))
                before = (percent(density), f"{100 * accuracy:.2f}", f"{index:.3f}", percent(cut / kept))
                words = name + ", clipped first" * of.archive.startswith("clipped")
                rows.append((words, str(t), *before, f"{100 * after:.2f}", f"{then:.3f}"))
    titles = ("density", "accuracy", "PQ Index", "cut", "accuracy after the cut", "PQ Index after the cut")
    return table(("method", "T", *titles), rows, words=2)


def scopes(of: Study) -> str:
    """Accuracy of each method in each scope at equal density."""
    rows = [(n, s, *(at_density(of, n, d, s) for d in DENSITIES)) for n in METHODS for s in SCOPES]
    return table(("method", "scope", *map(percent, DENSITIES)), rows, words=2)


def settings(of: Study) -> str:
    """Density after some rounds and at the end, and accuracy, for each setting of SAP."""
    rows = []
    for title, row in figures.SETTINGS.items():
        for words, name in row.items():
            left = [of.at(name, t, "density") for t in (1, 5, 10, -1)]
            kept = [percent(mean(at)) if len(at) == of.seeds else "" for at in left]
            ends = spread(of.at(name, -1, "round"), scale=1, digits=0).partition(" ± 0")[0]
            accuracies = (at_density(of, name, d) for d in (0.1, 0.05, 0.02, 0.01))
            last = spread(of.at(name, -1), digits=1)
            rows.append((f"{words}, {title.split(', ')[1]}", *kept, ends, last, *accuracies))
    titles = ("setting", "T = 1", "T = 5", "T = 10", "end", "ends at T", "accuracy at the end")
    return table((*titles, *(f"at {d} %" for d in (10, 5, 2, 1))), rows)


def precision(of: Study) -> str:
    """Accuracy and index in float32, and what bfloat16 changes."""
    other, rows = study("fashionmnist-mlp"), []
    for t in range(9):
        cells = []
        for value, scale, digits in (("test_accuracy", 100, 2), ("pq_index", 1, 4)):
            wide, narrow = of.at(LT, t, value), other.at(LT, t, value)
            found = Difference.between(narrow, wide)
            cells += [spread(wide, scale=scale, digits=digits), difference(found, scale=scale, digits=digits)]
        rows.append((str(t), *cells))
    change = "bfloat16 − float32"
    return table(("round", "accuracy in float32, %", change, "PQ Index in float32", change), rows, words=0)


def blocks(of: Study) -> dict[str, str]:
    """The tables of the page of a study, by name."""
    if of.name in BASES:
        return {"scopes": scopes(of), "settings": settings(of)}
    if of.name == "bfloat16":
        return {"differences": precision(of)}
    if of.own["round"].max() <= 5:
        clipped = [study(of.name, file.name) for file in of.folder.glob("clipped-first.tar.xz")]
        return {"every round": every_round(of, *clipped)}
    return {"equal density": equal_density(of)}


def front() -> dict[str, str]:
    """The table of the front page: one network at several densities."""
    of, at = study(FOUR[0]), (0.1, 0.02, 0.01, 0.005)
    rows = [(n, *(at_density(of, n, d) for d in at)) for n in METHODS]
    return {"results": table(("method", *(f"at {percent(d)}" for d in at)), rows)}


def networks() -> dict[str, str]:
    """The table of the page of all results: several networks at one density."""
    rows = []
    for one in map(study, FOUR):
        link = f"[{one.network}]({one.name}/README.md)"
        cells = (at_density(one, name, 0.02) for name in METHODS)
        rows.append((link, str(one.seeds), spread(one.at(LT, 0)), *cells))
    return {"networks": table(("network", "n", "dense", *METHODS), rows)}


def renewed(page: str, tables: Mapping[str, str]) -> str:
    """The page with its tables made anew."""
    for name, text in tables.items():
        begin, end = f"<!-- {name}: written by results/make.py -->\n", f"<!-- end of {name} -->"
        if (page.count(begin), page.count(end)) != (1, 1):
            raise ValueError(f"the page must have the marks {begin.strip()!r} and {end!r} once")
        page = page.partition(begin)[0] + f"{begin}\n{text}\n\n" + end + page.partition(end)[2]
    return page


def pages() -> dict[Path, dict[str, str]]:
    """Every page that has tables, and its tables."""
    return {of.folder / "README.md": blocks(of) for of in studies()} | {
        FRONT: front(),
        HERE / "README.md": networks(),
    }


def main() -> None:
    """Write all of them; under a minute on a CPU."""
    for of in studies():
        figures.write(of)
    for page, tables in pages().items():
        write_whole(page, renewed(page.read_text(encoding="utf-8"), tables).encode())


if __name__ == "__main__":
    main()
