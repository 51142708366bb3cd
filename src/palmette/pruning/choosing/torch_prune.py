"""Convert models that `torch.nn.utils.prune` has pruned to plain weights and masks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from palmette.pruning.masks import Masks
from palmette.pruning.weights import uncompiled


@torch.no_grad()
def from_torch_prune(model: nn.Module) -> Masks:
    """Undo the reparametrization of `torch.nn.utils.prune`, in place, and return its masks.

    `torch.nn.utils.prune` keeps an unpruned `weight_orig` and a `weight_mask`, and multiplies them in every
    forward pass. Afterwards there is one parameter `weight`, with zeros: the same object as `weight_orig`, so that
    existing optimizers keep working, and `state_dict` has the names of the unpruned model. The masks,
    by name and including those of biases, are empty if nothing was pruned. `Pruner(model)` calls this function.

    >>> import palmette as pm
    >>> from torch.nn.utils import prune
    >>> layer = prune.l1_unstructured(nn.Linear(4, 2), "weight", amount=0.5)
    >>> list(layer.state_dict())
    ['bias', 'weight_orig', 'weight_mask']
    >>> pm.from_torch_prune(layer)
    Masks(1 weights, 4 of 8 kept, density 0.5000)
    >>> list(layer.state_dict()), int((layer.weight == 0).sum())
    (['bias', 'weight'], 4)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    masks: dict[str, Tensor] = {}
    for path, module in uncompiled(model).named_modules():
        hooks = [h for h in module._forward_pre_hooks.values() if isinstance(h, prune.BasePruningMethod)]
        for name in sorted({hook._tensor_name for hook in hooks}):
            kept = getattr(module, f"{name}_mask").bool()
            prune.remove(module, name)
            # prune.remove multiplies by the mask, which leaves -0.0 and NaN.
            getattr(module, name).masked_fill_(~kept, 0)
            masks[f"{path}.{name}".lstrip(".")] = kept
    return Masks(masks)
