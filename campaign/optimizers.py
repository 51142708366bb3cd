"""Every optimizer of torch in every way of training: no pruned weight may come back."""

from __future__ import annotations

import copy
import io
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import palmette as pm
from campaign.child import forked
from campaign.ledger import Case, Result, Row

STEPS = 200
X, Y = torch.linspace(-1, 1, 60).reshape(10, 6).sin(), torch.arange(10) % 3
WAYS = ("plain", "AMP", "accumulation", "EMA", "SWA", "compile", "DDP", "FSDP2", "resume")


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """Weights of linear layers, which is all that Muon takes."""
    return [p for p in model.parameters() if p.dim() == 2]


OPTIMIZERS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "SGD": lambda m: optim.SGD(m.parameters(), lr=0.1),
    "SGD momentum decay": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD nesterov": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "SGD maximize": lambda m: optim.SGD(m.parameters(), lr=0.1, maximize=True, weight_decay=0.1),
    "SGD foreach": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD fused": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": lambda m: optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "Adam amsgrad": lambda m: optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "Adam foreach": lambda m: optim.Adam(m.parameters(), lr=0.01, foreach=True),
    "Adam fused": lambda m: optim.Adam(m.parameters(), lr=0.01, amsgrad=True, fused=True),
    "AdamW": lambda m: optim.AdamW(m.parameters(), lr=0.01),
    "AdamW foreach": lambda m: optim.AdamW(m.parameters(), lr=0.01, amsgrad=True, foreach=True),
    "AdamW fused": lambda m: optim.AdamW(m.parameters(), lr=0.01, fused=True),
    "Adamax": lambda m: optim.Adamax(m.parameters(), lr=0.01),
    "Adamax foreach": lambda m: optim.Adamax(m.parameters(), lr=0.01, foreach=True),
    "NAdam": lambda m: optim.NAdam(m.parameters(), lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "NAdam foreach": lambda m: optim.NAdam(m.parameters(), lr=0.01, foreach=True),
    "RAdam": lambda m: optim.RAdam(m.parameters(), lr=0.01),
    "RAdam foreach": lambda m: optim.RAdam(m.parameters(), lr=0.01, foreach=True),
    "RMSprop": lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.9, centered=True),
    "RMSprop foreach": lambda m: optim.RMSprop(m.parameters(), lr=0.01, foreach=True),
    "RMSprop without eps": lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.9, eps=0),
    "Adam without eps": lambda m: optim.Adam(m.parameters(), lr=0.01, eps=0),
    "Adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.01, weight_decay=0.1),
    "Adagrad foreach": lambda m: optim.Adagrad(m.parameters(), lr=0.01, foreach=True),
    "Adagrad fused": lambda m: optim.Adagrad(m.parameters(), lr=0.01, fused=True),
    "Adadelta": lambda m: optim.Adadelta(m.parameters(), weight_decay=0.1),
    "Adadelta foreach": lambda m: optim.Adadelta(m.parameters(), foreach=True),
    "ASGD": lambda m: optim.ASGD(m.parameters(), lr=0.1, t0=2),
    "ASGD foreach": lambda m: optim.ASGD(m.parameters(), lr=0.1, t0=2, foreach=True),
    "Rprop": lambda m: optim.Rprop(m.parameters(), lr=0.01),
    "Rprop foreach": lambda m: optim.Rprop(m.parameters(), lr=0.01, foreach=True),
    "Adafactor": lambda m: optim.Adafactor(m.parameters(), lr=0.1, weight_decay=0.1),
    "Adafactor foreach": lambda m: optim.Adafactor(m.parameters(), lr=0.1, foreach=True),
    "LBFGS": lambda m: optim.LBFGS(m.parameters(), lr=0.1, max_iter=4),
    "LBFGS strong Wolfe": lambda m: optim.LBFGS(m.parameters(), max_iter=4, line_search_fn="strong_wolfe"),
    "Muon": lambda m: optim.Muon(matrices(m), lr=0.02, momentum=0.9),
}
"""A way to make every optimizer of torch that takes dense gradients, with what it may be told."""


def network(name: str) -> nn.Sequential:
    """Tiny network for an optimizer."""
    torch.manual_seed(0)
    if name == "SparseAdam":
        return nn.Sequential(nn.EmbeddingBag(40, 3, mode="sum", sparse=True))
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _optimizer(name: str, model: nn.Module) -> optim.Optimizer:
    if name == "SparseAdam":
        return optim.SparseAdam(model.parameters(), lr=0.01)
    return OPTIMIZERS[name](model)


