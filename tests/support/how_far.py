"""Searches on record: tables of schedules and verdicts on the claim, as results/how-far/README.md shows them."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from palmette.reports.comparison import names_among
from palmette.reports.limits import limit_of
from palmette.reports.reading import whole_runs
from palmette.studies.search import attempts_of, bracket


def searches(archive, model="mlp"):
    """Rows of a table of schedules in results/how-far/README.md: searches of a model with the paper's recipe."""
    found = [(spec, records) for spec, records in whole_runs([archive])[0].values() if spec.tolerance]
    if model != "mlp":  # an archive of more networks, recipes and seeds than the schedules were compared on
        found = [(s, r) for s, r in found if s.model == model and s.seed < 2 and recipe(s) == ""]
    runs = [(spec, limit_of((spec, records)), records) for spec, records in found]
    best = {
        spec.seed: min(limit.density for other, limit, _ in runs if other.seed == spec.seed) for spec, _, _ in runs
    }
    named = zip(names_among([spec for spec, _, _ in runs]), runs, strict=True)
    rows = {}
    for name, (spec, limit, records) in named:
        attempts = attempts_of(records)
        ends = [bracket(attempts[: i + 1], limit.tolerance).closed for i in range(len(attempts))]
        closed = ends.index(True) if True in ends else math.nan
        lost = records[0]["test"]["accuracy"] - records[limit.round]["test"]["accuracy"]
        over = limit.density / best[spec.seed]
        rows.setdefault(name, []).append((closed, limit.retrainings, 100 * limit.density, over, 100 * lost))
    return {name: np.array(values) for name, values in rows.items()}


def schedule_rows(mlp, linear):
    """Retrainings, density over the best and largest loss on both networks, the fewest on the MLP first."""
    both = searches(mlp), searches(linear, "linear")
    rows = []
    for name in sorted(both[0], key=lambda name: both[0][name][:, 1].mean()):
        cells = []
        for found in both:
            _, total, _, over, lost = found[name].T
            cells += [f"{total.mean():.1f}", f"{over.mean():.2f}", f"{lost.max():.1f}"]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def prediction_rows(judged):
    """Share of networks predicted within the factor of the bar and, in brackets, the median factor."""
    rows, judged = [], judged[judged["n"] >= 5]
    for (_, value), part in judged.groupby(["left out", "value"], sort=False):
        cells = [
            f"{within:.0%} ({factor:.1f})"
            for within, factor in zip(part["within"], part["median factor"], strict=True)
        ]
        rows.append(f"| {value} | {part['n'].iloc[0]} | {' | '.join(cells)} |")
    return rows


def by_the_rule(found):
    """The schedule with the fewest retrainings among those on average at most 1.25 times the best density."""
    return min((n for n, rows in found.items() if rows[:, 3].mean() <= 1.25), key=lambda n: found[n][:, 1].mean())


def recipe(spec):
    """What differs from the paper's recipe, in words."""
    if spec.optimizer == "adamw":
        return "AdamW"
    if spec.label_noise:
        return f"label noise {spec.label_noise:g}"
    return "" if spec.weight_decay == 0.0005 else f"weight decay {spec.weight_decay:g}"


@dataclass(frozen=True)
class Verdict:
    """A search judged by the ladder of the same network, recipe and seed; see part B of the plan."""

    method: str
    network: str
    recipe: str
    seed: int
    density: float
    over: float  # density over the hindsight density
    lost: float  # points of test accuracy
    retrainings: int
    ladder: int  # retrainings of Lottery Ticket until the first failure

    @property
    def right(self):
        return self.over <= 1.5 and self.lost <= 1.5 + 1e-9


@functools.cache
def verdicts(archive):
    """Verdicts on the searches by Interpolate and by SAP with gamma = 2."""
    runs = list(whole_runs([archive])[0].values())
    key = lambda spec: (spec.data, spec.model, recipe(spec), spec.seed)  # noqa: E731
    ladders = {key(spec): records for spec, records in runs if not spec.tolerance}
    found = []
    for spec, records in runs:
        if not spec.tolerance or (spec.method, spec.gamma) not in (("interpolate", 1), ("sap", 2)):
            continue
        ladder, limit = ladders[key(spec)], limit_of((spec, records))
        test = [record["test"]["accuracy"] for record in ladder]
        held_out = [record["validation"]["accuracy"] for record in ladder]
        density = [record["retrained"]["density"] for record in ladder]
        hindsight = min(d for d, accuracy in zip(density, test, strict=True) if accuracy >= test[0] - 0.01 - 1e-9)
        failed = [t for t, score in enumerate(held_out) if score < held_out[0] - 0.01 - 1e-9]
        lost = records[0]["test"]["accuracy"] - records[limit.round]["test"]["accuracy"]
        found.append(
            Verdict(
                method="Interpolate" if spec.method == "interpolate" else "SAP",
                network=f"{spec.data} {spec.model}",
                recipe=recipe(spec) or "the paper's",
                seed=spec.seed,
                density=limit.density,
                over=limit.density / hindsight,
                lost=100 * lost,
                retrainings=limit.retrainings,
                ladder=failed[0] if failed else len(ladder) - 1,
            )
        )
    return found


def claim_rows(archive):
    """Rows of the table of the claim: right and retrainings, for each network and recipe."""
    found = verdicts(archive)
    rows = []
    for network, words in dict.fromkeys((v.network, v.recipe) for v in sorted(found, key=_place)):
        here = [v for v in found if (v.network, v.recipe) == (network, words)]
        cells = [network, words]
        for method in ("Interpolate", "SAP"):
            of = [v for v in here if v.method == method]
            cells += [f"{sum(v.right for v in of)} of {len(of)}", f"{np.mean([v.retrainings for v in of]):.1f}"]
        rows.append(f"| {' | '.join([*cells, f'{np.mean([v.ladder for v in here]):.1f}'])} |")
    return rows


def _place(verdict):
    recipes = ("the paper's", "weight decay 0", "weight decay 0.005", "AdamW", "label noise 0.2")
    return verdict.network, recipes.index(verdict.recipe)


def verdict_lines(archive):
    """Every verdict as a line of CSV, those that are not right first."""
    yield "right,schedule,network,recipe,seed,density,over_hindsight,points_lost,retrainings,ladder_retrainings"
    for v in sorted(verdicts(archive), key=lambda v: (v.right, v.method, *_place(v), v.seed)):
        numbers = f"{v.density:.2g},{v.over:.2f},{v.lost:.1f},{v.retrainings},{v.ladder}"
        yield f"{'yes' if v.right else 'no'},{v.method},{v.network},{v.recipe},{v.seed},{numbers}"
