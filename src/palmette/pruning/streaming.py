"""One cut of weights that are read part by part: sums and counts add up, and a threshold does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.errors import NothingToPrune
from palmette.measures.pq import PowerSums, power_sums
from palmette.measures.rows import Rows
from palmette.measures.spectrum import Spectrum
from palmette.pruning.budgets import Budget, FixedRatio, Sap
from palmette.pruning.pruner import prune
from palmette.pruning.scopes import Scope, check_scope
from palmette.pruning.stored import CHUNK, Part, Stored

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Survey:
    """What one pass over a weight finds out: the power sums of each neuron, and all magnitudes."""

    stored: Stored
    neurons: PowerSums
    spectrum: Spectrum

    @property
    def layer(self) -> PowerSums:
        """The power sums of the weight as one row."""
        return self.neurons.over_rows()


def survey(stored: Stored, *, p: float, q: float, chunk: int = CHUNK) -> Survey:
    """Read a weight once."""
    spectrum = Spectrum()
    sums: list[PowerSums] = []
    for part in stored.parts(chunk):
        spectrum.add(part.values, part.kept)
        kept = None if part.kept is None else part.rows(part.kept)
        sums.append(power_sums(Rows.of(part.rows(part.values), kept), p=p, q=q))
    # Parts are further neurons, or further inputs of the same.
    in_parts = stored.transposed or len(stored.shape) < 2
    return Survey(stored, reduce(add, sums) if in_parts else _one_below_another(sums), spectrum)


def _one_below_another(sums: Sequence[PowerSums]) -> PowerSums:
    def joined(of: Callable[[PowerSums], Tensor]) -> Tensor:
        return torch.cat([of(s) for s in sums])

    return PowerSums(
        joined(lambda s: s.d),
        joined(lambda s: s.scale),
        joined(lambda s: s.p_sum),
        joined(lambda s: s.q_sum),
        sums[0].p,
        sums[0].q,
    )


@dataclass(frozen=True)
class Threshold:
    """Where weights are cut: every magnitude below `value` goes, and the first `ties` of those equal to it."""

    value: float
    ties: int


def find_thresholds(
    weights: Sequence[Stored], spectrum: Spectrum, cut: int, chunk: int = CHUNK
) -> list[tuple[int, Threshold]]:
    """What the `cut` smallest of all weights together take from each, and where: one threshold, ties in order.

    Args:
        weights: read once more, unless there is one alone and its threshold is known.
        spectrum: the magnitudes of all.
        cut: how many go.
        chunk: entries to read at a time.
    """
    if cut == 0:
        return [(0, Threshold(0.0, 0)) for _ in weights]
    low, high, below = spectrum.bracket(cut)
    if low == high and len(weights) == 1:
        return [(cut, Threshold(low, cut - below))]
    inside = [_inside(stored, low, high, chunk) for stored in weights]
    values, where = np.unique(np.concatenate([found for _, found, _ in inside]), return_inverse=True)
    counts = np.zeros(len(values), np.int64)
    np.add.at(counts, where, np.concatenate([times for _, _, times in inside]))
    upto = np.cumsum(counts)
    at = int(np.searchsorted(upto, cut - below))
    left = cut - below - int(upto[at] - counts[at])
    shares = []
    for less, found, times in inside:
        ties = min(left, int(times[found == values[at]].sum()))
        left -= ties
        shares.append((less + int(times[found < values[at]].sum()) + ties, Threshold(float(values[at]), ties)))
    return shares


def _inside(stored: Stored, low: float, high: float, chunk: int) -> tuple[int, _Array, _Array]:
    """How many magnitudes of a weight are below `low`, and those from there to `high`: values and counts.

    They are the entries of one bucket: 2,048 values at most for float32, however many entries have them.
    """
    below, found, counts = 0, np.empty(0), np.empty(0, np.int64)
    for part in stored.parts(chunk):
        values = part.values if part.kept is None else part.values[part.kept]
        # float64: the ends need not be numbers of the weight's own dtype.
        x = values.detach().cpu().to(torch.float64, copy=True).abs_().reshape(-1).numpy()
        below += int(np.count_nonzero(x < low))
        found, where = np.unique(np.concatenate([found, x[(x >= low) & (x <= high)]]), return_inverse=True)
        times = np.bincount(where[: len(counts)], weights=counts, minlength=len(found)).astype(np.int64)
        counts = times + np.bincount(where[len(counts) :], minlength=len(found))
    return below, found, counts


@dataclass(frozen=True)
class Cut:
    """A cut that was decided and is yet to be made.

    Args:
        scope: of the units that were measured.
        budget: that decided.
        thresholds: by name, where each weight is cut; none in scope "neuron", where each part is cut by itself.
    """

    scope: Scope
    budget: Budget
    thresholds: Mapping[str, Threshold] | None

    def masks(self, stored: Stored, chunk: int = CHUNK) -> Iterator[tuple[Part, Tensor]]:
        """The parts of a weight, in order, and which of their entries remain."""
        if self.thresholds is None or stored.name not in self.thresholds:
            # The neurons of a transposed weight run through all of its parts.
            for part in stored.parts(stored.entries if stored.transposed else chunk):
                kept = None if part.kept is None else {"": part.kept.reshape(part.weight.shape)}
                masks, _ = prune({"": part.weight}, kept, scope="neuron", budget=self.budget)
                yield part, masks[""].reshape(part.values.shape)
            return
        threshold = self.thresholds[stored.name]
        ties = threshold.ties
        for part in stored.parts(chunk):
            x = part.values.detach().cpu().to(torch.float64, copy=True).abs_()
            gone = x < threshold.value
            equal = x == threshold.value
            if part.kept is not None:
                equal &= part.kept
                gone |= ~part.kept
            flat = equal.reshape(-1).nonzero()[:ties, 0]
            ties -= len(flat)
            gone.reshape(-1)[flat] = True
            yield part, ~gone


def check_streamable(scope: str, budget: Budget) -> None:
    """Raise unless there is such a scope, and sums are all that the budget asks for."""
    check_scope(scope)
    if not isinstance(budget, Sap | FixedRatio):
        raise TypeError(f"weights that are read in parts need a budget of sums, Sap or FixedRatio, got {budget!r}")


def decide(weights: Sequence[Stored], *, scope: Scope, budget: Budget, chunk: int = CHUNK) -> Cut:
    """Read the weights as often as it takes to know where to cut them: never, once, or twice.

    The cut is that of `palmette.prune`, but that the weights are never in memory as a whole. Ties between weights
    go in their order here.
    """
    check_streamable(scope, budget)
    if not weights:
        raise NothingToPrune("weights must hold at least one, got none")
    p, q = float(budget.p), float(budget.q)
    if scope == "neuron":
        flat = [w for w in weights if len(w.shape) < 2]
        return Cut(scope, budget, _by_layer(flat, budget, p, q, chunk) if flat else None)
    if scope == "layer":
        return Cut(scope, budget, _by_layer(weights, budget, p, q, chunk))
    sums: PowerSums | None = None
    spectrum = Spectrum()
    for stored in weights:
        found = survey(stored, p=p, q=q, chunk=chunk)
        sums = found.layer if sums is None else sums + found.layer
        spectrum.merge(found.spectrum)
    assert sums is not None
    shares = find_thresholds(weights, spectrum, int(budget.plan_of_sums(sums).cut), chunk)
    return Cut(scope, budget, {w.name: own for w, (_, own) in zip(weights, shares, strict=True)})


def _by_layer(weights: Sequence[Stored], budget: Budget, p: float, q: float, chunk: int) -> dict[str, Threshold]:
    thresholds = {}
    for stored in weights:
        found = survey(stored, p=p, q=q, chunk=chunk)
        cut = int(budget.plan_of_sums(found.layer).cut)
        ((_, thresholds[stored.name]),) = find_thresholds([stored], found.spectrum, cut, chunk)
    return thresholds
