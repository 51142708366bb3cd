"""Weights in files, as one unit: measured in one pass, cut at a threshold that a second pass makes exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import groupby
from operator import add

import numpy as np
import torch
from torch import Tensor

from palmette.errors import NothingToPrune
from palmette.measures.pq import PowerSums
from palmette.measures.rows import INTEGER, Tiles
from palmette.measures.spectrum import Points, Spectrum, bucket_of, joined
from palmette.pruning.allocation import LayerFacts, budgets_of
from palmette.pruning.budgets import Budget, check_budget
from palmette.pruning.cut import prune, scores_of
from palmette.pruning.methods import Scope, check_scope, pattern_of
from palmette.pruning.saliency import Saliency, magnitude
from palmette.pruning.sources.memory import Memory, split, write_remaining
from palmette.pruning.sources.selection import NO_CUT, Threshold
from palmette.pruning.sources.source import ExactSource
from palmette.pruning.sources.stored import CHUNK, FilePart, StoredWeight
from palmette.pruning.sources.survey import Survey, batches, in_order, survey


@dataclass(frozen=True)
class FileSource(ExactSource):
    """Weights of a file as one unit, a layer or a network; see `Source`.

    Args:
        weights: read again if one pass is not enough.
        sums: power sums of all weights together.
        scores: ranked values, with the same names and shapes; the weights by default.
        spectrum: magnitudes of all scores together.
        known: magnitudes of scores that need not be read again, by position in `scores`.
        chunk: entries to read at a time.
    """

    weights: Sequence[StoredWeight]
    sums: PowerSums
    scores: Sequence[StoredWeight]
    spectrum: Spectrum
    known: Mapping[int, Points]
    chunk: int = CHUNK
    n: int = 1

    @staticmethod
    def of(surveys: Iterable[Survey], saliency: Saliency = magnitude, chunk: int = CHUNK) -> FileSource:
        """Surveyed weights as one unit."""
        weights, sums, spectrum, known = [], [], Spectrum(), {}
        for i, one in enumerate(surveys):
            weights.append(one.stored)
            sums.append(one.layer)
            spectrum.merge(one.spectrum)
            if one.spectrum.narrow:
                known[i] = one.spectrum.points()
        scores = weights
        if saliency is not magnitude:
            scores, spectrum, known = [_scored(saliency, w) for w in weights], Spectrum(), {}
            for part in (part for one in scores for part in one.parts(one.entries)):
                spectrum.add(part.values, part.kept)
        return FileSource(weights, reduce(add, sums), scores, spectrum, known, chunk)

    @property
    def width(self) -> int:
        """Entries of all weights, including entries that do not count."""
        return sum(w.entries for w in self.weights)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest float dtype that holds all weights."""
        return _key_dtype(self.weights)

    def counts(self) -> Tensor:
        """Entries that count."""
        return self.sums.d

    def totals(self, of: Callable[[Tiles], list[Tensor]]) -> list[Tensor]:
        """Whole numbers that `of` finds in the tiles of all weights; reads the file."""
        return of(self._tiles())

    def largest(self) -> Tensor:
        """The largest magnitude."""
        return torch.tensor([max(float(tile.max()) for _, tile in self._tiles())], dtype=torch.float64)

    def power_sums(self, *, p: float, q: float) -> PowerSums:
        """Power sums of all weights together, at the p and q they were surveyed with."""
        return self.sums

    def thresholds(self, cut: int) -> list[tuple[int, Threshold]]:
        """Count and threshold of each weight for pruning the `cut` smallest scores of all.

        Keys have the dtype `_key_dtype(self.scores)`; ties are pruned in the order of the weights.
        """
        if cut == 0:
            return [(0, NO_CUT) for _ in self.scores]
        low, high, below = self.spectrum.bracket(cut)
        alone = len(self.scores) == 1 and self.spectrum.exact
        known, dtype = {0: self.spectrum.points()} if alone else self.known, _key_dtype(self.scores)
        read = self._read_between([one for i, one in enumerate(self.scores) if i not in known], low, high, dtype)
        inside = [_between(known[i], low, high) if i in known else next(read) for i in range(len(self.scores))]
        values, counts = joined([points for _, points in inside])
        at, smaller = bucket_of(cut - below, counts)
        key, left = _key(values[at], dtype), cut - below - smaller
        shares = []
        for less, (found, times) in inside:
            equal = int(times[found == values[at]].sum())
            ties = min(left, equal)
            left -= ties
            shares.append((less + int(times[found < values[at]].sum()) + ties, Threshold(key, ties, equal)))
        return shares

    def _tiles(self) -> Tiles:
        for part in (part for one in self.weights for part in one.parts(self.chunk)):
            yield from part.row.tiles()

    def _read_between(
        self, scores: Sequence[StoredWeight], low: float, high: float, dtype: torch.dtype
    ) -> Iterator[tuple[int, Points]]:
        """Number of magnitudes of each below `low`, and those up to `high`: at most 2,048 values of float32."""
        look = partial(_between_in_parts, _key(low, dtype) - 1, _key(high, dtype) + 1, dtype)
        parts = (part for one in scores for part in one.parts(self.chunk))
        looked = (one for batch in in_order(look, batches(parts, lambda part: part.of)) for one in batch)
        for _, found in groupby(looked, key=lambda one: id(one[0])):
            looked_at = [(below, points) for _, below, points in found]
            yield sum(below for below, _ in looked_at), joined([points for _, points in looked_at])


