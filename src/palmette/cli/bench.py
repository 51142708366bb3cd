"""`palmette bench`: the fastest way to run a pruned model on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from palmette.cli.display.printing import JSON, console_of_stdout, print_text
from palmette.cli.options import PATH, device_named, scope_option, see_own_modules
from palmette.cli.prune import budget_to, down_to
from palmette.pruning.budgets import Budget
from palmette.words import counted

if TYPE_CHECKING:
    from torch import nn


@click.command()
@click.argument("model")
@click.option("--weights", type=PATH, help="Checkpoint to load; its zeros count as pruned.")
@click.option(
    "--density",
    type=float,
    help="Prune to this density first, by magnitude.  [default: 0.1, n/m, or the density of --weights]",
)
@scope_option("layer")
@click.option("--shape", default="3,32,32", show_default=True, help="Channels, height and width of an image.")
@click.option("--classes", default=10, show_default=True, help="Number of classes.")
@click.option("--batch", default=32, show_default=True, help="Images per pass.")
@click.option("--device", metavar="TEXT", help="cpu, cuda, cuda:1, … [default: cuda if there is one, else cpu]")
@JSON
def bench(
    model: str,
    weights: Path | None,
    density: float | None,
    scope: str,
    shape: str,
    classes: int,
    batch: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Find the fastest way to run a pruned MODEL on this machine.

    Times the model dense, without its dead neurons, with CSR weights and with 2:4 weights. MODEL is a model of
    `palmette run`, or your own as module:function. The answer is often "dense": scattered zeros alone save no
    time.
    """
    import torch

    from palmette.compression.speed import speed
    from palmette.pruning.weights import prunable
    from palmette.training.models import build

    where = device_named(device)
    if batch < 1:
        raise ValueError(f"--batch must be at least 1, got {batch}")
    see_own_modules(model)
    network = build(model, shape=_shape(shape), classes=classes)
    if weights is not None:
        _fill(network, weights)
    if density != 1 and (density is not None or weights is None):
        _prune(network, budget_to(density, scope, down_to(0.1)), scope)
    tensors = [w.tensor for w in prunable(network).values()]
    left = sum(int(t.count_nonzero()) for t in tensors) / sum(t.numel() for t in tensors)
    found = speed(network.to(where), torch.randn(batch, *_shape(shape), device=where))
    if as_json:
        ways = [asdict(way) for way in found.ways]
        data = {"model": model, "density": left, "batch": batch, "fastest": found.fastest, "where": found.where}
        click.echo(json.dumps(data | {"ways": ways}, indent=1))
    else:
        dense = f"{left:.1%} of its weights not zero"
        print_text(console_of_stdout(), f"{model}, {dense}, {counted(batch, 'image')} of {shape}\n\n{found}")


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.split(",")
    if len(sizes) != 3 or not all(size.strip().isdecimal() for size in sizes):
        raise ValueError(f"--shape must be channels,height,width, such as 3,32,32, got {text!r}")
    channels, height, width = (int(size) for size in sizes)
    return channels, height, width


def _fill(network: nn.Module, path: Path) -> None:
    import torch

    from palmette.checkpoints.open import open_checkpoint
    from palmette.pruning.masks import check_match

    checkpoint = open_checkpoint(path)
    stored = {t.name: t for t in (*checkpoint.weights, *checkpoint.others)}
    state = {
        name: torch.cat([p.reshape(-1) for p in t.raw_parts()]).reshape(t.shape) for name, t in stored.items()
    }
    own = {n: t for n, t in network.state_dict().items() if n in state or not n.endswith("num_batches_tracked")}
    check_match(state, {n: t.shape for n, t in own.items()}, f"the weights in {str(path)!r}")
    network.load_state_dict(state, strict=False)  # old files lack num_batches_tracked


def _prune(network: nn.Module, budget: Budget, scope: str) -> None:
    from palmette.pruning.pruner import Pruner

    Pruner(network, budget=budget, scope=scope).step()
