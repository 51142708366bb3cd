"""Sparsity measures that Hurley and Rickard compared, one function each, and `MEASURES`, the table of all.

N. Hurley and S. Rickard, Comparing Measures of Sparsity, IEEE Transactions on Information Theory 55(10), 2009,
Table I. Here :math:`c_j` are the magnitudes :math:`|w_j|`, and :math:`d`, their :math:`N`, counts the entries that
`kept` marks (all by default). Arguments `w`, `dim` and `kept` and the result are as in `pq_index`. A slice without
a kept entry, or with a NaN or an infinity, gives NaN; each function states further undefined cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from palmette.measures.gini import gini_index
from palmette.measures.parameters import as_number
from palmette.measures.pq import pq_index
from palmette.measures.rows import measured, scaled


def l0(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""Number of entries that are exactly zero. Larger is sparser; from 0 to :math:`d`.

    .. math:: \ell^0(w) = \#\{j : c_j = 0\}

    >>> l0([3.0, 0.0, 0.0, 1.0])
    2.0

    Hurley and Rickard 2009, Table I. Elsewhere :math:`\ell^0` often counts the entries that are not zero.
    """
    return measured(w, dim, kept, lambda c, mask: ((c == 0) & mask).sum(1).to(c.dtype))


def l0_eps(w: Any, *, eps: float = 0.01, dim: int | None = None, kept: Any = None) -> Any:
    r"""Number of magnitudes that are at most `eps`. Larger is sparser; from 0 to :math:`d`.

    .. math:: \ell^0_\epsilon(w) = \#\{j : c_j \le \epsilon\}

    >>> l0_eps([3.0, 0.1, 0.0, 1.0], eps=0.1)
    2.0
    """
    threshold = as_number(eps)
    if not 0 <= threshold < math.inf:
        raise ValueError(f"eps must be at least 0 and finite, got eps={eps!r}")
    return measured(w, dim, kept, lambda c, mask: ((c <= threshold) & mask).sum(1).to(c.dtype))


