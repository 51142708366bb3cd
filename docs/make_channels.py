"""Halve the FLOPs of three models by whole channels; write the table `channels` of `docs/smaller.md`.

    python docs/make_channels.py RESNETS CIFAR10

RESNETS has resnet20-12fca82f.th (Idelbayev, pytorch_resnet_cifar10), CIFAR10 the official test_batch.bin.
ResNet-56 and YOLOv8n have random weights. Needs ultralytics, onnx, onnxscript and onnxruntime.
"""

from __future__ import annotations

import copy
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from marks import renewed
from resnets import RESNETS, test_set
from torch import Tensor, nn

import palmette as pm
from palmette.pruning.channels.tracing import outputs
from palmette.training.models import build

PAGE = Path(__file__).with_name("smaller.md")
ROUNDS = 15
HEAD = """| model | channels | parameters | FLOPs | PyTorch | ONNX Runtime | accuracy | difference |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def halved(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, nn.Module, Any, str]:
    """Cut the fewest channels that leave at most half of the FLOPs: masked, compacted, report, how many."""
    groups = pm.Pruner(copy.deepcopy(model), scope="channel", inputs=inputs).channels
    assert groups is not None

    def after(cut: int) -> tuple[nn.Module, nn.Module, Any, str]:
        masked = copy.deepcopy(model)
        pm.Pruner(masked, scope="channel", inputs=inputs).step(budget=pm.FixedRatio(cut / groups.count))
        return masked, *pm.compact(masked, inputs), f"{groups.count:,} → {groups.count - cut:,}"

    too_few, enough, found = 0, groups.count, None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = after(middle)
        if tried[2].flops[1] * 2 <= tried[2].flops[0]:
            enough, found = middle, tried
        else:
            too_few = middle
    assert found is not None
    return found


def in_turns(runs: list[Callable[[], object]]) -> list[float]:
    """Median milliseconds of each, taking turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for number in range(ROUNDS + 1):
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            run()
            times += [time.perf_counter() - start] if number else []  # the first is a warm-up
    return [1e3 * statistics.median(times) for times in taken]


def by_onnx_runtime(model: nn.Module, inputs: Tensor, path: Path) -> Callable[[], list[Any]]:
    """The model in ONNX Runtime."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (inputs,), path, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: inputs.numpy()}
    return lambda: session.run(None, given)


def difference(wanted: list[Tensor], found: list[Tensor]) -> float:
    """Largest difference, relative to the largest output."""
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(wanted, found, strict=True))


@torch.no_grad()
def row(name: str, model: nn.Module, inputs: Tensor, test: tuple[Tensor, Tensor] | None = None) -> str:
    """A row of the table."""
    masked, small, report, channels = halved(model, inputs)
    pair = masked, small
    eager = in_turns([lambda m=m: outputs(m, inputs) for m in pair])  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        exported = [by_onnx_runtime(m, inputs, Path(folder) / f"{i}.onnx") for i, m in enumerate(pair)]
        wanted, in_onnx = outputs(masked, inputs), [torch.from_numpy(a) for a in exported[1]()]
        fast = in_turns(exported)
    worst = max(difference(wanted, outputs(small, inputs)), difference(wanted[:1], in_onnx[:1]))
    scores = [accuracy(m, *test) for m in (model, masked, small)] if test else []
    assert scores[1:2] == scores[2:]
    cells = [name, channels, " → ".join(f"{n / 1e6:.3g} M" for n in report.parameters)]
    cells.append(" → ".join(f"{n / 1e9:.3g} G" for n in report.flops))
    cells += [" → ".join(f"{t:.3g} ms" for t in times) for times in (eager, fast)]
    cells += [" → ".join(f"{s:.2%}" for s in scores[:2]), f"{worst:.0e}"]
    print(cells, report.notes, flush=True)
    return f"| {' | '.join(cells)} |"


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of the test images that are classified correctly."""
    right = [model(x).argmax(1) == y for x, y in zip(images.split(500), labels.split(500), strict=True)]
    return float(torch.cat(right).float().mean())


def settled(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with batch norms that are not all alike."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
    return model.eval()


if __name__ == "__main__":
    from ultralytics.nn.tasks import DetectionModel

    torch.manual_seed(0)
    test = test_set(Path(sys.argv[2]))
    trained = build("resnet20", shape=(3, 32, 32), classes=10).eval()
    state = torch.load(Path(sys.argv[1]) / RESNETS["ResNet-20"][0], map_location="cpu")["state_dict"]
    trained.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    rows = [row("ResNet-20, CIFAR10, batch 32", trained, test[0][:32], test)]
    resnet56 = settled(build("resnet56", shape=(3, 32, 32), classes=10))
    rows.append(row("ResNet-56, batch 32", resnet56, test[0][:32]))
    detector = settled(DetectionModel("yolov8n.yaml", ch=3, nc=80, verbose=False))
    rows.append(row("YOLOv8n, 640 × 640", detector, torch.rand(1, 3, 640, 640)))
    threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    where = f"{platform.machine()}, {threads}, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    table = "\n".join([HEAD, *rows, "", f"Median of {ROUNDS} passes in turns on a CPU ({where})."]) + "\n"
    page = renewed(PAGE.read_text(encoding="utf-8"), "channels", table, "make_channels.py")
    PAGE.write_text(page, encoding="utf-8")
