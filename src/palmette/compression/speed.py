"""`speed`: time a pruned model in each way it can run here: dense, compacted, with CSR or with 2:4 weights."""

from __future__ import annotations

import copy
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from palmette.compression.compaction.compact import close, compact
from palmette.errors import first_line
from palmette.pruning.channels.tracing import copied, exact, outputs
from palmette.pruning.weights import uncompiled

Quartiles: TypeAlias = tuple[float, ...]

_ROUNDS = 15
_SHORTEST = 0.005  # seconds of one timing


@dataclass(frozen=True)
class Way:
    """One way to run a model.

    Args:
        name: "dense", "compacted", "CSR" or "2:4".
        note: what was run, or why the way is not available.
        seconds: seconds per pass: lower quartile, median, upper quartile; None where not available.
        gain: speedup over dense in the same round: lower quartile, median, upper quartile.
    """

    name: str
    note: str
    seconds: Quartiles | None = None
    gain: Quartiles | None = None


@dataclass(frozen=True)
class Speed:
    """Result of `speed`.

    Args:
        ways: "dense", "compacted", "CSR" and "2:4", in this order.
        where: the machine, the number of threads and PyTorch's version.
    """

    ways: tuple[Way, ...]
    where: str

    @property
    def fastest(self) -> str:
        """The fastest way; "dense" unless another was faster in three of four rounds."""
        gains = {way.name: way.gain[1] for way in self.ways[1:] if way.gain is not None and way.gain[0] > 1}
        return max(gains, key=gains.__getitem__, default="dense")

    def __str__(self) -> str:
        measured = [(way, way.seconds, way.gain) for way in self.ways if way.seconds and way.gain]
        times = {
            way.name: "{1:.3f} ms ({0:.3f} to {2:.3f})".format(*(t * 1e3 for t in s)) for way, s, _ in measured
        }
        gains = {way.name: f"{gain[1]:.2f}×" for way, _, gain in measured}
        wide, side = (max(map(len, cells.values())) for cells in (times, gains))
        lines = []
        for way in self.ways:
            cells = f"{times[way.name]:>{wide}}  {gains[way.name]:>{side}}  " if way.seconds else ""
            lines.append(f"{way.name:<9}  {cells}{way.note}")
        doubt = any(gain[1] > 1 for _, _, gain in measured) and self.fastest == "dense"
        why = "; nothing else was faster in three of four rounds" if doubt else ""
        return "\n".join([*lines, f"Fastest here: {self.fastest}{why}.", f"{self.where}."])


def speed(model: nn.Module, inputs: Any) -> Speed:
    """Time a forward pass of `model` in each way that it can run on its device.

    The ways are dense; compacted, without dead neurons and channels (see `compact`); CSR, with sparse matrices
    for the Linear layers that are at least half zeros; and 2:4, on NVIDIA GPUs that support it, for the Linear
    layers with two zeros in every four weights. The ways take turns, in evaluation mode. The fastest is often
    dense: scattered zeros save no time unless a kernel skips them.

    Args:
        model: any module, on any device; it is not changed.
        inputs: inputs on the same device: a tensor, a tuple of arguments, or a dict of keyword arguments.

    >>> import palmette as pm
    >>> model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
    >>> _ = model[0].weight.data[10:].zero_()  # 99 % of the neurons
    >>> pm.speed(model, torch.randn(64, 1000)).fastest
    'compacted'
    """
    small, report = compact(model, inputs)
    before, after = report.flops
    inputs = copied(inputs)  # the model may change them in place
    small, inner = small.eval(), copy.deepcopy(uncompiled(model)).eval()
    device = next((p.device for p in inner.parameters()), torch.device("cpu"))
    with torch.no_grad():
        models: dict[str, tuple[nn.Module | None, str]] = {
            "dense": (inner, "as it is"),
            "compacted": (None, (*report.notes, "no neuron or channel can be removed")[0]),
            "CSR": _with_csr(inner),
            "2:4": _with_two_of_four(inner, device),
        }
        if report.layers:
            models["compacted"] = small, f"{after / before:.1%} of the FLOPs" if before else "smaller"
        with exact():
            wanted = outputs(inner, copied(inputs))
            for name in ("compacted", "CSR", "2:4"):
                variant, _ = models[name]
                if variant is not None and (trouble := _trouble(variant, copied(inputs), wanted)):
                    models[name] = (None, trouble)
        usable = {name: variant for name, (variant, _) in models.items() if variant is not None}
        timed = _timed(usable, inputs, device)
    ways = tuple(Way(name, note, *timed.get(name, ())) for name, (_, note) in models.items())
    return Speed(ways, _where(device))


