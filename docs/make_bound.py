"""Measure how tight the PQI bound is, and write the tables of `docs/bound.md`: `python docs/make_bound.py`."""

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


def share_lost(w: Vector, *, p: float, q: float) -> tuple[float, float]:
    """(density, tail share) after a cut to the bound at eta 0: what SAP's first round does."""
    bound = retained_lower_bound(float(pq_index(w, p=p, q=q)), len(w), p=p, q=q)
    r = math.ceil(bound * (1 - 1e-12))
    return r / len(w), eta_of_cut(w, r, p)


def tables() -> str:
    """The tables of the page, in Markdown. The same on every machine: the seeds are fixed."""
    parts = []
    for p, q in PAIRS:
        heads = [f"η = {eta:g}" for eta in ETAS]
        lines = [
            f"## p = {p:g}, q = {q:g}\n",
            f"| vectors | {' | '.join(heads)} | density | real η |",
            f"|---|{'---|' * (len(ETAS) + 2)}",
        ]
        for seed, (name, draw) in enumerate(VECTORS_OF.items()):
            rng = np.random.default_rng(seed)
            drawn = [draw(rng) for _ in range(VECTORS)]
            columns = [[tightness(w, p=p, q=q, eta=eta) for w in drawn] for eta in ETAS]
            assert max(map(max, columns)) <= 1 + 1e-12, "the theorem"
            columns += zip(*(share_lost(w, p=p, q=q) for w in drawn), strict=True)
            lines.append(f"| {name} | {' | '.join(f'{np.median(column):.3f}' for column in columns)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def page() -> str:
    """The page with its tables made anew."""
    return renewed(PAGE.read_text(encoding="utf-8"), "tables", tables(), "make_bound.py")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
