"""Judge of a network in training: compares scores since the last cut with those of the dense network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from palmette.measures.parameters import is_number
from palmette.pruning.tolerance import Tolerance

Kind = Literal["validation", "training"]

OF_LOSSES, OF_SCORES = 0.05, 0.01
"""Default tolerances of losses, and of scores to maximize."""

_PIECES = 64


class RecentMean:
    """Mean over the second half of the values since the start, in constant memory.

    >>> recent = RecentMean()
    >>> for loss in (9.0, 5.0, 1.0, 2.0):
    ...     recent.add(loss)
    >>> recent.mean()
    1.5
    """

    def __init__(self, pieces: Iterable[tuple[float, int]] = (), size: int = 1) -> None:
        self._pieces: list[tuple[float | Tensor, int]] = [(total, count) for total, count in pieces]
        self._size = size  # values per piece

    def add(self, value: float | Tensor, count: int = 1) -> None:
        """Add the mean `value` of `count` values; a tensor stays on its device until the mean is needed."""
        if self._pieces and self._pieces[-1][1] + count <= self._size:
            total, before = self._pieces.pop()
            self._pieces.append((total + value * count, before + count))
        else:
            self._pieces.append((value * count, count))
        if len(self._pieces) > _PIECES:
            pairs = zip(self._pieces[::2], [*self._pieces[1::2], (0.0, 0)], strict=False)
            self._pieces = [(a + b, n + m) for (a, n), (b, m) in pairs]
            self._size *= 2

    def mean(self) -> float | None:
        """The mean; None without values."""
        half, found, count = sum(n for _, n in self._pieces) / 2, 0.0, 0
        for total, number in reversed(self._pieces):
            if count and count + number / 2 > half:  # more than half of the piece belongs to the first half
                break
            found, count = found + float(total), count + number
        return found / count if count else None

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {"pieces": [[float(total), count] for total, count in self._pieces], "size": self._size}


@dataclass(frozen=True)
class Judgement:
    """Judgement of a network.

    Args:
        good: whether the score is within the tolerance; None if no score can be compared.
        text: the score, and how it compares with that of the dense network.
    """

    good: bool | None
    text: str = ""


class Judge:
    """Judges a network by a validation metric or, without one, by the training loss.

    Args:
        monitor, maximize, tolerance: as for `Cutting`.
    """

    def __init__(
        self, monitor: str | None, maximize: bool | None, tolerance: Tolerance | float | str | None
    ) -> None:
        if not (monitor is None or (isinstance(monitor, str) and monitor)):
            raise TypeError(f"monitor must be the name of a metric, such as 'eval_loss', got {monitor!r}")
        if not (maximize is None or isinstance(maximize, bool)):
            raise TypeError(f"maximize must be True, False or None, got {maximize!r}")
        self.off = is_number(tolerance) and tolerance == math.inf
        self._tolerance = None if tolerance is None or self.off else Tolerance.parse(tolerance)
        if self._tolerance is not None and self._tolerance.kind == "not-worse":
            raise ValueError(
                "tolerance='not-worse' needs the standard error of the score, which a callback does not know; "
                f"give points such as 0.05 or a share such as '5%', got {tolerance!r}"
            )
        self._loss = monitor is not None and monitor.endswith("loss")
        if maximize is None and isinstance(tolerance, Tolerance) and monitor is not None and not self._loss:
            maximize = tolerance.maximize
        if maximize is None and monitor is not None and not self._loss:
            raise ValueError(
                f"say whether larger values of monitor={monitor!r} are better: maximize=True, as for an accuracy, "
                "or maximize=False, as for an error"
            )
        self.monitor, self._maximize = monitor, maximize
        self.name, self._larger = monitor or "", bool(maximize)
        self.dense: dict[Kind, float] | None = None
        self.restart()

    def watch(self, default: str, *, larger: bool, prefix: str = "") -> None:
        """Set the metric of a library, where `larger` says whether larger values are better."""
        if self.monitor is None and self._maximize not in (None, larger):
            raise ValueError(
                f"maximize={self._maximize} contradicts the metric {default!r}, which is used because monitor is "
                "not given; name the metric, as in monitor='accuracy'"
            )
        name = self.monitor or default
        self.name = name if name.startswith(prefix) else f"{prefix}{name}"
        self._larger = larger if self.monitor is None else bool(self._maximize)

    def restart(self) -> None:
        """Forget the scores since the last cut."""
        self._validation: float | None = None
        self._others: list[str] = []  # metrics of evaluations that lack the monitored one
        self._recent = RecentMean()

    def trained(self, loss: float | Tensor, steps: int = 1) -> None:
        """Add the mean training loss of `steps` steps."""
        self._recent.add(loss, steps)

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of an evaluation; the last one counts."""
        if self.name in metrics:
            self._validation = float(metrics[self.name])
        else:
            self._others = sorted({*self._others, *metrics})

    def verdict(self, agree: Callable[[float], float] = float) -> Judgement:
        """Judge the network; the first call, before the first cut, takes its scores as those of the dense one.

        Args:
            agree: mean of a score over all processes.
        """
        if self.monitor is not None and self._validation is None and self._others:
            raise ValueError(
                f"monitor={self.monitor!r} is not among the metrics of the evaluation: {', '.join(self._others)}"
            )
        known: dict[Kind, float | None] = {"validation": self._validation, "training": self._recent.mean()}
        scores: dict[Kind, float] = {kind: agree(score) for kind, score in known.items() if score is not None}
        if self.dense is None:
            self.dense = {kind: score for kind, score in scores.items() if math.isfinite(score)}
        kind = next((kind for kind in scores if kind in self.dense), None)
        if kind is None:
            return Judgement(None)
        now, dense, tolerance = scores[kind], self.dense[kind], self._allowed(kind)
        if tolerance.allows(now, dense=dense):
            return Judgement(True, f"{self._label(kind)} {now:.4f}")
        if math.isnan(now):
            return Judgement(False, f"{self._label(kind)} is not a number")
        return Judgement(False, f"{self._label(kind)} {now:.4f} is {self._limit(kind)}")

    def rule(self) -> str:
        """Sentence about how the network is judged, after the first verdict."""
        kind = next(iter(self.dense or ()), None)
        if kind is None:
            return (
                f"neither {self.name} nor a training loss is known before the first cut: the network is "
                "not judged, and only stop ends the cuts"
            )
        return f"cuts end when {self._label(kind)} is {self._limit(kind)}, its value before the first cut"

    def _label(self, kind: Kind) -> str:
        return self.name if kind == "validation" else "the training loss"

    def _limit(self, kind: Kind) -> str:
        tolerance, dense = self._allowed(kind), (self.dense or {})[kind]
        return f"more than {tolerance} {'below' if tolerance.maximize else 'above'} {dense:.4f}"

    def _allowed(self, kind: Kind) -> Tolerance:
        larger = self._larger and kind == "validation"
        # A tolerance that was given for an accuracy says nothing about losses.
        if self._tolerance is None or self._larger != larger:
            return Tolerance(OF_SCORES if larger else OF_LOSSES, maximize=larger)
        return replace(self._tolerance, maximize=larger)

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "dense": self.dense,
            "validation": self._validation,
            "others": self._others,
            "recent": self._recent.state(),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore the result of `state`; None for a network without scores so far."""
        self.restart()
        self.dense = None
        if state is not None:
            self.dense, self._validation = state["dense"], state["validation"]
            self._others, self._recent = list(state["others"]), RecentMean(**state["recent"])
