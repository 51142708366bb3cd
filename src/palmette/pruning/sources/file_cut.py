"""One cut of weights that are read part by part: sums and counts add up, and a threshold does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from palmette.errors import NothingToPrune
from palmette.measures.rows import TILE
from palmette.measures.spectrum import Points, Spectrum, bucket_of, joined
from palmette.pruning.budgets import Budget, FixedRatio, Sap
from palmette.pruning.methods import Scope, check_scope
from palmette.pruning.pruner import prune
from palmette.pruning.sources.file import CHUNK, FilePart, StoredWeight
from palmette.pruning.sources.file_survey import in_order, survey


@dataclass(frozen=True)
class Threshold:
    """Where weights are cut: every magnitude below `value` goes, and the first `ties` of those equal to it."""

    value: float
    ties: int


def find_thresholds(
    weights: Sequence[StoredWeight],
    spectrum: Spectrum,
    cut: int,
    chunk: int = CHUNK,
    known: Mapping[int, Points] | None = None,
) -> list[tuple[int, Threshold]]:
    """What the `cut` smallest of all weights together take from each, and where: one threshold, ties in order.

    Args:
        weights: read once more, but for a single one whose threshold is known.
        spectrum: the magnitudes of all.
        cut: how many go.
        chunk: entries to read at a time.
        known: by their place in `weights`, the magnitudes of those that need not be read again.
    """
    if cut == 0:
        return [(0, Threshold(0.0, 0)) for _ in weights]
    low, high, below = spectrum.bracket(cut)
    if low == high and len(weights) == 1:
        return [(cut, Threshold(low, cut - below))]
    inside = [
        _between(known[i], low, high) if known and i in known else _inside(stored, low, high, chunk)
        for i, stored in enumerate(weights)
    ]
    values, counts = joined([points for _, points in inside])
    at, smaller = bucket_of(cut - below, counts)
    left = cut - below - smaller
    shares = []
    for less, (found, times) in inside:
        ties = min(left, int(times[found == values[at]].sum()))
        left -= ties
        shares.append((less + int(times[found < values[at]].sum()) + ties, Threshold(float(values[at]), ties)))
    return shares


def _between(points: Points, low: float, high: float) -> tuple[int, Points]:
    """How many magnitudes are below `low`, and those from there to `high`."""
    values, counts = points
    first, last = np.searchsorted(values, low), np.searchsorted(values, high, "right")
    return int(counts[:first].sum()), (values[first:last], counts[first:last])


def _inside(stored: StoredWeight, low: float, high: float, chunk: int) -> tuple[int, Points]:
    """The same of a weight, which is read: the entries of one bucket are no more than 2,048 values of float32."""
    looked_at = list(in_order(partial(_inside_part, low, high), stored.parts(chunk)))
    return sum(below for below, _ in looked_at), joined([points for _, points in looked_at])


def _inside_part(low: float, high: float, part: FilePart) -> tuple[int, Points]:
    values = part.values if part.kept is None else part.values[part.kept]
    below, found = 0, []
    for block in values.detach().cpu().reshape(-1).split(TILE):
        # float64: the ends need not be numbers of the weight's own dtype.
        x = block.to(torch.float64, copy=True).abs_().numpy()
        below += int(np.count_nonzero(x < low))
        found.append(np.unique(x[(x >= low) & (x <= high)], return_counts=True))
    return below, joined(found)


@dataclass(frozen=True)
class FileCut:
    """A cut that was decided and is yet to be made.

    Args:
        budget: that decided.
        thresholds: by name, where weights are cut; one that is not there is cut neuron by neuron.
    """

    budget: Budget
    thresholds: Mapping[str, Threshold]

    def masks(self, stored: StoredWeight, chunk: int = CHUNK) -> Iterator[tuple[FilePart, Tensor]]:
        """The parts of a weight, in order, and which of their entries remain."""
        if stored.name not in self.thresholds:
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


def decide(weights: Sequence[StoredWeight], *, scope: Scope, budget: Budget, chunk: int = CHUNK) -> FileCut:
    """Read the weights as often as it takes to know where to cut them: never, once, or twice.

    The cut is that of `palmette.prune`, but that the weights are never in memory as a whole. Ties between weights
    go in their order here.
    """
    check_streamable(scope, budget)
    if not weights:
        raise NothingToPrune("weights must hold at least one, got none")
    if scope == "neuron":
        return FileCut(budget, _by_layer([w for w in weights if len(w.shape) < 2], budget, chunk))
    if scope == "layer":
        return FileCut(budget, _by_layer(weights, budget, chunk))
    layers, spectrum = [], Spectrum()
    known: dict[int, Points] = {}
    for i, found in enumerate(survey(weights, budget=budget, chunk=chunk)):
        layers.append(found.layer)
        spectrum.merge(found.spectrum)
        if found.spectrum.narrow:
            known[i] = found.spectrum.points()
    cut = int(budget.plan_of_sums(reduce(add, layers)).cut)
    shares = find_thresholds(weights, spectrum, cut, chunk, known)
    return FileCut(budget, {w.name: own for w, (_, own) in zip(weights, shares, strict=True)})


def _by_layer(weights: Sequence[StoredWeight], budget: Budget, chunk: int) -> dict[str, Threshold]:
    thresholds = {}
    for found in survey(weights, budget=budget, chunk=chunk):
        cut = int(budget.plan_of_sums(found.layer).cut)
        ((_, thresholds[found.stored.name]),) = find_thresholds([found.stored], found.spectrum, cut, chunk)
    return thresholds
