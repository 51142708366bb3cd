"""Search for the smallest density that is good enough: attempts, their bracket, the next step and the answer.

Everything here is a function of the attempts on record, so that a resumed search takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from palmette.pruning.budgets import Allocated, Budget, FixedRatio, Partly
from palmette.pruning.targets import Probe, Target
from palmette.pruning.tolerance import Estimate, Tolerance
from palmette.words import counted

WIDTH = 1.1
"""Ratio of the good density to the bad one at which a bracket is closed."""
DEFAULT_METHOD = "interpolate"
"""Schedule of a search, unless another method or budget is given."""
CLOSED, NARROW = "the bracket is closed", "no cut lies between both ends"
NO_CUT = "no smaller cut is possible"
_UNKNOWN, _USUAL = Estimate(math.nan), Tolerance()  # of a run without scores


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One training of the search.

    Args:
        round: round of the training; round 0 trains the dense network.
        kept, total: number of weights that the network kept, of how many.
        score: score of the trained network.
        start: round whose trained network was cut; None for the dense network.
        repeats: round with the same masks, if this training repeats it.
    """

    round: int
    kept: int
    total: int
    score: Estimate
    start: int | None = None
    repeats: int | None = None


@dataclass(frozen=True)
class Network:
    """A set of masks, trained once or more; its score is the mean."""

    attempts: tuple[Attempt, ...]

    @property
    def round(self) -> int:
        """Round of the first training."""
        return self.attempts[0].round

    @property
    def kept(self) -> int:
        """Number of weights that remain."""
        return self.attempts[0].kept

    @property
    def density(self) -> float:
        """Fraction of weights that remains."""
        return self.kept / self.attempts[0].total

    @property
    def score(self) -> Estimate:
        """Mean score of all trainings; the error is that of one, since they share the held-out data."""
        errors = [a.score.error for a in self.attempts]
        known = [e for e in errors if e is not None]
        return Estimate(
            fmean(a.score.value for a in self.attempts), fmean(known) if len(known) == len(errors) else None
        )


@dataclass(frozen=True)
class Bracket:
    """The sparsest good network and the densest bad one below it.

    Args:
        good: the sparsest good network; the dense one if no other is good.
        best: round of its best training.
        bad: the densest network below it that is not good; None if there is none.
    """

    good: Network
    bad: Network | None
    best: int

    @property
    def closed(self) -> bool:
        """Whether both ends are so close that the search need not continue."""
        if self.bad is None:
            return self.good.kept <= 1
        return self.good.kept <= max(WIDTH * self.bad.kept, self.bad.kept + 1)

    @property
    def once(self) -> list[Network]:
        """Ends that were trained once; the dense network is not repeated."""
        ends = [self.good] if self.bad is None else [self.good, self.bad]
        return [n for n in ends if n.round and len(n.attempts) == 1]


def bracket(attempts: Sequence[Attempt], tolerance: Tolerance) -> Bracket:
    """Bracket after these attempts; the dense network counts as good."""
    grouped: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.round if attempt.repeats is None else attempt.repeats, []).append(attempt)
    networks = [Network(tuple(found)) for found in grouped.values()]
    dense = networks[0]
    good = [n for n in networks if n is dense or tolerance.allows(n.score, dense=dense.score)]
    end = min(good, key=lambda n: n.kept)
    bad = [n for n in networks if n not in good and n.kept < end.kept]
    # A good mean has a training that is good by itself; only these are kept.
    trained = [a for a in end.attempts if a.round == 0 or tolerance.allows(a.score, dense=dense.score)]
    best = min(trained, key=lambda a: tolerance.loss(a.score, dense=dense.score)).round
    return Bracket(end, max(bad, key=lambda n: n.kept, default=None), best)


@dataclass(frozen=True)
class Step:
    """Next step after a round.

    Args:
        start: round of the trained network that the next round starts from, or that is the answer.
        density: density to cut it to; None to cut as the budget says.
        repeats: round whose masks are trained once more.
        stop: why the search ends; None if it continues.
    """

    start: int
    density: float | None = None
    repeats: int | None = None
    stop: str | None = None


