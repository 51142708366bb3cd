"""Measure how compressible weights are: one pass over each, and the report that follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palmette.checkpoints.compressibility import Compressibility, Measurement
from palmette.errors import NothingToPrune
from palmette.measures.pq import PowerSums
from palmette.measures.spectrum import Counts, Points, Spectrum, joined, points_of
from palmette.pruning.budgets import Sap
from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.choosing.zeros import are_pruned, without_zeros
from palmette.pruning.counting import CutPlan
from palmette.pruning.methods import SCOPES, Zeros
from palmette.pruning.sources.file import FileSource
from palmette.pruning.sources.stored import CHUNK, StoredWeight
from palmette.pruning.sources.survey import Survey, one_below_another, survey

_ROOM = 1 << 20
"""Distinct magnitudes of 16-bit layers that are kept at least; ten bytes each."""


def measure(
    weights: Sequence[StoredWeight],
    *,
    budget: Sap,
    left_out: Sequence[LeftOut] = (),
    title: str = "",
    zeros: Zeros = "count",
    chunk: int = CHUNK,
) -> Compressibility:
    """Report on the weights; several weights of more than 16 bits are read twice, others once.

    A weight whose zeros count as pruned is read once more. Memory is bounded by `chunk` entries and the largest
    row, whatever the size of the weights.
    """
    found = look(weights, budget=budget, zeros=zeros, chunk=chunk)
    return conclude([found], weights, budget=budget, left_out=left_out, title=title, chunk=chunk)


@dataclass(frozen=True)
class Layer:
    """Result of one pass over a weight, before the threshold of the whole network is known.

    Args:
        sums: power sums of the weight as one row.
        measures: of its magnitudes, by the names of `Measurement`.
        cuts: how many weights SAP would cut in scope "neuron" and in scope "layer".
        counts: its magnitudes if all are 16-bit floats and there is room; the weight is then not read again.
        points: likewise of other weights, while all weights are few enough for exact magnitudes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    coding: str
    neurons: int
    bytes: int
    sums: PowerSums
    measures: Mapping[str, Any]
    cuts: Mapping[str, int]
    dead: int
    counts: Counts | None
    points: Points | None = None

    @staticmethod
    def of(one: Survey, budget: Sap, *, counts: Counts | None, exact: bool) -> Layer:
        """The layer that a survey with plans describes; with `exact`, keep its magnitudes."""
        stored, plan = one.stored, one.plan
        assert plan is not None
        return Layer(
            name=stored.name,
            shape=stored.shape,
            dtype=str(stored.dtype).removeprefix("torch."),
            coding=stored.coding,
            neurons=stored.neurons,
            bytes=stored.nbytes,
            sums=one.layer,
            measures=_measures(one.spectrum, budget, plan),
            cuts={"neuron": one.neuron_cut, "layer": int(plan.cut)},
            dead=one.dead,
            counts=counts,
            points=one.spectrum.points() if exact and not one.spectrum.narrow else None,
        )

    def measurement(self, cut: int) -> Measurement:
        """The complete measurement, given how many weights the layer loses in scope "global"."""
        cuts, entries = {**self.cuts, "global": cut}, math.prod(self.shape)
        left = {scope: self.measures["d"] - max(c, self.measures["zeros"]) for scope, c in cuts.items()}
        return Measurement(
            name=self.name,
            shape=self.shape,
            dtype=self.dtype,
            coding=self.coding,
            entries=entries,
            **self.measures,
            sap_cut=cuts,
            neurons=self.neurons,
            dead_neurons=self.dead,
            bytes=self.bytes,
            bytes_after={scope: packed_bytes(self.bytes, entries, kept) for scope, kept in left.items()},
        )


@dataclass(frozen=True)
class Findings:
    """Result of one pass over some weights; `rest` has the magnitudes of all layers without `counts`."""

    layers: tuple[Layer, ...]
    rest: Spectrum


