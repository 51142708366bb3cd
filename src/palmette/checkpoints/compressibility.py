"""The report on how compressible weights are: layer by layer, for the whole, and a verdict in plain words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from palmette.pruning.budgets import OF_SAP, Sap
from palmette.pruning.methods import SCOPES
from palmette.pruning.text_table import aligned


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


NO_FLOATS = "no dense floating-point numbers"
"""Why integers, as quantised weights are, are left out."""


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
            **{k: getattr(self.budget, k) for k in OF_SAP},
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
        said = [*self.verdict, *(f"Warning: {text}" for text in self.warnings)]
        return "\n".join([*aligned([head, *rows]), "", *said])


def _digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