class _Training:
    """One training; without palmette if not `pruned`."""

    def __init__(self, name: str, way: str, *, pruned: bool) -> None:
        self.name, self.way = name, way
        model: nn.Module = network(name)
        self.x = torch.arange(60).reshape(10, 6) % 40 if name == "SparseAdam" else X
        if way == "FSDP2":
            for layer in model.children():
                if list(layer.parameters()):
                    fully_shard(layer)
            fully_shard(model)
        self.model: nn.Module = model
        if way == "DDP":
            self.model = DistributedDataParallel(model)
        elif way == "compile":
            model.compile()
        self.optimizer = _optimizer(name, self.model)
        self.pruner = self._pruner() if pruned else None
        self.scaler = torch.amp.GradScaler("cpu") if way == "AMP" else None
        self.averaged = None
        if way == "EMA":
            self.averaged = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        elif way == "SWA":
            self.averaged = AveragedModel(self.model)
            self.schedule = SWALR(self.optimizer, swa_lr=0.005, anneal_epochs=20)

    def _pruner(self) -> pm.Pruner:
        pruner = pm.Pruner(self.model, budget=pm.FixedRatio(0.5), scope="layer", include=["*weight"])
        pruner.hold(self.optimizer)
        return pruner

    def loss(self, rows: slice) -> Tensor:
        """Loss of a part of the data; another part on another process."""
        with torch.autocast("cpu", torch.bfloat16) if self.way == "AMP" else nullcontext():
            found: Tensor = nn.functional.cross_entropy(self.model(self.x[rows]), Y[rows])
        return found

    def step(self) -> None:
        """Take one step of the optimizer."""
        start = 5 * dist.get_rank() if self.way in ("DDP", "FSDP2") else 0
        parts = (
            [slice(0, 3), slice(3, 6), slice(6, 10)] if self.way == "accumulation" else [slice(start, start + 5)]
        )

        def closure() -> float:
            self.optimizer.zero_grad()
            total = 0.0
            for rows in parts:
                loss = self.loss(rows) / len(parts)
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                total += float(loss)
            return total

        if self.scaler is not None and self.name.startswith("LBFGS"):
            self.scaler.step(self.optimizer, closure)
        elif self.name.startswith("LBFGS"):
            self.optimizer.step(closure)
        else:
            closure()
            self.optimizer.step() if self.scaler is None else self.scaler.step(self.optimizer)
        if self.scaler is not None:
            self.scaler.update()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)
            if self.way == "SWA":
                self.schedule.step()

    def resume(self) -> None:
        """Save everything, and go on with new objects that load it."""
        things: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        if self.pruner is not None:
            things["pruner"] = self.pruner
        file = io.BytesIO()
        torch.save({key: thing.state_dict() for key, thing in things.items()}, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        with torch.no_grad():
            for value in self.model.parameters():
                value.fill_(1.0)  # what stays must come from the file
        self.model = network(self.name)
        self.optimizer = _optimizer(self.name, self.model)
        self.model.load_state_dict(state["model"])
        if self.pruner is not None:
            self.pruner = self._pruner()
            self.pruner.load_state_dict(state["pruner"])
        self.optimizer.load_state_dict(state["optimizer"])

    def revived(self, model: nn.Module) -> int:
        """Pruned weights that are not zero, on this process."""
        if self.pruner is None:
            return 0
        values = {n.removeprefix("module."): p for n, p in model.named_parameters()}
        return sum(int((_local(values[n]) != 0)[~_local(kept)].sum()) for n, kept in self.pruner.masks.items())

    def run(self, steps: int) -> str:
        """Train, cut at the start and in the middle; return what went wrong."""
        start = copy.deepcopy([_local(p) for p in self.model.parameters()])
        for number in range(steps):
            if number in (0, steps // 2) and self.pruner is not None:
                self.pruner.step()
            if number == steps // 3 and self.way == "resume":
                self.resume()
            self.step()
            if count := self.revived(self.model):
                return f"{count} revived after step {number}"
            if self.averaged is not None and self.pruner is not None:
                self.pruner.masks.apply_(dict(self.averaged.module.named_parameters()))
                if count := self.revived(self.averaged.module):
                    return f"{count} revived in the average after step {number}"
        if all(torch.equal(a, _local(b)) for a, b in zip(start, self.model.parameters(), strict=True)):
            return "nothing was trained"
        return ""


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _train(name: str, way: str, folder: Path, pruned: bool, steps: int) -> str:
    if way in ("DDP", "FSDP2"):
        return _on_two_processes(name, way, folder, pruned, steps)
    return _Training(name, way, pruned=pruned).run(steps)


def _on_two_processes(name: str, way: str, folder: Path, pruned: bool, steps: int) -> str:
    other = os.fork()
    try:
        meeting = f"file://{folder}/meeting-{pruned}"
        dist.init_process_group(
            "gloo", init_method=meeting, rank=int(other == 0), world_size=2, timeout=timedelta(seconds=30)
        )
        found = _Training(name, way, pruned=pruned).run(steps)
        everywhere: list[Any] = [None, None]
        dist.all_gather_object(everywhere, found)
    finally:
        if other == 0:
            os._exit(0)
    os.waitpid(other, 0)
    return str(everywhere[0] or everywhere[1])


def _case(name: str, way: str, folder: Path) -> Result:
    ended = forked(partial(_train, name, way, folder, True, STEPS), seconds=300)
    if ended.how == "done":
        return Result(1, (ended.value,) if ended.value else ())
    without = forked(partial(_train, name, way, folder, False, 3), seconds=300)
    if without.how == ended.how != "done" and without.why.split(":")[0] == ended.why.split(":")[0]:
        return Result(0, refused=1)
    return Result(1, (f"{ended}; without palmette: {without}",))


def _cases(seed: int) -> Iterator[Case]:
    for way, name in itertools.product(WAYS, (*OPTIMIZERS, "SparseAdam")):
        yield Case(f"{name}, {way}", partial(_case, name, way))


ROWS = (
    Row(
        "optimizers",
        f"every optimizer of torch × plain, AMP, accumulation, EMA, SWA, compile, DDP, FSDP2 and resuming, "
        f"{STEPS} steps each; after every step, all pruned weights are zero",
        300,
        _cases,
    ),
)
