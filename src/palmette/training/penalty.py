"""The PQ Index as a regularizer: a term of the loss that makes weights sparser while they train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from palmette.measures.parameters import as_number, check_pq
from palmette.pruning.methods import Scope, check_scope
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.weights import Weight, normed, prunable

_FLOOR = 0.01  # of a unit's power mean; smaller magnitudes are pulled to zero no harder than this one


class PQPenalty:
    r"""Loss term that makes weights sparser: one minus the PQ Index, averaged over the units of a scope.

    .. math:: \lambda \, (1 - I_{p,q}(w)) = \lambda \, d^{1/q - 1/p} \, \|w\|_p / \|w\|_q

    where :math:`d` counts the non-zero weights; zeros count as pruned and get no gradient. Add it to the loss of
    each batch. Its gradient is orthogonal to the weights of a unit: unlike weight decay or an :math:`\ell_1`
    penalty, it makes them more unequal, but not smaller.

    Args:
        model: the network in training; its weights are selected as in `Pruner`.
        strength: :math:`\lambda > 0`.
        p, q: norms of the index, ``0 < p <= 1 <= q`` and ``p != q``.
        scope: "neuron", "layer" or "global": the unit whose index counts.
        include, exclude: patterns of parameter names, see `palmette.pruning.weights.prunable`.

    >>> import palmette as pm
    >>> model = nn.Linear(3, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -4.0, 0.0]]))
    >>> penalty = pm.PQPenalty(model, strength=2.0)
    >>> loss = penalty()  # added to the loss of a batch
    >>> loss
    tensor(1.8000, grad_fn=<MulBackward0>)
    >>> loss.backward()
    >>> model.weight.grad  # pulls the smaller weight to zero, pushes the larger one away
    tensor([[0.2400, 0.0600, 0.0000]])

    Diao et al. 2023, Appendix A, suggest it but do not test it. In our study, results/penalty, it did not make
    MLPs more prunable.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float,
        p: float = 0.5,
        q: float = 1.0,
        scope: Scope = "global",
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
    ) -> None:
        check_pq(p, q)
        check_scope(scope)
        if not 0 < as_number(strength) < float("inf"):
            raise ValueError(f"strength must be above 0 and finite, got strength={strength!r}")
        self.strength, self.p, self.q, self.scope = float(strength), float(p), float(q), scope
        self._weights = prunable(model, include=include, exclude=exclude)
        check_whole({name: weight.tensor for name, weight in self._weights.items()}, "PQPenalty")

    def __call__(self) -> Tensor:
        """Penalty of the current weights, a scalar to add to the loss."""
        rows = [self._rows(weight) for weight in self._weights.values()]
        groups = [rows] if self.scope == "global" else [[one] for one in rows]
        ratios = [_Ratio.apply(self.p, self.q, *group) for group in groups]  # type: ignore[no-untyped-call]
        return self.strength * torch.cat(ratios).mean()

    def _rows(self, weight: Weight) -> Tensor:
        values = weight.tensor if weight.gain is None else normed(weight.tensor, weight.gain)
        return weight.rows(values) if self.scope == "neuron" else values.reshape(1, -1)


class _Ratio(torch.autograd.Function):
    r"""One minus the PQ Index of each unit, whose rows are spread over `segments`; 0 where all are zero.

    .. math:: \frac{\partial (1 - I)}{\partial w_i} = (1 - I) \, \mathrm{sign}(w_i)
              \left( \frac{|w_i|^{p-1}}{\sum |w|^p} - \frac{|w_i|^{q-1}}{\sum |w|^q} \right)
    """

    @staticmethod
    def forward(ctx: Any, p: float, q: float, *segments: Tensor) -> Tensor:
        device, dtype = segments[0].device, torch.promote_types(segments[0].dtype, torch.float32)
        scale = torch.stack([s.abs().amax(1).to(device, dtype) for s in segments]).amax(0)
        scale = torch.where(scale > 0, scale, 1.0)  # so that no power overflows
        scaled = [s.abs() / scale.to(s.device)[:, None] for s in segments]
        small, large = (sum(a.pow(power).sum(1).to(device) for a in scaled) for power in (p, q))
        count = torch.stack([(s != 0).sum(1).to(device, dtype) for s in segments]).sum(0)
        ratio = torch.where(count > 0, count ** (1 / q - 1 / p) * small ** (1 / p) * large ** (-1 / q), 0.0)
        ctx.save_for_backward(*segments, scale, small, large, count, ratio)
        ctx.powers = p, q
        return ratio

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        *segments, scale, small, large, count, ratio = ctx.saved_tensors
        p, q = ctx.powers
        factor = torch.where(count > 0, gradient * ratio / scale, 0.0)
        floor = _FLOOR * (small / count.clamp_min(1)) ** (1 / p)
        found = []
        for s in segments:
            f, lowest, of_p, of_q, by = (x.to(s.device)[:, None] for x in (factor, floor, small, large, scale))
            a = s.abs() / by
            slope = torch.maximum(a, lowest).pow(p - 1) / of_p - a.pow(q - 1) / of_q
            found.append((f * s.sign() * slope).to(s.dtype).masked_fill_(s == 0, 0.0))
        return None, None, *found
