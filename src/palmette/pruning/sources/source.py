"""Protocol of all kinds of weights, against which budgets and cuts are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from palmette.measures.exact import exact_power_sums
from palmette.measures.pq import PowerSums
from palmette.measures.rows import Summable
from palmette.measures.tail import tail_count


class Source(Summable, Protocol):
    """Units (neurons, layers, a network) as rows, whose numbers add up over parts.

    `Memory` holds them in this process, on any device; `Sharded` spreads them over processes; `FileSource` reads
    them part by part. Samples, kernels and histograms make a source fast and never change its answers.
    """

    @property
    def rounding(self) -> float:
        """Largest error of `power_sums`, in units of the last digit."""

    def power_sums(self, *, p: float, q: float) -> PowerSums:
        """Power sums of each unit."""

    def rounded(self, chosen: Tensor) -> Summable | None:
        """Units that `chosen` marks, to be summed again without rounding; None if the sums are final."""

    def index(self, sums: PowerSums) -> Tensor:
        """PQ Index of each unit from its power sums, NaN where undefined."""

    def tail_count(self, *, p: float, eta: float) -> Tensor:
        """Number of smallest entries of each unit whose mass is at most `eta` times that of the rest."""


class ExactSource:
    """Mixin for sources whose sums are final: everything follows from `counts`, `largest` and `totals`."""

    rounding = 0.0

    def power_sums(self: Summable, *, p: float, q: float) -> PowerSums:
        """Power sums of each unit, without rounding."""
        return exact_power_sums(self, p=p, q=q)

    def rounded(self, chosen: Tensor) -> None:
        """None: the sums are final."""

    def index(self, sums: PowerSums) -> Tensor:
        """PQ Index of each unit from its power sums."""
        return sums.index()

    def tail_count(self: Summable, *, p: float, eta: float) -> Tensor:
        """Number of smallest entries of each unit whose mass is at most `eta` times that of the rest."""
        return tail_count(self, p=p, eta=eta)


class Selectable(Source, Protocol):
    """Units whose masks fit in memory."""

    def select(self, cut: Tensor) -> Sequence[Tensor]:
        """Masks after pruning the `cut` smallest entries of each unit; ties in index order."""
