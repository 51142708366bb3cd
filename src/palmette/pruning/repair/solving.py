r"""Repairs of one layer: new values for the weights that remain, from the second moment of its inputs.

For dense weights :math:`W`, one row per neuron, and inputs :math:`X`, one row per token, all solve

.. math:: \min_{\hat W} \|X W^T - X \hat W^T\|^2 \quad \text{with } \hat W_{ij} = 0 \text{ where pruned}

which depends on the inputs by :math:`H = X^T X` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from palmette.pruning.methods import Scope, check_repair, check_scope, pattern_of
from palmette.pruning.sources.memory import Memory

_DAMPING = 0.1  # of the diagonal, as in the code of Boža 2024
_STEPS, _CHOOSING = 20, 15  # iterations of ADMM, and those that choose weights, as there
_BLOCK, _BLOCK_DAMPING = 128, 0.01  # inputs at a time, and of the mean of the diagonal, as in SparseGPT
_MOST = 1000  # iterations of conjugate gradients


def repaired(
    weight: Tensor,
    kept: Tensor,
    gram: Tensor,
    *,
    by: str = "least-squares",
    allowed: Tensor | None = None,
    scope: Scope = "neuron",
) -> tuple[Tensor, Tensor]:
    r"""Values for the remaining weights that preserve the layer's outputs, and the mask of these weights.

    Some repairs choose the weights themselves, as many as `kept` has. The weights of an input that is always zero
    are not changed.

    Args:
        weight: dense weights, one row per neuron.
        kept: True where a weight remains.
        gram: :math:`H = X^T X` of the inputs.
        by: "least-squares": the exact solution for `kept`. "admm": twenty steps towards it (Boža 2024).
            "admm-gradual": ADMM that prunes more with each step and chooses the weights, as published.
            "gradual": the same choice, then the exact solution. "sparsegpt": Frantar and Alistarh 2023, which
            also chooses, 128 inputs at a time.
        allowed: weights to choose from, all by default.
        scope: "neuron" preserves the number of weights of each neuron, others that of the layer.

    >>> weight, kept = torch.tensor([[2.0, 1.0]]), torch.tensor([[True, False]])
    >>> same = torch.ones(2, 2)  # both inputs are always equal, so one can replace the other
    >>> values, _ = repaired(weight, kept, same)
    >>> values
    tensor([[2.9091, 0.0000]])

    The result is below 3 because the diagonal is damped by a tenth, for inputs not in the sample.
    """
    check_by(by, scope)
    shape = tuple(weight.shape)
    if len(shape) != 2 or tuple(kept.shape) != shape or tuple(gram.shape) != (shape[1], shape[1]):
        raise ValueError(
            "repaired takes a matrix with one row per neuron, a mask of its shape and the second moment of its "
            f"inputs, got shapes {shape}, {tuple(kept.shape)} and {tuple(gram.shape)}"
        )
    dtype = torch.promote_types(weight.dtype, torch.float32)
    layer = _Problem(
        weight.detach().to(dtype),
        kept,
        torch.ones_like(kept) if allowed is None else allowed,
        gram.to(torch.float64),
        scope == "neuron",
    )
    values, mask = _REPAIRS[by](layer)
    return values.where(mask, 0).to(weight.dtype), mask


def check_by(by: str, scope: Scope) -> None:
    """Raise unless the repair `by` keeps what `scope` asks for."""
    check_repair(by)
    check_scope(scope, also=("n:m",))
    if pattern_of(scope) is not None and by not in ("least-squares", "admm"):
        raise ValueError(
            f"repair {by!r} chooses which weights remain, and would break the pattern of scope {scope!r}; use "
            "'least-squares' or 'admm'"
        )


@dataclass(frozen=True)
class _Problem:
    """Arguments of a repair of one layer, see `repaired`."""

    weight: Tensor
    kept: Tensor
    allowed: Tensor
    gram: Tensor
    per_neuron: bool

    def units(self, values: Tensor) -> Tensor:
        """One row per unit within which weights are ranked."""
        return values if self.per_neuron else values.reshape(1, -1)

    def counts(self, mask: Tensor) -> Tensor:
        """Entries that a mask keeps in each unit, on the CPU."""
        return self.units(mask).sum(1).cpu()

    def largest(self, scores: Tensor, counts: Tensor, allowed: Tensor) -> Tensor:
        """Mask of the `counts` largest of the allowed scores of each unit."""
        rows = Memory.of(self.units(scores), self.units(allowed))
        (mask,) = rows.select(rows.counts() - counts)
        return mask.reshape(scores.shape)

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Norms of the inputs, and the damped second moment of inputs divided by them."""
        norms = self.gram.diagonal().sqrt()
        # An input without values has a small norm in place of none: its weights go first, and come out unchanged.
        norms = norms.clamp(min=1e-6 * float(norms.max()) or 1.0)
        damped = self.gram / norms[:, None] / norms
        damped.diagonal().add_(_DAMPING)
        return norms.to(self.weight.dtype), damped


