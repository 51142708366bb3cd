"""Table III of Hurley and Rickard: which measures have which of the six properties, as published.

N. Hurley and S. Rickard, Comparing Measures of Sparsity, IEEE Transactions on Information Theory 55(10),
4723-4741, 2009. `palmette.measures.axioms` tests the same properties; where the two differ, `docs/axioms.md`
explains which is right.
"""

from __future__ import annotations

TABLE_III = {
    "l0": "D2 P2",
    "l0_eps": "P2",
    "-l1": "D3",
    "-lp": "D1 D3",
    "l2/l1": "D1 D2 P1",
    "-tanh_ab": "D1 D3",
    "-log": "D3",
    "kappa4": "D2 D3 P1",
    "u_theta": "D2 D4 P1",
    "-lp_minus": "P1",
    "H_G": "D1 D3",
    "H_S": "",
    "H_S_prime": "",
    "hoyer": "D1 D2 D3 P1 P2",
    "gini": "D1 D2 D3 D4 P1 P2",
}


def published(measure: str, key: str) -> bool | None:
    """Whether `measure` has property `key` in Table III; None if the table does not list it.

    >>> published("gini", "D4"), published("hoyer", "D4"), published("pq", "D4")
    (True, False, None)
    """
    return key in TABLE_III[measure] if measure in TABLE_III else None