class _Sparse(nn.Module):
    """A Linear layer that multiplies with its weight from the left, which sparse matrices need."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        out = (self.weight @ x.reshape(-1, x.shape[-1]).t()).t().reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def _with_csr(model: nn.Module) -> tuple[nn.Module | None, str]:
    def made(layer: nn.Linear) -> nn.Module | None:
        weight = layer.weight.detach()
        if weight.count_nonzero() > weight.numel() / 2:
            return None
        return _Sparse(weight.to_sparse_csr(), layer.bias)

    return _replaced(model, made, "half zeros or more")


def _with_two_of_four(model: nn.Module, device: torch.device) -> tuple[nn.Module | None, str]:
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return None, "needs an NVIDIA GPU, Ampere or later"

    def made(layer: nn.Linear) -> nn.Module | None:
        weight = layer.weight.detach()
        if weight.shape[1] % 4 or bool((weight.reshape(-1, 4).count_nonzero(1) > 2).any()):
            return None
        layer.weight = nn.Parameter(torch.sparse.to_sparse_semi_structured(weight), requires_grad=False)
        return layer

    return _replaced(model, made, "two zeros in every four weights")


def _replaced(
    model: nn.Module, made: Callable[[nn.Linear], nn.Module | None], pattern: str
) -> tuple[nn.Module | None, str]:
    """A copy with Linear layers replaced where `made` gives one, and how many were."""
    model = copy.deepcopy(model)
    layers = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sparse tensors are in beta
            found = {name: new for name, layer in layers.items() if (new := made(layer)) is not None}
    except (RuntimeError, ValueError) as error:
        return None, f"PyTorch cannot: {_first(error)}"
    if not found:
        return None, f"no Linear layer has {pattern}"
    for name, new in found.items():
        if not name:
            return new, "1 of 1 Linear layers"
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new)
    return model, f"{len(found)} of {len(layers)} Linear layers"


def _trouble(model: nn.Module, inputs: Any, wanted: Sequence[Tensor]) -> str:
    """Reason why a variant cannot be used; empty if it can."""
    try:
        found = outputs(model, inputs)
    except Exception as error:  # sparse kernels raise errors of many kinds
        return f"PyTorch cannot: {_first(error)}"
    for a, b in zip(wanted, found, strict=True):
        if not close(a, b, 1e-3 if a.dtype in (torch.float32, torch.float64) else 0.05):
            return "its outputs are not those of the model"
    return ""


def _first(error: Exception) -> str:
    return first_line(error).split(". ")[0][:120]


def _timed(
    models: Mapping[str, nn.Module], inputs: Any, device: torch.device
) -> dict[str, tuple[Quartiles, Quartiles]]:
    """Seconds per pass and gain over dense. The models take turns, so that a disturbance affects all of them."""
    counts = {}
    for name, model in models.items():
        _seconds(model, inputs, device, 2)
        counts[name] = max(1, round(_SHORTEST / _seconds(model, inputs, device, 1)))
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(_ROUNDS):
        for name, model in models.items():
            taken[name].append(_seconds(model, inputs, device, counts[name]))
    gains = {name: [d / s for d, s in zip(taken["dense"], taken[name], strict=True)] for name in models}
    return {name: (tuple(quantiles(taken[name], n=4)), tuple(quantiles(gains[name], n=4))) for name in models}


def _seconds(model: nn.Module, inputs: Any, device: torch.device, passes: int) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(passes):
        outputs(model, inputs)
    _wait(device)
    return (time.perf_counter() - start) / passes


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _where(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    threads = torch.get_num_threads()
    machine = f"{name}, {threads} thread{'s' if threads > 1 else ''}" if device.type == "cpu" else name
    return f"Measured on {machine}, {platform.machine()}, torch {torch.__version__.split('+')[0]}"