def _least_squares(layer: _Problem) -> tuple[Tensor, Tensor]:
    """Exact solution for the masks, by conjugate gradients for all neurons at once."""
    norms, damped = layer.scaled()
    dense, damped = layer.weight * norms, damped.to(layer.weight.dtype)
    found = dense.where(layer.kept, 0)
    rest = ((dense - found) @ damped).where(layer.kept, 0)
    direction, size = rest, rest.square().sum(1)
    enough = torch.finfo(rest.dtype).eps * size  # of squares: half of the digits
    for _ in range(_MOST):
        if bool((size <= enough).all()):
            break
        moved = (direction @ damped).where(layer.kept, 0)
        step = _ratio(size, (direction * moved).sum(1))
        found, rest = found + step * direction, rest - step * moved
        size, before = rest.square().sum(1), size
        direction = rest + _ratio(size, before) * direction
    return found / norms, layer.kept


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Column of quotients, zero where a neuron is solved already."""
    return torch.where(below > 0, above / below, 0)[:, None]


def _admm(layer: _Problem, *, choosing: int = 0) -> tuple[Tensor, Tensor]:
    r"""ADMM with :math:`\rho = 1`; the first `choosing` steps prune along a cubic schedule."""
    norms, damped = layer.scaled()
    dense, kept = layer.weight * norms, layer.kept
    target = dense @ damped.to(dense.dtype)
    damped.diagonal().add_(1.0)
    inverse = torch.linalg.inv(damped).to(dense.dtype)  # of float64: inputs of a layer may be nearly dependent
    goals, room = layer.counts(kept), layer.counts(layer.allowed)
    found, dual = dense, torch.zeros_like(dense)
    for step in range(_STEPS):
        if step < choosing:
            left = (1 - (step + 1) / choosing) ** 3
            kept = layer.largest(found + dual, goals + ((room - goals) * left).long(), layer.allowed)
        dual, there = dual + found, (dual + found).where(kept, 0)
        dual = dual - there
        found = (target + there - dual) @ inverse
    return (found + dual) / norms, kept


def _gradual(layer: _Problem) -> tuple[Tensor, Tensor]:
    """Weights that gradual ADMM chooses, with the exact solution for them."""
    _, kept = _admm(layer, choosing=_CHOOSING)
    return _least_squares(replace(layer, kept=kept))


def _sparsegpt(layer: _Problem) -> tuple[Tensor, Tensor]:
    """Input by input: the weights of later inputs compensate for each error."""
    gram = layer.gram.clone()
    gram.diagonal().add_(_BLOCK_DAMPING * float(gram.diagonal().mean()) or 1.0)
    factor = torch.linalg.cholesky(torch.linalg.inv(gram), upper=True).to(layer.weight.dtype)
    found, kept = layer.weight.clone(), torch.zeros_like(layer.kept)
    goals, room = layer.counts(layer.kept), layer.counts(layer.allowed)
    width, before, seen = found.shape[1], torch.zeros_like(goals), torch.zeros_like(goals)
    for first in range(0, width, _BLOCK):
        here = slice(first, min(first + _BLOCK, width))
        block, triangle, allowed = found[:, here], factor[here, here], layer.allowed[:, here]
        # Each block keeps the share of its unit, rounded so that all blocks together keep the exact count.
        seen = seen + layer.counts(allowed)
        now = (2 * goals * seen + room) // (2 * room).clamp(min=1)
        scores = block / triangle.diagonal()
        kept[:, here] = mask = layer.largest(scores, now - before, allowed)
        errors, before = torch.zeros_like(block), now
        for j in range(block.shape[1]):
            errors[:, j] = block[:, j].where(~mask[:, j], 0) / triangle[j, j]
            block[:, j:] -= errors[:, j, None] * triangle[j, j:]
        found[:, here.stop :] -= errors @ factor[here, here.stop :]
    return found, kept


_REPAIRS: Mapping[str, Callable[[_Problem], tuple[Tensor, Tensor]]] = {
    "least-squares": _least_squares,
    "admm": _admm,
    "admm-gradual": lambda layer: _admm(layer, choosing=_CHOOSING),
    "gradual": _gradual,
    "sparsegpt": _sparsegpt,
}