def _between_in_parts(
    low: int, high: int, dtype: torch.dtype, batch: Sequence[FilePart]
) -> list[tuple[StoredWeight, int, Points]]:
    found = []
    for part in batch:
        counts, _, between = split(part.row, low, high, 4096, dtype)
        keys, times = np.unique(between.numpy(), return_counts=True)
        values = torch.from_numpy(keys).view(dtype).to(torch.float64).numpy()
        found.append((part.of, counts[low], (values, times)))
    return found


def _between(points: Points, low: float, high: float) -> tuple[int, Points]:
    values, counts = points
    first, last = np.searchsorted(values, low), np.searchsorted(values, high, "right")
    return int(counts[:first].sum()), (values[first:last], counts[first:last])


def _key_dtype(weights: Sequence[StoredWeight]) -> torch.dtype:
    """The narrowest float dtype that holds all values of `parts`."""
    kinds = {w.dtype for w in weights}  # of many weights, few
    kinds = {torch.bfloat16 if kind.is_floating_point and kind.itemsize == 1 else kind for kind in kinds}
    floats = all(kind.is_floating_point for kind in kinds)
    return reduce(torch.promote_types, kinds) if floats else torch.float64


def _key(magnitude: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(magnitude, dtype=torch.float64).to(dtype).view(INTEGER[dtype.itemsize]))


def _scored(saliency: Saliency, stored: StoredWeight) -> StoredWeight:
    """Scores of a weight, read as a whole, since a saliency may need all of it."""

    def read(first: int, last: int) -> Tensor:
        (part,) = stored.parts(stored.entries)
        scores = scores_of(stored.name, part.values, saliency).to(torch.float64)
        return (scores if part.kept is None else scores.where(part.kept, 0))[first:last]

    return replace(stored, dtype=torch.float64, read=read)


