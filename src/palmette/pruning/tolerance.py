"""`Tolerance`: how much worse than the dense network a pruned one may be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import Any, Literal, get_args

from palmette.measures.parameters import as_number, is_number

Kind = Literal["points", "relative", "not-worse"]


@dataclass(frozen=True)
class Estimate:
    """A score and its standard error; None if the error is unknown."""

    value: float
    error: float | None = None

    @staticmethod
    def of(value: object, name: str) -> Estimate:
        r"""The result of the user's function `name`: one number, or one for each example or repetition.

        Of several numbers :math:`s_1, \dots, s_n` it is the mean, with the standard error
        :math:`\mathrm{sd}(s) / \sqrt n`.

        >>> Estimate.of(0.5, "evaluate")
        Estimate(value=0.5, error=None)
        >>> Estimate.of([True, True, False, False], "evaluate").value
        0.5
        """
        if isinstance(value, Estimate):
            return value
        plain = _plain(value)
        if is_number(plain):
            return Estimate(as_number(plain))
        several = isinstance(plain, Iterable) and not isinstance(plain, str | bytes | dict)
        numbers = [_plain(each) for each in plain] if several else []
        if not numbers or not all(map(is_number, numbers)):
            raise TypeError(
                f"{name} must return one number, or a list or vector with one for each example or repetition, "
                f"got {value!r}"
            )
        scores = list(map(as_number, numbers))
        if not all(map(math.isfinite, scores)):  # stdev refuses them
            return Estimate(math.nan)
        return Estimate(fmean(scores), stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None)


@dataclass(frozen=True)
class Tolerance:
    r"""Largest loss of score, compared with the dense network.

    A network with the score :math:`s` is good if its loss, :math:`s_0 - s` (:math:`s - s_0` when smaller scores
    are better), is at most

    .. math:: b, \qquad b\,|s_0|, \qquad \text{or} \qquad
              z_b \sqrt{\sigma_0^2 + \sigma^2}

    for the kinds "points", "relative" and "not-worse", where :math:`s_0` is the score of the dense network,
    :math:`\sigma` a standard error and :math:`z_b` the quantile of the normal distribution: "not-worse" accepts
    every network that is not worse than the dense one at the confidence `by`.

    Args:
        by: :math:`b`: points of the score, a fraction of the dense score, or a confidence such as 0.95.
        kind: "points", "relative" or "not-worse".
        maximize: whether larger scores are better; False for losses and perplexities.

    >>> import palmette as pm
    >>> pm.Tolerance(0.01).allows(0.942, dense=0.95), pm.Tolerance(0.01).allows(0.93, dense=0.95)
    (True, False)
    >>> pm.Tolerance.parse("1%").allowed(dense=0.95)
    0.0095
    """

    by: float = 0.01
    kind: Kind = "points"
    maximize: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {self.kind!r}")
        if self.kind == "not-worse":
            if not 0.5 <= as_number(self.by) < 1:
                raise ValueError(f"the confidence of not-worse must be at least 0.5 and below 1, got {self.by!r}")
        elif not 0 <= as_number(self.by) < math.inf:
            raise ValueError(f"tolerance must be a number of at least 0, got tolerance={self.by!r}")

    @classmethod
    def parse(cls, given: Tolerance | float | str, *, maximize: bool = True) -> Tolerance:
        """Tolerance from a number (points), ``"1%"`` (relative) or ``"not-worse:0.95"``.

        Smaller scores are better if a given `Tolerance` or `maximize` says so: both are True by default.
        """
        if isinstance(given, Tolerance):
            return replace(given, maximize=given.maximize and maximize)
        if is_number(given) and not isinstance(given, bool):
            return cls(float(given), maximize=maximize)
        text = given.strip() if isinstance(given, str) else ""
        try:
            if text.endswith("%"):
                return cls(float(text[:-1]) / 100, "relative", maximize)
            if text.startswith("not-worse"):
                return cls(float(text.partition(":")[2] or 0.95), "not-worse", maximize)
            return cls(float(text), maximize=maximize)
        except ValueError as error:
            why = "" if str(error).startswith("could not convert") else f" ({error})"
            raise ValueError(
                "tolerance must be points of the score such as 0.01, a share of the dense score such as '1%', or "
                f"a confidence such as 'not-worse:0.95', got {given!r}{why}"
            ) from None

    def allowed(self, dense: Estimate | float, now: Estimate | float = math.nan) -> float:
        """Largest allowed loss; "not-worse" needs the standard errors of both scores."""
        first, second = Estimate.of(dense, "score"), Estimate.of(now, "score")
        if self.kind == "points":
            return self.by
        if self.kind == "relative":
            return self.by * abs(first.value)
        if first.error is None or second.error is None:
            raise ValueError(
                "tolerance 'not-worse' needs the standard error of the score: let evaluate return one number per "
                "example or per repetition, not their mean"
            )
        return NormalDist().inv_cdf(self.by) * math.hypot(first.error, second.error)

    def loss(self, score: Estimate | float, *, dense: Estimate | float) -> float:
        """Loss of `score` compared with the dense network; negative if better."""
        lost = Estimate.of(dense, "score").value - Estimate.of(score, "score").value
        return lost if self.maximize else -lost

    def allows(self, score: Estimate | float, *, dense: Estimate | float) -> bool:
        """Whether a network with this score is good; one without a finite score is not."""
        rounding = 1e-6 * max(1.0, abs(Estimate.of(dense, "score").value))  # for float32 scores
        lost = self.loss(score, dense=dense)
        return math.isfinite(lost) and lost <= self.allowed(dense, score) + rounding

    def __str__(self) -> str:
        if self.kind == "relative":
            return f"{self.by * 100:.12g}%"
        return f"{self.by:.12g}" if self.kind == "points" else f"not-worse:{self.by:.12g}"


def _plain(value: Any) -> Any:
    """A number or list of a tensor or array, without an import of either; anything else as it is."""
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else value
