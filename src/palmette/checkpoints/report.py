"""`how_compressible`: the report on a model in memory or a checkpoint on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from palmette.checkpoints.compressibility import Compressibility
from palmette.checkpoints.headroom import Evaluate, check_scopes, headroom
from palmette.checkpoints.measuring import measure
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.read_errors import readable
from palmette.errors import NotFinite
from palmette.pruning.budgets import Sap
from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.choosing.zeros import as_zeros, masks_of_zeros
from palmette.pruning.masks import Masks, check_match
from palmette.pruning.methods import SCOPES, Scope, Zeros
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.sources.stored import MEMORY, stored_weights, within
from palmette.pruning.tolerance import Tolerance
from palmette.pruning.weights import Weight, sorted_out, tensors_of, uncompiled


def how_compressible(
    model: nn.Module | str | Path,
    *,
    evaluate: Evaluate | None = None,
    tolerance: Tolerance | float | str | None = None,
    maximize: bool = True,
    scopes: Sequence[Scope] = SCOPES,
    budget: Sap | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    zeros: Zeros = "pruned",
    memory: int = MEMORY,
) -> Compressibility:
    """Measure how compressible a model is, layer by layer and as a whole, without changing it.

    From the weights alone, the report gives the size of a first cut before retraining, not a limit. With
    `evaluate`, it also gives the largest cut without retraining whose score is within `tolerance`, found by
    bisection to about 1 % of the weights.

    Args:
        model: a module, or the path of a checkpoint, such as a .safetensors, .pt, .onnx, .gguf or .npy file or a
            folder of Transformers, or ``hf://org/model[/file][@revision]``, safetensors on the Hugging Face Hub.
            Files are read in parts and may be larger than memory; from the Hub, only these parts are fetched.
        evaluate: for a model: a function of the model that returns a score, or one number for each example or
            repetition, such as accuracy on validation data. It is called at most eight times for each scope, and
            once for the model as given, in evaluation mode. Model and random state are restored
            afterwards, even if it raises. It needs memory for one copy of the model.
        tolerance: how much worse the score may become: points such as 0.01, the default for scores in [0, 1], a
            fraction such as "5%", or "not-worse:0.95" (see `palmette.pruning.tolerance.Tolerance`).
        maximize: whether larger scores are better; False for losses and perplexities.
        scopes: the scopes for which `evaluate` is called.
        budget: the budget whose next cut is predicted; `Sap()` by default.
        include, exclude: patterns of parameter names, see `palmette.prunable`.
        masks: for a model: the weights that are kept, such as ``pruner.masks``; by default all, except `zeros`.
        zeros: "pruned" (default): if more than 1 % of a weight without a mask is exactly zero, its zeros count as
            pruned. "count": they count as weights, and are cut first.
        memory: for a file: bytes that the process may use, unless a single row of a weight needs more. A packed
            file of `palmette.save` is loaded in addition.

    Returns:
        The report: print it, or read `whole`, `layers`, `headroom`, `verdict` and `warnings`; `to_dict` for JSON.

    >>> import palmette as pm, torch
    >>> model = nn.Linear(4, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[0.0, 0.0, -7.0, 0.0]]))
    >>> report = pm.how_compressible(model, zeros="count")
    >>> report.whole.pq_index, report.whole.sap_cut
    (0.75, {'neuron': 3, 'layer': 3, 'global': 3})
    >>> def score(model):
    ...     return model.weight.count_nonzero()
    >>> pm.how_compressible(model, evaluate=score, scopes=["global"], zeros="count").headroom[0].share
    0.75

    Diao et al. 2023, Definition 1, Theorem 2 and Algorithm 1.
    """
    budget, zeros = as_sap(budget), as_zeros(zeros)
    _check_evaluation(model, evaluate, tolerance, maximize, scopes)
    if isinstance(model, nn.Module):
        weights, left_out, masks = _chosen(model, include, exclude, masks, zeros)
        report = _of_model(model, weights, left_out, masks, budget)
        if evaluate is None:
            return report
        room = headroom(
            model,
            weights,
            evaluate,
            masks=masks,
            budget=budget,
            tolerance=tolerance,
            maximize=maximize,
            scopes=scopes,
        )
        return replace(report, headroom=room)
    if not isinstance(model, str | Path):
        raise TypeError(f"model must be a torch.nn.Module or the path of a checkpoint, got {type(model).__name__}")
    if masks is not None:
        raise ValueError(
            "masks need a model; the masks of a file lie next to it, where `palmette prune` wrote them"
        )
    found = open_checkpoint(model, include=include, exclude=exclude)
    with within(memory) as chunk, readable(found.path):
        return measure(
            found.weights,
            budget=budget,
            left_out=found.left_out,
            title=found.title,
            zeros="count" if found.vectors else zeros,
            chunk=chunk,
        )


def as_sap(budget: Sap | None) -> Sap:
    """The budget, `Sap()` by default; any other kind is refused."""
    if not isinstance(budget, Sap | None):
        raise TypeError(f"budget must be a Sap(p, q, …), got {budget!r}")
    return budget or Sap()


def _check_evaluation(
    model: object,
    evaluate: Evaluate | None,
    tolerance: Tolerance | float | str | None,
    maximize: bool,
    scopes: Sequence[Scope],
) -> None:
    if evaluate is None:
        if tolerance is not None:
            raise ValueError(f"tolerance needs evaluate, a function that scores the model, got {tolerance!r}")
        return
    if isinstance(model, str | Path):
        raise ValueError(
            f"evaluate needs a model that can be run, got the path {str(model)!r}; load it into a torch.nn.Module"
        )
    if not callable(evaluate):
        raise TypeError(f"evaluate must be a function of the model that returns a score, got {evaluate!r}")
    if tolerance is not None:
        Tolerance.parse(tolerance, maximize=maximize)
    check_scopes(scopes)


def _chosen(
    model: nn.Module,
    include: Iterable[str] | None,
    exclude: Iterable[str],
    masks: Mapping[str, Tensor] | None,
    zeros: Zeros,
) -> tuple[dict[str, Weight], list[LeftOut], Mapping[str, Tensor] | None]:
    """Prunable weights that have values, other parameters, and masks, also those of `torch.nn.utils.prune`."""
    weights, left_out = sorted_out(model, include=include, exclude=exclude, also=masks or ())
    check_whole(tensors_of(weights), "how_compressible")
    if masks is not None:
        check_match(Masks(masks), {n: w.shape for n, w in weights.items()}, "the masks")
    if empty := [n for n, w in weights.items() if w.tensor.is_meta]:
        raise ValueError(f"{empty[0]!r} is on the meta device, without values; load its weights, then measure it")
    masks = _with_torch_masks(model, weights, masks)
    if masks is None and zeros == "pruned" and (found := masks_of_zeros(weights)):
        masks = Masks({**Masks.ones_like(weights), **found})
    return weights, left_out, masks


def _of_model(
    model: nn.Module,
    weights: Mapping[str, Weight],
    left_out: Sequence[LeftOut],
    masks: Mapping[str, Tensor] | None,
    budget: Sap,
) -> Compressibility:
    stored, title = stored_weights(weights, masks), type(model).__name__
    try:
        return measure(stored, budget=budget, left_out=left_out, title=title)
    except NotFinite as error:
        raise NotFinite(f"the model has {error}") from error


def _with_torch_masks(
    model: nn.Module, weights: Mapping[str, Weight], masks: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor] | None:
    """The masks joined with those of `torch.nn.utils.prune`; None where there are none."""
    own, buffers = dict(uncompiled(model).named_parameters()), dict(uncompiled(model).named_buffers())
    found = {n: buffers[f"{n}_mask"].bool() for n in weights if f"{n}_mask" in buffers and n not in own}
    if not found:
        return masks
    both = Masks({n: found.get(n, m) for n, m in Masks.ones_like(weights).items()})
    return both if masks is None else both & masks
