"""Table III of Hurley and Rickard: which measures have which of the six properties, as published.

N. Hurley and S. Rickard, Comparing Measures of Sparsity, IEEE Transactions on Information Theory 55(10),
4723-4741, 2009. `palmette.measures.axioms` tests the same properties; where the two differ, `docs/axioms.md`
explains which is right.
"""

from __future__ import annotations

from collections.abc import Mapping

_COLUMNS = ("D1", "D2", "D3", "D4", "P1", "P2")
_ROWS = {
    "l0": ". x . . . x",
    "l0_eps": ". . . . . x",
    "-l1": ". . x . . .",
    "-lp": "x . x . . .",
    "l2/l1": "x x . . x .",
    "-tanh_ab": "x . x . . .",
    "-log": ". . x . . .",
    "kappa4": ". x x . x .",
    "u_theta": ". x . x x .",
    "-lp_minus": ". . . . x .",
    "H_G": "x . x . . .",
    "H_S": ". . . . . .",
    "H_S_prime": ". . . . . .",
    "hoyer": "x x x . x x",
    "gini": "x x x x x x",
}

TABLE_III: Mapping[str, Mapping[str, bool]] = {
    name: {key: mark == "x" for key, mark in zip(_COLUMNS, marks.split(), strict=True)}
    for name, marks in _ROWS.items()
}


def published(measure: str, key: str) -> bool | None:
    """Whether `measure` has property `key` in Table III; None if the table does not list it.

    >>> published("gini", "D4"), published("hoyer", "D4"), published("pq", "D4")
    (True, False, None)
    """
    return TABLE_III[measure][key] if measure in TABLE_III else None
