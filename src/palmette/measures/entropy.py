"""Entropies among the measures that Hurley and Rickard compared.

Arguments, results and undefined cases are those of `palmette.measures.classic`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from palmette.measures.rows import measured, scaled


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

    Hurley and Rickard 2009, Table I.
    """
    return measured(w, dim, kept, lambda c, _: -2 * torch.xlogy(c, c).sum(1))
