"""Copy a model without some of its neurons and channels. See `compact`."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from palmette.compression.compaction.sizes import mark_compacted_, sizes_by_weight
from palmette.pruning.channels.graph import ModelTensor, Removal


def rebuild(model: nn.Module, plan: Removal, gone: Tensor, keep_sizes: Tensor) -> nn.Module:
    """Copy `model` without the atoms in `gone`, and add their known numbers to the biases of the layers they feed.

    Attributes such as `out_features` get the new sizes, except in modules with atoms in `keep_sizes`: some code
    uses the size of one layer to compute with another.
    """
    small = copy.deepcopy(model)
    added: dict[int, Tensor] = {}
    for layer in plan.walk.mixing:
        x = layer.inputs
        taken = gone[x.atoms] & x.known & (x.value != 0)
        if layer.folds and bool((taken & layer.linked[~gone[layer.outputs]].any(0)).any()):
            weight = layer.weight.tensor.double().cpu().movedim(layer.in_axis, 1)[:, taken]
            amount = weight.unsqueeze(2).flatten(2).sum(2) @ x.value[taken]
            if layer.bias is not None:
                added[id(layer.bias)] = amount
            else:
                owner = layer.weight.owner(small)
                stays = amount[~gone[layer.outputs]].to(layer.weight.tensor)
                owner.bias = nn.Parameter(stays, requires_grad=bool(owner.weight.requires_grad))
    for stored in plan.walk.tensors:
        if any(bool(gone[atoms].any()) for atoms in stored.axes.values()) or id(stored) in added:
            _replace(small, stored, gone, added.get(id(stored)))
    for grouped, firsts in plan.walk.groups:
        grouped.owner(small).groups = int((~gone[firsts]).sum())
    same = {n for s in plan.walk.tensors for n in s.names if any(keep_sizes[a].any() for a in s.axes.values())}
    for name, module in small.named_modules():
        if f"{name}.weight".lstrip(".") not in same:
            for attribute, size in sizes_by_weight(module).items():
                setattr(module, attribute, size)
    if gone.any():
        mark_compacted_(small)
    return small


def _replace(small: nn.Module, stored: ModelTensor, gone: Tensor, amount: Tensor | None) -> None:
    """Put a smaller tensor in place of a parameter or buffer, under all its names."""
    tensor = stored.tensor if amount is None else (stored.tensor.double() + amount.to(stored.tensor.device))
    for axis, atoms in stored.axes.items():
        tensor = tensor.index_select(axis, (~gone[atoms]).nonzero().flatten().to(tensor.device))
    tensor = tensor.to(stored.tensor.dtype).contiguous()
    new: Tensor | None = None
    for name, module in small.named_modules(remove_duplicate=False):
        for own, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for attribute in own:
                if f"{name}.{attribute}".lstrip(".") in stored.names:
                    old = own[attribute]
                    if new is None:
                        grad = old is not None and old.requires_grad
                        new = nn.Parameter(tensor, requires_grad=grad) if is_parameter else tensor
                    own[attribute] = new
