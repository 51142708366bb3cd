"""How compressible are these weights? Layer by layer and for the whole, with a verdict in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from palmette.errors import NothingToPrune
from palmette.measures.pq import PowerSums
from palmette.measures.spectrum import Points, Spectrum
from palmette.pruning.budgets import Sap
from palmette.pruning.scopes import SCOPES
from palmette.pruning.stored import CHUNK, Stored
from palmette.pruning.streaming import find_thresholds
from palmette.pruning.survey import Survey, survey
from palmette.pruning.verdict import verdict, warnings


@dataclass(frozen=True)
class Measurement:
    """What was found out about a layer, or about all layers together.

    Args:
        name: of the weight; "all" for the whole.
        shape: of the weight; empty for the whole.
        dtype: of the values, such as "float32".
        coding: the integer format they were unpacked from, such as "Q4_1"; empty for floats.
        levels: how many different magnitudes there are (of more than 2^18 entries, at least so many).
        entries: all of them, those pruned before included.
        d: those that count: not pruned before.
        zeros: of these, exactly zero.
        pq_index, gini_index, hoyer: measures of sparsity; None where there is none, as for zeros alone.
        retained_lower_bound: so many of the `d` at least are needed, by Theorem 2.
        removable: the share of the `d` that is left then: what the PQI bound lets go.
        tail_mass: what that share, the smallest, weighs over what stays: :math:`\\eta_r` of that cut, counted.
        sap_cut: scope -> how many SAP would cut in its next step.
        neurons, dead_neurons: how many there are, and how many of them have no weight but zeros.
        bytes: what it takes now.
        bytes_after: scope -> what it would take after that step, with the values that stay and a bit for each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    coding: str
    levels: int
    entries: int
    d: int
    zeros: int
    pq_index: float | None
    gini_index: float | None
    hoyer: float | None
    retained_lower_bound: float | None
    removable: float | None
    tail_mass: float | None
    sap_cut: dict[str, int]
    neurons: int
    dead_neurons: int
    bytes: int
    bytes_after: dict[str, int]

    def share_cut(self, scope: str) -> float:
        """What SAP would cut in `scope`, as a share of the entries that count."""
        return self.sap_cut[scope] / self.d if self.d else 0.0

    @property
    def density(self) -> float:
        """The share of all entries that is not zero and not pruned."""
        return (self.d - self.zeros) / self.entries


@dataclass(frozen=True)
class LeftOut:
    """A tensor that is no weight to prune, and why."""

    name: str
    shape: tuple[int, ...]
    why: str
    bytes: int = 0


@dataclass(frozen=True)
class Compressibility:
    """The answer of `how_compressible`: layers, the whole, what was left out, a verdict and warnings.

    `print` shows it as a table, `to_dict` gives plain values.
    """

    budget: Sap
    layers: tuple[Measurement, ...]
    whole: Measurement
    left_out: tuple[LeftOut, ...] = ()
    title: str = ""
    verdict: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "title": self.title,
            **{k: getattr(self.budget, k) for k in ("p", "q", "eta", "gamma", "beta")},
        } | {
            "whole": asdict(self.whole),
            "layers": [asdict(layer) for layer in self.layers],
            "left_out": [asdict(tensor) for tensor in self.left_out],
            "verdict": list(self.verdict),
            "warnings": list(self.warnings),
        }

    def __repr__(self) -> str:
        """A table: one line for each layer and one for the whole, then the verdict and the warnings."""
        head = ("", "weights", "PQ Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead")
        rows = [
            (
                m.name,
                f"{m.d:,}",
                *(_digits(x) for x in (m.pq_index, m.gini_index, m.hoyer)),
                *(f"{m.share_cut(scope):.1%}" for scope in SCOPES),
                f"{m.dead_neurons:,}",
            )
            for m in (*self.layers, *([self.whole] if len(self.layers) > 1 else []))
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in (head, *rows)
        ]
        said = [*self.verdict, *(f"Warning: {text}" for text in self.warnings)]
        return "\n".join([line.rstrip() for line in lines] + [""] + said)


def _digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def measure(
    weights: Sequence[Stored],
    *,
    budget: Sap,
    left_out: Sequence[LeftOut] = (),
    title: str = "",
    chunk: int = CHUNK,
) -> Compressibility:
    """Read the weights, twice if there are several, and say how compressible they are.

    Memory is bounded by `chunk` entries and the largest row, whatever the size of the weights.
    """
    spectrum = Spectrum()
    found, sums = [], None
    known: dict[int, Points] = {}
    for i, one in enumerate(survey(weights, budget=budget, chunk=chunk)):
        sums = one.layer if sums is None else sums + one.layer
        spectrum.merge(one.spectrum)
        found.append(_Layer.of(one, budget))
        if one.spectrum.narrow:
            known[i] = one.spectrum.points()
    if sums is None:
        raise NothingToPrune("there is no weight to measure")
    cut = int(budget.plan_of_sums(sums).cut)
    cuts = [cut] if len(weights) == 1 else [c for c, _ in find_thresholds(weights, spectrum, cut, chunk, known)]
    layers = tuple(layer.measurement(c) for layer, c in zip(found, cuts, strict=True))
    whole = _together(layers, _measures(spectrum, budget, sums), left_out)
    return Compressibility(
        budget, layers, whole, tuple(left_out), title, verdict(layers, whole, budget), warnings(layers, whole)
    )


@dataclass(frozen=True)
class _Layer:
    """What is known of a layer before the threshold of the network is: no longer its magnitudes."""

    stored: Stored
    measures: Mapping[str, Any]
    cuts: Mapping[str, int]
    dead: int

    @staticmethod
    def of(one: Survey, budget: Sap) -> _Layer:
        cuts = {"neuron": one.neuron_cut, "layer": int(budget.plan_of_sums(one.layer).cut)}
        return _Layer(one.stored, _measures(one.spectrum, budget, one.layer), cuts, one.dead)

    def measurement(self, cut: int) -> Measurement:
        stored, measures, cuts = self.stored, self.measures, {**self.cuts, "global": cut}
        left = {scope: measures["d"] - max(c, measures["zeros"]) for scope, c in cuts.items()}
        return Measurement(
            name=stored.name,
            shape=stored.shape,
            dtype=str(stored.dtype).removeprefix("torch."),
            coding=stored.coding,
            entries=stored.entries,
            **measures,
            sap_cut=cuts,
            neurons=stored.neurons,
            dead_neurons=self.dead,
            bytes=stored.nbytes,
            bytes_after={scope: packed_bytes(stored.nbytes, stored.entries, kept) for scope, kept in left.items()},
        )


def _measures(spectrum: Spectrum, budget: Sap, sums: PowerSums) -> dict[str, Any]:
    """What the magnitudes of a row say, by the names of `Measurement`."""
    plan = budget.plan_of_sums(sums)
    index, retained, d = float(plan.index), float(plan.retained), int(sums.d)
    known = math.isfinite(index)
    return {
        "levels": spectrum.distinct(),
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
    """What a weight takes with one bit for each entry and the values of those that are `kept`, if that is less.

    >>> packed_bytes(4000, 1000, 100)
    525
    """
    return min(now, math.ceil(entries / 8) + math.ceil(now * kept / entries))
