"""How many weights a sparsity index says one may drop: Theorem 2, and what it only bounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palmette.measures.pq import check_pq
from palmette.measures.rows import as_rows


def retained_lower_bound(index: Any, d: Any, *, p: float, q: float, eta: float = 0.0) -> Any:
    r"""The PQI bound: no fewer than this many weights carry the row.

    .. math:: r \ge d\,(1+\eta_r)^{-q/(q-p)}\,[1 - I_{p,q}(w)]^{qp/(q-p)}

    for every :math:`r` whose tail, all but the :math:`r` largest magnitudes, has an :math:`\ell_p` mass
    (:math:`\sum |w_i|^p`) of at most :math:`\eta_r` times that of its head. Equality holds for
    :math:`r` equal magnitudes among zeros at :math:`\eta_r = 0`.

    Args:
        index: PQ Index of the row at the same `p` and `q`; a number, array or tensor.
        d: entries of the row.
        p, q: the norms, ``0 < p <= 1 <= q`` and ``p != q``.
        eta: :math:`\eta_r`, at least 0. A larger value lets more go.

    Returns:
        The bound, not rounded, in the kind of `index`; NaN where the index is NaN.

    >>> retained_lower_bound(0.75, 4, p=0.5, q=1)
    1.0
    >>> round(retained_lower_bound(0.3, 4, p=1, q=2), 12)
    1.96

    Diao et al. 2023, Theorem 2.
    """
    check_pq(p, q)
    check_eta(eta)
    return d * (1 + eta) ** (-q / (q - p)) * (1 - index) ** (q * p / (q - p))


def eta_of_cut(w: Any, r: int, p: float) -> float:
    r"""The smallest :math:`\eta_r` for which Theorem 2 speaks about keeping the `r` largest of `w`.

    .. math:: \eta_r = \sum_{i \notin M_r} |w_i|^p \Big/ \sum_{i \in M_r} |w_i|^p

    with :math:`M_r` the `r` largest magnitudes. Infinite when `r` is 0 and `w` is not all zero; NaN
    for a row of zeros.

    >>> eta_of_cut([4.0, 1.0, 1.0, 0.0], 1, p=1)
    0.5

    Diao et al. 2023, Theorem 2.
    """
    _check_mass(p)
    mass, _ = _mass(w, p)
    if not 0 <= r <= mass.numel():
        raise ValueError(f"r must be between 0 and the {mass.numel()} entries of w, got r={r}")
    cut = mass.numel() - r
    tail, head = mass[:cut].sum(), mass[cut:].sum()
    return float(tail / head)


def tail_mass_count(w: Any, *, p: float, eta: float) -> int:
    r"""The smallest `r` such that all but the `r` largest magnitudes weigh at most `eta` times these.

    .. math:: \min \Big\{ r : \sum_{i \notin M_r} |w_i|^p \le \eta \sum_{i \in M_r} |w_i|^p \Big\}

    This is the number that `retained_lower_bound` bounds from below, counted. `eta=0` drops nothing
    but zeros.

    >>> tail_mass_count([4.0, 1.0, 1.0, 0.0], p=1, eta=0.5)
    1
    >>> tail_mass_count([4.0, 1.0, 1.0, 0.0], p=1, eta=0.0)
    3

    Diao et al. 2023, Theorem 2 and Appendix A (a bound without the guess of :math:`\eta_r`).
    """
    _check_mass(p)
    check_eta(eta)
    mass, tails = _mass(w, p)
    return mass.numel() - droppable(tails, mass, eta)


def droppable(tails: Tensor, mass: Tensor, eta: float) -> int:
    """How many of the ascending `mass` may go: the longest tail that weighs at most `eta` times its head.

    Args:
        mass: ascending.
        tails: its cumulative sum.
        eta: the share of the head that the tail may weigh.
    """
    heads = mass.flip(0).cumsum(0).flip(0)[1:]  # summed from the largest: nothing is subtracted
    heads = torch.cat([heads, heads.new_zeros(1)])
    return int((tails <= eta * heads).sum())


def check_eta(eta: float) -> None:
    """Raise unless `eta` is a finite number of at least 0."""
    if not 0 <= eta < float("inf"):
        raise ValueError(f"eta must be at least 0 and finite, got eta={eta}")


def _check_mass(p: float) -> None:
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1 (Theorem 2), got p={p}")


def _mass(w: Any, p: float) -> tuple[Tensor, Tensor]:
    rows, _ = as_rows(w)
    x = rows.segments[0][0].to(torch.float64).abs()
    if not bool(x.isfinite().all()):
        raise ValueError("w must be finite, got a NaN or an infinity")
    mass = (x / x.max().clamp_min(torch.finfo(x.dtype).tiny)).pow(p).sort().values if len(x) else x
    return mass, mass.cumsum(0)