def look(weights: Sequence[StoredWeight], *, budget: Sap, zeros: Zeros = "count", chunk: int = CHUNK) -> Findings:
    """Read each weight once, or twice where its zeros count as pruned."""
    layers: dict[int, Layer] = {}
    sparse: dict[int, StoredWeight] = {}
    rest, room = Spectrum(), max(chunk, _ROOM)

    def note(number: int, one: Survey) -> None:
        nonlocal room
        counts = one.spectrum.counts() if one.spectrum.narrow else None
        room -= sum(len(used) for used, _ in (counts or {}).values())
        if counts is None or room < 0:
            rest.merge(one.spectrum)
            counts = None
        layers[number] = Layer.of(one, budget, counts=counts, exact=rest.exact)

    for i, one in enumerate(survey(weights, budget=budget, chunk=chunk)):
        may = zeros == "pruned" and one.stored.kept is None and len(one.stored.shape) > 1
        if may and are_pruned(one.spectrum.zeros, one.stored.entries):
            sparse[i] = without_zeros(one.stored)
        else:
            note(i, one)
    for i, one in zip(sparse, survey([*sparse.values()], budget=budget, chunk=chunk), strict=True):
        note(i, one)
    return Findings(tuple(layers[i] for i in range(len(weights))), rest)


def conclude(
    parts: Sequence[Findings],
    weights: Sequence[StoredWeight],
    *,
    budget: Sap,
    left_out: Sequence[LeftOut] = (),
    title: str = "",
    chunk: int = CHUNK,
) -> Compressibility:
    """Report on all weights from results of `look`, in the order of the weights.

    Weights of more than 16 bits are read again, for the threshold of scope "global".
    """
    found = [layer for part in parts for layer in part.layers]
    if not found:
        raise NothingToPrune("there is no weight to measure")
    weights = [
        without_zeros(w) if w.kept is None and layer.measures["d"] < math.prod(layer.shape) else w
        for layer, w in zip(found, weights, strict=True)
    ]
    sums, spectrum = one_below_another([layer.sums for layer in found]).over_rows(), Spectrum()
    for layer in found:
        spectrum.add_counts(layer.counts or {})
    for part in parts:
        spectrum.merge(part.rest)
    plan = budget.plan_of_sums(sums)
    cut = int(plan.cut)
    source = FileSource(weights, sums, weights, spectrum, _Known(found), chunk)
    cuts = [cut] if len(found) == 1 else [c for c, _ in source.thresholds(cut)]
    layers = tuple(layer.measurement(c) for layer, c in zip(found, cuts, strict=True))
    whole = _together(layers, _measures(spectrum, budget, plan), left_out)
    return Compressibility(budget, layers, whole, tuple(left_out), title)


class _Known(Mapping[int, Points]):
    """Magnitudes of layers that are not read again, by position; made when asked for, as they take more memory."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = {i: one for i, one in enumerate(layers) if one.counts is not None or one.points is not None}

    def __getitem__(self, position: int) -> Points:
        one = self._layers[position]
        return joined(points_of(one.counts or {})) if one.points is None else one.points

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def _measures(spectrum: Spectrum, budget: Sap, plan: CutPlan) -> dict[str, Any]:
    """Measures of the magnitudes of a row, by the names of `Measurement`."""
    index, retained, d = float(plan.index), float(plan.retained), int(plan.sums.d)
    known = math.isfinite(index)
    return {
        "levels": len(spectrum.points()[0]),  # with buckets, a lower bound
        "d": d,
        "zeros": spectrum.zeros,
        "pq_index": _finite(index),
        "gini_index": _finite(spectrum.gini()),
        "hoyer": _finite(spectrum.hoyer()),
        "retained_lower_bound": retained if known else None,
        "removable": 1 - retained / d if known else None,
        "tail_mass": _finite(spectrum.tail_share(d - math.ceil(retained), p=float(budget.p))) if known else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _together(
    layers: Sequence[Measurement], measures: Mapping[str, Any], left_out: Sequence[LeftOut]
) -> Measurement:
    rest = sum(tensor.bytes for tensor in left_out)
    return Measurement(
        name="all",
        shape=(),
        dtype=", ".join(dict.fromkeys(layer.dtype for layer in layers)),
        coding=", ".join(dict.fromkeys(layer.coding for layer in layers if layer.coding)),
        entries=sum(layer.entries for layer in layers),
        **measures,
        sap_cut={scope: sum(layer.sap_cut[scope] for layer in layers) for scope in SCOPES},
        neurons=sum(layer.neurons for layer in layers),
        dead_neurons=sum(layer.dead_neurons for layer in layers),
        bytes=rest + sum(layer.bytes for layer in layers),
        bytes_after={scope: rest + sum(layer.bytes_after[scope] for layer in layers) for scope in SCOPES},
    )


def packed_bytes(now: int, entries: int, kept: int) -> int:
    """Size of a weight with one bit per entry and the values of the `kept` entries, or `now` if that is less.

    >>> packed_bytes(4000, 1000, 100)
    525
    """
    return min(now, math.ceil(entries / 8) + math.ceil(now * kept / entries))
