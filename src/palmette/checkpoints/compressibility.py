"""The report on how compressible weights are: layer by layer, for the whole, and a verdict in plain words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from palmette.checkpoints.verdict import verdict, warnings
from palmette.errors import extra
from palmette.pruning.budgets import OF_SAP, Sap
from palmette.pruning.choosing.coverage import LeftOut, coverage
from palmette.pruning.methods import SCOPES
from palmette.words import aligned, measured

if TYPE_CHECKING:
    import pandas as pd

    from palmette.checkpoints.headroom import Headroom, ScoredCut  # loads torch


@dataclass(frozen=True)
class Measurement:
    """Measurements of a layer, or of all layers together.

    Args:
        name: name of the weight; "all" for the whole.
        shape: shape of the weight; empty for the whole.
        dtype: dtype of the values, such as "float32".
        coding: integer format that the values were unpacked from, such as "Q4_1"; empty for floats.
        levels: number of distinct magnitudes (a lower bound for more than 2^18 entries).
        entries: number of entries, pruned ones included.
        d: number of entries that are not pruned.
        zeros: how many of the `d` are exactly zero.
        pq_index, gini_index, hoyer: measures of sparsity; None where undefined, as for zeros alone.
        retained_lower_bound: how many of the `d` must stay at least, by Theorem 2.
        removable: fraction of the `d` that the PQI bound lets go.
        tail_mass: mass of that fraction, the smallest entries, over that of the rest: :math:`\\eta_r` of the cut.
        sap_cut: scope -> how many entries SAP would cut in its next step.
        neurons, dead_neurons: number of neurons, and how many of them have only zeros.
        bytes: size now.
        bytes_after: scope -> size after that step, with one bit for each entry and the remaining values.
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
        """Fraction of the unpruned entries that SAP would cut in `scope`."""
        return self.sap_cut[scope] / self.d if self.d else 0.0

    @property
    def density(self) -> float:
        """Fraction of all entries that is neither zero nor pruned."""
        return (self.d - self.zeros) / self.entries


@dataclass(frozen=True)
class Compressibility:
    """Report of `how_compressible`: layers, the whole, tensors left out, a verdict and warnings.

    With `evaluate`, `headroom` has for each scope the largest cut without retraining, and the sensitivity curve.
    `print` shows it as a table, `to_dict` gives plain values, `to_pandas` a DataFrame.
    """

    budget: Sap
    layers: tuple[Measurement, ...]
    whole: Measurement
    left_out: tuple[LeftOut, ...] = ()
    title: str = ""
    headroom: tuple[Headroom, ...] = ()

    @cached_property
    def verdict(self) -> tuple[str, ...]:
        """The figures in sentences."""
        return verdict(self)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to be careful with the figures."""
        return warnings(self)

    @property
    def plain_numbers(self) -> bool:
        """Whether all are vectors, which have no neurons: incomes, coefficients, spectra."""
        return all(len(layer.shape) < 2 for layer in self.layers)

    @property
    def coverage(self) -> str:
        """Share of all parameters that the report covers, and the reasons for leaving out others."""
        return coverage(self.whole.entries, self.left_out)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "title": self.title,
            **{k: getattr(self.budget, k) for k in OF_SAP},
            "whole": asdict(self.whole),
            "layers": [dict(vars(layer)) for layer in self.layers],  # `asdict` copies deeply: slow
            "left_out": [asdict(tensor) for tensor in self.left_out],
            "verdict": list(self.verdict),
            "warnings": list(self.warnings),
            "headroom": [asdict(found) | {"share": found.share} for found in self.headroom],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per layer and scope: what `Measurement` has, the cut and the size in that scope.

        The columns are `layer`, `scope`, `share_cut`, `sap_cut`, `bytes_after`, `density` and the other fields of
        `Measurement`. The whole is in `whole`, so that sums over rows of one scope count each layer once.
        """
        with extra("figures", "to_pandas needs pandas"):
            import pandas as pd
        return pd.DataFrame([_row(layer, scope) for layer in self.layers for scope in SCOPES])

    def __repr__(self) -> str:
        """Table with a line for each layer and one for the whole, the headroom, the verdict and the warnings."""
        head = ("", "weights", "PQ Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead")
        rows = [
            (
                m.name,
                f"{m.d:,}",
                *(measured(x) for x in (m.pq_index, m.gini_index, m.hoyer)),
                *(f"{m.share_cut(scope):.1%}" for scope in SCOPES),
                f"{m.dead_neurons:,}",
            )
            for m in (*self.layers, *([self.whole] if len(self.layers) > 1 else []))
        ]
        said = [self.coverage, *self.verdict, *(f"Warning: {text}" for text in self.warnings)]
        return "\n".join([*aligned([head, *rows]), "", *self._headroom(), *said])

    def _headroom(self) -> list[str]:
        """Table with a line for each scope, and an empty line."""
        head = ("without retraining", "can go", "score", "index suggests", "score")
        rows = [
            (f.scope, f"{f.share:.1%}", _score(f.largest), f"{f.suggested.share:.1%}", _score(f.suggested))
            for f in self.headroom
        ]
        return [*aligned([head, *rows]), ""] if rows else []


def _row(layer: Measurement, scope: str) -> dict[str, Any]:
    """Measurements of a layer in one scope, without nesting."""
    own = {"sap_cut": layer.sap_cut[scope], "bytes_after": layer.bytes_after[scope], "density": layer.density}
    plain = {key: value for key, value in vars(layer).items() if key not in ("name", *own)}
    return {"layer": layer.name, "scope": scope, "share_cut": layer.share_cut(scope), **own, **plain}


def _score(cut: ScoredCut) -> str:
    return f"{cut.score.value:.4f}"
