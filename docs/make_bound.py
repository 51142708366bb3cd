"""Measure how tight the PQI bound is, and write the table of `docs/bound.md`: `python docs/make_bound.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from marks import renewed

from palmette import eta_of_cut, pq_index, retained_lower_bound, tail_mass_count

PAGE = Path(__file__).with_name("bound.md")

D, VECTORS = 1000, 40
PAIRS = ((0.5, 1.0), (1.0, 2.0))
ETAS = (0.0, 0.01, 0.1)

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def _among_zeros(rng: np.random.Generator) -> Vector:
    w = np.zeros(D)
    w[rng.choice(D, rng.integers(1, D + 1), replace=False)] = 0.1
    return w


def _two_levels(rng: np.random.Generator) -> Vector:
    """A few large entries over a floor of small ones: the head and the tail are each flat."""
    return np.where(rng.random(D) < rng.uniform(0.01, 0.5), 1.0, 10 ** rng.uniform(-6, -1))


VECTORS_OF: dict[str, Callable[[np.random.Generator], Vector]] = {
    "equal magnitudes among zeros": _among_zeros,
    "uniform on (-1, 1)": lambda rng: rng.uniform(-1, 1, D),
    "Gaussian": lambda rng: rng.standard_normal(D),
    "Laplace": lambda rng: rng.laplace(size=D),
    "Student t, 2 degrees of freedom": lambda rng: rng.standard_t(2, D),
    "Cauchy": lambda rng: rng.standard_cauchy(D),
    "two levels": _two_levels,
    "geometric, 0.99 to the k": lambda rng: rng.permutation(0.99 ** np.arange(D)),
    "geometric, 0.5 to the k": lambda rng: rng.permutation(0.5 ** np.arange(D)),
    "one entry a million times the rest": lambda rng: rng.permutation(np.r_[1e6, np.ones(D - 1)]),
}


def tightness(w: Vector, *, p: float, q: float, eta: float) -> float:
    """The bound as a share of the number it bounds: 1 is tight, near 0 says nothing."""
    bound = retained_lower_bound(float(pq_index(w, p=p, q=q)), len(w), p=p, q=q, eta=eta)
    return float(bound) / tail_mass_count(w, p=p, eta=eta)


def share_lost(w: Vector, *, p: float, q: float) -> float:
    """Tail share after a cut to the bound at eta 0: what SAP's first round does."""
    bound = retained_lower_bound(float(pq_index(w, p=p, q=q)), len(w), p=p, q=q)
    return eta_of_cut(w, math.ceil(bound * (1 - 1e-12)), p)


def table() -> str:
    """The table of the page, in Markdown. The same on every machine: the seeds are fixed."""
    heads = [f"({p:g}, {q:g}): {what}" for p, q in PAIRS for what in (*(f"η = {eta:g}" for eta in ETAS), "real η")]
    lines = [f"| vectors | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for seed, (name, draw) in enumerate(VECTORS_OF.items()):
        rng = np.random.default_rng(seed)
        drawn = [draw(rng) for _ in range(VECTORS)]
        columns: list[list[float]] = []
        for p, q in PAIRS:
            tight = [[tightness(w, p=p, q=q, eta=eta) for w in drawn] for eta in ETAS]
            assert max(map(max, tight)) <= 1 + 1e-12, "the theorem"
            columns += [*tight, [share_lost(w, p=p, q=q) for w in drawn]]
        lines.append(f"| {name} | {' | '.join(f'{np.median(column):.3f}' for column in columns)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with its table made anew."""
    return renewed(PAGE.read_text(encoding="utf-8"), "table", table(), "make_bound.py")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
