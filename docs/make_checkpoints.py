"""Measure and cut real checkpoints, and write the tables of `docs/checkpoints.md`.

    python docs/make_checkpoints.py RESNETS CIFAR10 [NAME=CHECKPOINT ...]

RESNETS is a folder with resnet20-12fca82f.th, resnet32-d509ac18.th and resnet44-014dd654.th (Idelbayev,
pytorch_resnet_cifar10), CIFAR10 one with the official test_batch.bin. Further checkpoints are measured along.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from marks import renewed
from safetensors.torch import load_file
from torch import Tensor, nn

import palmette as pm
from palmette.checkpoints.prune import prune_checkpoint
from palmette.pruning.methods import SCOPES
from palmette.training.models.cifar_resnet import CifarResNet

PAGE = Path(__file__).with_name("checkpoints.md")
RESNETS = {"ResNet-20": ("resnet20-12fca82f.th", 3), "ResNet-32": ("resnet32-d509ac18.th", 5)}
RESNETS["ResNet-44"] = ("resnet44-014dd654.th", 7)
PAIRS = ((0.5, 1.0), (1.0, 2.0))
VERDICTS = {"flatter than": "below noise", "about that of": "as noise", "more unequal than": "above noise"}
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, with which they were trained


def test_set(folder: Path) -> tuple[Tensor, Tensor]:
    """The 10,000 test images, normalised, and their labels."""
    raw = np.fromfile(folder / "test_batch.bin", np.uint8).reshape(10_000, 1 + 3072)
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, sd = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, SD))
    return (images - mean) / sd, torch.from_numpy(raw[:, 0].astype(np.int64))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500), strict=True)
    )
    return right / len(labels)


def cut_table(resnets: Path, cifar: Path) -> str:
    """Accuracy after one cut by SAP, without data and without retraining."""
    images, labels = test_set(cifar)
    lines = [f"| network | dense | p, q | {' | '.join(SCOPES)} |", f"|---|---:|---|{'---:|' * len(SCOPES)}"]
    for name, (file, blocks) in RESNETS.items():
        model = CifarResNet(3, 10, blocks=blocks)
        state = torch.load(resnets / file, map_location="cpu", weights_only=True)["state_dict"]
        model.load_state_dict({n.removeprefix("module."): w for n, w in state.items()})
        dense = accuracy(model, images, labels)
        for p, q in PAIRS:
            cells = [name, f"{dense:.2%}", f"{p:g}, {q:g}"]
            for scope in SCOPES:
                with tempfile.TemporaryDirectory() as folder:
                    out = Path(folder) / "cut.safetensors"
                    cut = prune_checkpoint(resnets / file, out, scope=scope, budget=pm.Sap(p=p, q=q))
                    model.load_state_dict(load_file(out))
                cells.append(f"{accuracy(model, images, labels):.2%} at {cut.whole.density_after:.1%}")
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def measure_table(checkpoints: dict[str, Path]) -> str:
    """What `palmette measure` says of each."""
    heads = "| checkpoint | weights | PQ Index | Gini | Hoyer | neuron | layer | global | verdict | s |"
    lines = [heads, "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|"]
    for name, path in checkpoints.items():
        seconds = math.inf
        for _ in range(3):
            start = time.perf_counter()
            report = pm.how_compressible(path)
            seconds = min(seconds, time.perf_counter() - start)
        whole = report.whole
        indices = [f"{x:.3f}" for x in (whole.pq_index, whole.gini_index, whole.hoyer)]
        cuts = [f"{whole.share_cut(scope):.1%}" for scope in SCOPES]
        words = next(short for said, short in VERDICTS.items() if said in report.verdict[1])
        words += ", quantised" if whole.coding else ""
        cells = [name, f"{whole.d:,}", *indices, *cuts, words, f"{seconds:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    resnets, cifar = map(Path, sys.argv[1:3])
    files = {name: resnets / file for name, (file, _) in RESNETS.items()}
    files |= {name: Path(path) for name, path in (given.split("=", 1) for given in sys.argv[3:])}
    page = PAGE.read_text(encoding="utf-8")
    page = renewed(page, "verdicts", measure_table(files), "make_checkpoints.py")
    page = renewed(page, "cuts", cut_table(resnets, cifar), "make_checkpoints.py")
    PAGE.write_text(page, encoding="utf-8")