def next_step(
    attempts: Sequence[Attempt],
    tolerance: Tolerance,
    *,
    rounds: int,
    target: Target | None = None,
    narrow: bool = False,
) -> Step:
    """The next step: cut the good network, less if a cut was too much; then repeat both ends; then stop.

    Args:
        attempts: all trainings so far, the dense network first.
        rounds: maximum number of retrainings.
        target: budget that chooses densities; without one, the first cuts are those of another budget, and a
            failed cut is halved in log density.
        narrow: whether no cut lies between both ends, or none is possible, as with a few weights per neuron.
    """
    found = bracket(attempts, tolerance)
    good, bad, start = found.good, found.bad, found.best
    closed = CLOSED if found.closed else NO_CUT if bad is None else NARROW
    if not (found.closed or narrow):
        if len(attempts) > rounds:
            return Step(start, stop="all retrainings are used")
        if target is not None:
            least = None if bad is None else bad.density
            density = target.next_density(_probes(attempts, tolerance), good.density, least)
            return Step(start, max(density, 1 / good.attempts[0].total))
        return Step(start, None if bad is None else math.sqrt(good.density * bad.density))
    if not found.once:
        return Step(start, stop=closed)
    if len(attempts) > rounds:
        return Step(start, stop=f"{closed}, and all retrainings are used")
    end = found.once[0]
    parent = end.attempts[0].start
    assert parent is not None
    return Step(parent, repeats=end.round)


def _probes(attempts: Sequence[Attempt], tolerance: Tolerance) -> list[Probe]:
    """Attempts as densities and losses in units of what is allowed."""
    dense = attempts[0].score
    found = []
    for a in attempts:
        lost = tolerance.loss(a.score, dense=dense)
        if math.isfinite(lost):  # else there may be no standard error either
            lost /= max(tolerance.allowed(dense, a.score), 1e-9 * max(1.0, abs(dense.value)))
        found.append(Probe(a.kept / a.total, lost))
    return found


def budget_to(density: float, kept: int, total: int, usual: Budget, after: int) -> Budget:
    """Budget that cuts to `density`: a part of the `usual` cut, if that leaves fewer, `after`."""
    # Whole numbers: 1 - density / now would lose a weight to rounding.
    cut = kept - min(math.ceil(density * total - 1e-6), kept - 1)
    if isinstance(usual, Allocated):
        return replace(usual, budget=FixedRatio(cut / kept))  # its shares stay
    if not isinstance(usual, Target) and kept - after > cut:
        return Partly(usual, cut / (kept - after))
    return FixedRatio(cut / kept)


