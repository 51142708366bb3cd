"""Comparison of methods round by round or at equal density: mean, spread, and difference from a baseline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.reports.markup import latex, markdown
from palmette.reports.reading import whole_runs
from palmette.reports.statistics import APART, CONFIDENCE, Curve, Difference, MeanSd, accuracy_at, at_own_densities
from palmette.reports.tables import canonical_order
from palmette.studies.experiment import Experiment, OwnExperiment
from palmette.studies.folder import RunDir
from palmette.studies.record import AnyExperiment, framed, rows_of
from palmette.studies.spec import OF_METHOD
from palmette.words import did_you_mean, mean_and_sd, setting, signed

if TYPE_CHECKING:
    import pandas as pd

# Scores of which larger ones are better, and others, are not of one kind.
_SETTINGS = (*(f.name for f in fields(Experiment) if f.name not in ("method", "seed", *OF_METHOD)), "maximize")
_FOUND = 10**9  # round of the network that a search found, in order to sort
_ALWAYS = ("data", "model", "scope")
# `rounds` and `stop` end a run and change nothing before; `held_out` stands for the images that `stop` needs.
_COMPARABLE = (*(n for n in _SETTINGS if n not in ("rounds", "stop", "validation")), "held_out")


def read(folders: Iterable[str | Path], *, say: Callable[[str], None] = warnings.warn) -> pd.DataFrame:
    """Table of all runs in `folders`, at any depth, with the columns of `read_runs`.

    `say` receives a sentence for each run that is left out, see `whole_runs`; by default it is a warning.
    """
    runs, left_out = whole_runs(folders)
    for sentence in left_out:
        say(sentence)
    found = ((e, records, RunDir(path).timings()) for path, (e, records) in runs.items())
    return framed([row for one in found for row in rows_of(*one)])


def name_of(experiment: AnyExperiment) -> str:
    """Name of the method with every setting that is not default, so that different methods have different names.

    >>> name_of(Experiment(p=1, q=2, eta=0.1)), name_of(Experiment(method="one-shot"))
    ('SAP (p=1, q=2), eta=0.1', 'One Shot')
    """
    differences = experiment.differences()
    named = [n for n in OF_METHOD if n in differences and n not in experiment.in_label]
    return ", ".join([experiment.label, *(f"{n}={setting(differences[n])}" for n in named)])


def names_among(experiments: Sequence[Experiment]) -> list[str]:
    """Name of each experiment without its seed: the method, and the settings in which they differ.

    >>> names_among([Experiment(), Experiment(method="one-shot", scope="layer", seed=1)])
    ['SAP (p=0.5, q=1), global', 'One Shot, layer']
    """
    varied = [n for n in _SETTINGS if len({getattr(e, n, None) for e in experiments}) > 1]
    words = []
    for e in experiments:
        values = {n: setting(getattr(e, n)) for n in varied if hasattr(e, n)}
        more = (value if n in _ALWAYS else f"{n}={value}" for n, value in values.items())
        words.append(", ".join([name_of(e), *more]))
    return words


def with_names(table: pd.DataFrame) -> pd.DataFrame:
    """`table` of `read_runs` with the columns `name` (see `name_of`), `held_out` (images) and `maximize`."""
    made: dict[str, AnyExperiment] = {}
    for row in table.drop_duplicates("id").to_dict("records"):
        kind: type[Any] = OwnExperiment if isinstance(row.get("run"), str) else Experiment
        made[row["id"]] = kind(**{f.name: _given(f, row[f.name]) for f in fields(kind)})
    names, held_out, maximize = {}, {}, {}
    for key, e in made.items():
        names[key], maximize[key] = name_of(e), getattr(e, "maximize", True)
        held_out[key] = e.evaluate if isinstance(e, OwnExperiment) else e.validation_images(2**60)
    columns = {"name": names, "held_out": held_out, "maximize": maximize}
    return table.assign(**{column: table["id"].map(values) for column, values in columns.items()})


def _given(field: Field[Any], value: Any) -> Any:
    """Setting in a table, where None next to numbers is NaN, and whole numbers next to NaN are floats."""
    if value != value:
        return None
    return int(value) if type(field.default) is int and value == int(value) else value


def at_densities(table: pd.DataFrame, densities: Sequence[float]) -> pd.DataFrame:
    """A row for each run and each of `densities`, with the `test_accuracy` there; NaN if not reached."""
    import pandas as pd

    rows = []
    for _, run in table.groupby("id", sort=False):
        rounds = run.sort_values("round")
        points = (rounds["density"].tolist(), rounds["test_accuracy"].tolist())
        first = rounds.iloc[0].to_dict()
        rows += [first | {"density": d, "test_accuracy": accuracy_at(d, *points)} for d in densities]
    return pd.DataFrame(rows).drop(columns="round")


def baselines(table: pd.DataFrame, name: str) -> dict[tuple[Any, ...], list[Curve]]:
    """Curves of the runs of `name`, by data, model, scope and training: what a run is compared with.

    Runs of one seed, which differ in their stop rule, count once: the longest.
    """
    longest: dict[tuple[Any, ...], dict[int, Curve]] = {}
    for _, run in table[table["name"] == name].groupby("id", sort=False):
        rounds = run.sort_values("round")
        curve = (rounds["density"].tolist(), rounds["test_accuracy"].tolist())
        seeds = longest.setdefault(_training(rounds), {})
        seeds[rounds["seed"].iloc[0]] = max(
            curve, seeds.get(rounds["seed"].iloc[0], ([], [])), key=lambda c: len(c[0])
        )
    return {key: list(curves.values()) for key, curves in longest.items()}


def _training(rows: pd.DataFrame) -> tuple[Any, ...]:
    return tuple(None if v != v else v for v in rows[list(_COMPARABLE)].iloc[0])


def resolve_baseline(baseline: str, names: Iterable[str], methods: Iterable[str]) -> str:
    """The one of `names` that `baseline` refers to: a name, or a method that only one name has.

    >>> resolve_baseline("lottery-ticket", ["One Shot", "Lottery Ticket"], ["one-shot", "lottery-ticket"])
    'Lottery Ticket'
    """
    pairs = dict(zip(names, methods, strict=True))
    wanted = baseline.strip().lower()
    fits = [name for name in pairs if name.lower() == wanted]
    fits = fits or [name for name, method in pairs.items() if method == wanted]
    if len(fits) != 1:
        known = ", ".join(map(repr, pairs))
        hint = "" if fits else did_you_mean(baseline, [*pairs, *pairs.values()])
        count = len(fits) or "none"
        raise ValueError(f"the baseline must be one of {known}, got {baseline!r}, which is {count} of them{hint}")
    return fits[0]


def compare(
    table: pd.DataFrame, *, at: Sequence[float] | None = None, baseline: str | None = None
) -> pd.DataFrame:
    """Mean and standard deviation of each method, round by round or at equal density, as fractions.

    A row for each method (`name_of`), each combination of the settings that vary, and each round or density. A
    search has two rounds, "dense" and "found". `n` runs differ only in their seed; `sd` is over them (with n - 1),
    NaN for one. If no run of a method has reached a density, `n` is 0 and `accuracy` NaN; it is named `score` if
    one of the runs is of `prune_and_retrain`. A `baseline` (see `resolve_baseline`) adds `difference`, from its
    runs with the same data, model, scope and training at the densities of the row, and `low` and `high`, the
    95 % interval: see `at_own_densities`.

    >>> from dataclasses import asdict
    >>> import pandas as pd
    >>> rows = []
    >>> for seed, accuracies in {0: (0.75, 0.5), 1: (0.25, 0.25)}.items():
    ...     for method, accuracy in zip(("sap", "one-shot"), accuracies):
    ...         e = Experiment(method=method, seed=seed)
    ...         rows.append({"id": e.id, **asdict(e), "round": 0, "density": 1.0, "test_accuracy": accuracy})
    >>> found = compare(pd.DataFrame(rows), baseline="one-shot")
    >>> found[["method", "n", "accuracy", "difference", "low", "high"]].round(3)
                 method  n  accuracy  difference    low   high
    0  SAP (p=0.5, q=1)  2     0.500       0.125 -1.605  1.855
    1          One Shot  2     0.375         NaN    NaN    NaN
    """
    import pandas as pd

    known = with_names(table).assign(test_accuracy=table["test_accuracy"].astype(float))
    noun = "score" if "run" in known and known["run"].notna().any() else "accuracy"
    if "test_score" in known:
        known["test_accuracy"] = known["test_score"].astype(float).fillna(known["test_accuracy"])
    point = "round" if at is None else "density"
    searched = at is None and "answer" in known and bool(known["answer"].notna().any())
    known = _found(known) if searched else known
    conditions = [n for n in _SETTINGS if n in _ALWAYS or known[n].nunique(dropna=False) > 1]
    known = known.sort_values([*conditions, "method", *OF_METHOD], key=canonical_order, kind="stable")
    points = known if at is None else at_densities(known, list(dict.fromkeys(at)))
    against = {}
    if baseline is not None:
        names = known.sort_values(["method", *OF_METHOD], key=canonical_order).drop_duplicates("name")
        baseline = resolve_baseline(baseline, names["name"], names["method"])
        against = baselines(known, baseline)
    # Keep rows to compare together; further down means further pruned, so rounds rise and densities fall.
    points = points.assign(condition=points.groupby(conditions, sort=False, dropna=False).ngroup())
    keys = ["condition", point, "method", *OF_METHOD]
    rising = [key != "density" for key in keys]
    points = points.sort_values(keys, ascending=rising, key=canonical_order, kind="stable")
    rows = []
    for key, group in points.groupby([*conditions, point, "name"], sort=False, dropna=False):
        *values, where, name = key
        if searched and group["answer"].notna().all():
            where = "found" if where == _FOUND else "dense"
        row = dict(zip(conditions, values, strict=True)) | {"method": name}
        row |= {point: str(where) if searched else where}
        if point == "round":
            row |= {"density": group["density"].mean()}
        score = MeanSd.of(group["test_accuracy"])
        row |= {"n": score.n, noun: score.mean, "sd": score.sd}
        if baseline is not None:
            others = against.get(_training(group), []) if name != baseline else []
            there = group.dropna(subset="test_accuracy")
            runs = [([d], [a]) for d, a in zip(there["density"], there["test_accuracy"], strict=True)]
            row |= {"baseline": baseline} | _difference(at_own_densities(runs, others))
        rows.append(row)
    return pd.DataFrame(rows)


def _difference(found: Difference) -> dict[str, float]:
    return {"difference": found.mean, "low": found.low, "high": found.high}


def _found(table: pd.DataFrame) -> pd.DataFrame:
    """Rows without those of searches but the dense network and the one found, rounds 0 and `_FOUND`."""
    import pandas as pd

    answer = table["id"].map(table.sort_values("round").groupby("id")["answer"].last())
    found = table[table["round"] == answer].assign(round=_FOUND)
    return pd.concat([table[answer.isna() | (table["round"] == 0)], found])


def as_markdown(frame: pd.DataFrame) -> str:
    """The frame of `compare` as a Markdown table in percent, with notes below."""
    return markdown(*cells(frame), left=WORDS, notes=notes(frame))


def as_latex(frame: pd.DataFrame) -> str:
    r"""The frame of `compare` as a LaTeX table, in percent; it needs ``\usepackage{booktabs}``."""
    return latex(*cells(frame), left=WORDS, caption=notes(frame))


WORDS = ("method", *_SETTINGS)  # left-aligned columns


def cells(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Titles and cells; settings that all rows share are left to the notes."""
    varied = _varied(frame)
    at_round = "round" in frame
    noun, scale, digits = ("score", 1, 4) if "score" in frame else ("accuracy", 100, 2)
    shown = noun if scale == 1 else f"{noun} %"
    titles = [*varied, *(["round"] if at_round else []), "density %", "method", "n", shown]
    compared = "baseline" in frame
    titles += ["difference", f"{CONFIDENCE:.0%} interval"] if compared else []
    rows = []
    for row in frame.to_dict("records"):
        cells = [setting(row[name]) for name in varied] + ([str(row["round"])] if at_round else [])
        score = mean_and_sd(row[noun], row["sd"], scale=scale, digits=digits)
        cells += [f"{100 * row['density']:.4g}", row["method"], str(row["n"]), score]
        if compared:
            low, high, mean = (signed(row[n], scale=scale, digits=digits) for n in ("low", "high", "difference"))
            cells += [mean, f"{low} to {high}" if low else ""]
        rows.append(cells)
    return titles, rows


