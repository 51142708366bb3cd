"""The PQ Index: how unequal the magnitudes of a row are, as a ratio of two norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palmette.measures import cuda_sums as fused
from palmette.measures.parameters import check_pq
from palmette.measures.rows import Rows, as_rows

# Below this index, 1 - ratio has lost two digits, and at p = 0.1 three; `_index_near_zero` has lost none.
_NEAR_ZERO = 0.02
_TINY = torch.finfo(torch.float64).tiny
P_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
Q_GRID = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0)


def pq_index(w: Any, *, p: float = 0.5, q: float = 1.0, dim: int | None = None, kept: Any = None) -> Any:
    r"""PQ Index of `w`: 0 when all magnitudes are equal, larger when sparser.

    .. math:: I_{p,q}(w) = 1 - d^{1/q - 1/p} \, \|w\|_p / \|w\|_q

    where :math:`d` counts the entries that `kept` marks (all by default), kept zeros included.
    It lies in :math:`[0, 1 - d^{1/q-1/p}]`; the top is a single non-zero entry (Theorem 1). It is
    a sparsity measure with all six properties of `palmette.measures.axioms`.

    Args:
        w: numbers of either sign in a list, numpy array or torch tensor (any device) of any float
            or integer dtype.
        p: the smaller norm, ``0 < p <= 1``.
        q: the larger norm, ``q >= 1`` and ``q != p``.
        dim: the dimension along which entries are compared; None compares all entries.
        kept: boolean mask of the shape of `w`; entries marked False are ignored.

    Returns:
        A float for a list, numpy for numpy, a float64 tensor without gradient for a tensor; one
        value, or with `dim` one per slice. A slice without a non-zero kept entry has no index
        (Remark 1) and gives NaN, as does one with a NaN or an infinity in it.

    For ``p >= 0.1`` the relative error is below 1e-12, whatever the magnitudes. On CUDA, that of 2^20 or more
    16-bit values (bfloat16, float16) is about 1e-11 in random order, and up to 1e-7 if large and small values
    alternate in a fixed pattern.

    >>> import palmette as pm
    >>> pm.pq_index([3.0, 4.0, 0.0, 0.0], p=1, q=2)
    0.3
    >>> pm.pq_index([0, 0, -7, 0])
    0.75
    >>> pm.pq_index([[1.0, 1.0], [1.0, 0.0]], dim=1)
    [0.0, 0.5]

    Diao et al. 2023, Definition 1.
    """
    check_pq(p, q)
    rows, give_back = as_rows(w, dim=dim, kept=kept)
    return give_back(index_of_rows(rows, p=float(p), q=float(q)))


@dataclass(frozen=True)
class PowerSums:
    """Counts and power sums of each row, sufficient for the index.

    Sums of the parts of a row (chunks, tensors, shards, ranks, files) add up to the sums of the row.
    """

    d: Tensor  # entries that count, int64
    scale: Tensor  # positive float64; magnitudes are divided by it, so that no power overflows
    p_sum: Tensor  # of (|w_i| / scale)^p
    q_sum: Tensor  # of (|w_i| / scale)^q
    p: float
    q: float

    def __add__(self, other: PowerSums) -> PowerSums:
        if (self.p, self.q) != (other.p, other.q):
            raise ValueError(
                f"power sums add for the same p and q only, got {(self.p, self.q)} and {(other.p, other.q)}"
            )
        scale = torch.maximum(self._needed_scale(), other._needed_scale())
        ours, theirs = (self.scale / scale).clamp_max(1.0), (other.scale / scale).clamp_max(1.0)
        return PowerSums(
            self.d + other.d,
            scale,
            self.p_sum * ours**self.p + other.p_sum * theirs**self.p,
            self.q_sum * ours**self.q + other.q_sum * theirs**self.q,
            self.p,
            self.q,
        )

    def split(self, sizes: Sequence[int]) -> list[PowerSums]:
        """Sums of so many rows each, in order."""
        columns = (column.split(list(sizes)) for column in (self.d, self.scale, self.p_sum, self.q_sum))
        parts = zip(*columns, strict=True)
        return [PowerSums(d, scale, p_sum, q_sum, self.p, self.q) for d, scale, p_sum, q_sum in parts]

    def over_rows(self) -> PowerSums:
        """The sums of all rows taken as one."""
        if len(self.d) == 1 and bool(self.p_sum > 0):
            return self
        scale = self._needed_scale().max()
        ratio = (self.scale / scale).clamp_max(1.0)
        return PowerSums(
            self.d.sum().reshape(1),
            scale.reshape(1),
            (self.p_sum * ratio**self.p).sum().reshape(1),
            (self.q_sum * ratio**self.q).sum().reshape(1),
            self.p,
            self.q,
        )

    def _needed_scale(self) -> Tensor:
        """Scale of each row, the smallest one for zeros: a larger one would push small magnitudes out of range."""
        return torch.where(self.p_sum > 0, self.scale, _TINY)

    def index(self) -> Tensor:
        r"""PQ Index of each row, as :math:`(M_q - M_p) / M_q` with the power means :math:`M`."""
        small = (self.p_sum / self.d) ** (1 / self.p)
        large = (self.q_sum / self.d) ** (1 / self.q)
        return ((large - small) / large).clamp_min(0.0) + 0.0


def power_sums(rows: Rows, *, p: float, q: float) -> PowerSums:
    """Power sums of each row, in one pass over the data (two where a power could overflow)."""
    scale = torch.ones(rows.n, dtype=torch.float64)
    # |x|^q of a float32 is at most 1e77 for q = 2; only float64 or a larger q can leave float64's range.
    scaled = q > 2 or any(s.dtype == torch.float64 for s in rows.segments)
    if scaled:
        largest = rows.largest()
        # Every power of 1 stays in range.
        scale = torch.where(largest.isfinite() & (largest > 0), largest, scale)
    p_sum, q_sum = torch.zeros_like(scale), torch.zeros_like(scale)
    slow = Rows((), ())
    for segment, kept in zip(rows.segments, rows.kept, strict=True):
        fast = None if scaled or not fused.usable(segment) else fused.power_sums(segment, kept, p, q).cpu()
        # The kernel's root is wrong below 1e-37, which matters only if the whole row is small.
        if fast is None or bool(((fast[0] < 1e-6 * segment.shape[1]) & (fast[1] > 0)).any()):
            slow = Rows((*slow.segments, segment), (*slow.kept, kept))
        else:
            p_sum += fast[0]
            q_sum += fast[1]
    for chosen, tile in slow.tiles():
        if scaled:
            tile /= scale[chosen].to(tile.device)[:, None]
        q_sum[chosen] += (tile if q == 1 else tile.pow(q)).sum(1).cpu()
        p_sum[chosen] += (tile if p == 1 else tile.pow_(p)).sum(1).cpu()
    return PowerSums(rows.counts(), scale, p_sum, q_sum, p, q)


def index_of_rows(rows: Rows, *, p: float, q: float) -> Tensor:
    """PQ Index of each row, float64, NaN where undefined."""
    return index_from_sums(rows, power_sums(rows, p=p, q=q))


def index_from_sums(rows: Rows, sums: PowerSums) -> Tensor:
    """PQ Index from power sums; rows of nearly equal magnitudes are read again."""
    index = sums.index()
    small = index < _NEAR_ZERO
    if bool(small.any()):
        middle = sums.scale * (sums.q_sum / sums.d) ** (1 / sums.q)
        near = _index_near_zero(rows.take(small), middle[small], p=sums.p, q=sums.q)
        # `near` overflows to 1 where a large q takes the exponential of a large number.
        index[small] = torch.where(near <= 2 * _NEAR_ZERO, near, index[small])
    return index


def _index_near_zero(rows: Rows, middle: Tensor, *, p: float, q: float) -> Tensor:
    r"""The index of rows of nearly equal magnitudes, without cancellation.

    With :math:`x_i = \log|w_i|`, centred at the mean of those near the `middle` (a power mean of the row),

    .. math:: \log M_p = \tfrac1p \log\Big(1 + \tfrac1d \Big[\sum_{near} \varphi(p x_i)
              + \sum_{far} (e^{p x_i} - 1)\Big]\Big) + \text{const}

    where :math:`\varphi(y) = e^y - 1 - y` is of second order, without the terms that nearly cancel. Few
    entries are far; zeros always are.
    """
    d = rows.counts()
    reference = rows.largest()
    # Equal entries equal the largest exactly; a largest far above the others is no reference for them.
    reference = torch.where(reference < 2 * middle, reference, middle)
    nonzero, near_count, centre = (torch.zeros_like(reference) for _ in range(3))
    p_excess, q_excess = torch.zeros_like(reference), torch.zeros_like(reference)

    def logs(chosen: slice, tile: Tensor) -> tuple[Tensor, Tensor]:
        g = reference[chosen].to(tile.device)[:, None]
        near = (2 * tile > g) & (tile < 2 * g)
        # log1p of an exact difference: log itself would lose the digits in which the entries differ.
        return torch.where(near, torch.log1p((tile - g) / g), torch.log(tile / g)), near

    for chosen, tile in rows.tiles():
        x, near = logs(chosen, tile)
        nonzero[chosen] += (tile > 0).sum(1).cpu()
        near_count[chosen] += near.sum(1).cpu()
        centre[chosen] += x.masked_fill_(~near, 0.0).sum(1).cpu()
    centre /= near_count.clamp_min(1)
    for chosen, tile in rows.tiles():
        x, near = logs(chosen, tile)
        x -= centre[chosen].to(tile.device)[:, None]
        for power, excess in ((p, p_excess), (q, q_excess)):
            y = power * x
            terms = torch.where(near, _exp_excess(y), torch.expm1(y)).masked_fill_(tile == 0, 0.0)
            excess[chosen] += terms.sum(1).cpu()
    zeros = d - nonzero
    log_ratio = torch.log1p((p_excess - zeros) / d) / p - torch.log1p((q_excess - zeros) / d) / q
    return -torch.expm1(log_ratio).clamp_max(0.0) + 0.0


def _exp_excess(y: Tensor) -> Tensor:
    """exp(y) - 1 - y, accurate for small y too."""
    series = torch.ones_like(y)
    for k in range(9, 2, -1):
        series = 1 + series * y / k
    return torch.where(y.abs() < 0.05, y * y / 2 * series, torch.expm1(y) - y)


def map_of_rows(rows: Rows) -> Tensor:
    r"""PQ Index of each row for every pair of p and q: the p–q map of the paper's appendix.

    .. math:: I_{p,q}(w) = 1 - M_p / M_q, \qquad M_s = \Big(\tfrac1d \sum_i |w_i|^s\Big)^{1/s}

    Twenty sums give the paper's 110 values. The index is undefined for p = q and NaN there.

    Returns:
        A float64 tensor on the CPU of shape rows × `P_GRID` × `Q_GRID`.

    >>> map_of_rows(Rows.of(torch.tensor([[3.0, 4.0, 0.0, 0.0]])))[0, -1, -1]  # p = 1, q = 2
    tensor(0.3000, dtype=torch.float64)

    Diao et al. 2023, Appendix C.1.
    """
    exponents = sorted({*P_GRID, *Q_GRID})
    largest = rows.largest()
    scale = torch.where(largest.isfinite() & (largest > 0), largest, 1.0)
    sums = torch.zeros(len(exponents), rows.n, dtype=torch.float64)
    for chosen, tile in rows.tiles():
        tile /= scale[chosen].to(tile.device)[:, None]
        for i, exponent in enumerate(exponents):
            sums[i, chosen] += tile.pow(exponent).sum(1).cpu()
    roots = 1 / torch.tensor(exponents, dtype=torch.float64)
    # Row by row: the last digit of a power of a matrix depends on the number of rows.
    means = torch.stack([mean**roots for mean in (sums / rows.counts()).T.contiguous()], 1)
    small = means[: len(P_GRID)].T[:, :, None]
    large = means[-len(Q_GRID) :].T[:, None, :]
    index = ((large - small) / large).clamp_min(0.0) + 0.0
    index[:, -1, 0] = float("nan")  # p = q = 1
    return index
