"""Models that `torch.nn.utils.prune` has pruned: their weights made plain again, their masks kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from palmette.pruning.masks import Masks
from palmette.pruning.weights import uncompiled


@torch.no_grad()
def from_torch_prune(model: nn.Module) -> Masks:
    """Undo the form that `torch.nn.utils.prune` gives a model, in place, and return the masks it had.

    That form keeps an unpruned `weight_orig` and a `weight_mask`, and multiplies them in every forward pass. After
    this there is one parameter `weight`, with zeros: the same object as `weight_orig`, so that optimizers made
    before or after go on with it, and `state_dict` has the names of the unpruned model. The masks have the
    names of what was pruned, biases too, and are empty where nothing was. `Pruner(model)` does all this by itself.

    >>> layer = prune.l1_unstructured(nn.Linear(4, 2), "weight", amount=0.5)
    >>> list(layer.state_dict())
    ['bias', 'weight_orig', 'weight_mask']
    >>> from_torch_prune(layer)
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
            # It multiplies by the mask, which leaves -0.0, and NaN where there was one.
            getattr(module, name).masked_fill_(~kept, 0)
            masks[f"{path}.{name}".lstrip(".")] = kept
    return Masks(masks)
