"""Repair a model block by block: each block sees the outputs of those before it, already cut and repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from palmette.pruning.masks import Masks, check_match
from palmette.pruning.methods import Scope
from palmette.pruning.repair.solving import check_by, repaired
from palmette.pruning.saliency import Batch, layers_of, run, watching
from palmette.pruning.sources.sharding import check_whole
from palmette.pruning.weights import evaluating, uncompiled

_Call = Callable[[nn.Module, Tensor], Tensor]
"""One call of a block, with another output of the block before it."""


@torch.no_grad()
def repair_(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    batches: Iterable[Batch],
    *,
    by: str = "least-squares",
    allowed: Mapping[str, Tensor] | None = None,
    scope: Scope = "neuron",
) -> tuple[Masks, list[str]]:
    """Apply `masks` to a dense `model`, and repair the Linear and Conv1D layers of its blocks with `repaired`.

    Blocks are the modules of the largest `nn.ModuleList`, each called with the output of the previous one. Memory
    holds the model, the inputs of one block, and the second moments of the layers of one block.

    Args:
        model: changed in place.
        masks: result of `palmette.prune` for the weights of the model.
        batches: inputs of the model: tensors, or keyword arguments.
        by, allowed, scope: as for `repaired`; `allowed` by name.

    Returns:
        The masks, which differ from `masks` if the repair chooses weights, and the names of weights that were cut
        but not repaired: outside the blocks, in other layers, or without inputs.

    >>> class Network(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.blocks = nn.ModuleList([nn.Linear(2, 2, bias=False)])
    ...     def forward(self, x):
    ...         return self.blocks[0](x)
    >>> model = Network()
    >>> _ = model.blocks[0].weight.data.fill_(1.0)
    >>> masks = {"blocks.0.weight": torch.tensor([[True, False], [True, True]])}
    >>> masks, left = repair_(model, masks, [torch.ones(8, 2)])
    >>> model.blocks[0].weight.data
    tensor([[1.9091, 0.0000],
            [1.0000, 1.0000]])
    """
    check_by(by, scope)
    model = uncompiled(model)
    weights = {n: p for n, p in model.named_parameters(remove_duplicate=False) if n in masks}
    check_match(masks, {n: w.shape for n, w in weights.items()}, "the masks")
    check_whole(weights, "repair_")
    found = {n: mask.to(weights[n].device) for n, mask in masks.items()}
    path, blocks = _blocks(model, found)
    for name, weight in weights.items():  # what comes before the blocks changes their inputs
        if not name.startswith(f"{path}."):
            weight.masked_fill_(~found[name], 0)
    axes = {n: (layer, axis) for n, layer, axis in layers_of(model) if n in found and weights[n].dim() == 2}
    done: list[str] = []
    with evaluating(model), _without_cache(model):
        inputs, calls = _heard(model, blocks, batches)
        for i, block in enumerate(blocks):
            names = [n for n in found if n.startswith(f"{path}.{i}.")]
            grams: dict[str, Tensor] = {}
            with watching({n: axes[n][0] for n in names if n in axes}, partial(_add, grams)):
                for call, given in zip(calls[i], inputs, strict=True):
                    call(block, given)
            for name in names:
                if (gram := grams.pop(name, None)) is not None:
                    turned = Tensor.contiguous if axes[name][1] else Tensor.t
                    among = None if allowed is None else turned(allowed[name].to(gram.device))
                    values, kept = repaired(
                        turned(weights[name]),
                        turned(found[name]),
                        gram,
                        by=by,
                        allowed=among,
                        scope=scope,
                    )
                    weights[name].copy_(turned(values))
                    found[name] = turned(kept).contiguous()
                    done.append(name)
                else:
                    weights[name].masked_fill_(~found[name], 0)
            inputs = [call(block, given) for call, given in zip(calls[i], inputs, strict=True)]
    return Masks(found), [n for n in found if n not in done]


def _blocks(model: nn.Module, masks: Mapping[str, Tensor]) -> tuple[str, nn.ModuleList]:
    """The `nn.ModuleList` with most of the weights to cut, and its name."""
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}

    def entries(name: str) -> int:
        return sum(mask.numel() for n, mask in masks.items() if n.startswith(f"{name}."))

    if not lists:
        raise ValueError(_no_chain(model))
    name = max(lists, key=entries)
    return name, lists[name]


def _no_chain(model: nn.Module) -> str:
    return (
        "repair works block by block, so it needs a model with an nn.ModuleList of blocks that each take the "
        f"output of the previous one as first argument, as in GPT-2 and Llama; {type(model).__name__} has none"
    )


def _heard(
    model: nn.Module, blocks: nn.ModuleList, batches: Iterable[Batch]
) -> tuple[list[Tensor], list[list[_Call]]]:
    """Inputs of the first block, and the calls of each block, batch by batch.

    Masks and positions are held as the model passed them, once for all blocks.
    """
    inputs: list[Tensor] = []
    calls: list[list[_Call]] = [[] for _ in blocks]
    passed: list[Tensor] = []  # outputs of blocks in this batch

    def before(i: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if i != len(passed) or not args or (passed and not torch.equal(args[0], passed[-1])):
            return  # told below
        if i == 0:
            inputs.append(args[0])
        calls[i].append(lambda block, given: _hidden(block(given, *args[1:], **kwargs)))

    def after(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        passed.append(_hidden(output))

    with ExitStack() as hooks:
        for i, block in enumerate(blocks):
            hooks.enter_context(block.register_forward_pre_hook(partial(before, i), with_kwargs=True))
            hooks.enter_context(block.register_forward_hook(after))
        for number, batch in enumerate(batches, start=1):
            passed.clear()
            run(model, batch)
            if len(passed) != len(blocks) or any(len(made) != number for made in calls):
                raise ValueError(_no_chain(model))
    if not inputs:
        raise ValueError("repair_ needs at least one batch of inputs, got none")
    return inputs, calls


def _hidden(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _add(grams: dict[str, Tensor], name: str, inputs: Tensor) -> None:
    # Products in float32, sums over batches in float64: the damping is far above what rounding adds.
    x = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    gram = (x.T @ x).double()
    grams[name] = grams[name] + gram if name in grams else gram


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """No cache of keys and values, which would grow each time a block is called again."""
    of_modules: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in of_modules if hasattr(config, "use_cache")}
    before = [(config, config.use_cache) for config in configs.values()]
    try:
        for config, _ in before:
            config.use_cache = False
        yield
    finally:
        for config, use_cache in before:
            config.use_cache = use_cache
