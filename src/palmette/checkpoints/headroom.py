"""`headroom`: the largest cut without retraining whose score stays within a tolerance, by bisection."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palmette.pruning.budgets import Budget, FixedRatio, Sap
from palmette.pruning.cut import prune
from palmette.pruning.masks import Masks
from palmette.pruning.methods import SCOPES, Scope, check_scope
from palmette.pruning.tolerance import Estimate, Tolerance
from palmette.pruning.weights import Weight, evaluating
from palmette.words import aligned

HALVINGS = 7
"""Bisection ends when the limit is known to 2^-7 of the weights, about 1 %."""

Evaluate = Callable[[Any], object]


@dataclass(frozen=True)
class ScoredCut:
    """A cut without retraining, and the score after it.

    Args:
        share: fraction cut of the weights that were left.
        density: fraction of all weights that remains.
        score: result of `evaluate`: its value, and its standard error if `evaluate` gives several numbers.
        allowed: whether the score is within the tolerance.
    """

    share: float
    density: float
    score: Estimate
    allowed: bool = True


@dataclass(frozen=True)
class Headroom:
    """The largest cut without retraining in one scope, compared with the cut that the index suggests.

    Weights of the smallest magnitude go, the same fraction in every unit of the scope. `print` shows the
    sensitivity curve as a table; `palmette.reports.sensitivity.draw` draws it.

    Args:
        scope: "neuron", "layer" or "global".
        tolerance: how much worse than the dense network a pruned one may be.
        curve: the sensitivity curve: every cut tried, from the smallest; the first is the network as given.
        suggested: the next cut of SAP, which gives each unit of the scope its own fraction.
        evaluations: calls of `evaluate` for this scope; the network as given is scored once for all scopes.
    """

    scope: Scope
    tolerance: Tolerance
    curve: tuple[ScoredCut, ...]
    suggested: ScoredCut
    evaluations: int

    @property
    def dense(self) -> ScoredCut:
        """The network as given, with nothing cut."""
        return self.curve[0]

    @property
    def largest(self) -> ScoredCut:
        """The largest cut within the tolerance; no smaller cut that was tried is outside."""
        outside = (i for i, cut in enumerate(self.curve) if not cut.allowed)
        return self.curve[next(outside, len(self.curve)) - 1]

    @property
    def share(self) -> float:
        """Fraction of the weights that can go without retraining."""
        return self.largest.share

    def loss(self, cut: ScoredCut) -> float:
        """Loss of score after `cut`; negative if the score is better."""
        return self.tolerance.loss(cut.score, dense=self.dense.score)

    def __str__(self) -> str:
        """Table with a line for each cut of the curve, and one for the cut that the index suggests."""
        lines = [(cut, self._note(cut)) for cut in self.curve] + [(self.suggested, "suggested by the index")]
        rows = [
            (note, f"{cut.share:.1%}", f"{cut.density:.1%}", f"{cut.score.value:.4f}")
            for cut, note in sorted(lines, key=lambda line: line[0].share)
        ]
        return "\n".join(aligned([(f"scope {self.scope}", "cut", "density", "score"), *rows]))

    def _note(self, cut: ScoredCut) -> str:
        if cut is self.largest:
            return "largest within the tolerance"
        return "" if cut.allowed else "outside the tolerance"


def headroom(
    model: nn.Module,
    weights: Mapping[str, Weight],
    evaluate: Evaluate,
    *,
    masks: Mapping[str, Tensor] | None = None,
    budget: Sap,
    tolerance: Tolerance | float | str | None = None,
    maximize: bool = True,
    scopes: Sequence[Scope] = SCOPES,
) -> tuple[Headroom, ...]:
    r"""Largest cut by magnitude without retraining, for each scope, by bisection on the fraction :math:`P` cut.

    Starting from :math:`0 \le P \le 1`, the middle of the interval is tried, and the half kept in which the score
    leaves the tolerance, seven times. That takes at most eight evaluations for each scope, with the cut that the
    index suggests, and one more for the network as given. If scores rise and fall, a larger cut may exist.

    Every evaluation sees the same weights, buffers and random numbers, with the model in evaluation mode.
    Afterwards all of them, and the modes, are as before, also when `evaluate` raises. The model is copied once.

    Args:
        model, weights: the model and its prunable weights.
        evaluate, tolerance, maximize, scopes: as for `palmette.how_compressible`.
        masks: weights that are not pruned yet; all by default.
        budget: the budget whose cut is compared.
    """
    kept = Masks.ones_like(weights) if masks is None else Masks(masks)
    with _unchanged(model) as renew:
        trial = _Trial(model, weights, kept, evaluate, renew)
        dense = trial.score(kept)
        limit = _tolerance(tolerance, maximize, dense)
        first = ScoredCut(0.0, kept.density, dense)
        return tuple(_of_scope(trial, scope, budget, first, limit) for scope in scopes)


def check_scopes(scopes: Sequence[Scope]) -> None:
    """Raise unless `scopes` is a list of different scopes."""
    if isinstance(scopes, str) or not isinstance(scopes, Sequence) or not scopes:
        raise TypeError(f"scopes must be a list of scopes such as ['global'], got {scopes!r}")
    for scope in scopes:
        check_scope(scope)
    if len(set(scopes)) < len(scopes):
        raise ValueError(f"scopes must differ, got {scopes!r}")


class _Trial:
    """The model that cuts are tried on; `renew` makes it as it was given."""

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, Weight],
        kept: Masks,
        evaluate: Evaluate,
        renew: Callable[[], None],
    ) -> None:
        self.model, self.weights, self.kept = model, weights, kept
        self.evaluate, self.renew = evaluate, renew
        self.calls = 0

    def cut(self, scope: Scope, budget: Budget) -> Masks:
        """Masks after a cut of the weights as given."""
        self.renew()
        return prune(self.weights, self.kept, scope=scope, budget=budget)[0]

    def score(self, masks: Masks) -> Estimate:
        """Score of the model under the masks."""
        self.renew()
        masks.apply_(self.weights)
        self.calls += 1
        with evaluating(self.model):
            return Estimate.of(self.evaluate(self.model), "evaluate")


def _of_scope(trial: _Trial, scope: Scope, budget: Sap, dense: ScoredCut, tolerance: Tolerance) -> Headroom:
    before, tried = trial.calls, {trial.kept.kept: dense}

    def scored(masks: Masks) -> ScoredCut:
        score = trial.score(masks)
        share = (trial.kept.kept - masks.kept) / max(1, trial.kept.kept)
        return ScoredCut(share, masks.density, score, tolerance.allows(score, dense=dense.score))

    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        masks = trial.cut(scope, FixedRatio(middle))
        if masks.kept not in tried:  # of few weights, several fractions cut the same ones
            tried[masks.kept] = scored(masks)
        low, high = (middle, high) if tried[masks.kept].allowed else (low, middle)
    suggested = scored(trial.cut(scope, budget))
    curve = tuple(sorted(tried.values(), key=lambda cut: cut.share))
    return Headroom(scope, tolerance, curve, suggested, trial.calls - before)


def _tolerance(given: Tolerance | float | str | None, maximize: bool, dense: Estimate) -> Tolerance:
    if not np.isfinite(dense.value):
        raise ValueError(f"evaluate must return a finite number for the model as given, got {dense.value}")
    if given is None and not (maximize and 0 <= dense.value <= 1):
        raise ValueError(
            f"evaluate returned {dense.value:g}{'' if maximize else ', smaller is better'}: unless it is an "
            "accuracy in [0, 1], larger is better, tolerance must say how much worse a cut may make it, such as "
            "tolerance=1.0 or tolerance='5%'; maximize=False for a loss"
        )
    return Tolerance.parse(0.01 if given is None else given, maximize=maximize)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Restore tensors, modes and random generators at the end; the function given does so at any time."""
    modules = list(model.modules())
    modes = [module.training for module in modules]
    places: list[dict[str, Any]] = [
        of for module in modules for of in (module._parameters, module._buffers, vars(module))
    ]
    tensors = [(of, n, t, t.data) for of in places for n, t in list(of.items()) if isinstance(t, Tensor)]
    # Storages keep every bit, and tensors that share memory.
    storages = {
        data.untyped_storage().data_ptr(): data.untyped_storage() for *_, data in tensors if not data.is_meta
    }
    copies = [(storage, storage.clone()) for storage in storages.values()]
    python, numpy, torch_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore() -> None:
        for storage, copy in copies:
            storage.copy_(copy)
        for of, name, tensor, data in tensors:
            tensor.data = data  # `model.half()` replaces it
            of[name] = tensor
        for module, training in zip(modules, modes, strict=True):
            module.training = training
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)

    try:
        yield restore
    finally:
        restore()