def negative_l1(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""The negative sum of magnitudes. Larger is sparser; at most 0.

    .. math:: -\ell^1(w) = -\sum_j c_j

    >>> negative_l1([3.0, -1.0, 0.0])
    -4.0
    """
    return measured(w, dim, kept, lambda c, _: -c.sum(1))


def negative_lp(w: Any, *, p: float = 0.5, dim: int | None = None, kept: Any = None) -> Any:
    r"""The negative :math:`\ell^p` quasi-norm for ``0 < p < 1``. Larger is sparser; at most 0.

    .. math:: -\ell^p(w) = -\Big(\sum_j c_j^p\Big)^{1/p}

    >>> negative_lp([4.0, 1.0, 0.0], p=0.5)
    -9.0
    """
    power = as_number(p)
    if not 0 < power < 1:
        raise ValueError(f"negative_lp needs 0 < p < 1, got p={p!r}")

    def core(c: Tensor, _: Tensor) -> Tensor:
        return -(c.amax(1) * scaled(c).nan_to_num(0.0).pow(power).sum(1).pow(1 / power))

    return measured(w, dim, kept, core)


def l2_over_l1(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""Euclidean norm over sum of magnitudes. Larger is sparser; from :math:`1/\sqrt d` to 1.

    .. math:: \frac{\ell^2}{\ell^1}(w) = \frac{\sqrt{\sum_j c_j^2}}{\sum_j c_j}

    A slice of zeros gives NaN.

    >>> l2_over_l1([1.0, 1.0, 1.0, 1.0])
    0.5
    >>> l2_over_l1([0.0, 0.0, 5.0])
    1.0
    """
    return measured(w, dim, kept, lambda c, _: scaled(c).square().sum(1).sqrt() / scaled(c).sum(1))


def negative_tanh(w: Any, *, a: float = 1.0, b: float = 0.5, dim: int | None = None, kept: Any = None) -> Any:
    r"""Negative smooth count of the entries that are not small. Larger is sparser; in :math:`(-d, 0]`.

    .. math:: -\tanh_{a,b}(w) = -\sum_j \tanh\big((a\,c_j)^b\big)

    `a` and `b` are positive; Robin Hood (D1) holds for ``b <= 1`` only.

    >>> negative_tanh([400.0, 0.0, 900.0])  # tanh(20) is 1 to 17 digits
    -2.0
    """
    factor, power = as_number(a), as_number(b)
    if not (0 < factor < math.inf and 0 < power < math.inf):
        raise ValueError(f"negative_tanh needs a > 0 and b > 0, both finite, got a={a!r}, b={b!r}")
    return measured(w, dim, kept, lambda c, _: -(factor * c).pow(power).tanh().sum(1))


def negative_log(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""The negative sum of :math:`\log(1 + c^2)`. Larger is sparser; at most 0.

    .. math:: -\log(w) = -\sum_j \log(1 + c_j^2)

    >>> import math
    >>> round(math.exp(-negative_log([1.0, 2.0, 0.0])), 12)  # (1 + 1) (1 + 4) (1 + 0)
    10.0
    """

    def core(c: Tensor, _: Tensor) -> Tensor:
        # For large c, log(1 + c²) = 2 log c to the last digit, and c² may overflow.
        return -torch.where(c > 1e9, 2 * c.log(), c.square().log1p()).sum(1)

    return measured(w, dim, kept, core)


def kappa4(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""Kurtosis about 0, without the factor :math:`d`. Larger is sparser; from :math:`1/d` to 1.

    .. math:: \kappa_4(w) = \frac{\sum_j c_j^4}{\big(\sum_j c_j^2\big)^2}

    A slice of zeros gives NaN.

    >>> kappa4([1.0, 1.0, 1.0, 1.0])
    0.25
    """
    return measured(w, dim, kept, lambda c, _: scaled(c).pow(4).sum(1) / scaled(c).square().sum(1).square())


def u_theta(w: Any, *, theta: float = 0.5, dim: int | None = None, kept: Any = None) -> Any:
    r"""1 minus the smallest part of the range with a share `theta` of the entries. Larger is sparser; in [0, 1].

    .. math:: u_\theta(w) = 1 - \min_i \frac{c_{(i + m - 1)} - c_{(i)}}{c_{(d)} - c_{(1)}},
              \qquad m = \lceil \theta d \rceil \ne d

    with magnitudes in ascending order and ``0 < theta < 1``. A slice of equal magnitudes, or with :math:`m = d`,
    gives NaN.

    >>> u_theta([1.0, 2.0, 9.0])  # two of three lie in [1, 2], an eighth of [1, 9]
    0.875
    """
    share = as_number(theta)
    if not 0 < share < 1:
        raise ValueError(f"u_theta needs 0 < theta < 1, got theta={theta!r}")

    def core(c: Tensor, mask: Tensor) -> Tensor:
        d = mask.sum(1, keepdim=True)
        # theta * d may round to just above a whole number: 0.07 * 100 = 7.000000000000001.
        m = torch.ceil(share * d.double() * (1 - 1e-12)).to(torch.int64)
        ordered = c.masked_fill(~mask, math.inf).sort(dim=1).values
        first = torch.arange(c.shape[1], device=c.device).expand_as(c)
        last = (first + m - 1).clamp(0, c.shape[1] - 1)
        spans = (ordered.gather(1, last) - ordered).masked_fill(first + m > d, math.inf).amin(1, keepdim=True)
        part = spans / (ordered.gather(1, (d - 1).clamp(min=0)) - ordered[:, :1])
        return (1 - part).masked_fill(m == d, math.nan)[:, 0]

    return measured(w, dim, kept, core)


def negative_lp_minus(w: Any, *, p: float = -1.0, dim: int | None = None, kept: Any = None) -> Any:
    r"""The negative sum of negative powers of the non-zero entries. At most 0.

    .. math:: -\ell^p_-(w) = -\sum_{j : c_j \ne 0} c_j^p, \qquad p < 0

    It is listed as growing with sparsity, but small magnitudes make it fall; only zeros do not count.

    >>> negative_lp_minus([1.0, 2.0, 4.0, 0.0])
    -1.75
    """
    power = as_number(p)
    if not -math.inf < power < 0:
        raise ValueError(f"negative_lp_minus needs a finite p < 0, got p={p!r}")
    return measured(w, dim, kept, lambda c, _: -c.pow(power).masked_fill(c == 0, 0.0).sum(1))


def gaussian_entropy(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""The Gaussian entropy :math:`H_G`. Larger is sparser; any real number.

    .. math:: H_G(w) = -\sum_j \log c_j^2

    A slice with a kept zero gives NaN.

    >>> import math
    >>> round(math.exp(gaussian_entropy([0.5, 0.25])), 12)  # 4 times 16
    64.0

    Hurley and Rickard 2009, Table I; Rao and Kreutz-Delgado 1999.
    """

    def core(c: Tensor, mask: Tensor) -> Tensor:
        logs = torch.where(mask, c.masked_fill(c == 0, math.nan), 1.0).log()
        return -2 * logs.sum(1)

    return measured(w, dim, kept, core)


def shannon_entropy(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""The Shannon entropy :math:`H_S` of the energies, doubled. Larger is *denser*; 0 to :math:`2 \log d`.

    .. math:: H_S(w) = -\sum_j \tilde c_j \log \tilde c_j^2, \quad \tilde c_j = c_j^2 / \textstyle\sum_k c_k^2

    with :math:`0 \log 0 = 0`. A slice of zeros gives NaN. As published it falls with sparsity.

    >>> import math
    >>> round(math.exp(shannon_entropy([5.0, -5.0, 0.0])), 12)  # two equal entries: 2 squared
    4.0

    Hurley and Rickard 2009, Table I; Rao and Kreutz-Delgado 1999.
    """

    def core(c: Tensor, _: Tensor) -> Tensor:
        energy = scaled(c).square()
        share = energy / energy.sum(1, keepdim=True)
        return -2 * torch.xlogy(share, share).sum(1)

    return measured(w, dim, kept, core)


def shannon_entropy_prime(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""The entropy :math:`H_S'` of magnitudes without normalisation. Larger is *denser*.

    .. math:: H_S'(w) = -\sum_j c_j \log c_j^2

    with :math:`0 \log 0 = 0`; at most :math:`2d/e`. As published it grows as magnitudes become more equal, so it
    falls with sparsity. It depends on scale and has no lower bound.

    >>> import math
    >>> round(math.exp(shannon_entropy_prime([0.5, 0.5, 1.0, 0.0])), 12)  # twice half the logarithm of 4
    4.0
    """
    return measured(w, dim, kept, lambda c, _: -2 * torch.xlogy(c, c).sum(1))


def hoyer(w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
    r"""Hoyer's sparseness. Larger is sparser; from 0 (equal magnitudes) to 1 (one non-zero entry).

    .. math:: H(w) = \frac{\sqrt d - \sum_j c_j / \sqrt{\sum_j c_j^2}}{\sqrt d - 1}

    A slice of zeros, or with a single kept entry, gives NaN.

    >>> round(hoyer([3.0, 4.0, 0.0, 0.0]), 12)  # (2 - 7/5) / (2 - 1)
    0.6

    Hoyer 2004; Hurley and Rickard 2009, Table I.
    """

    def core(c: Tensor, mask: Tensor) -> Tensor:
        root = mask.sum(1).to(c.dtype).sqrt()
        x = scaled(c)
        sparseness = (root - x.sum(1) / x.square().sum(1).sqrt()) / (root - 1)
        return sparseness.clamp_min(0.0).masked_fill(root == 1, math.nan)

    return measured(w, dim, kept, core)


def pq_mean(w: Any, *, p: float = 0.5, q: float = 1.0, dim: int | None = None, kept: Any = None) -> Any:
    r"""The negative ratio of two power means, the PQ Index minus 1. Larger is sparser; in [-1, 0).

    .. math:: -\Big(\tfrac1d \sum_j c_j^p\Big)^{1/p} \Big/ \Big(\tfrac1d \sum_j c_j^q\Big)^{1/q}
              = I_{p,q}(w) - 1

    for ``0 < p < q``. It has all six properties for ``p <= 1 <= q``, the range of `pq_index`; outside, some
    vectors break Robin Hood (D1). A slice of zeros gives NaN.

    >>> round(pq_mean([3.0, 4.0, 0.0, 0.0], p=1, q=2), 12)
    -0.7

    Hurley and Rickard 2009; Diao et al. 2023, Definition 1.
    """
    small, large = as_number(p), as_number(q)
    if not 0 < small < large < math.inf:
        raise ValueError(f"pq_mean needs 0 < p < q, both finite, got p={p!r}, q={q!r}")

    def core(c: Tensor, mask: Tensor) -> Tensor:
        d, x = mask.sum(1), scaled(c)
        return -((x.pow(small).sum(1) / d) ** (1 / small)) / (x.pow(large).sum(1) / d) ** (1 / large)

    return measured(w, dim, kept, core)


_TABLE_I = "Hurley and Rickard 2009, Table I"
_ENTROPY = f"{_TABLE_I}; Rao and Kreutz-Delgado 1999"
_PQ = {"p": 0.5, "q": 1.0}


@dataclass(frozen=True)
class Measure:
    """A row of `MEASURES`, called like its function.

    Args:
        name: as in Hurley and Rickard's Table III, in ASCII.
        symbol: in mathematical notation.
        function: called with `parameters`.
        range: of its values, where `d` is the number of kept entries.
        parameters: the function's defaults, for which `palmette axioms` tests the properties.
        sparser_is_larger: whether it grows with sparsity as published.
        source: of its definition.
    """

    name: str
    symbol: str
    function: Callable[..., Any]
    range: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    sparser_is_larger: bool = True
    source: str = _TABLE_I

    def __call__(self, w: Any, *, dim: int | None = None, kept: Any = None) -> Any:
        """Measure `w`, or with `dim` each slice of it."""
        return self.function(w, **self.parameters, dim=dim, kept=kept)


_MEASURES = (
    Measure("l0", "ℓ⁰", l0, "0 to d"),
    Measure("l0_eps", "ℓ⁰_ε", l0_eps, "0 to d", {"eps": 0.01}),
    Measure("-l1", "−ℓ¹", negative_l1, "at most 0"),
    Measure("-lp", "−ℓᵖ", negative_lp, "at most 0", {"p": 0.5}),
    Measure("l2/l1", "ℓ²/ℓ¹", l2_over_l1, "1/√d to 1"),
    Measure("-tanh_ab", "−tanh_a,b", negative_tanh, "above -d, at most 0", {"a": 1.0, "b": 0.5}),
    Measure("-log", "−log", negative_log, "at most 0"),
    Measure("kappa4", "κ₄", kappa4, "1/d to 1"),
    Measure("u_theta", "u_θ", u_theta, "0 to 1", {"theta": 0.5}),
    Measure("-lp_minus", "−ℓᵖ₋", negative_lp_minus, "at most 0", {"p": -1.0}),
    Measure("H_G", "H_G", gaussian_entropy, "any number", source=_ENTROPY),
    Measure("H_S", "H_S", shannon_entropy, "0 to 2 log d", sparser_is_larger=False, source=_ENTROPY),
    Measure("H_S_prime", "H_S′", shannon_entropy_prime, "at most 2d/e", sparser_is_larger=False),
    Measure("hoyer", "Hoyer", hoyer, "0 to 1", source=f"Hoyer 2004; {_TABLE_I}"),
    Measure("gini", "Gini", gini_index, "0 to 1 - 1/d", source=f"Gini 1912; {_TABLE_I}"),
    Measure("pq-mean", "pq-mean", pq_mean, "-1 to below 0", _PQ, source="Hurley and Rickard 2009"),
    Measure("pq", "PQ Index", pq_index, "0 to 1 - d^(1/q - 1/p)", _PQ, source="Diao et al. 2023, Definition 1"),
)
MEASURES: Mapping[str, Measure] = MappingProxyType({measure.name: measure for measure in _MEASURES})
"""All measures by name: Hurley and Rickard's Table I, then the ratio of power means and the PQ Index."""