def _varied(frame: pd.DataFrame) -> list[str]:
    return [n for n in _SETTINGS if n in frame and frame[n].nunique(dropna=False) > 1]


def notes(frame: pd.DataFrame) -> str:
    """Notes on the numbers of `cells`, and the settings that all rows share."""
    shared = [f"{n} {setting(frame[n].iloc[0])}" for n in _ALWAYS if n not in _varied(frame)]
    found = [f"{', '.join(shared)}."] if shared else []
    noun = "score" if "score" in frame else "accuracy"
    found.append(f"Test {noun}, mean ± standard deviation over n runs with different seeds.")
    if "round" in frame and "found" in [*frame["round"]]:
        found.append("Found: the sparsest good network of a search; its density is a mean too.")
    if "round" not in frame:
        found.append(
            "Interpolated linearly in the logarithm of the density; empty where that was not reached, and between "
            f"rounds more than {APART:g} times apart."
        )
    if "baseline" in frame:
        unit = "of the score" if noun == "score" else "in points of accuracy"
        found.append(
            f"Differences are {unit} from {frame['baseline'].iloc[0]} at the same density, "
            f"interpolated between rounds at most {APART:g} times apart, with Welch's interval; empty where not "
            "all of its runs with the same training reached that density."
        )
    return " ".join(found)
