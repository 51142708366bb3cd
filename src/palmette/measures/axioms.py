"""The six properties of a sparsity measure, and a search for counterexamples to each.

D1 to D4 are Dalton's laws for measures of inequality; Rickard added P1 and P2. Hurley and Rickard 2009 combine the
six. The statements are those of Diao et al. 2023, section 1, with strict inequalities.

Vectors (`palmette.measures.trials`) are tried from short to long, so that the first counterexample is simple. A
property that holds on all trials is not proved. `docs/axioms.md` says how ties and undefined values are judged,
and which betas refute Bill Gates (P1).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from palmette.measures import trials as changes
from palmette.measures.parameters import is_number
from palmette.measures.trials import Trial, Vector, number, vector

TOLERANCE = 1e-12

Key = Literal["D1", "D2", "D3", "D4", "P1", "P2"]


@dataclass(frozen=True)
class Property:
    """One of the six properties; `relation` is that of S after a change to S before it."""

    key: Key
    name: str
    statement: str
    relation: Literal["<", "=", ">"]
    trials: Callable[[Vector], Iterator[Trial]]


_SIX = (
    Property(
        "D1",
        "Robin Hood",
        "S falls when alpha moves from a larger entry w_i to a smaller w_j, 0 < alpha < (w_i - w_j) / 2",
        "<",
        changes.robin_hood,
    ),
    Property("D2", "Scaling", "S(alpha w) = S(w) for alpha > 0", "=", changes.scaling),
    Property(
        "D3", "Rising Tide", "S(w + alpha) < S(w) for alpha > 0 and w not constant", "<", changes.rising_tide
    ),
    Property("D4", "Cloning", "S([w, w]) = S(w)", "=", changes.cloning),
    Property(
        "P1",
        "Bill Gates",
        "each w_i has a beta > 0 such that S with w_i + beta + alpha is above S with w_i + beta, all alpha > 0",
        ">",
        changes.bill_gates,
    ),
    Property("P2", "Babies", "S([w, 0]) > S(w) for w not all zero", ">", changes.babies),
)
PROPERTIES: Mapping[str, Property] = {p.key: p for p in _SIX}


@dataclass(frozen=True)
class Counterexample:
    """A change, described in words, from `before` to `after` that breaks a property."""

    before: Vector
    after: Vector
    value_before: float
    value_after: float
    change: str

    @property
    def moves(self) -> bool:
        """Whether the two values differ; a tie fails a property that demands a change."""
        size = max(1.0, abs(self.value_before), abs(self.value_after))
        tie = abs(self.value_after - self.value_before) <= TOLERANCE * size
        return not (tie and math.isfinite(self.value_after))

    def __str__(self) -> str:
        before, after = self.values()
        outcome = f"goes from {before} to {after}" if self.moves else f"stays {after}"
        return f"{self.change}: {vector(self.before)} -> {vector(self.after)}, S {outcome}"

    def values(self) -> tuple[str, str]:
        """Both values as text, with as many digits as tell them apart; four if they are equal."""
        if not math.isfinite(self.value_after):
            return number(self.value_before), "undefined"
        for digits in range(4, 13):
            texts = f"{self.value_before:.{digits}g}", f"{self.value_after:.{digits}g}"
            if not self.moves or texts[0] != texts[1]:
                break
        return texts


@dataclass(frozen=True)
class Verdict:
    """Result of testing property `key`: it holds on all `trials`, or has a counterexample."""

    key: str
    trials: int
    counterexample: Counterexample | None

    @property
    def holds(self) -> bool:
        """Whether no counterexample was found."""
        return self.counterexample is None

    def __str__(self) -> str:
        return f"holds on {self.trials} trials" if self.counterexample is None else str(self.counterexample)


def check(measure: Callable[..., Any], *, trials: int = 1000, seed: int = 0) -> Mapping[str, Verdict]:
    """Try to refute each of the six properties for `measure`.

    Args:
        measure: one of `MEASURES`, or any function whose larger values mean sparser. A function with an argument
            `dim` gets a float64 tensor with a vector in each row and ``dim=1``, and returns one value per row; any
            other gets one float64 numpy vector at a time.
        trials: number of random vectors, in addition to the structured ones.
        seed: of the random vectors.

    Returns:
        A verdict for each of D1, D2, D3, D4, P1 and P2. Its `trials` counts the changes tested.

    >>> from palmette import MEASURES
    >>> verdicts = check(MEASURES["gini"])
    >>> all(verdict.holds for verdict in verdicts.values())
    True
    >>> print(check(max)["P2"])
    appending a zero: [1] -> [1, 0], S stays 1
    """
    if not callable(measure):
        raise TypeError(f"measure must be a function, got {measure!r}")
    if not (is_number(trials, whole=True) and trials >= 0):
        raise ValueError(f"trials must be a whole number of at least 0, got trials={trials!r}")
    if not is_number(seed, whole=True):
        raise ValueError(f"seed must be a whole number, got seed={seed!r}")
    evaluate = _per_row(measure)
    return {key: _judge(evaluate, what, int(trials), int(seed)) for key, what in PROPERTIES.items()}


_Batch = tuple[list[Trial], Tensor, Tensor]
"""Trials of vectors of equal length, their `befores` [n, betas, d] and `afters` [n, betas, alphas, d']."""


@functools.lru_cache(maxsize=len(_SIX))
def _batches(key: Key, trials: int, seed: int) -> tuple[_Batch, ...]:
    batches = []
    for vectors in (changes.structured_vectors(), changes.random_vectors(trials, seed)):
        by_length: dict[int, list[Trial]] = {}
        for w in vectors:
            by_length.setdefault(len(w), []).extend(PROPERTIES[key].trials(w))
        for of_length in by_length.values():
            if of_length:
                befores = torch.tensor([t.befores for t in of_length], dtype=torch.float64)
                afters = torch.tensor([t.afters for t in of_length], dtype=torch.float64)
                batches.append((of_length, befores, afters))
    return tuple(batches)


def _judge(evaluate: Callable[[Tensor], Tensor], what: Property, trials: int, seed: int) -> Verdict:
    made = 0
    for batch, befores, afters in _batches(what.key, trials, seed):
        before, after = evaluate(befores), evaluate(afters)
        defined = before.isfinite()
        kept = _compares(before[..., None], after, what.relation) & defined[..., None]
        counts = defined.any(1)
        made += int(counts.sum())
        refuted = counts & ~kept.all(2).any(1)
        if bool(refuted.any()):
            found = [
                _counterexample(batch[n], before[n], after[n], kept[n]) for n in refuted.nonzero()[:, 0].tolist()
            ]
            return Verdict(what.key, made, min(found, key=_complexity))
    if made == 0:
        raise ValueError(f"the measure must be finite on some vectors, got none at all in testing {what.key}")
    return Verdict(what.key, made, None)


def _compares(before: Tensor, after: Tensor, relation: Literal["<", "=", ">"]) -> Tensor:
    tolerance = TOLERANCE * torch.maximum(before.abs(), after.abs()).clamp_min(1.0)
    rise = after - before
    holds = {"<": rise < -tolerance, "=": rise.abs() <= tolerance, ">": rise > tolerance}[relation]
    return holds & after.isfinite()


def _counterexample(trial: Trial, before: Tensor, after: Tensor, kept: Tensor) -> Counterexample:
    b = int(before.isfinite().nonzero()[0])
    a = int((~kept[b]).nonzero()[0])
    return Counterexample(
        trial.befores[b], trial.afters[b][a], float(before[b]), float(after[b, a]), trial.describe(b, a)
    )


def _complexity(example: Counterexample) -> tuple[float, ...]:
    """Sort key: small for examples that are easy to check by hand (no tie, whole numbers, small numbers)."""
    entries = (*example.before, *example.after)
    undefined = not math.isfinite(example.value_after)
    return (undefined, not example.moves, sum(x != int(x) for x in entries), max(entries), sum(example.before))


def _per_row(measure: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """Function that measures every vector along the last dimension of a tensor."""
    try:
        takes_dim = "dim" in inspect.signature(measure).parameters
    except ValueError:  # some builtins have no signature
        takes_dim = False

    def evaluate(vectors: Tensor) -> Tensor:
        matrix = vectors.reshape(-1, vectors.shape[-1])
        found = measure(matrix, dim=1) if takes_dim else [float(measure(row)) for row in matrix.numpy()]
        values = torch.as_tensor(found, dtype=torch.float64)
        if values.shape != matrix.shape[:1]:
            raise ValueError(
                f"a measure that takes dim must give one value per row, got shape {tuple(values.shape)} "
                f"for {len(matrix)} rows"
            )
        return values.reshape(vectors.shape[:-1])

    return evaluate
