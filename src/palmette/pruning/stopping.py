"""When to stop: rules that look at the decisions so far and say why it is enough."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palmette.measures.parameters import as_number, is_number
from palmette.pruning.decision import Decision

StopRule = Callable[[Sequence[Decision]], str | None]
"""Decisions so far -> the reason to stop, or None to go on."""


@dataclass(frozen=True)
class IndexTurnsUp:
    r"""Stop when the index of the whole network has risen for `patience` steps in a row.

    .. math:: I_{t-k} < I_{t-k+1} < \dots < I_t, \qquad k = \text{patience}

    By the paper's hypothesis it falls while pruning regularises, and rises when the limit of compressibility is
    reached. A `Decision` has it as it was before the cut.

    >>> IndexTurnsUp(patience=1)([Decision("layer", "", index, ()) for index in (0.3, 0.2, 0.4)])
    'the PQ Index has risen once, to 0.4000'

    Diao et al. 2023, Figure 1 and Appendix A.
    """

    patience: int = 2

    def __post_init__(self) -> None:
        if not (is_number(self.patience, whole=True) and self.patience >= 1):
            raise ValueError(f"patience must be a whole number of at least 1, got patience={self.patience!r}")

    def __call__(self, decisions: Sequence[Decision]) -> str | None:
        """The reason to stop, or None."""
        last = [d.index for d in decisions[-self.patience - 1 :]]
        if len(last) == self.patience + 1 and all(a < b for a, b in itertools.pairwise(last)):
            times = f"{self.patience} times in a row" if self.patience > 1 else "once"
            return f"the PQ Index has risen {times}, to {last[-1]:.4f}"
        return None


@dataclass(frozen=True)
class SmallCut:
    """Stop when a step cut less than the fraction `below` of what was kept.

    >>> import palmette as pm, torch
    >>> _, decision = pm.prune({"w": torch.ones(1, 100)}, scope="layer", budget=pm.FixedRatio(0.05))
    >>> SmallCut(below=0.1)([decision])
    'the last cut took 5.00% of what was kept'

    Diao et al. 2023, Appendix A.
    """

    below: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.below) <= 1:
            raise ValueError(f"below must be between 0 and 1, got below={self.below!r}")

    def __call__(self, decisions: Sequence[Decision]) -> str | None:
        """The reason to stop, or None."""
        if decisions and decisions[-1].cut < self.below * decisions[-1].kept_before:
            return f"the last cut took {decisions[-1].cut / decisions[-1].kept_before:.2%} of what was kept"
        return None


@dataclass(frozen=True)
class AtDensity:
    """Stop when no more than the fraction `density` remains.

    >>> import palmette as pm, torch
    >>> pruner = pm.Pruner(torch.nn.Linear(8, 8), budget=pm.FixedRatio(0.5), stop=AtDensity(0.25))
    >>> while not pruner.stopped:
    ...     _ = pruner.step()
    >>> pruner.stopped
    'density 0.2500 has reached 0.25'
    """

    density: float

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.density) <= 1:
            raise ValueError(f"density must be between 0 and 1, got density={self.density!r}")

    def __call__(self, decisions: Sequence[Decision]) -> str | None:
        """The reason to stop, or None."""
        return self.of(decisions[-1].density_after) if decisions else None

    def of(self, density: float) -> str | None:
        """The reason to stop at a density, or None.

        >>> AtDensity(0.25).of(0.2)
        'density 0.2000 has reached 0.25'
        """
        return f"density {density:.4f} has reached {self.density}" if density <= self.density else None


@dataclass(frozen=True)
class AccuracyDrops:
    """Stop when a network that was trained again is more than `by` less accurate than the dense one.

    Accuracies are those on images that were held out of training, never on the test set. A `Pruner` does not know
    them: this rule is for runs, which do.
    """

    by: float

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.by) <= 1:
            raise ValueError(f"an accuracy drops by something between 0 and 1, got by={self.by!r}")

    def of(self, dense: float, now: float) -> str | None:
        """The reason to stop, or None.

        >>> AccuracyDrops(0.01).of(0.95, 0.92)
        'accuracy 0.9200 on validation images is more than 0.01 below 0.9500'
        """
        if now < dense - self.by:
            return f"accuracy {now:.4f} on validation images is more than {self.by} below {dense:.4f}"
        return None


@dataclass(frozen=True)
class AfterSteps:
    """Stop after so many steps.

    >>> import palmette as pm, torch
    >>> pruner = pm.Pruner(torch.nn.Linear(8, 8), budget=pm.FixedRatio(0.5), stop=AfterSteps(2))
    >>> while not pruner.stopped:
    ...     _ = pruner.step()
    >>> pruner.stopped
    '2 steps are done'
    """

    steps: int

    def __post_init__(self) -> None:
        if not (is_number(self.steps, whole=True) and self.steps >= 0):
            raise ValueError(f"steps must be a whole number of at least 0, got steps={self.steps!r}")

    def __call__(self, decisions: Sequence[Decision]) -> str | None:
        """The reason to stop, or None."""
        if len(decisions) >= self.steps:
            return "1 step is done" if len(decisions) == 1 else f"{len(decisions)} steps are done"
        return None


DEFAULT_RULES: tuple[StopRule, ...] = (IndexTurnsUp(), SmallCut())
