"""`python -m results.make`: tables, CSV files and figures of the studies from the records.

A table stands between `<!-- NAME: written by results/make.py -->` and `<!-- end of NAME -->`; all else is by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from palmette.files import write_whole
from palmette.reports.comparison import compare
from palmette.reports.statistics import Difference, MeanSd, accuracy_at, at_own_densities
from palmette.words import in_percent, mean_and_sd, signed
from results import figures
from results.records import BASES, HERE, LT, METHODS, ONE_SHOT, SAP, SAP2, SCOPES, BySeed, Study, studies, study

FRONT = HERE.parent / "README.md"
FOUR = ("fashionmnist-mlp", "fashionmnist-linear", "cifar10-mlp", "cifar10-cnn-20")
"""Studies of four methods with several seeds."""
OVER = "50 to 2 %"
"""`RANGE` in words."""


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
    """Mean and interval, the mean alone of single runs; empty without a value."""
    mean, low, high = (signed(v, scale=scale, digits=digits) for v in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})" if low else mean


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """Markdown table whose first columns are words and the others numbers."""
    marks = ["---" if i < words else "---:" for i in range(len(titles))]
    lines = ("| " + " | ".join(line) + " |" for line in [titles, marks, *rows])
    return "\n".join(lines).replace(" %", "\u00a0%")  # a percent sign stays with its number


def sure(found: Difference) -> str:
    """The same, bold where the interval excludes 0."""
    return ("**" * abs(found.sign)).join(("", difference(found), ""))


def there(of: Study, name: str, density: float) -> list[float]:
    """Accuracy of each run of a method at a density; empty if not all have one."""
    found = [accuracy_at(density, *curve) for curve in of.curves(name)]
    return [] if any(map(math.isnan, found)) else found


def equal_density(of: Study) -> str:
    """Differences from Lottery Ticket at some densities of SAP (1, 2), and over the range of all studies."""
    rows: list[tuple[str, ...]] = []
    last = math.inf
    for t in range(1, min(map(len, of.each(SAP2)))):
        at = of.at(SAP2, t, "density")
        if (d := mean(at)) < 0.002 or not (base := there(of, LT, d)):
            break
        if d > last / 2:
            continue
        last = d
        own = at_own_densities([([at[s]], [a]) for s, a in of.at(SAP2, t).items()], of.curves(LT))
        sap, one_shot = (Difference.between(there(of, n, d), base) for n in (SAP, ONE_SHOT))
        rows.append((percent(d), spread(dict(enumerate(base))), *map(difference, (sap, own, one_shot))))
    rows.append((f"**{OVER}**", "", *(sure(of.apart(n)) for n in (SAP, SAP2, ONE_SHOT))))
    return table(("density", LT, *(f"{n} − {LT}" for n in (SAP, SAP2, ONE_SHOT))), rows, words=0)


def scopes(of: Study) -> str:
    """Difference of each method from Lottery Ticket in global scope, in each scope."""
    apart = ([sure(of.apart(name, scope=scope, base_scope="global")) for scope in SCOPES] for name in METHODS)
    rows = [[name, *cells] for name, cells in zip(METHODS, apart, strict=True)]
    rows[METHODS.index(LT)][-1] = ""
    return table(("", *SCOPES), rows)


def settings(of: Study) -> bytes:
    """Each setting of SAP in global scope as CSV: density after five rounds, difference from Lottery Ticket."""
    lines = ["setting,density_after_5_rounds,difference,low,high"]
    for words, name in (pair for row in figures.SETTINGS.values() for pair in row.items()):
        found = of.apart(name)
        numbers = mean(of.at(name, 5, "density")), found.mean, found.low, found.high
        lines.append(",".join([words, *("" if math.isnan(v) else f"{v:.6g}" for v in numbers)]))
    return ("\n".join(lines) + "\n").encode()


def rounds(of: Study) -> bytes:
    """Every method, scope and round as CSV: means over seeds as fractions, and differences from Lottery Ticket."""
    found = compare(of.own, baseline=LT)
    after = {"pruned_test_accuracy": "accuracy_after_cut", "pruned_pq_index": "index_after_cut"}
    named = of.own.assign(method=of.own["name"]).groupby(["scope", "method", "round"])
    means = named[["pq_index", *after]].mean()
    found = found.merge(means.rename(columns=after).reset_index(), on=["scope", "method", "round"])
    return str(found.round(9).to_csv(index=False, lineterminator="\n", float_format="%.6g")).encode()


def blocks() -> dict[Path, dict[str, str]]:
    """Every page that has tables, and its tables."""
    four = [of for of in studies() if len(of.methods) == len(METHODS)]
    found = {of.folder / "README.md": {"equal density": equal_density(of)} for of in four}
    found |= {study(name).folder / "README.md": {"scopes": scopes(study(name))} for name in BASES}
    found[HERE / "FINDINGS.md"] = {"networks": networks()}
    return found | {FRONT: front()}


def front() -> dict[str, str]:
    """The table of the front page: one network at densities that SAP (1, 2) reached."""
    of = study(FOUR[0])
    at = [mean(of.at(SAP2, t, "density")) for t in (3, 6, 8, 10)]
    rows = [[n, *(spread(dict(enumerate(there(of, n, d)))) for d in at)] for n in METHODS]
    rows[1][1:] = [spread(of.at(SAP2, t)) for t in (3, 6, 8, 10)]  # its own rounds: no interpolation
    return {"results": table(("method", *(f"at {percent(d)}" for d in at)), rows)}


def networks() -> str:
    """Differences from Lottery Ticket in several networks."""
    rows = []
    for one in (*map(study, FOUR), study("cifar10-cnn")):
        link = f"[{one.network}]({one.name}/README.md)"
        cells = [sure(one.apart(n)) for n in (SAP, SAP2, ONE_SHOT)]
        rows.append((link, str(one.seeds), *cells, sure(one.apart(SAP2, 0.002, 0.02))))
    return table(("network", "n", *(f"{n}, {OVER}" for n in (SAP, SAP2, ONE_SHOT)), f"{SAP2}, 2 to 0.2 %"), rows)


def renewed(page: str, tables: Mapping[str, str]) -> str:
    """The page with its tables made anew."""
    for name, text in tables.items():
        begin, end = f"<!-- {name}: written by results/make.py -->\n", f"<!-- end of {name} -->"
        if (page.count(begin), page.count(end)) != (1, 1):
            raise ValueError(f"the page must have the marks {begin.strip()!r} and {end!r} once")
        page = page.partition(begin)[0] + f"{begin}\n{text}\n\n" + end + page.partition(end)[2]
    return page


def main() -> None:
    """Write all of them; under two minutes on a CPU."""
    for of in studies():
        figures.write(of)
        write_whole(of.folder / "rounds.csv", rounds(of))
    write_whole(FRONT.parent / "docs/front.png", figures.front(study(FOUR[0])))
    for name in BASES:
        write_whole(HERE / name / "settings.csv", settings(study(name)))
    for page, tables in blocks().items():
        write_whole(page, renewed(page.read_text(encoding="utf-8"), tables).encode())


if __name__ == "__main__":
    main()
