"""A copy of a model without the neurons and channels that are to go. See `compact`."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from palmette.compression.compaction.graph import Plan, Stored
from palmette.pruning.weights import is_transformers_conv1d


def cut(model: nn.Module, plan: Plan, gone: Tensor, untold: Tensor) -> nn.Module:
    """A copy of `model` without the atoms in `gone`, their numbers added to the biases of what reads them.

    Modules say their new sizes (`out_features`), but not those with atoms in `untold`: there is code that computes
    with the size of one layer what it needs for another.
    """
    small = copy.deepcopy(model)
    added: dict[int, Tensor] = {}
    for read in plan.walk.reads:
        x = read.inputs
        taken = gone[x.atoms] & x.known & (x.value != 0)
        if read.folds and bool((taken & read.linked[~gone[read.weight.axes[read.out_axis]]].any(0)).any()):
            weight = read.weight.tensor.double().cpu().movedim(read.in_axis, 1)[:, taken]
            amount = weight.unsqueeze(2).flatten(2).sum(2) @ x.value[taken]
            if read.bias is not None:
                added[id(read.bias)] = amount
            else:
                owner = read.weight.owner(small)
                stays = amount[~gone[read.weight.axes[read.out_axis]]]
                like = read.weight.tensor
                owner.bias = nn.Parameter(stays.to(like), requires_grad=bool(owner.weight.requires_grad))
    for stored in plan.walk.stored:
        if any(bool(gone[atoms].any()) for atoms in stored.axes.values()) or id(stored) in added:
            _replace(small, stored, gone, added.get(id(stored)))
    for grouped, firsts in plan.walk.groups:
        grouped.owner(small).groups = int((~gone[firsts]).sum())
    silent = {n for s in plan.walk.stored for n in s.names if any(untold[a].any() for a in s.axes.values())}
    for name, module in small.named_modules():
        if f"{name}.weight".lstrip(".") not in silent:
            _resize(module)
    return small


def _replace(small: nn.Module, stored: Stored, gone: Tensor, amount: Tensor | None) -> None:
    """A smaller tensor in the place of each name of a parameter or buffer."""
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


def _resize(module: Any) -> None:
    """What a module says of its size, as its weights have it."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.conv._ConvNd):
        module.out_channels, module.in_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        module.num_features = len(weight)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(weight)
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = weight.shape[1]
    elif is_transformers_conv1d(module):
        module.nx, module.nf = weight.shape