def numbers_of(attempts: Sequence[Attempt], tolerance: Tolerance) -> dict[str, Any]:
    """Origin of the last network, and the bracket after it, for the record."""
    found, last = bracket(attempts, tolerance), attempts[-1]
    return {
        "score": last.score.value,
        "error": last.score.error,
        "start": last.start,
        "repeats": last.repeats,
        "answer": found.best,
        "good_density": found.good.density,
        "bad_density": found.bad and found.bad.density,
    }


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Result of a search: how far the network can be pruned.

    Args:
        density: density of the returned network, the sparsest good one.
        bad_density: density of the densest network that is not good; None if every attempt was good.
        score: mean score of the trainings at `density`.
        bad_score: the same at `bad_density`.
        dense_score: score of the dense network.
        tolerance: the allowed loss.
        retrainings: number of trainings after that of the dense network.
        confirmed: whether the bracket is closed and both ends were trained twice, with different random numbers.
        stopped: why the search ended.
        round: round of the returned network.
        model: the returned network; None when a limit is read from a folder.
        test_score: score of the returned network on the test data, if it is known.
        records: records of all rounds.

    >>> found = Limit.of([
    ...     Attempt(round=0, kept=100, total=100, score=Estimate(0.95)),
    ...     Attempt(round=1, kept=10, total=100, score=Estimate(0.945), start=0),
    ...     Attempt(round=2, kept=4, total=100, score=Estimate(0.90), start=1),
    ... ], Tolerance(0.01), stopped="all retrainings are used")
    >>> print(found)
    within 0.01 of dense down to 10% of the weights; 4% is too few; 2 retrainings (all retrainings are used)
    """

    density: float
    bad_density: float | None = None
    score: Estimate = _UNKNOWN
    bad_score: Estimate | None = None
    dense_score: Estimate = _UNKNOWN
    tolerance: Tolerance = _USUAL
    retrainings: int
    confirmed: bool = False
    stopped: str
    round: int
    model: Any = field(default=None, repr=False)
    test_score: float | None = None
    records: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, attempts: Sequence[Attempt], tolerance: Tolerance, *, stopped: str) -> Limit:
        """Limit that these attempts found."""
        found = bracket(attempts, tolerance)
        good, bad = found.good, found.bad
        return cls(
            density=good.density,
            bad_density=None if bad is None else bad.density,
            score=good.score,
            bad_score=None if bad is None else bad.score,
            dense_score=attempts[0].score,
            tolerance=tolerance,
            retrainings=len(attempts) - 1,
            confirmed=(found.closed or stopped in (NARROW, NO_CUT)) and len(attempts) > 1 and not found.once,
            stopped=stopped,
            round=found.best,
        )

    @property
    def error(self) -> float | None:
        """Standard error of the loss of score, at most: scores of the same examples vary together."""
        pruned = self.score if self.round or self.bad_score is None else self.bad_score  # not dense against dense
        if pruned.error is None or self.dense_score.error is None:
            return None
        return math.hypot(pruned.error, self.dense_score.error)

    @property
    def caution(self) -> str:
        """A clause if the held-out data are too few for the tolerance; empty otherwise."""
        if self.error is None or self.tolerance.kind == "not-worse":  # which allows for noise
            return ""
        allowed = self.tolerance.allowed(self.dense_score, self.score)
        return "" if self.error <= allowed / 2 else "; too few held-out data to measure such a loss"

    @property
    def precision(self) -> str:
        """Scores, and how precise they are."""
        text = f"score {shown_score(self.score.value)}, dense {shown_score(self.dense_score.value)}"
        if self.error is None:
            return text
        text = f"{text}; standard error of the difference at most {shown_score(self.error)}{self.caution}"
        if self.tolerance.kind != "not-worse":
            return text
        noise = self.tolerance.allowed(self.dense_score, self.score)
        return f"{text}; losses up to {shown_score(noise)} pass as noise"

    def __str__(self) -> str:
        count = counted(self.retrainings, "retraining")
        if math.isnan(self.dense_score.value):
            return f"{shown_densities(self.density)[0]} of the weights remain; {count} ({self.stopped})"
        loss = f"{self.tolerance} of dense" if self.tolerance.kind != "not-worse" else "the noise of dense"
        shares = shown_densities(self.density, self.bad_density)
        far = f"within {loss} down to {shares[0]} of the weights" if self.round else "no cut was good enough"
        less = f"{shares[1]} is too few" if self.bad_density is not None else "fewer were not tried"
        how = "each end trained twice" if self.confirmed and self.stopped != NO_CUT else self.stopped
        return f"{far}; {less}; {count} ({how})"


def shown_densities(*densities: float | None) -> list[str]:
    """Densities as percent, with as many digits as are needed to tell neighbours apart.

    >>> shown_densities(0.043, 0.039, None)
    ['4.3%', '3.9%', 'none']
    """
    known = {d for d in densities if d}
    digits = max(0, 1 - math.floor(math.log10(100 * min(known)))) if known else 0
    while digits < 12 and len({f"{d:.{digits}%}" for d in known}) < len(known):
        digits += 1
    return ["none" if d is None else f"{d:.{digits}%}".replace(".0%", "%") for d in densities]


def shown_score(value: float | None) -> str:
    """A score of any size, such as a loss or a perplexity.

    >>> shown_score(0.25), shown_score(27.1234), shown_score(0.0000123), shown_score(None)
    ('0.2500', '27.1234', '1.23e-05', 'none')
    """
    if value is None:
        return "none"
    return f"{value:.3g}" if 0 < abs(value) < 0.01 or abs(value) >= 1e6 else f"{value:.4f}"


def attempts_of(records: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Attempts of a search, from its records."""
    found = []
    for record in records:
        step, numbers = record["search"], record["retrained"]
        score = Estimate(math.nan if step["score"] is None else step["score"], step["error"])  # JSON has no NaN
        place = {"start": step["start"], "repeats": step["repeats"]}
        found.append(
            Attempt(round=record["round"], kept=numbers["kept"], total=numbers["total"], score=score, **place)
        )
    return found
