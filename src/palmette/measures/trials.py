"""Vectors, and changes of them, that test the six properties of `palmette.measures.axioms`.

All entries are multiples of 1/64 up to 8, most of them whole numbers: floats hold them exactly, and measures that
saturate, such as tanh, still change. No vector is all zero.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Vector = tuple[float, ...]

BETAS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
_SMALLEST_GAP = 1 / 8
_LARGEST = 8.0
_LENGTHS = (2, 3, 5, 8, 16)


@dataclass(frozen=True)
class Trial:
    """One test of a property.

    The property holds if, for at least one of `befores`, the measure changes as required to each of its `afters`.
    All properties but Bill Gates (P1) have one of each.
    """

    befores: tuple[Vector, ...]
    afters: tuple[tuple[Vector, ...], ...]
    describe: Callable[[int, int], str]
    """Describes the change from `befores[b]` to `afters[b][a]`."""


def _one(before: Vector, after: Vector, description: str) -> Trial:
    return Trial((before,), ((after,),), lambda b, a: description)


def robin_hood(w: Vector) -> Iterator[Trial]:
    """Move less than half of the difference from a larger entry to a smaller one."""
    n = len(w)
    pairs = itertools.combinations(range(n), 2) if n <= 4 else itertools.pairwise(range(n))
    for i, j in pairs:
        rich, poor = (i, j) if w[i] > w[j] else (j, i)
        gap = w[rich] - w[poor]
        if gap < _SMALLEST_GAP:
            continue
        for alpha in (1.0, gap / 4, gap / 16, gap * 7 / 16):
            if alpha < gap / 2:
                after = with_added(with_added(w, rich, -alpha), poor, alpha)
                description = f"moving {number(alpha)} from the {ordinal(rich)} to the {ordinal(poor)} entry"
                yield _one(w, after, description)


def scaling(w: Vector) -> Iterator[Trial]:
    """Multiply all entries."""
    for alpha in (2.0, 10.0, 0.5, 0.1, 0.001):
        yield _one(w, tuple(alpha * x for x in w), f"multiplying every entry by {number(alpha)}")


def rising_tide(w: Vector) -> Iterator[Trial]:
    """Add a number to all entries of a vector that is not constant."""
    if max(w) - min(w) < _SMALLEST_GAP:
        return
    for alpha in (1.0, 2.0, 1 / 2, 1 / 8):
        yield _one(w, tuple(x + alpha for x in w), f"adding {number(alpha)} to every entry")


def cloning(w: Vector) -> Iterator[Trial]:
    """Write the vector twice."""
    yield _one(w, w + w, "writing the vector twice")


def bill_gates(w: Vector) -> Iterator[Trial]:
    """Raise one entry by a ladder of beta, and from each by several alpha more.

    An entry is skipped if all others are zero: there a measure with Scaling (D2) cannot change, so that no measure
    could have both properties.
    """
    for i in range(len(w) if len(w) <= 4 else 2):
        if not any(w[:i] + w[i + 1 :]) or (i > 0 and w[i] == w[i - 1]):
            continue
        yield Trial(
            tuple(with_added(w, i, beta) for beta in BETAS),
            tuple(tuple(with_added(w, i, beta + alpha) for alpha in _alphas(beta)) for beta in BETAS),
            functools.partial(_describe_bill_gates, w, i),
        )


def babies(w: Vector) -> Iterator[Trial]:
    """Append a zero."""
    yield _one(w, (*w, 0.0), "appending a zero")


def _alphas(beta: float) -> tuple[float, ...]:
    return (1.0, beta / 8, beta * 2, beta * 32)


def _describe_bill_gates(w: Vector, i: int, b: int, a: int) -> str:
    beta, alpha = number(BETAS[b]), number(_alphas(BETAS[b])[a])
    return (
        f"raising the {ordinal(i)} entry of {vector(w)} by beta = {beta}, then by alpha = {alpha} more "
        f"(no beta up to {number(BETAS[-1])} does better)"
    )


def structured_vectors() -> Iterator[Vector]:
    """Ascending vectors of up to four whole numbers from 0 to 5, then longer ones of simple shape."""
    for n in range(1, 5):
        for w in itertools.combinations_with_replacement(range(6), n):
            if any(w):
                yield tuple(float(x) for x in w)
    for n in (6, 10, 16):
        yield (*[0.0] * (n - 1), 1.0)
        yield (*[1.0] * (n - 1), 2.0)
        yield (*[0.0] * (n // 2), *[1.0] * (n - n // 2))
        yield tuple((k + 1) / 2 for k in range(n))
        yield tuple(_LARGEST / 2 ** min(k, 9) for k in range(n))


def random_vectors(trials: int, seed: int) -> Iterator[Vector]:
    """Random vectors of 2 to 16 entries: in turn uniform, skewed, sparse, whole numbers, and small."""
    rng = random.Random(seed)
    draws: tuple[Callable[[], float], ...] = (
        lambda: rng.uniform(0, _LARGEST),
        lambda: rng.lognormvariate(-1, 1.5),
        lambda: rng.choice((0.0, 0.0, rng.uniform(0, _LARGEST))),
        lambda: float(rng.randint(0, int(_LARGEST))),
        lambda: rng.uniform(0, 1),
    )
    for t in range(trials):
        n, draw = _LENGTHS[t % len(_LENGTHS)], draws[t // len(_LENGTHS) % len(draws)]
        w = tuple(min(round(64 * draw()) / 64, _LARGEST) for _ in range(n))
        yield w if any(w) else with_added(w, 0, 1.0)


def with_added(w: Vector, i: int, alpha: float) -> Vector:
    """`w` with `alpha` added to entry `i`."""
    return (*w[:i], w[i] + alpha, *w[i + 1 :])


def vector(w: Vector) -> str:
    """`w` as text, exact.

    >>> vector((1.0, 0.25))
    '[1, 0.25]'
    """
    return f"[{', '.join(number(x) for x in w)}]"


def number(x: float) -> str:
    """A number as text, without a trailing .0."""
    return f"{x:.12g}"


def ordinal(i: int) -> str:
    """Ordinal of index `i`, counted from 1.

    >>> ordinal(0), ordinal(10), ordinal(21)
    ('1st', '11th', '22nd')
    """
    place = i + 1
    suffix = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{suffix}"