@dataclass(frozen=True)
class FileCut:
    """Decided cut that is not applied yet.

    Args:
        budgets: budget of each weight that is cut neuron by neuron, by name.
        saliency: scores that rank the weights.
        thresholds: threshold and dtype of the keys, by name; other weights are cut neuron by neuron.
        scope: "neuron", or the pattern "n:m" inside neurons, where weights have no threshold.
        repaired: new values and masks by name, of weights that a repair has changed.
    """

    budgets: Mapping[str, Budget]
    saliency: Saliency
    thresholds: Mapping[str, tuple[Threshold, torch.dtype]]
    scope: Scope
    repaired: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def changes(self, stored: StoredWeight, chunk: int = CHUNK) -> Iterator[tuple[FilePart, FilePart, Tensor]]:
        """Parts of a weight in order: before the cut, after it but for the zeros, and which remain."""
        if stored.name not in self.repaired:
            yield from ((part, part, mask) for part, mask in self.masks(stored, chunk))
            return
        values, mask = self.repaired[stored.name]
        first = 0
        for part in stored.parts(chunk):
            last = first + len(part.raw)
            raw = values[first:last].detach().to(part.raw)
            yield part, replace(part, raw=raw, values=stored.values(raw, first, last)), mask[first:last]
            first = last

    def masks(self, stored: StoredWeight, chunk: int = CHUNK) -> Iterator[tuple[FilePart, Tensor]]:
        """Parts of a weight in order, each with its mask; before a repair."""
        by_magnitude, name = self.saliency is magnitude, stored.name
        chunk = chunk if by_magnitude else stored.entries
        if name not in self.thresholds:
            # A neuron of a transposed weight extends over all parts.
            for part in stored.parts(stored.entries if stored.transposed and not stored.stacked else chunk):
                kept = None if part.kept is None else {name: part.kept.reshape(part.weight.shape)}
                masks, _ = prune(
                    {name: part.weight}, kept, scope=self.scope, budget=self.budgets[name], saliency=self.saliency
                )
                yield part, masks[name].reshape(part.values.shape)
            return
        at, dtype = self.thresholds[name]
        for part in stored.parts(chunk):
            row = part.row if by_magnitude else next(_scored(self.saliency, stored).parts(chunk)).row
            mask = torch.empty(row.segments[0].shape, dtype=torch.bool)
            at = write_remaining(row, at, [mask], dtype)
            yield part, mask.reshape(part.values.shape)


def decide(
    weights: Sequence[StoredWeight],
    *,
    scope: Scope,
    budget: Budget,
    saliency: Saliency = magnitude,
    chunk: int = CHUNK,
) -> FileCut:
    """Decide a cut, reading the weights as often as needed.

    `Sap` and `FixedRatio` need at most two passes, and none in scope "neuron"; `TailMass` needs one more for each
    byte of the dtype. The cut equals that of `palmette.prune`, without holding all weights in memory; a
    saliency other than `magnitude` loads one weight at a time.
    """
    check_scope(scope, also=("n:m",))
    check_budget(budget)
    if not weights:
        raise NothingToPrune("weights must hold at least one tensor, got none")

    def network() -> FileSource:
        return FileSource.of(survey(weights, budget=budget, neurons=False, chunk=chunk))

    budgets = budgets_of(budget, scope, _layers(weights, saliency), network)
    in_neurons = scope == "neuron" or pattern_of(scope) is not None
    units = [w for w in weights if len(w.shape) < 2] if in_neurons else weights
    surveys = survey(units, budget=budget, neurons=False, chunk=chunk)
    thresholds: dict[str, tuple[Threshold, torch.dtype]] = {}
    for group in [surveys] if scope == "global" else ([one] for one in surveys):
        source = FileSource.of(group, saliency, chunk)
        plan = budgets[source.weights[0].name].plan(source)
        shares, dtype = source.thresholds(int(plan.cut)), _key_dtype(source.scores)
        thresholds |= {w.name: (at, dtype) for w, (_, at) in zip(source.weights, shares, strict=True)}
    return FileCut(budgets, saliency, thresholds, scope)


def _layers(weights: Sequence[StoredWeight], saliency: Saliency) -> dict[str, LayerFacts]:
    def row(stored: StoredWeight) -> Memory:
        (part,) = stored.parts(stored.entries)
        return Memory(part.row.segments, part.row.kept)

    return {
        w.name: LayerFacts(
            w.shape, partial(row, w), partial(row, w if saliency is magnitude else _scored(saliency, w))
        )
        for w in weights
    }
