"""Stop rules: functions of the history of a run that return the reason to end it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from palmette.measures.parameters import as_number, is_number
from palmette.pruning.tolerance import Tolerance


@dataclass(frozen=True, kw_only=True)
class RoundSummary:
    """Summary of a round for stop rules, from `Decision.summary` or `Record.summary`.

    Args:
        round: number of cuts that the network has had.
        density: fraction of weights that remain.
        index: PQ Index before the last cut, at the budget's p and q; NaN where undefined.
        kept: number of weights before the last cut.
        cut: number of weights in the last cut; None before the first.
        train: score on the training data; None if unknown.
        validation: score on held-out data, never the test data, or that given to `Pruner.step`; None if unknown.
    """

    round: int
    density: float
    index: float = math.nan
    kept: int = 0
    cut: int | None = None
    train: float | None = None
    validation: float | None = None


StopRule = Callable[[Sequence[RoundSummary]], str | None]
"""History so far -> the reason to stop, or None to continue."""


def check_patience(patience: int) -> None:
    """Raise unless `patience` is a whole number of at least 1."""
    if not (is_number(patience, whole=True) and patience >= 1):
        raise ValueError(f"patience must be a whole number of at least 1, got patience={patience!r}")


def as_rules(stop: object) -> tuple[StopRule, ...]:
    """The argument `stop`, a rule or several, as a tuple; raise unless all are callable."""
    rules = [stop] if callable(stop) else stop
    if not isinstance(rules, Sequence) or not all(callable(r) and not isinstance(r, type) for r in rules):
        raise TypeError(f"stop must be a rule such as AtDensity(0.1), or a list of them, got {stop!r}")
    return tuple(rules)


def why_stop(rules: Sequence[StopRule], history: Sequence[RoundSummary]) -> str | None:
    """First reason to stop; None to continue. A cut of zero weights is always a reason.

    Rules with the attribute `judges_network` come before rules about cuts.
    """
    first = [rule for rule in rules if getattr(rule, "judges_network", False)]
    then = [rule for rule in rules if rule not in first]
    return next(filter(None, (rule(history) for rule in (*first, _cut_nothing, *then))), None)


def _cut_nothing(history: Sequence[RoundSummary]) -> str | None:
    return "the last step cut nothing" if history and history[-1].cut == 0 else None


@dataclass(frozen=True)
class IndexTurnsUp:
    r"""Stop when the index of the whole network has risen for `patience` steps in a row.

    .. math:: I_{t-k} < I_{t-k+1} < \dots < I_t, \qquad k = \text{patience}

    .. warning::
       This rule does not find how far a network can be pruned. Of 303 recorded runs, it stopped at the right round
       in 31 %; `ScoreDrops` in 71 % by training accuracy, in 96 % by test accuracy (results/FINDINGS.md).

    By the paper's hypothesis the index falls while pruning regularizes, and rises when the limit of
    compressibility is reached.

    >>> import palmette as pm
    >>> from palmette.pruning.stopping import RoundSummary
    >>> history = [RoundSummary(round=t, density=1.0, index=index) for t, index in enumerate((0.3, 0.2, 0.4))]
    >>> pm.IndexTurnsUp(patience=1)(history)
    'the PQ Index has risen once, to 0.4000'

    Diao et al. 2023, Figure 1 and Appendix A.
    """

    patience: int = 2

    def __post_init__(self) -> None:
        check_patience(self.patience)

    def __call__(self, history: Sequence[RoundSummary]) -> str | None:
        """The reason to stop, or None."""
        last = [summary.index for summary in history[-self.patience - 1 :]]
        if len(last) == self.patience + 1 and all(a < b for a, b in itertools.pairwise(last)):
            times = f"{self.patience} times in a row" if self.patience > 1 else "once"
            return f"the PQ Index has risen {times}, to {last[-1]:.4f}"
        return None


@dataclass(frozen=True)
class SmallCut:
    """Stop when a step cuts less than the fraction `below` of the kept weights.

    >>> import palmette as pm
    >>> from palmette.pruning.stopping import RoundSummary
    >>> pm.SmallCut(below=0.1)([RoundSummary(round=1, density=0.95, kept=100, cut=5)])
    'the last cut took 5.00% of what was kept'

    Diao et al. 2023, Appendix A.
    """

    below: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.below) <= 1:
            raise ValueError(f"below must be between 0 and 1, got below={self.below!r}")

    def __call__(self, history: Sequence[RoundSummary]) -> str | None:
        """The reason to stop, or None."""
        if history and (last := history[-1]).cut is not None and last.cut < self.below * last.kept:
            return f"the last cut took {last.cut / last.kept:.2%} of what was kept"
        return None


@dataclass(frozen=True)
class AtDensity:
    """Stop when the density is at most `density`.

    In a run this is the density of the last trained network, so that a run ends with a trained network.

    >>> import palmette as pm, torch
    >>> pruner = pm.Pruner(torch.nn.Linear(8, 8), budget=pm.FixedRatio(0.5), stop=pm.AtDensity(0.25))
    >>> while not pruner.stopped:
    ...     _ = pruner.step()
    >>> pruner.stopped
    'density 0.2500 has reached 0.25'
    """

    density: float
    judges_network: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.density) <= 1:
            raise ValueError(f"density must be between 0 and 1, got density={self.density!r}")

    def __call__(self, history: Sequence[RoundSummary]) -> str | None:
        """The reason to stop, or None."""
        if history and history[-1].density <= self.density:
            return f"density {history[-1].density:.4f} has reached {self.density}"
        return None


@dataclass(frozen=True)
class AccuracyDrops:
    """Stop when a retrained network is more than `by` less accurate than the dense one.

    Accuracies are measured on images held out of training, never on the test set. Without accuracies, as in a
    `Pruner`, the rule never stops.

    >>> scores = (0.95, 0.92)
    >>> history = [RoundSummary(round=t, density=1.0, validation=score) for t, score in enumerate(scores)]
    >>> AccuracyDrops(0.01)(history)
    'accuracy 0.9200 on validation images is more than 0.01 below 0.9500'
    """

    by: float
    judges_network: ClassVar[bool] = True
    needs_validation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.by) <= 1:
            raise ValueError(f"by must be between 0 and 1, got by={self.by!r}")

    def __call__(self, history: Sequence[RoundSummary]) -> str | None:
        """The reason to stop, or None."""
        dense, now = (history[0].validation, history[-1].validation) if history else (None, None)
        if dense is not None and now is not None and now < dense - self.by:
            return f"accuracy {now:.4f} on validation images is more than {self.by} below {dense:.4f}"
        return None


@dataclass(frozen=True)
class ScoreDrops:
    """Stop when the score is worse than the tolerance allows, compared with the dense network.

    In a run, the score on held-out data decides or, without one, that on the training data. In 71 % of 303
    recorded runs, 2 points of training accuracy below dense was the right place to stop (results/FINDINGS.md).

    Args:
        tolerance: as for `Tolerance.parse`, such as 0.01 or "1%"; by default 0.01 for held-out data and 0.02 for
            training data, for scores in [0, 1].
        maximize: whether larger scores are better; False for a loss.
        patience: number of rounds in a row below the tolerance.

    >>> import palmette as pm, torch
    >>> pruner = pm.Pruner(torch.nn.Linear(8, 8), stop=pm.ScoreDrops("1%"))
    >>> for score in (0.95, 0.92):  # of the dense network, and after the first cut
    ...     _ = pruner.step(score=score)
    >>> pruner.stopped
    'score 0.9200 is worse than 0.9500 by more than 1%'
    """

    tolerance: Tolerance | float | str | None = None
    maximize: bool = True
    patience: int = 1
    judges_network: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_patience(self.patience)
        if self.tolerance is not None:
            self.parsed(self.tolerance)

    def parsed(self, tolerance: Tolerance | float | str) -> Tolerance:
        """Tolerance with the direction of this rule."""
        return Tolerance.parse(tolerance, maximize=self.maximize)

    def __call__(self, history: Sequence[RoundSummary]) -> str | None:
        """The reason to stop, or None; raises if no score is known."""
        if len(history) < 2:
            return None
        held_out = [summary.validation for summary in history]
        known = held_out if held_out[0] is not None else [summary.train for summary in history]
        scores = [score for score in known if score is not None]
        if len(scores) < len(history):
            raise ValueError(
                "no score says when to stop: pass one, as in pruner.step(score=...), or give another rule, such "
                "as stop=AtDensity(0.1)"
            )
        dense, usual = scores[0], 0.01 if known is held_out else 0.02
        if self.tolerance is None and not 0 <= dense <= 1:
            raise ValueError(
                f"the score {dense:g} is not in [0, 1]: set a tolerance, such as ScoreDrops(0.5), or "
                'ScoreDrops("5%", maximize=False) for a loss'
            )
        tolerance = self.parsed(usual if self.tolerance is None else self.tolerance)
        last = scores[-self.patience :]
        if len(scores) <= self.patience or any(tolerance.allows(score, dense=dense) for score in last):
            return None
        return f"score {last[-1]:.4f} is worse than {dense:.4f} by more than {tolerance}"


@dataclass(frozen=True)
class AfterSteps:
    """Stop after `steps` cuts; in a run, after the training that follows the last one.

    >>> import palmette as pm, torch
    >>> pruner = pm.Pruner(torch.nn.Linear(8, 8), budget=pm.FixedRatio(0.5), stop=pm.AfterSteps(2))
    >>> while not pruner.stopped:
    ...     _ = pruner.step()
    >>> pruner.stopped
    '2 steps are done'
    """

    steps: int

    def __post_init__(self) -> None:
        if not (is_number(self.steps, whole=True) and self.steps >= 0):
            raise ValueError(f"steps must be a whole number of at least 0, got steps={self.steps!r}")

    def __call__(self, history: Sequence[RoundSummary]) -> str | None:
        """The reason to stop, or None."""
        done = history[-1].round if history else 0
        if done >= self.steps:
            return "1 step is done" if done == 1 else f"{done} steps are done"
        return None


DEFAULT_RULES: tuple[StopRule, ...] = (ScoreDrops(),)

AUTO = "auto"
"""Text of `ScoreDrops` with its defaults."""

# Name -> rule, parser of its number, example. `Experiment` has `rounds` instead of `AfterSteps`.
RULES: dict[str, tuple[Callable[..., StopRule], type[int] | type[float], str]] = {
    "accuracy-drops": (AccuracyDrops, float, "0.01"),
    "density": (AtDensity, float, "0.05"),
    "small-cut": (SmallCut, float, "0.01"),
    "index-turns-up": (IndexTurnsUp, int, "2"),
}
_WITH_DEFAULT = ("index-turns-up", "small-cut")


def read_rules(text: str) -> dict[str, StopRule]:
    """Stop rules by their normalised text.

    >>> read_rules("auto, density:.05")
    {'auto': ScoreDrops(tolerance=None, maximize=True, patience=1), 'density:0.05': AtDensity(density=0.05)}
    """
    found: dict[str, StopRule] = {}
    for part in text.split(",") if text.strip() else ():
        name, colon, number = (s.strip() for s in part.partition(":"))
        if part.strip() == AUTO:
            found[AUTO] = ScoreDrops()
            continue
        if name not in RULES:
            names = ", ".join([AUTO, *RULES])
            raise ValueError(f"stop must consist of {names}, got {part.strip()!r} in stop={text!r}")
        rule, read, example = RULES[name]
        try:
            value = read(number if colon or name not in _WITH_DEFAULT else example) + 0
            found[f"{name}:{value!r}"] = rule(value)
        except ValueError as error:
            raise ValueError(f"stop={text!r} needs a number such as {name}:{example}: {error}") from None
    return found


def rule_text(rule: StopRule) -> str | None:
    """Text form of a rule; None for a rule without one.

    >>> rule_text(AtDensity(0.05))
    'density:0.05'
    """
    if rule == ScoreDrops():
        return AUTO
    found = [(name, read) for name, (kind, read, _) in RULES.items() if type(rule) is kind]
    return f"{found[0][0]}:{found[0][1](*vars(rule).values())}" if found else None
