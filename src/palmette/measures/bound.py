"""Number of weights that must be retained: the bound of Theorem 2, and the exact count."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from palmette.measures.exact import ExactSums, bits_above, powers, whole
from palmette.measures.parameters import check_eta, check_mass_power, check_pq, is_number
from palmette.measures.rows import Rows, as_tensor, in_the_kind_of
from palmette.measures.tail import mass_scale, share, tail_count


def retained_lower_bound(index: Any, d: Any, *, p: float, q: float, eta: float = 0.0) -> Any:
    r"""PQI bound: lower bound on the number of weights to retain.

    .. math:: r \ge d\,(1+\eta_r)^{-q/(q-p)}\,[1 - I_{p,q}(w)]^{qp/(q-p)}

    for every :math:`r` whose tail, all but the :math:`r` largest magnitudes, has an :math:`\ell_p` mass
    (:math:`\sum |w_i|^p`) of at most :math:`\eta_r` times that of its head. Equality holds for
    :math:`r` equal magnitudes among zeros at :math:`\eta_r = 0`.

    Args:
        index: PQ Index of the row at the same `p` and `q`; a number, list, array or tensor.
        d: entries of the row: one number, or one for each index.
        p, q: the norms, ``0 < p <= 1 <= q`` and ``p != q``.
        eta: :math:`\eta_r`, at least 0. A larger value prunes more.

    Returns:
        The bound, not rounded, in float64 and in the kind of `index`; NaN where the index is NaN. It depends
        on the row through ``1 - index`` alone, so it has few digits where the index is close to 1 (a few large
        entries at a small `p`).

    >>> import palmette as pm
    >>> pm.retained_lower_bound(0.75, 4, p=0.5, q=1)
    1.0
    >>> round(pm.retained_lower_bound(0.3, 4, p=1, q=2), 12)
    1.96

    Diao et al. 2023, Theorem 2.
    """
    check_pq(p, q)
    check_eta(eta)
    p, q, eta = float(p), float(q), float(eta)
    indices = as_tensor(index, "index").to(torch.float64)
    sizes = as_tensor(d, "d").to(indices)
    try:
        torch.broadcast_shapes(indices.shape, sizes.shape)
    except RuntimeError:
        raise ValueError(
            f"d must be one number or one for each index, got d of shape {tuple(sizes.shape)} "
            f"for index of shape {tuple(indices.shape)}"
        ) from None
    if bool(((indices < 0) | (indices > 1)).any()):
        raise ValueError(f"index must lie between 0 and 1 (Theorem 1), got index={index}")
    if bool((sizes < 0).any()):
        raise ValueError(f"d must be at least 0, got d={d}")
    bound = sizes * (1 + eta) ** (-q / (q - p)) * (1 - indices) ** (q * p / (q - p))
    return in_the_kind_of(index, bound)


def eta_of_cut(w: Any, r: int, p: float) -> float:
    r"""Smallest :math:`\eta_r` for which Theorem 2 applies to keeping the `r` largest of `w`.

    .. math:: \eta_r = \sum_{i \notin M_r} |w_i|^p \Big/ \sum_{i \in M_r} |w_i|^p

    with :math:`M_r` the `r` largest magnitudes, and sums without rounding error. Infinite when `r` is
    0 and `w` is not all zero; NaN for a row of zeros.

    >>> import palmette as pm
    >>> pm.eta_of_cut([4.0, 1.0, 1.0, 0.0], 1, p=1)
    0.5

    Diao et al. 2023, Theorem 2.
    """
    check_mass_power(p)
    ordered = _magnitudes(w).sort().values
    if not (is_number(r, whole=True) and 0 <= r <= len(ordered)):
        raise ValueError(f"r must be a whole number from 0 to the {len(ordered)} entries of w, got r={r!r}")
    if not bool(ordered.any()):
        return math.nan
    mass = powers(ordered / mass_scale(ordered[-1]), float(p)).cpu()
    sums = ExactSums(bits_above(mass[-1:].expand(2)))
    gone = len(mass) - int(r)
    for i, part in enumerate((mass[:gone], mass)):
        sums.add(slice(i, i + 1), part[None].clone())
    return share(whole(sums.digits[:, 0]), whole(sums.digits[:, 1]))


def tail_mass_count(w: Any, *, p: float, eta: float) -> int:
    r"""Smallest `r` such that all but the `r` largest magnitudes have at most `eta` times their mass.

    .. math:: \min \Big\{ r : \sum_{i \notin M_r} |w_i|^p \le \eta \sum_{i \in M_r} |w_i|^p \Big\}

    `retained_lower_bound` bounds this number from below. `eta=0` drops only zeros. Sums are exact and their
    quotient is rounded once, like ``1/3`` itself, so a tail of a third of its head is dropped at ``eta=1/3``.

    >>> import palmette as pm
    >>> pm.tail_mass_count([4.0, 1.0, 1.0, 0.0], p=1, eta=0.5)
    1
    >>> pm.tail_mass_count([4.0, 1.0, 1.0, 0.0], p=1, eta=0.0)
    3

    Diao et al. 2023, Theorem 2 and Appendix A (a bound without the guess of :math:`\eta_r`).
    """
    check_mass_power(p)
    check_eta(eta)
    rows = Rows.of(_magnitudes(w)[None])
    return rows.width - int(tail_count(rows, p=float(p), eta=float(eta)))


def _magnitudes(w: Any) -> Tensor:
    x = as_tensor(w, "w").reshape(-1).to(torch.float64).abs()
    if not bool(x.isfinite().all()):
        raise ValueError(f"w must be finite, got {int((~x.isfinite()).sum())} entries that are NaN or infinite")
    return x
